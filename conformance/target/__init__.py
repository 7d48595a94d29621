"""Makes a spec of a model that has none: a module, a class, a function, an operator, a saved model. With torch."""
