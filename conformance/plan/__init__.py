"""Plans a run: finds the specs that the user names, and makes the cells. With torch."""
