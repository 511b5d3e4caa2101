"""A source pack of Ascend kernels: lowered, never compiled here. `python -m` this package compiles them with CANN."""


def autoload():
    """torch calls this when it is imported; there is nothing to activate before the kernels are compiled."""
