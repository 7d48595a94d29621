"""Probes of known faults of torch, one per file. `conformance probes` runs them; nothing else imports them."""
