"""The benchmarks measure what they say: paired ratios, one step for all engines, memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


def laps(part: Any, seconds: dict[int, float]) -> Any:
    lap = part("measure").Lap
    return {number: lap(wall, 2 * wall) for number, wall in seconds.items()}


def test_ratios_are_paired_by_round(part: Any) -> None:
    """Rounds twice as slow for both leave the ratio; the ratio of medians would not be 2."""
    measure, plain = part("measure"), part("engines").PLAIN
    found = measure.summary(
        "load",
        {
            plain: laps(part, {0: 1.0, 1: 2.0, 2: 4.0, 3: 9.0}),
            "other": laps(part, {0: 2.0, 2: 8.0, 3: 18.0}),
        },
        5,
    )
    ours = found[1]
    assert (ours.ratio_low, ours.ratio, ours.ratio_high, ours.cpu_ratio) == (2.0, 2.0, 2.0, 2.0)
    assert (ours.rounds, ours.steps_per_turn, ours.milliseconds) == (3, 5, 8000.0)
    assert found[0].ratio == 1.0


def test_slow_engines_sit_out(part: Any) -> None:
    measure, plain, last = part("measure"), part("engines").PLAIN, part("engines").CHANNELS_LAST
    calls = {"fast": 0, "slow": 0, "hopeless": 0, plain: 0, last: 0}

    def step(name: str) -> Any:
        def run() -> None:
            calls[name] += 1

        return run

    pace = {plain: 0.05, "fast": 0.06, "slow": 0.2, "hopeless": 2.0, last: 0.2}
    warm = {name: measure.Lap(wall, wall) for name, wall in pace.items()}
    found, turn = measure.interleave(
        {name: step(name) for name in pace}, warm, rounds=7, device=torch.device("cpu")
    )
    assert turn == 2
    assert {name: len(mine) for name, mine in found.items()} == {
        plain: 7,
        last: 7,  # either format may turn out to be the base of all ratios
        "fast": 7,
        "slow": 4,
        "hopeless": 2,
    }
    assert calls == {plain: 14, last: 14, "fast": 14, "slow": 8, "hopeless": 2}


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize(
    "workload",
    [
        "MLP", "tanh CNN", "VGG", "GPT", "ResNet", "GPT-2", "GPT-2 small", "ResNet-50",
        "GPT, width 64, depth 1", "MLP, weight norm", "MLP, weight norm by a hook", "Llama with LoRA", "ViT",
    ],
)  # fmt: skip
def test_every_workload_runs_on_next_to_nothing(part: Any, workload: str) -> None:
    """Those for the GPU too, in bfloat16 on the CPU; the plain step of pictures in both memory formats."""
    load = part("workloads").make_workload(workload, tiny=True)
    plain, *_, ours = part("measure").measure_time(load, ["Tacit"], rounds=1)
    assert (plain.ratio, ours.engine, ours.rounds) == (1.0, "Tacit", 1)
    assert ours.first > 0
    assert ours.ratio > 0


@pytest.mark.parametrize("faster", ["contiguous", "channels_last"])
def test_the_faster_memory_format_is_the_plain_step(
    part: Any, monkeypatch: pytest.MonkeyPatch, faster: str
) -> None:
    """Its laps are the base of all ratios, and its memory that of the plain step."""
    measure, plain = part("measure"), part("engines").PLAIN
    seconds = {"contiguous": 2.0, "channels_last": 2.0} | {faster: 1.0}
    found, formats = measure.best_plain(
        {
            plain: laps(part, {0: seconds["contiguous"], 1: 10 * seconds["contiguous"]}),
            part("engines").CHANNELS_LAST: laps(
                part, {0: seconds["channels_last"], 1: 10 * seconds["channels_last"]}
            ),
            "other": laps(part, {0: 3.0, 1: 30.0}),
        }
    )
    assert next(iter(found)) == plain
    assert formats[plain] == faster
    rows = [
        vars(row) | {"memory_format": formats.get(row.engine)} for row in measure.summary("VGG", found, 1)
    ]
    ratios = {row["engine"]: row["ratio"] for row in rows}
    slower = {"contiguous": "channels_last", "channels_last": "contiguous"}[faster]
    assert ratios == {plain: 1.0, f"{plain}, {slower}": 2.0, "other": 3.0}
    assert f"the faster of two: VGG {faster}" in "".join(part("appendix")._formats(rows))
    step = part("bench_step")
    ran: list[str] = []

    def worker(what: str, load: str, names: list[str], options: list[str]) -> list[dict[str, Any]]:
        ran.extend(names)
        return [{}]

    monkeypatch.setattr(step, "worker", worker)
    assert {row["engine"] for row in step.memory("VGG", rows, [])} == {plain, "other"}
    assert set(ran) == {part("engines").CHANNELS_LAST if faster == "channels_last" else plain, "other"}


def test_the_peer_of_our_own_is_a_private_step(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.func's step without its noise is the mean of the clipped gradients of a plain loop."""
    engines = part("engines")
    load = part("workloads").make_workload("MLP", tiny=True)
    model = load.make()
    monkeypatch.setattr(type(load), "make", lambda self: model)
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    before = [p.detach().clone() for p in model.parameters()]
    expected = [torch.zeros_like(p) for p in before]
    for x, y in zip(load.inputs, load.targets, strict=True):
        gradients = torch.autograd.grad(load.loss(model, x[None], y[None]).sum(), list(model.parameters()))
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        assert norm > 1.0, "clipping has something to do"
        for total, g in zip(expected, gradients, strict=True):
            total += g / norm / load.batch
    engines.by_vmap(load)()
    for p, old, total in zip(model.parameters(), before, expected, strict=True):
        assert torch.allclose(p, old - 1e-3 * total, atol=1e-7)


