"""Models outside the zoo: correct ones that the judge must accept, faults that it must reject, honest variants."""
