"""Resident memory of this process, now and at its peak, in bytes. This needs Linux."""

from __future__ import annotations

from pathlib import Path

__all__ = ["now", "peak", "reset_peak"]


def reset_peak() -> None:
    """Reset the peak to the current resident memory."""
    Path("/proc/self/clear_refs").write_text("5")  # man 5 proc: 5 resets the peak of the resident set


def now() -> float:
    """Return the resident bytes."""
    return _field("VmRSS")


def peak() -> float:
    """Return the peak of resident bytes since the start or :func:`reset_peak`."""
    return _field("VmHWM")


def _field(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024.0 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}: resident memory is measured on Linux alone.")
