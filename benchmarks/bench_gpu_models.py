"""A private step of the models that people fine-tune, on a GPU: ``make bench-gpu-models``.

Plain PyTorch and Tacit are measured first, on the models in order of importance, then Tacit with LEAN and the
other libraries.  Each row has its own process, in which the engine and the plain step take turns.  So an
engine that crashes or runs out of memory costs only its own row (see ``model_worker.py``).  Each process
starts with empty caches of Triton and Inductor, so nothing is compiled before.  The command ends after
``--seconds``.  The file is rewritten after each row, and lists the rows that remain; ``--go-on`` measures
these.  ``--device cpu --tiny`` is a quick test.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any

import results
import torch
from alternate import Worker
from engines import ENGINES, PLAIN
from library_models import MODELS

__all__ = ["Suite", "jobs", "run"]

FIRST = ("Tacit",)
LATER = ("Tacit, lean", "Opacus, hooks", "Opacus, ghost", "torch.func")
PACKAGES = ("transformers", "timm", "peft", "opacus", "triton")
ROW_SECONDS = 90.0  # the most seconds for a row
WORKER = Path(__file__).with_name("model_worker.py")
Row = dict[str, Any]
Key = tuple[str, str]


def jobs(models: Sequence[str], engines: Sequence[str]) -> Iterator[Key]:
    """Yield models and engines in the order of their measurement."""
    for wave in (FIRST, LATER):
        yield from ((model, engine) for model in models for engine in wave if engine in engines)


@dataclass
class Suite:
    """The planned measurements, the rows so far, and the file of results."""

    out: Path
    setting: Row
    planned: list[Key]
    skipped: dict[str, str]
    deadline: float
    rows: dict[Key, Row] = field(default_factory=dict)

    def remaining(self) -> float:
        """Return the seconds until the command must end."""
        return self.deadline - time.monotonic()

    def left(self) -> list[Key]:
        """Return the keys without a row. The plain step's row comes with that of a model's first engine."""
        return [key for key in self.planned if key not in self.rows]

    def take(self) -> None:
        """Read the rows of an existing file."""
        found = json.loads(self.out.read_text(encoding="utf-8"))
        if found["setting"] != self.setting:
            raise SystemExit(f"{self.out} was measured with {found['setting']}, not {self.setting}.")
        self.rows = {(row["model"], row["engine"]): row for row in found["rows"]}

    def add(self, model: str, engine: str, more: Row) -> None:
        """Add a row, or entries of a row, and write the file."""
        row = {"model": model, "title": MODELS[model].title, "engine": engine}
        self.rows[model, engine] = self.rows.get((model, engine), row) | more
        self.save()

    def save(self) -> None:
        """Replace the file atomically, so that an interrupted run leaves the previous version."""
        content = {
            "setting": self.setting, "skipped": self.skipped, "rows": list(self.rows.values()),
            "left": [{"title": MODELS[model].title, "engine": engine} for model, engine in self.left()],
        }  # fmt: skip
        results.write(self.out, "a training step of library models", content, packages=PACKAGES)

    def measure(self, model: str, engine: str, worker: Worker) -> None:
        """Measure a model's engine, and its plain step if that has no row; kill the worker."""
        ends = time.monotonic() + min(self.remaining(), ROW_SECONDS)
        limit = Timer(ends - time.monotonic(), worker.kill)
        limit.start()
        try:
            self._ask(model, engine, worker)
        except RuntimeError as ended:
            if self.remaining() > 0:
                late = time.monotonic() >= ends
                what = "uncounted" if (model, engine) in self.rows else "failure"
                self.add(model, engine, {what: f"not done after {ROW_SECONDS:.0f} s" if late else str(ended)})
        finally:
            limit.cancel()
            worker.kill()  # it has answered, and a normal exit takes a second

    def _ask(self, model: str, engine: str, worker: Worker) -> None:
        new = [name for name in (PLAIN, engine) if (model, name) not in self.rows]
        worker.answer()  # it is ready
        plain = worker.ask("plain")
        if PLAIN in new:
            self.add(model, PLAIN, plain)
        if "failure" in plain:
            return self.add(model, engine, {"failure": "the plain step failed"})
        self.add(model, engine, worker.ask("beside"))
        for name, counts in worker.ask("count").items():
            if name in new:
                self.add(model, name, counts)
        return None


