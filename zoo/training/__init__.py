"""Training steps and fits that run in every precision, and their loss curves as contracts."""
