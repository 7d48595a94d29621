"""`conformance bench --against REV`: what models cost now, beside another revision."""
