"""Raises before it does anything."""


def deep():
    """Where it happens."""
    raise ValueError("the number of teapots is wrong")


deep()
