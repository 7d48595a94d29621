"""Child processes, locks, and the folder that a run is stored in."""
