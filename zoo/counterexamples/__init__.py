"""Models that are wrong on purpose; each spec declares the red verdict that the matrix must give."""