def test_planted_bug_a_failing_engine_of_ours_is_an_error_and_of_others_a_result(
    part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, engines = part("measure"), part("engines")

    def broken(load: Any) -> Any:
        raise RuntimeError("no such layer")

    monkeypatch.setitem(engines.ENGINES, "peer", engines.Engine(broken, package="torch"))
    monkeypatch.setitem(engines.ENGINES, "own", engines.Engine(broken))
    load = part("workloads").make_workload("MLP", tiny=True)
    assert measure.measure_time(load, ["peer"], rounds=1)[1].failure == "RuntimeError: no such layer"
    with pytest.raises(RuntimeError, match="no such layer"):
        measure.measure_time(load, ["own"], rounds=1)


def test_engines_with_another_environment_are_paired_in_a_process_of_their_own(part: Any) -> None:
    panels = list(part("bench_step").panels(["plain PyTorch", "Tacit", "Tacit, no compiler", "torch.func"]))
    assert panels == [["plain PyTorch", "Tacit", "torch.func"], ["plain PyTorch", "Tacit, no compiler"]]
    assert part("engines").ENGINES["Tacit, no compiler"].environment == {"TACIT_NATIVE": "0"}
    assert [*part("bench_step").panels(["Tacit", "Opake"])] == [
        ["plain PyTorch", "Tacit"],
        ["plain PyTorch", "Opake"],
    ]
    assert part("engines").Engine(lambda load: None, "no_such_package").missing() is not None


@pytest.mark.thorough(instead="test_every_workload_runs_on_next_to_nothing")
def test_the_command_leaves_json_from_which_the_page_is_drawn(
    part: Any, measured: Callable[..., Any]
) -> None:
    words = "--suite gpu --device cpu --tiny --rounds 1 --engine Tacit --no-memory"
    data = measured("bench_step", *words.split(), "--workload", "GPT-2 small")
    assert {"machine", "versions", "seed", "date"} <= data.keys()
    assert [row["engine"] for row in data["timings"]] == ["plain PyTorch", "Tacit"]
    again = measured("bench_step", *words.split(), "--workload", "GPT-2 small", "--go-on")
    assert again["timings"] == data["timings"], "what the file has is not measured again"
    data["memory"] = [
        {"workload": "GPT-2 small", "engine": name, "working_set": size, "peak": 100 + size}
        for name, size in (("plain PyTorch", 50), ("Tacit", 60))
    ]
    _, section = part("appendix").SECTIONS["step_gpu"]
    page = "\n".join(section(data))
    assert "| plain PyTorch | 50 / 150 MiB |" in page
    assert "| Tacit | 1.20 / 1.07 |" in page
    assert "| Tacit | " in page.split("first step")[1]


HOLDING = """
import sys, torch
from engines import ENGINES, Engine
from measure import measure_memory
size = int(sys.argv[1])
ENGINES["holds"] = Engine(lambda load: lambda: torch.ones(size * 2**18).sum().item())
found = measure_memory("MLP", "holds", tiny=True, device="cpu")
print(found.working_set, found.peak)
"""


@pytest.mark.thorough(instead="test_every_workload_runs_on_next_to_nothing")
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux alone")
def test_memory_is_the_peak_of_a_step() -> None:
    """A step that holds 64 MiB for a moment shows them, compared with one that holds nothing.

    Each in a process of its own, as the benchmark does: what a worker let go of before is its own affair.
    """

    def held(size: int) -> tuple[float, float]:
        command = [sys.executable, "-c", HOLDING, str(size)]
        ran = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=True)
        working_set, peak = map(float, ran.stdout.split())
        return working_set, peak

    (nothing, _), (working_set, peak) = held(0), held(64)
    assert nothing < 20
    assert working_set - nothing == pytest.approx(64, abs=10)
    assert working_set < peak


def test_the_page_names_the_fastest_peer(part: Any) -> None:
    timing = part("measure").Timing
    ratios = {"plain PyTorch": 1.0, "Tacit": 1.1, "Tacit, lean": 1.2, "a peer": 2.2, "another": 3.0}
    rows = [vars(timing("MLP", name, ratio=ratio)) for name, ratio in ratios.items()]
    rows.append(vars(timing("MLP", "broken", failure="RuntimeError")))
    text = "\n".join(part("appendix")._lead(rows))
    assert "multiple of ours: MLP 2.00 (a peer)." in text
