"""The public names while laggard is switched off: they do nothing."""

from contextlib import nullcontext

_NOTHING = nullcontext()


def step():
    """Does nothing."""
    return _NOTHING


def stage(name):
    """Does nothing."""
    return _NOTHING


def side_channel(name):
    """Does nothing."""
    return _NOTHING


def summary():
    """Says nothing.

    :returns: ``None``.
    """
    return
