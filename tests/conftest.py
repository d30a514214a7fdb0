"""Settings of the test run: what ``pytest --quick`` leaves out, and what runs under coverage."""

import gc
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
LEFT_OUT = pytest.StashKey[str]()
HELD = ["columns", "accounting", "clipping", "noise", "sampling", "training", "ledger", "queries"]
"""Folders whose tests reach what is held to a bar of coverage (``coverage_bar.py``), and single files."""
HELD_FILES = [
    "test_csv_dialects.py",
    "test_events.py",
    "test_plan.py",
    "test_planner.py",
    "cli/test_cli_init.py",
    "cli/test_cli_ledger.py",
    "cli/test_cli_query.py",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what is marked thorough")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector pass over a million objects of tests and modules, which live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked thorough, if asked to; trace no test of another part.

    Of the held ones those are marked by hand that are long and reach no line that others do not.
    """
    if config.getoption("quick"):
        out = left_out(items)
        config.stash[LEFT_OUT] = f"{len(out):,} of {len(items):,} tests are left to make test-all"
        config.hook.pytest_deselected(items=out)
        gone = set(out)
        items[:] = [item for item in items if item not in gone]
    for item in items:
        path = item.path.relative_to(TESTS)
        if path.parts[0] not in HELD and path.as_posix() not in HELD_FILES:
            item.add_marker("untraced")


@pytest.fixture(autouse=True)
def _no_time_is_lost(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take out three things that take longer than most tests, and that these do not look at."""
    # For a warning, a session calibrates what would help a plan that is too noisy, as most tests have.
    if request.path.name != "test_signal.py" and "tacit.training.session" in sys.modules:
        monkeypatch.setattr("tacit.training.session.warn_if_drowned", lambda signal: None)
    # Of few steps with little noise, the epsilons of groups take seconds; no estimator shows them.
    if request.path.parent.name == "integrations" and "tacit.report.statement" in sys.modules:
        monkeypatch.setattr("tacit.report.statement._GROUPS", ())
    # Of a session that the garbage collector found, DataLoader waits five seconds for the workers, in vain.
    if "torch" in sys.modules:
        monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)


@pytest.fixture
def no_pictures() -> Iterator[None]:
    """A run that ends draws nothing: its pictures are tested elsewhere, and take longer than all the rest."""
    from undrawn import undrawn

    with undrawn():
        yield


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs commands in this process, and reads what they say."""
    from shell import Shell

    return Shell(capsys)


# --- what pytest --quick leaves out -------------------------------------------------------------------------


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Those of the collected tests that are marked thorough, but for the cases that stay."""
    tests: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("thorough"):
            tests[item.path, getattr(item, "originalname", item.name)].append(item)
    out: list[pytest.Item] = []
    for cases in tests.values():
        kept = kept_of(cases)
        out += [case for place, case in enumerate(cases) if place not in kept]
    return out


def kept_of(cases: Sequence[pytest.Item]) -> set[int]:
    """The places of the cases of one test that stay."""
    mark = cases[0].get_closest_marker("thorough")
    assert mark is not None
    match mark.kwargs:
        case {"instead": str()}:
            return set()
        case {"cases": "values"}:
            return each_value([parameters(case) for case in cases])
        case {"cases": int(keep)}:
            return evenly(len(cases), keep)
    raise pytest.UsageError(f"{cases[0].nodeid}: thorough takes cases, a number or 'values', or instead.")


def parameters(case: pytest.Item) -> Mapping[str, object]:
    assert isinstance(case, pytest.Function)
    return case.callspec.params


def evenly(count: int, keep: int) -> set[int]:
    """``keep`` of ``count`` places, the first and the last among them."""
    return {place * (count - 1) // max(1, keep - 1) for place in range(keep)}


def each_value(cases: Sequence[Mapping[str, object]]) -> set[int]:
    """Places of so many cases that each value of each parameter is in one of them.

    Next comes the case with the most values that are in none yet; of several, the one whose values are in the
    fewest, so that a product is gone through along its diagonals.
    """
    values = [[(name, id(value)) for name, value in case.items()] for case in cases]
    used: Counter[tuple[str, int]] = Counter()
    kept: set[int] = set()
    while missing := {value for case in values for value in case if not used[value]}:
        rank = {
            place: (-len(missing.intersection(case)), sum(used[value] for value in case))
            for place, case in enumerate(values)
            if place not in kept
        }
        best = min(rank, key=rank.__getitem__)
        kept.add(best)
        used.update(values[best])
    return kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a process of xdist hand the number of what it left out to the one that tells it."""
    output: dict[str, str] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(LEFT_OUT, "")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    if told := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = told


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if LEFT_OUT in config.stash:
        terminalreporter.write_line(config.stash[LEFT_OUT])


# --- what is traced under coverage --------------------------------------------------------------------------


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
