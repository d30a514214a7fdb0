"""Which tests run under coverage, which doubles their time."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

HELD = ["accounting", "clipping", "noise", "sampling", "training", "ledger", "queries"]
"""Folders whose tests reach what is held to a bar of coverage (``coverage_bar.py``), and single files."""
HELD_FILES = [
    "test_events.py",
    "test_plan.py",
    "test_planner.py",
    "cli/test_cli_ledger.py",
    "cli/test_cli_query.py",
]
TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trace no test of another part.

    Of the held ones those are marked by hand that are long and reach no line that others do not.
    """
    for item in items:
        path = item.path.relative_to(TESTS)
        if path.parts[0] not in HELD and path.as_posix() not in HELD_FILES:
            item.add_marker("untraced")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a marked test without the tracer; of two under xdist, pytest-cov's own ``no_cover`` stops one."""
    traced = sys.gettrace()
    if item.get_closest_marker("untraced"):
        sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(traced)
