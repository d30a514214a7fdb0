"""Runs and attacks that draw nothing, neither pictures nor the charts of pages, half of the time of most.

A file of tests that needs it says ``pytest_plugins = ["undrawn"]``. The charts are still laid out.

PYTEST_DONT_REWRITE: it asserts nothing, and some files import it before pytest does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def undrawn() -> Iterator[None]:
    """For a fixture of a whole module, which no fixture of one test reaches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tacit.runs.train.draw_run", lambda *_: ())
        for page in ("evaluation", "run_page"):
            patch.setattr(f"tacit.report.{page}.to_svg", lambda *_, **__: "<svg></svg>")
        yield


@pytest.fixture
def nothing_drawn() -> Iterator[None]:
    with undrawn():
        yield
