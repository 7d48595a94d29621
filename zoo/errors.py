"""The errors of the contract: a record that contradicts itself, and a name that nothing has. Without torch."""


class SpecError(ValueError):
    """A record contradicts itself; the message names the record and the field."""


class UnknownNameError(KeyError):
    """There is nothing of this name; the message lists the names that there are, or similar ones."""

    def __str__(self) -> str:
        """Return the message without the quotes that `KeyError` adds."""
        return str(self.args[0])
