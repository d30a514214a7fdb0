"""The loaders of the benchmark give the batches that they say, and so do both versions of a step."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import warm

ROOT = Path(__file__).parents[2]
ORIGIN = {
    "date": "",
    "machine": {"processor": "", "torch_threads": 1},
    "versions": {"torch": "", "tacit": ""},
}


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
def test_all_loaders_give_batches_of_about_the_size(part: Any, tmp_path: Path) -> None:
    bench = part("bench_loader")
    torch.manual_seed(0)
    tasks = bench.loaders(tmp_path, 2000, 200)
    for task, contestants in tasks.items():
        for name in list(contestants):
            loader = contestants.pop(name)
            sizes = [len(x) for x, y in itertools.islice(loader, 8)]
            # 14 standard deviations of a binomial size on either side
            assert all(abs(size - 200) < 190 for size in sizes), (task, name)
            assert "Tacit" not in name or len(set(sizes)) > 1, "a Poisson batch has no fixed size"
            del loader


def test_costs_are_medians_of_what_the_loaders_took(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = part("bench_loader")
    now = [0.0]

    def slow(seconds: float) -> Any:
        while True:
            now[0] += seconds
            yield ()

    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(bench.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    found = bench.cost("in memory", {"a": slow(0.5), "b": slow(2.0)}, 4, pause=7.0)
    assert {c.loader: (c.milliseconds, c.low, c.high, c.rounds) for c in found} == {
        "a": (500.0, 500.0, 500.0, 4), "b": (2000.0, 2000.0, 2000.0, 4),
    }  # fmt: skip
    page = "\n".join(
        part("build").SECTIONS["loader"](
            ORIGIN
            | {"setting": {"batch": 6, "records": 60, "width": 7}}
            | {"costs": [{"task": "in memory", "loader": "a", "milliseconds": 1.0, "low": 0.5, "high": 2.0}]}
        )
    )
    assert "| in memory | a | 1.00 (0.50 to 2.00) |" in page


def test_two_versions_take_turns(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = part("bench_reproduce")
    asked: list[tuple[str, str]] = []

    def child(source: Path, name: str, steps: int) -> float:
        asked.append((source.name, name))
        return 3.0 if source.name == "before" else 1.5

    monkeypatch.setattr(bench, "child", child)
    rows = bench.compare(Path("before"), Path("now"), 3, 1)
    assert [source for source, _ in asked] == ["before", "now"] * 3 * len(bench.MODELS)
    assert {row["ratio"] for row in rows} == {0.5}
    assert {row["before_milliseconds"] for row in rows} == {3000.0}
    page = "\n".join(part("build").SECTIONS["reproduce"](ORIGIN | {"before": "abc", "rows": rows}))
    assert "| clipping | 150 | 3000.0 | 1500.0 | 0.50 |" in page


def test_accuracies_are_compared_where_both_have_them(part: Any, tmp_path: Path) -> None:
    bench = part("bench_reproduce")

    def run(side: str, name: str, **changed: Any) -> None:
        row = {
            "experiment": "clipping", "dataset": "mnist", "model": "MLP", "epsilon": 3.0, "seeds": 4,
            "accuracy_mean": 0.9, "accuracy_std": 0.006, "wall_seconds": 10.0,
        } | changed  # fmt: skip
        (tmp_path / side).mkdir(exist_ok=True)
        content = {"date": "2026-01-01", "machine": {"processor": side}, "rows": [row]}
        (tmp_path / side / name).write_text(json.dumps(content))

    run("before", "a.json")
    run("now", "a.json", accuracy_mean=0.91, accuracy_std=0.008, epsilon=3.00001, wall_seconds=5.0)
    run("now", "b.json")
    run("before", "c.json", model="other")
    run("now", "c.json")
    (row,) = bench.compare_accuracies(tmp_path / "before", tmp_path / "now")
    assert row["difference"] == pytest.approx(2.0)
    bench.write_accuracies(tmp_path / "before", tmp_path / "now", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["origins"] == {"before": ["2026-01-01, before"], "now": ["2026-01-01, now"]}
    page = "\n".join(part("build").SECTIONS["reproduce_accuracy"](found))
    assert "| clipping (mnist) | MLP | 3 | 90.00 ± 0.60 | 91.00 ± 0.80 | +2.0 | 10 | 5 |" in page
    assert "squares of these is 4.00" in page
    with pytest.raises(SystemExit, match="share no experiment"):
        bench.write_accuracies(tmp_path, tmp_path / "now", tmp_path / "none.json")


def test_a_model_of_the_experiments_is_timed_in_a_process_of_its_own() -> None:
    script = ROOT / "benchmarks" / "bench_reproduce.py"
    done = warm.run(script, "--model", "clipping", "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert 0 < json.loads(done.stdout)["seconds"] < 60
    refused = warm.run(script, "/nowhere")
    assert refused.returncode == 2
    assert "git worktree" in refused.stderr
