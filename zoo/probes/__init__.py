"""Probes of known faults of torch, one to a file; `conformance probes` runs them. Nothing else imports these."""
