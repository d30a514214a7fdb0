"""The suite of library models: rows as they come, and a row that is lost is lost alone."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tacit.training import Augmentation

FIGURES = {"milliseconds": 3.0, "ratio": 1.5, "ratio_low": 1.4, "ratio_high": 1.6}
PLAIN = FIGURES | {"milliseconds": 2.0, "ratio": 1.0, "first_seconds": 0.1, "mib": 100.0}
OURS = FIGURES | {"first_seconds": 2.0, "mib": 125.0, "route": "fast"}
COUNTS = {
    "plain PyTorch": {"kernels": 1000, "waits": 0},
    "Tacit": {"kernels": 1300, "launches": 7, "waits": 1},
}


class Scripted:
    """A worker with prepared answers; of one that is an error, the process has ended."""

    def __init__(self, answers: dict[str, Any] | None = None, takes: float = 0.0) -> None:
        self.answers = {"plain": PLAIN, "beside": OURS, "count": COUNTS} | (answers or {})
        self.takes, self.killed = takes, False

    def answer(self) -> dict[str, Any]:
        return {}

    def ask(self, what: str) -> Any:
        ends = time.monotonic() + self.takes
        while time.monotonic() < ends and not self.killed:
            time.sleep(0.01)
        if self.killed or isinstance(self.answers[what], str):
            raise RuntimeError(self.answers[what] if not self.killed else "ended with -9")
        return self.answers[what]

    def kill(self) -> None:
        self.killed = True

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *ended: object) -> None:
        assert self.killed, "nobody waits for a process that tidies up"


@pytest.fixture
def suite(part: Any, tmp_path: Path) -> Callable[..., Any]:
    """Return a suite of these models with two engines, and its seconds."""
    bench = part("bench_gpu_models")

    def make(*models: str, seconds: float = 60.0) -> Any:
        planned = list(bench.jobs(models, ["Tacit", "torch.func"]))
        return bench.Suite(tmp_path / "found.json", {}, planned, {}, time.monotonic() + seconds)

    return make


def measured_rows(made: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of the file, by model and engine."""
    found = json.loads(made.out.read_text())
    return {(row["model"], row["engine"]): row for row in found["rows"]}


def test_ours_is_measured_on_all_models_before_any_peer(part: Any) -> None:
    bench = part("bench_gpu_models")
    order = list(bench.jobs(["llama", "mlp"], ["Tacit", "Opacus, hooks", "torch.func"]))
    assert order == [
        ("llama", "Tacit"), ("mlp", "Tacit"), ("llama", "Opacus, hooks"), ("llama", "torch.func"),
        ("mlp", "Opacus, hooks"), ("mlp", "torch.func"),
    ]  # fmt: skip
    barred = list(part("library_models").MODELS)[:10]
    assert [name for name in barred if name in ("vit", "own", "wrn-views")] == []


def test_a_crash_costs_its_row_alone(part: Any, suite: Callable[..., Any]) -> None:
    """One process ends in the engine's job, one before, one in counting: all other rows are there."""
    made = suite("bert-32", "mlp")
    workers = {
        ("bert-32", "Tacit"): Scripted({"beside": "ended with -11"}),
        ("mlp", "Tacit"): Scripted({"count": "ended with -6"}),
        ("bert-32", "torch.func"): Scripted({"plain": "ended with 1"}),
        ("mlp", "torch.func"): Scripted({"beside": {"failure": "OutOfMemoryError: CUDA out of memory."}}),
    }
    part("bench_gpu_models").run(made, lambda *key: workers[key], lambda text: None)
    rows = measured_rows(made)
    assert rows["bert-32", "Tacit"]["failure"] == "ended with -11"
    assert rows["bert-32", "plain PyTorch"]["milliseconds"] == 2.0
    assert rows["mlp", "Tacit"]["ratio"] == 1.5
    assert rows["mlp", "Tacit"]["uncounted"] == "ended with -6"
    assert rows["bert-32", "torch.func"]["failure"] == "ended with 1"
    assert rows["mlp", "torch.func"]["failure"] == "OutOfMemoryError: CUDA out of memory."
    assert made.left() == []


