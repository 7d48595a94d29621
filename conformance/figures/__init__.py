"""Numbers that follow from measurements: ratios, speeds, crossovers, shares of the roofline."""
