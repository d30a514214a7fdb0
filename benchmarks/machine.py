"""The machine and the software of a measurement."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from tacit import __version__

__all__ = ["installed", "machine", "versions"]

KIND = {"family": "cpu family", "model": "model"}  # how Linux distinguishes generations of processors


def machine() -> dict[str, Any]:
    """Return a description of this machine."""
    found: dict[str, Any] = {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "waiting_threads": os.environ.get("OMP_WAIT_POLICY", "default"),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() or "unknown"
    lines = (line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
    said: dict[str, str] = {}
    for key, value in lines:
        said.setdefault(key.strip(), value.strip())
    if "model name" not in said:
        return platform.processor() or "unknown"
    # A hypervisor's name ("AMD EPYC") hides the generation, on which results depend.
    kind = ", ".join(f"{key} {said[name]}" for key, name in KIND.items() if name in said)
    return said["model name"] + (f" ({kind})" if kind else "")


def versions(*more: str) -> dict[str, str]:
    """Return the versions of the software, and of the packages in ``more`` that are installed."""
    packages = [name for name in ("torch", "numpy", "scipy", "scikit-learn", *more) if installed(name)]
    return {"tacit": __version__, "python": platform.python_version()} | {
        package: metadata.version(package) for package in packages
    }


def installed(name: str) -> bool:
    """Return whether the package is installed."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
