"""``pytest --quick``, which is ``make test``: what it leaves out is marked, and no planted bug is."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest_plugins = ["pytester"]
TESTS = Path(__file__).parent


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def marked() -> Iterator[tuple[Path, str, dict[str, object]]]:
    """File, name and settings of each test that is marked thorough."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if "thorough" not in path.read_text(encoding="utf-8"):
            continue
        for node in parsed(path).body:
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.thorough":
                    given = {str(k.arg): ast.literal_eval(k.value) for k in mark.keywords}
                    yield path, getattr(node, "name", ""), given


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> ModuleType:
    plugin = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    assert isinstance(plugin, ModuleType)
    return plugin


def test_no_planted_bug_is_left_out() -> None:
    names = [name for _, name, _ in marked()]
    assert len(names) > 50
    assert [name for name in names if "planted" in name] == []


def test_another_test_stays_for_each_that_is_left_out_whole() -> None:
    whole = {f"{path}::{name}" for path, name, given in marked() if "instead" in given}
    for path, name, given in marked():
        if "instead" in given:
            file, _, other = str(given["instead"]).rpartition("::")
            home = TESTS / file if file else path
            there = [getattr(node, "name", "") for node in parsed(home).body]
            assert other in there, f"{path}::{name} names no test"
            assert f"{home}::{other}" not in whole


def test_each_value_of_each_parameter_is_tried(conftest: ModuleType) -> None:
    letters, numbers, rare = "abcdefg", [object() for _ in range(3)], ["once", *["often"] * 20]
    product = [
        {"x": x, "n": n, "r": r} for (x, n), r in zip(itertools.product(letters, numbers), rare, strict=True)
    ]
    kept = conftest.each_value(product)
    assert len(kept) <= len(letters) + 1
    for name in product[0]:
        assert {id(product[place][name]) for place in kept} == {id(case[name]) for case in product}
    assert conftest.each_value([{"x": x, "y": x} for x in letters]) == set(range(len(letters)))


@pytest.mark.parametrize(("count", "keep"), [(1, 1), (2, 1), (7, 2), (291, 40), (3, 8)])
def test_the_first_and_the_last_case_stay(conftest: ModuleType, count: int, keep: int) -> None:
    kept = conftest.evenly(count, keep)
    assert len(kept) == min(count, keep)
    assert kept <= set(range(count))
    assert 0 in kept
    assert count - 1 in kept or keep == 1


def test_what_is_left_out_is_told(pytester: pytest.Pytester, conftest: ModuleType) -> None:
    """Under xdist too, whose processes collect and whose summary comes from another."""
    pytester.makepyfile(
        test_many="""
        import pytest

        @pytest.mark.thorough(cases=2)
        @pytest.mark.parametrize("place", range(9))
        def test_cases(place): ...

        @pytest.mark.thorough(cases="values")
        @pytest.mark.parametrize("y", "abc")
        @pytest.mark.parametrize("x", "def")
        def test_product(x, y): ...

        @pytest.mark.thorough(instead="test_other")
        def test_long(): ...

        def test_other(): ...
        """
    )
    pytester.makeconftest(Path(str(conftest.__file__)).read_text(encoding="utf-8"))
    pytester.makeini("[pytest]\nmarkers = thorough: left out")
    told = "14 of 20 tests are left to make test-all"
    done = pytester.runpytest_inprocess("--quick")
    done.stdout.fnmatch_lines([told])
    done.assert_outcomes(passed=6, deselected=14)
    done = pytester.runpytest_subprocess("--quick", "-n", "2")
    done.stdout.fnmatch_lines([told])
    done.assert_outcomes(passed=6)
    everything = pytester.runpytest_inprocess()
    everything.assert_outcomes(passed=20)
    everything.stdout.no_fnmatch_line("*left to make test-all*")