def run(suite: Suite, start: Callable[[str, str], Worker], tell: Callable[[str], object]) -> None:
    """Measure the remaining rows until the time is over; the next worker imports while one measures."""
    todo = suite.left()
    workers = (start(*key) for key in todo)
    upcoming = next(workers, None)
    try:
        for key in todo:
            worker, upcoming = upcoming, None
            assert worker is not None
            with worker:
                upcoming = next(workers, None)
                suite.measure(*key, worker)
            for name in [PLAIN, key[1]] if key[1] in FIRST else [key[1]]:
                tell(f"{key[0]}, {name}: {line(suite.rows.get((key[0], name), {'failure': 'no row'}))}")
            if suite.remaining() <= 0:
                break
    finally:
        if upcoming is not None:
            upcoming.kill()
            with upcoming:
                pass


def line(row: Row) -> str:
    """Return a short text about a row."""
    if "failure" in row:
        return str(row["failure"])
    words = f"{row['milliseconds']:.1f} ms, {row['ratio']:.2f} of the plain steps in turn, "
    first = f"{row['mib']:.0f} MiB, first {row['first_seconds']:.1f} s"
    counts = [f"{row[name]} {name}" for name in ("kernels", "launches", "waits") if name in row]
    route = [row["route"]] if "route" in row else []
    return words + ", ".join([first, *counts, *route])


def starter(given: argparse.Namespace, caches: str) -> Callable[[str, str], Worker]:
    """Return a function that starts the worker of a row, with separate compilation caches in ``caches``."""
    options = ["--device", given.device, "--rounds", str(given.rounds), "--seconds", str(given.turn)]
    options += ["--tiny"] if given.tiny else []

    def start(model: str, engine: str) -> Worker:
        own = tempfile.mkdtemp(dir=caches)
        environment = {"TRITON_CACHE_DIR": f"{own}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{own}/inductor"}
        name = f"{model}, {engine}"
        worker = Worker(name, WORKER, ["--model", model, "--engine", engine, *options], environment)
        worker.send("ready")
        return worker

    return start


def main() -> int:
    """Measure, print and write the JSON; return 1 if a plain step or one of Tacit's defaults failed."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    known = [*FIRST, *LATER]
    parser.add_argument("--models", nargs="+", metavar="NAME", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--engines", nargs="+", metavar="NAME", choices=known, default=known)
    parser.add_argument("--seconds", type=float, default=470.0, help="when it ends, done or not")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turn", type=float, default=0.2, help="seconds of a turn")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="next to nothing, to see that it runs")
    parser.add_argument("--go-on", action="store_true", help="keep the rows of the file, measure the others")
    parser.add_argument("--out", type=Path, default=results.FOLDER / "gpu_models.json")
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; --device cpu --tiny shows that the suite runs")

    def tell(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    models = {name: why for name in given.models if (why := MODELS[name].missing()) is not None}
    engines = {name: why for name in given.engines if (why := ENGINES[name].missing()) is not None}
    planned = list(
        jobs(
            [name for name in given.models if name not in models],
            [name for name in given.engines if name not in engines],
        )
    )
    skipped = {MODELS[name].title: why for name, why in models.items()} | engines
    for name, why in skipped.items():
        tell(f"{name} is left out: {why}.")
    setting = {name: getattr(given, name) for name in ("device", "tiny", "rounds", "turn")}
    suite = Suite(given.out, setting, planned, skipped, begun + given.seconds)
    if given.go_on and given.out.exists():
        suite.take()
    suite.save()
    with tempfile.TemporaryDirectory() as caches:
        run(suite, starter(given, caches), tell)
    for model, engine in suite.left():
        tell(f"left for lack of time: {model}, {engine}")
    ours = [row for row in suite.rows.values() if row["engine"] in (PLAIN, *FIRST)]
    return int(any("failure" in row for row in ours))


if __name__ == "__main__":
    sys.exit(main())