def test_what_the_time_does_not_suffice_for_is_named(part: Any, suite: Callable[..., Any]) -> None:
    """The row at the end of the time is left and not a failure; the process that waited is ended too."""
    made = suite("bert-32", "mlp", seconds=0.6)
    workers = {("bert-32", "Tacit"): Scripted(), ("mlp", "Tacit"): Scripted(takes=30)}
    waiting = Scripted()
    begun = time.monotonic()
    part("bench_gpu_models").run(made, lambda *key: workers.get(key, waiting), lambda text: None)
    assert time.monotonic() - begun < 5
    assert waiting.killed
    assert set(measured_rows(made)) == {("bert-32", "plain PyTorch"), ("bert-32", "Tacit")}
    left = json.loads(made.out.read_text())["left"]
    assert [row["engine"] for row in left] == ["Tacit", "torch.func", "torch.func"]
    page = "\n".join(part("appendix")._library_models(json.loads(made.out.read_text())))
    assert (
        "| BERT-base, 32 x 128 | Tacit | 3.0 | 1.50 (1.40 to 1.60) | 125 | 1.25 | 2.0 | 1,300 | 7 | 1 |"
        in page
    )
    assert "* Left for lack of time: MLP 784-1000-10, 4,096, Tacit;" in page


def test_an_engine_that_takes_too_long_is_left_for_the_next(
    part: Any, suite: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, made = part("bench_gpu_models"), suite("mlp")
    monkeypatch.setattr(bench, "ROW_SECONDS", 0.2)
    workers = {("mlp", "Tacit"): Scripted(takes=30), ("mlp", "torch.func"): Scripted()}
    bench.run(made, lambda *key: workers[key], lambda text: None)
    rows = measured_rows(made)
    assert rows["mlp", "Tacit"]["failure"] == "not done after 0 s"
    assert rows["mlp", "torch.func"]["ratio"] == 1.5


def test_a_second_run_measures_what_the_first_left(part: Any, suite: Callable[..., Any]) -> None:
    bench, first = part("bench_gpu_models"), suite("mlp", seconds=60)
    first.add("mlp", "plain PyTorch", PLAIN)
    first.add("mlp", "Tacit", OURS)
    second = suite("mlp")
    second.take()
    asked: list[tuple[str, ...]] = []

    def start(*key: str) -> Scripted:
        asked.append(key)
        return Scripted({"plain": OURS})

    bench.run(second, start, lambda text: None)
    assert asked == [("mlp", "torch.func")]
    assert measured_rows(second)["mlp", "plain PyTorch"]["milliseconds"] == 2.0, "not that of the other run"
    third = suite("mlp")
    third.setting = {"device": "cuda"}
    with pytest.raises(SystemExit, match="was measured with"):
        third.take()


def an_event(worker: Any, name: str, start: float, *, gpu: bool = False, note: bool = False) -> Any:
    kind = worker.DeviceType.CUDA if gpu else worker.DeviceType.CPU
    at = SimpleNamespace(start=start, end=start + 1)
    return SimpleNamespace(
        name=name, device_type=kind, time_range=at, is_user_annotation=note, cpu_children=[]
    )


def test_waits_and_launches_are_those_of_the_step(part: Any) -> None:
    """The profiler's own synchronisation after it, notes and copies are no kernels and no waits."""
    worker, event = part("model_worker"), partial(an_event, part("model_worker"))
    mark = event(worker.MARK, 10, note=True)
    mark.time_range.end = 20
    events = [
        mark, event(worker.MARK, 11, gpu=True, note=True), event("Optimizer.step", 12, gpu=True, note=True),
        event("cudaLaunchKernel", 12), event("cuLaunchKernelEx", 13), event("cudaGraphLaunch", 14),
        event("cudaStreamSynchronize", 15), event("cudaMemcpyAsync", 15), event("cudaDeviceSynchronize", 25),
        event("cudaDeviceSynchronize", 5),
        *[event("gemm", 15, gpu=True)] * 4, event("late_kernel", 24, gpu=True),
        event("Memcpy DtoH (Device -> Pageable)", 16, gpu=True), event("Memset (Device)", 16, gpu=True),
    ]  # fmt: skip
    assert worker.counts(events, on_gpu=True) == {"kernels": 5, "launches": 3, "waits": 1, "copies": 1}


def test_a_step_of_the_cpu_is_counted_by_its_operations(part: Any) -> None:
    x = torch.ones(3)
    assert part("model_worker").counted(lambda: x.mul_(x).sin_(), x.device) == {"kernels": 2}


@pytest.mark.thorough(cases=3)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "name",
    ["llama-lora", "wrn-views", "bert-32", "vit", "gpt2-small", "gpt2-medium", "llama", "wrn", "lstm", "own"],
)
def test_every_model_takes_a_step_on_next_to_nothing(part: Any, name: str) -> None:
    """By the fast engine, with the optimizer and the autocast that it has on a GPU."""
    load = part("library_models").make_model(name, tiny=True)
    engines = part("engines")
    engines.ENGINES[engines.PLAIN].make(load)()
    step = engines.ENGINES["Tacit"].make(load)
    step()
    step()
    assert step.session.route == "fast"


