"""Runs and attacks that draw nothing, neither figures nor the charts of pages, half of the time of most."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def undrawn() -> Iterator[None]:
    """For a fixture of a whole module, which ``no_pictures`` does not reach; charts are still laid out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tacit.runs.train.draw_run", lambda *_: ())
        for page in ("evaluation", "run_page"):
            patch.setattr(f"tacit.report.{page}.to_svg", lambda *_, **__: "<svg></svg>")
        yield
