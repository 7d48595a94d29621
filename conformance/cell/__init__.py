"""One cell: its session, the callable of its mode, and what is observed."""
