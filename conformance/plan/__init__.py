"""Plans a run: finds the specs that a person names, and makes the cells. With torch."""
