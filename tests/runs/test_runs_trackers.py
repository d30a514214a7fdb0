"""Experiment trackers get parameters, the lines of metrics and the statement, and no number without noise."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from run_files import run_file

from tacit.errors import InvalidInput, MissingExtra
from tacit.runs import Outcome, prepare
from tacit.runs.config import parse_config
from tacit.runs.metrics import MLflowWatcher, WandbWatcher, public_parameters
from tacit.training import step as stepping
from tacit.training.loop import MetricsRow

pytestmark = pytest.mark.usefixtures("no_pictures")
RUN = run_file(
    data='table = "visits.csv"; target = "ill"; test_fraction = 0.25',
    columns='age = { kind = "number", lower = 17, upper = 90 }; '
    'ill = { kind = "category", values = ["no", "yes"] }',
    privacy='epsilon = 3.0; delta = 1e-3; unit = "visit"; records = 150',
    optimizer="learning_rate = 0.25",
    training="batch_size = 50; steps = 6",
    run="rows = 6",
)
FIGURES = ("epsilon", "loss", "test_score", "test_loss", "loss_std", "test_auc")


class Fakes:
    """MLflow and Weights & Biases: what they were given, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.ends: list[object] = []
        self.made: dict[str, Any] = {}

    def mlflow(self) -> Any:
        fakes = self

        class Client:
            def __init__(self, tracking_uri: str) -> None:
                fakes.made["uri"] = tracking_uri

            def get_experiment_by_name(self, name: str) -> Any:
                return SimpleNamespace(experiment_id="7") if fakes.made.get("experiment") else None

            def create_experiment(self, name: str, artifact_location: str | None = None) -> str:
                fakes.made |= {"experiment": name, "artefacts": artifact_location}
                return "7"

            def create_run(self, experiment_id: str, run_name: str) -> Any:
                assert experiment_id == "7"
                fakes.made["name"] = run_name
                return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

            def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
                assert run_id == "r1"
                fakes.sent += [("parameter", item) for item in params]
                fakes.sent += [("figure", (name, value, step)) for name, value, _, step in metrics]

            def log_artifact(self, run_id: str, path: str) -> None:
                fakes.sent.append(("file", Path(path)))

            def set_terminated(self, run_id: str, status: str) -> None:
                fakes.ends.append(status)

        entities = SimpleNamespace(Param=lambda *values: values, Metric=lambda *values: values)
        return SimpleNamespace(MlflowClient=Client, entities=entities)

    def wandb(self) -> Any:
        fakes = self

        class Artifact:
            def __init__(self, name: str, type: str) -> None:  # noqa: A002
                self.path = Path()

            def add_file(self, path: str) -> None:
                self.path = Path(path)

        class Run:
            def log(self, figures: dict[str, float], step: int) -> None:
                fakes.sent += [("figure", (name, value, step)) for name, value in figures.items()]

            def log_artifact(self, artefact: Artifact) -> None:
                fakes.sent.append(("file", artefact.path))

            def finish(self, exit_code: int) -> None:
                fakes.ends.append(exit_code)

        def init(*, config: dict[str, Any], **how: Any) -> Run:
            fakes.made |= how
            fakes.sent += [("parameter", (name, str(value))) for name, value in config.items()]
            return Run()

        return SimpleNamespace(init=init, Settings=lambda **kept: kept, Artifact=Artifact)

    def figures(self) -> list[tuple[str, float, int]]:
        return [what for kind, what in self.sent if kind == "figure"]


