"""What the fast engine cannot take."""

from __future__ import annotations

__all__ = ["Unseen"]


class Unseen(Exception):
    """A private parameter is read in a way that the tape has no rule for; never leaves the fast engine."""
