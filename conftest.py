"""Imports the zoo before pytest collects the doctests of its files, which would otherwise be second copies of them."""

import zoo

zoo.list_models()
