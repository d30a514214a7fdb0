"""``pytest --quick``, which is ``make test``: what it leaves out is listed by name, and no planted bug is."""

from __future__ import annotations

import ast
import itertools
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest_plugins = ["pytester"]
TESTS = Path(__file__).parent
THOROUGH: dict[str, Any] = tomllib.loads((TESTS / "thorough.toml").read_text(encoding="utf-8"))
LISTED: list[str] = [*THOROUGH["values"], *THOROUGH["cases"], *THOROUGH["runs"]]


@pytest.fixture
def conftest(request: pytest.FixtureRequest) -> ModuleType:
    plugin = request.config.pluginmanager.get_plugin(str(TESTS / "conftest.py"))
    assert isinstance(plugin, ModuleType)
    return plugin


def is_test(name: str) -> bool:
    path, function = name.split("::")
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)


def test_the_list_names_tests_once_and_no_planted_bug() -> None:
    assert [name for name in LISTED if not is_test(name)] == []
    assert len(LISTED) == len(set(LISTED))
    assert [name for name in LISTED if "planted" in name] == []
    assert min(THOROUGH["cases"].values()) >= 1


def test_another_test_stays_for_each_that_is_left_out_whole() -> None:
    assert [name for name in THOROUGH["runs"].values() if not is_test(name) or name in THOROUGH["runs"]] == []


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

        @pytest.mark.parametrize("place", range(9))
        def test_cases(place): ...

        @pytest.mark.parametrize("y", "abc")
        @pytest.mark.parametrize("x", "def")
        def test_product(x, y): ...

        def test_long(): ...

        def test_other(): ...
        """
    )
    pytester.makeconftest(Path(str(conftest.__file__)).read_text(encoding="utf-8"))
    (pytester.path / "thorough.toml").write_text(
        'values = ["test_many.py::test_product"]\n[cases]\n"test_many.py::test_cases" = 2\n'
        '[runs]\n"test_many.py::test_long" = "test_many.py::test_other"\n',
        encoding="utf-8",
    )
    told = "14 of 20 tests are left to make test-all (tests/thorough.toml)"
    done = pytester.runpytest_inprocess("--quick")
    done.stdout.fnmatch_lines([told])
    done.assert_outcomes(passed=6, deselected=14)
    done = pytester.runpytest_subprocess("--quick", "-n", "2")
    done.stdout.fnmatch_lines([told])
    done.assert_outcomes(passed=6)
    everything = pytester.runpytest_inprocess()
    everything.assert_outcomes(passed=20)
    everything.stdout.no_fnmatch_line("*left to make test-all*")