@dataclass(frozen=True)
class Twice(Augmentation):
    """Each view is the record itself."""

    draws: int = 1

    def views(self, inputs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        return inputs.repeat_interleave(uniforms.shape[1], 0)


@pytest.mark.parametrize("engine", ["plain PyTorch", "torch.func"])
def test_views_of_a_record_are_averaged_before_anything_else(
    part: Any, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """A step on two equal views of each record is that on the record, whatever its norm."""
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    load, found = part("library_models").make_model("mlp", tiny=True), []
    torch.manual_seed(1)
    model = load.make()
    for like in (load, replace(load, views=2, augmentation=Twice())):
        trained = deepcopy(model)
        part("engines").ENGINES[engine].make(replace(like, build=lambda trained=trained: trained))()
        found.append(nn.utils.parameters_to_vector(trained.parameters()))
    before = nn.utils.parameters_to_vector(model.parameters())
    assert (found[0] - before).norm() > 1e-5
    assert (found[0] - found[1]).norm() < 1e-3 * (found[0] - before).norm()


def test_the_sizes_are_those_that_are_stated(part: Any) -> None:
    """Weights of the full models, made without memory."""
    models = part("library_models")
    stated = {
        "mlp": 795_010, "wrn": 2_748_890, "lstm": 3_290_122, "vit": 86_567_656, "bert-256": 109_483_778,
        "gpt2-small": 124_439_808, "gpt2-medium": 354_823_168, "llama": 1_100_048_384,
    }  # fmt: skip
    for name, weights in stated.items():
        with torch.device("meta"):
            load = models.MODELS[name].full()
            model = load.build()
        assert sum(p.numel() for p in model.parameters()) == weights
        batch = models.MODELS[name].title.split(", ")[-1].split(" x ")[0]
        assert f"{load.batch:,}" == batch, name


def test_the_command_leaves_a_file_and_names_what_is_not_installed(
    part: Any, measured: Callable[..., Any]
) -> None:
    words = "--device cpu --tiny --models mlp vit-timm --engines Tacit --rounds 1 --turn 0.01"
    data = measured("bench_gpu_models", *words.split())
    assert [(row["model"], row["engine"]) for row in data["rows"]][:2] == [
        ("mlp", "plain PyTorch"),
        ("mlp", "Tacit"),
    ]
    for row in data["rows"]:
        assert row["milliseconds"] > 0
        assert row["kernels"] > 0
    if importlib.util.find_spec("timm") is None:
        assert data["skipped"] == {"ViT-B/16 of timm, 64 x 224": "timm is not installed"}
    page = "\n".join(part("appendix").SECTIONS["gpu_models"][1](data))
    assert "| MLP 784-1000-10, 4,096 | Tacit |" in page
