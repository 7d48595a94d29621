"""Training steps and fits that run in every precision; their specs check the loss curves."""
