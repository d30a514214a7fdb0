"""A worker of ``bench_accounting.py``: Opake's accountant, which needs Python 3.12 or newer.

``TACIT_OPAKE`` names the interpreter, which needs opake-accounting and opake-dpsgd, but not torch: only the
accounting of opake-dpsgd is imported.
"""

from __future__ import annotations

import importlib
import sys
import time
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import alternate
import opake.accounting as accounting

__all__ = ["main"]


def without_torch() -> Any:
    """Return Opake's accounting of DP-SGD, without the modules beside it, which need torch."""
    folder = Path(accounting.__file__).parents[1]
    for name, place in {"opake.dpsgd": "dpsgd", "opake.api.dpsgd": "api/dpsgd"}.items():
        module = types.ModuleType(name)
        module.__path__ = [str(folder / place)]
        sys.modules[name] = module
    return importlib.import_module("opake.dpsgd.accounting")


def main() -> int:
    """Answer requests for epsilon and for the noise."""
    dpsgd = without_torch()

    def run(sigma: float, rate: float, steps: int) -> Any:
        return accounting.repeat(dpsgd.poisson(dpsgd.gaussian(sigma), rate), steps)

    def epsilon(sigma: float, rate: float, steps: int, delta: float) -> dict[str, Any]:
        begun = time.process_time()
        found = (accounting.Accountant() | run(sigma, rate, steps)).epsilon_at(delta)
        return {"answer": found, "seconds": time.process_time() - begun}

    def noise(target: float, rate: float, steps: int, delta: float) -> dict[str, Any]:
        begun = time.process_time()
        found = accounting.calibrate(
            accounting.epsilon_budget(target, delta), lambda sigma: run(sigma, rate, steps), 0.3, 20.0, 1e-3
        )
        return {"answer": found.param, "seconds": time.process_time() - begun}

    def ready() -> dict[str, Any]:
        return {"version": version("opake-accounting")}

    alternate.serve({"ready": ready, "epsilon": epsilon, "noise": noise})
    return 0


if __name__ == "__main__":
    sys.exit(main())