@pytest.fixture(params=["mlflow", "wandb"])
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fakes(package: str, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    made = Fakes()
    monkeypatch.setitem(sys.modules, package, getattr(made, package)())
    return made


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    ages = np.random.default_rng(0).integers(17, 91, 200)
    lines = [f"{age},{'yes' if age > 55 else 'no'}" for age in ages]
    Path("visits.csv").write_text("age,ill\n" + "\n".join(lines) + "\n")


def write(package: str, *more: str) -> None:
    Path("run.toml").write_text(RUN + "\n".join([f"{package} = true", *more]) + "\n")


def train(package: str) -> Outcome:
    write(package)
    outcome = prepare("run.toml", out="out/first").start()
    assert outcome is not None
    return outcome


def of_rows(rows: list[MetricsRow]) -> list[tuple[str, float, int]]:
    return [(name, getattr(row, name), row.steps) for row in rows for name in FIGURES]


def numbers(value: object) -> Iterator[float]:
    """Every number in plain data, also in texts and files."""
    match value:
        case Path():
            yield from numbers(value.read_text(encoding="utf-8"))
        case str():
            yield from map(float, re.findall(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", value))
        case int() | float():
            yield float(value)
        case tuple() | list():
            for item in value:
                yield from numbers(item)


def raw_losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Fills with the loss of each step as it would be without noise."""
    found: list[float] = []
    noisy: Callable[..., float | None] = stepping._noisy_loss
    silent = {**vars(stepping), "_scalar_noise": lambda *_: 0.0}
    exact = FunctionType(stepping._noisy_loss.__code__, silent)

    def spied(*arguments: Any) -> float | None:
        found.append(exact(*arguments))
        return noisy(*arguments)

    monkeypatch.setattr(stepping, "_noisy_loss", spied)
    return found


def leaked(raw: list[float], sent: object) -> bool:
    return any(math.isclose(one, other, rel_tol=1e-9) for one in raw for other in numbers(sent))


def test_parameters_figures_and_statement_leave_and_no_number_without_noise(
    package: str, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = raw_losses(monkeypatch)
    outcome = train(package)
    assert fakes.figures() == of_rows(outcome.rows), "the lines of metrics, and nothing else"
    said = dict(what for kind, what in fakes.sent if kind == "parameter")
    assert said == {
        name: str(value) for name, value in public_parameters(parse_config(RUN, "run.toml")).items()
    }
    assert [what for kind, what in fakes.sent if kind == "file"] == [Path("out/first/statement.json")]
    assert {kind for kind, _ in fakes.sent} == {"parameter", "figure", "file"}
    assert len(raw) == 6
    assert not leaked(raw, [what for _, what in fakes.sent])
    assert fakes.ends == [{"mlflow": "FINISHED", "wandb": 0}[package]]


def test_planted_bug_a_loss_without_noise_would_be_seen(
    package: str, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = raw_losses(monkeypatch)
    monkeypatch.setattr(stepping, "_scalar_noise", lambda *_: 0.0)
    train(package)
    assert leaked(raw, [what for _, what in fakes.sent])


def test_a_resumed_run_is_tracked_from_its_first_line(package: str, fakes: Fakes) -> None:
    write(package)
    stops = iter([False, False, True])
    assert prepare("run.toml", out="out/first").start(should_stop=lambda: next(stops)) is None
    assert fakes.ends == [{"mlflow": "KILLED", "wandb": 1}[package]]
    fakes.sent.clear()
    outcome = prepare("run.toml", out="out/first", resume=True).start()
    assert outcome is not None
    assert fakes.figures() == of_rows(outcome.rows)


def test_where_they_write(package: str, fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("out/first").absolute()
    if package == "mlflow":
        MLflowWatcher(Path("out/first"))
        assert fakes.made["uri"] == f"sqlite:///{folder / 'mlflow.db'}"
        assert fakes.made["artefacts"] == (folder / "mlflow").as_uri()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
        MLflowWatcher(Path("out/second"))
        assert (fakes.made["uri"], fakes.made["name"]) == ("https://mlflow.example.org", "second")
    else:
        WandbWatcher(Path("out/first"))
        assert (fakes.made["mode"], fakes.made["dir"]) == ("offline", "out/first")
        settings = fakes.made["settings"]
        assert settings["console"] == "off"
        for name in ("disable_code", "disable_git", "x_disable_stats", "x_disable_meta"):
            assert settings[name] is True


def test_without_the_package_it_is_said_before_anything_is_written(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    write(package)
    run = prepare("run.toml", out="out/first")
    with pytest.raises(MissingExtra, match=rf"pip install -e '\.\[{package}\]'"):
        run.start()
    assert run.session.steps_done == 0
    assert not Path("out/first").exists()


def test_no_path_ledger_or_user_is_a_parameter() -> None:
    ledger = '[ledger]\nurl = "postgresql+psycopg://ada@secret/budget"\ndataset = "visits"\nby = "ada"\n'
    said = public_parameters(parse_config(RUN.replace("[run]", ledger + "[run]"), "run.toml"))
    assert said["privacy.epsilon"] == 3.0
    assert said["training.batch_size"] == 50
    assert not any(word in f"{name}={value}" for name, value in said.items() for word in ("secret", "visits"))


def test_a_password_is_refused_as_the_folder_keeps_the_run_file() -> None:
    ledger = '[ledger]\nurl = "postgresql+psycopg://ada:secret@host/budget"\ndataset = "visits"\n'
    with pytest.raises(InvalidInput, match=r"\[ledger\] url contains a password.*PGPASSWORD") as caught:
        parse_config(RUN.replace("[run]", ledger + "[run]"), "run.toml")
    assert "secret" not in str(caught.value)


def test_tensorboard_gets_parameters_and_statement_too() -> None:
    outcome = train("tensorboard")
    name = "tensorboard.backend.event_processing.event_accumulator"  # it has no types
    reader = importlib.import_module(name).EventAccumulator("out/first/tensorboard").Reload()
    texts = {
        tag.partition("/")[0]: reader.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in reader.Tags()["tensors"]
    }
    assert "    privacy.epsilon = 3.0" in texts["parameters"]
    kept = "\n".join(line[4:] for line in texts["statement"].splitlines())
    assert json.loads(kept) == json.loads(outcome.statement.to_json())


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="MLflow is not installed")
@pytest.mark.filterwarnings("ignore")  # of what it imports
def test_mlflow_itself_keeps_the_run() -> None:
    outcome = train("mlflow")
    client = importlib.import_module("mlflow").MlflowClient("sqlite:///out/first/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("tacit").experiment_id])
    history = client.get_metric_history(run.info.run_id, "epsilon")
    assert {point.step: point.value for point in history} == {row.steps: row.epsilon for row in outcome.rows}
    assert run.data.params["privacy.unit"] == "visit"
    assert run.info.status == "FINISHED"
    assert len(list(Path("out/first/mlflow").rglob("statement.json"))) == 1


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
@pytest.mark.filterwarnings("ignore")  # of what it imports
def test_wandb_itself_keeps_the_run() -> None:
    train("wandb")
    (kept,) = Path("out/first/wandb").glob("offline-run-*/*.wandb")
    content = kept.read_bytes()
    for words in (b"privacy.unit", b"visit", b"epsilon"):
        assert words in content
    assert b"visits.csv" not in content
