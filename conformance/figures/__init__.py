"""Turns measurements into figures: the meter, ratios, speeds, crossovers, shares of the roofline. Without torch."""
