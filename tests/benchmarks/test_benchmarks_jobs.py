"""Whole jobs and comparisons of versions: figures from known times, and the commands on next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
Measured = Callable[..., Any]


def test_a_job_is_compared_with_the_faster_plain_job_first_step_included(part: Any) -> None:
    Times = part("bench_jobs").Times
    repeats = [
        {
            "tacit": Times(2.0, [5.0 * slow, 3.0 * slow, 6.0 * slow, 9.0 * slow]),
            "contiguous": Times(0.0, [8.0] * 4),
            "channels_last": Times(0.0, [1.0 * slow, 2.0 * slow, 4.0 * slow, 2.0 * slow]),
        }
        for slow in (1.0, 2.0, 3.0)
    ]
    found = part("bench_jobs").summary(repeats)
    assert found["memory_format"] == "channels_last"
    assert found["other_format_ratio"] == {"contiguous": 32.0 / 18.0}
    (whole,) = found["jobs"]
    assert (whole["steps"], whole["seconds"], whole["plain_seconds"]) == (4, 48.0, 18.0)
    assert (whole["ratio"], whole["ratio_high"]) == (48.0 / 18.0, 25.0 / 9.0)
    assert whole["ratio_after_one_second"] == 47.0 / 18.0
    assert (found["first"]["seconds"], found["first"]["plain_step_seconds"]) == (12.0, 4.0)
    assert found["first"]["plain_steps_after_one_second"] == 11.0 / 4.0
    # The third step is slow on both sides, its batch being large; the fourth is slow for us alone.
    assert found["later"]["slowest_step"] == 4
    assert found["later"]["ratio"] == 4.5 / 1.5
    assert list(part("bench_jobs").turns(23)) == [1, 10, 10, 2]


def test_calls_are_counted_from_outside(part: Any) -> None:
    def counted() -> int:
        return len("")

    def other() -> int:
        return counted()

    assert part("train_worker").calls_of(counted, lambda: (other(), counted(), len(""))) == 2
    assert sys.getprofile() is None


def test_both_kinds_of_job_take_the_same_batches(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poisson batches, of which each has another size."""
    worker, run = part("train_worker"), part("tacit.training.run")
    load = part("workloads").make_workload("MLP", tiny=True, records=40)
    taken: list[list[int]] = []
    step = run.noisy_step

    def noted(run: Any, number: int, indices: Any) -> Any:
        taken.append(indices.tolist())
        return step(run, number, indices)

    monkeypatch.setattr(run, "noisy_step", noted)
    private = worker.Private(load, 8, 3, 5, None)
    private.start()
    for _ in range(3):
        private.step()
    plain = worker.Unprotected(load, 8, 3, 5, "contiguous")
    assert [plain.draw(number).tolist() for number in range(3)] == taken
    assert len({len(batch) for batch in taken}) > 1


@pytest.mark.thorough(instead="test_both_kinds_of_job_take_the_same_batches")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux alone")
def test_the_command_leaves_json_from_which_the_page_is_drawn(part: Any, measured: Measured) -> None:
    data = measured("bench_jobs", "--tiny", "--steps", "3", "--repeats", "1", "--workload", "MLP")
    (row,) = data["rows"]
    assert row["route"] == ["fast"]
    assert row["calls_first"] >= row["calls_later"] >= 1
    assert [job["steps"] for job in row["jobs"]] == [3]
    assert row["memory"]["private_working_set"] > row["memory"]["plain_working_set"] / 2 > 0
    page = "\n".join(part("appendix").SECTIONS["jobs"][1](data))
    assert "| MLP | contiguous | 3 |" in page
    assert f"| MLP | {row['calls_first']} | {row['calls_later']} |" in page


@pytest.mark.thorough(instead="test_ratios_of_versions_are_paired_by_turn")
def test_versions_take_turns(measured: Measured) -> None:
    words = ("--tiny", "--quick", "--seconds", "0", "--workload", "MLP")
    (row,) = measured("bench_compare", str(ROOT / "src"), *words)["rows"]
    assert (row["workload"], row["pairs"], row["routes"]) == ("MLP", 5, {"before": "fast", "now": "fast"})
    assert row["ratio"] > 0


def test_ratios_of_versions_are_paired_by_turn(part: Any) -> None:
    """Turns ten times as slow for both leave the ratio."""
    pairs = [([1.0, 1.0, 9.0], [0.5, 0.5, 7.0]), ([10.0] * 3, [5.0] * 3), ([2.0] * 3, [1.0] * 3)]
    found = part("bench_compare").summary(pairs, 3)
    assert (found["ratio"], found["ratio_low"], found["ratio_high"], found["ratio_error"]) == (
        0.5,
        0.5,
        0.5,
        0,
    )
    assert (found["least_ratio"], found["pairs"]) == (0.5, 3)


def test_planted_bug_a_worker_of_another_version_is_refused(part: Any, tmp_path: Path) -> None:
    compare = part("bench_compare")
    answer = {"tacit": str(ROOT / "src" / "tacit" / "__init__.py"), "kernels": "used"}
    assert compare.checked(answer, ROOT / "src") == "used"
    with pytest.raises(RuntimeError, match="imported"):
        compare.checked(answer, tmp_path)


def test_a_worker_that_ends_is_an_error_and_what_it_prints_is_no_answer(part: Any, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(BENCHMARKS)!r})\nimport alternate\n"
        "def talk():\n    print('a library says something')\n    return {'said': True}\n"
        "def end():\n    sys.exit(3)\n"
        "alternate.serve({'talk': talk, 'end': end})\n"
    )
    with part("alternate").Worker("ours", script, [], {}) as worker:
        assert worker.ask("talk") == {"said": True}
        with pytest.raises(RuntimeError, match="the worker ours ended with 3"):
            worker.ask("end")


@pytest.mark.thorough(instead="test_the_cost_of_two_processes_is_paired_by_round")
def test_two_processes_and_one_take_turns(part: Any, measured: Measured) -> None:
    data = measured("bench_ranks", "--tiny", "--seconds", "0", "--workload", "MLP")
    (row,) = data["rows"]
    assert row["rounds"] == 5
    assert all(time > 0 for time in row["milliseconds"].values())


@pytest.mark.thorough(instead="test_the_cost_of_correlated_noise_is_paired_by_round")
def test_forms_of_correlated_noise_take_turns(part: Any, measured: Measured) -> None:
    data = measured("bench_correlated", "--batch", "8", "--width", "2", "--seconds", "0")
    assert [row["form"] for row in data["rows"]] == [*part("bench_correlated").FORMS]
    assert all(row["milliseconds"] > 0 and row["rounds"] == 3 for row in data["rows"])
    assert data["rows"][0]["ratio"] == 1.0


def test_the_cost_of_correlated_noise_is_paired_by_round(part: Any) -> None:
    """A round that is ten times as slow for all leaves the ratios."""
    rounds = [{"independent": 2.0 * slow, "tree": 3.0 * slow} for slow in (1, 10, 1)]
    assert [row["ratio"] for row in part("bench_correlated").summary(rounds)] == [1.0, 1.5]


def test_the_cost_of_two_processes_is_paired_by_round(part: Any) -> None:
    """A round that is ten times as slow for all leaves the ratios."""
    kinds = ("private, two", "plain, two", "private, one", "plain, one")
    rounds = [dict(zip(kinds, (3 * slow, 2 * slow, 5 * slow, 4 * slow), strict=True)) for slow in (1, 10, 1)]
    found = part("bench_ranks").summary(rounds)
    assert (found["ratio_of_two"], found["ratio_of_one"], found["two_over_one"]) == (1.5, 1.25, 1.2)
