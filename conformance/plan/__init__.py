"""Which cells a run has: sources are found, and the matrix of a run is planned."""
