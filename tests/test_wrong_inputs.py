"""Wrong data, models, losses and settings: an error of Tacit, which says what and the mend, and no cell."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from made import a_plan, a_session, losses
from torch import Tensor, nn
from torch.utils.data import Dataset

from tacit import (
    Gaussian,
    PerLayerClipping,
    Plan,
    PrivateSession,
    ShuffledBatches,
    calibrate,
    evaluate,
    make_private_ready,
    make_statement,
    train,
)
from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, UnsupportedModel
from tacit.integrations.sklearn import PrivateClassifier, PrivateRegressor, PrivateSurvival

N, D, CLASSES = 40, 4, 3
CELL, LABEL, NAME = 7654.25, 98765, "Mallory"
"""What records hold, and what no message may show."""
SECRETS = ("7654", "98765", "Mallory")


def plan(**changes: Any) -> Plan:
    return a_plan(**{"records": N, "batch_size": N, "steps": 2, **changes})


def records() -> tuple[Tensor, Tensor]:
    x = torch.full((N, D), CELL)
    return x, torch.arange(N) % CLASSES


def run(
    data: Any = None,
    model: Any = None,
    loss: Any = losses,
    optimizer: Any = torch.optim.SGD,
    the_plan: Any = None,
    **settings: Any,
) -> None:
    """Take one step of a session with something wrong in it."""
    model = nn.Linear(D, CLASSES) if model is None else model
    if isinstance(optimizer, type) and isinstance(model, nn.Module):
        optimizer = optimizer([*model.parameters()] or [nn.Parameter(torch.zeros(1))], lr=0.1)
    data = records() if data is None else data
    session = PrivateSession(
        model, optimizer, data, plan() if the_plan is None else the_plan, loss=loss, **settings
    )
    session.step(next(session.batches()))


class Items(Dataset[Any]):
    """Items that ``make`` makes."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return self.make(i)


def unreadable(i: int) -> Any:
    raise ValueError(f"{NAME} {CELL}")


def labels(value: int | float, dtype: torch.dtype = torch.int64) -> tuple[Tensor, Tensor]:
    x, y = records()
    y = y.to(dtype)
    y[5] = value
    return x, y


def with_cell(value: float) -> tuple[Tensor, Tensor]:
    x, y = records()
    x[3, 1] = value
    return x, y


# Records, and the mend that the refusal names; test_training_record_kinds.py has many more.
DATA: dict[str, tuple[Callable[[], Any], str]] = {
    "a number": (lambda: CELL, "data of type float"),
    "an empty tuple": (tuple, "Pass the columns"),
    "infinite": (lambda: with_cell(float("inf")), "fill them by a fixed rule"),
    "complex": (
        lambda: (torch.full((N, D), CELL, dtype=torch.complex64), records()[1]),
        "Make it accept these arguments",
    ),
    "on the meta device": (lambda: tuple(t.to("meta") for t in records()), "a meta tensor"),
    "int64 inputs": (lambda: (records()[0].long(), records()[1]), "x.float()"),
    "items that cannot be read": (lambda: Items(unreadable), "Remove unreadable records"),
    "items of three": (
        lambda: Items(lambda i: (torch.full((D,), CELL), 0, 0)),
        "Define it as def loss(model, x, y, z)",
    ),
    "labels too large": (lambda: labels(LABEL), "Declare as many classes"),
    "labels below 0": (lambda: labels(-LABEL), "Declare as many classes"),
}


class Reads(nn.Module):
    """A model with a forward pass of choice."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.forward_of = nn.Linear(D, CLASSES), forward

    def forward(self, x: Tensor) -> Any:
        return self.forward_of(self.linear, x)


def on_meta() -> nn.Module:
    return nn.Linear(D, CLASSES, device="meta")


def of_inference() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(D, CLASSES)


def with_nan() -> nn.Module:
    model = nn.Linear(D, CLASSES)
    nn.init.constant_(model.weight, float("nan"))
    return model


def with_both_infinities() -> nn.Module:
    model = nn.Linear(D, CLASSES)
    with torch.no_grad():
        model.bias[0], model.bias[1] = float("inf"), -float("inf")
    return model


def frozen() -> nn.Module:
    return nn.Linear(D, CLASSES).requires_grad_(False)


def embedding() -> nn.Module:
    return Reads(lambda linear, x: linear(x) + F.embedding((x[:, 0] > 0) * LABEL, torch.zeros(2, CLASSES)))


MODELS: dict[str, tuple[Callable[[], Any], type[TacitError], str, str]] = {
    "a function": (lambda: lambda x: x, InvalidInput, "model must be a torch.nn.Module", "got function"),
    "a class": (lambda: nn.Linear, InvalidInput, "got the class Linear", "nn.Sequential"),
    "nothing": (lambda: Items, InvalidInput, "got the class Items", "torch.nn.Module"),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(D, CLASSES), nn.BatchNorm1d(CLASSES)),
        UnsupportedModel,
        "batch statistics",
        "make_private_ready",
    ),
    "all frozen": (frozen, UnsupportedModel, "no trainable parameters", "Set requires_grad"),
    "no parameters": (nn.Flatten, UnsupportedModel, "no trainable parameters", "Set requires_grad"),
    "lazy": (lambda: nn.LazyLinear(CLASSES), UnsupportedModel, "has no shape yet", "torch.zeros(2, ...)"),
    "meta device": (on_meta, UnsupportedModel, "meta device", "to_empty"),
    "inference mode": (of_inference, UnsupportedModel, "torch.inference_mode()", "outside of it"),
    "infinite weights": (
        with_both_infinities,
        InvalidInput,
        "'bias' contains NaN",
        "Initialise the model again",
    ),
    "NaN weights": (with_nan, InvalidInput, "'weight' contains NaN", "Initialise the model again"),
    "complex": (
        lambda: nn.Linear(D, CLASSES, dtype=torch.complex64),
        UnsupportedModel,
        "'weight' is complex",
        "view_as_real",
    ),
    "other inputs": (
        lambda: nn.Linear(D + 1, CLASSES),
        InvalidInput,
        "x4 and 5x3)",
        "Make it accept these arguments",
    ),
    "a tuple": (
        lambda: Reads(lambda f, x: (f(x), x)),
        InvalidInput,
        "fails on dummy records of zeros",
        "Make it accept these arguments",
    ),
    "a place that is not there": (embedding, InvalidInput, "out of range", "its embedding"),
    "an attribute that is not there": (
        lambda: Reads(lambda f, x: f.get_submodule("layer")(x)),
        InvalidInput,
        "AttributeError",
        "Make it accept these arguments",
    ),
    "mixing": (lambda: Reads(lambda f, x: f(x - x.mean(0))), UnsupportedModel, "records", "."),
}


def raising(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    if float(x.detach().max()) > 1:
        raise ValueError(f"{NAME}: {float(x.max())}")
    return losses(model, x, y)


LOSSES: dict[str, tuple[Any, str, str]] = {
    "a mean": (lambda m, x, y: losses(m, x, y).mean(), 'reduction="none"', "tacit.losses.causal()"),
    "a matrix": (lambda m, x, y: m(x), "one loss per row", 'reduction="none"'),
    "not a tensor": (lambda m, x, y: 3.0, "must return a tensor", "float"),
    "nothing": (lambda m, x, y: None, "must return a tensor", "NoneType"),
    "integers": (lambda m, x, y: m(x).argmax(1), "torch.int64", "reduction"),
    "complex": (lambda m, x, y: losses(m, x, y) + 0j, "torch.complex64", "reduction"),
    "an error on records alone": (raising, "original message is hidden", "remove such records"),
}


def scheduler() -> Any:
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), 1)


SESSIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no optimizer": ({"optimizer": "sgd"}, "str has no step hooks", "Pass an optimizer of torch"),
    "a schedule": ({"optimizer": scheduler()}, "StepLR", "Pass"),
    "LBFGS": ({"optimizer": torch.optim.LBFGS}, "evaluates the loss several times", "Use SGD"),
    "sparse Adam": ({"optimizer": torch.optim.SparseAdam}, "needs sparse gradients", "Use Adam"),
    "another's parameters": (
        {"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)},
        "lacks the trainable parameters weight, bias",
        "Pass model.parameters()",
    ),
    "no plan": ({"the_plan": 3.0}, "plan must be a tacit.Plan", "Plan.calibrate"),
    "an engine": ({"engine": "quick"}, "engine must be one of fast, reference", "got 'quick'"),
    "physical": ({"physical_batch_size": 0}, "physical_batch_size must be an integer >= 1", "got 0"),
    "physical text": ({"physical_batch_size": "all"}, "physical_batch_size must be", "got 'all'"),
    "workers": ({"workers": -1}, "workers must be an integer >= 0", "got -1"),
    "averaging": ({"ema_decay": 2.0}, "ema", "[0, 1)"),
    "averaging text": ({"ema_decay": "yes"}, "ema", "got 'yes'"),
    "augmentation": ({"augmentation": torch.flip}, "augmentation must be", "FlipAndCrop"),
    "memory": ({"memory": "little"}, "memory must be", "LEAN"),
    "audit": ({"audit": True}, "audit must be", "AuditSlots(1000)"),
    "charges": ({"charges": "budget.db"}, "charges must be", "StepCharges"),
    "generator": ({"generator": torch.Generator()}, "generator must be left out", "tests"),
    "views": ({"the_plan": plan(views=2)}, "2 views per record", "Pass an augmentation"),
    "records": (
        {"the_plan": plan(records=N + 1, adjacency="zero-out")},
        "the plan has 41 records and the data 40",
        "records=40",
    ),
}

PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "noise": ({"noise_multiplier": 0.0}, "noise_multiplier must be a real number in (0, inf"),
    "noise text": ({"noise_multiplier": "much"}, "noise_multiplier must be"),
    "noise NaN": ({"noise_multiplier": float("nan")}, "noise_multiplier must be"),
    "delta of 1": ({"delta": 1.0}, "delta must be a real number in (0, 1); got 1.0"),
    "delta of 0": ({"delta": 0.0}, "delta must be a real number in (0, 1); got 0.0"),
    "delta text": ({"delta": "1e-5"}, "delta must be"),
    "large delta": ({"delta": 0.5}, "allow_large_delta=True"),
    "records": ({"records": 0}, "records must be an integer >= 1; got 0"),
    "records text": ({"records": "40"}, "records must be"),
    "records float": ({"records": 40.5}, "records must be"),
    "clipping": ({"clipping": -1.0}, "must be a real number"),
    "clipping text": ({"clipping": "flat"}, "must be a real number"),
    "clipping None": ({"clipping": None}, "must be a real number"),
    "adjacency": ({"adjacency": "neighbours"}, "adjacency must be one of add-remove"),
    "unit": ({"unit": " "}, "unit must name one record"),
    "unit None": ({"unit": None}, "unit must be a word"),
    "batch": ({"batch_size": 0}, "batch_size must be an integer >= 1"),
    "batch float": ({"batch_size": 1.5}, "batch_size must be"),
    "batch too large": ({"batch_size": 41}, "batch_size 41 is larger than the data (40 records)"),
    "no length": ({"steps": None}, "exactly one of epochs and steps"),
    "two lengths": ({"epochs": 1}, "exactly one of epochs and steps"),
    "epochs": ({"steps": None, "epochs": 0}, "epochs must be"),
    "epochs text": ({"steps": None, "epochs": "ten"}, "epochs must be"),
    "steps": ({"steps": -3}, "steps must be an integer >= 1"),
    "sampling": ({"sampling": "poisson"}, "sampling must be one of PoissonSampling"),
    "shuffled": ({"sampling": ShuffledBatches(N, N)}, "no guarantee under add-remove"),
    "shuffled for others": (
        {"sampling": ShuffledBatches(N, N + 1), "adjacency": "zero-out"},
        "records and its sampler 41",
    ),
    "preparation": ({"preparation": Gaussian(8.0)}, "preparation must be a list of events"),
    "preparation text": ({"preparation": ["PCA"]}, "must be an event"),
    "views": ({"views": 0}, "views must be an integer >= 1"),
    "loss report": ({"loss_report": True}, "loss_report must be LossReport(bound=...)"),
    "score report": ({"score_report": 5.0}, "score_report must be ScoreReport(noise=...)"),
    "large delta text": ({"allow_large_delta": "yes"}, "allow_large_delta must be True or False"),
    "budget": ({"epsilon_budget": -1.0}, "epsilon_budget must be"),
}


def table(text: str | bytes) -> Path:
    path = Path("people.csv")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


CONFIG = """
[data]
table = "people.csv"
target = "rich"
test_fraction = 0.2
[columns]
age = { kind = "number", lower = 0, upper = 100 }
rich = { kind = "category", values = ["no", "yes"] }
[model]
name = "logistic"
[privacy]
noise_multiplier = 3.0
delta = 1e-3
unit = "person"
adjacency = "add-remove"
records = 240
[optimizer]
learning_rate = 0.5
[training]
batch_size = 60
steps = 2
"""
ROWS = "".join(f"{20 + i % 50},{('no', 'yes')[i % 2]}\n" for i in range(300))

TABLES: dict[str, str | bytes] = {
    "an empty file": "",
    "a header alone": "age,rich\n",
    "no header": ROWS,
    "a name": f"age,rich\n{ROWS}{NAME},no\n",
    "a number with a unit": f"age,rich\n{ROWS}{CELL} years,no\n",
    "a class that is not declared": f"age,rich\n{ROWS}30,{NAME}\n",
    "too many cells": f"age,rich\n{ROWS}30,no,{NAME}\n",
    "too few cells": f"age,rich\n{ROWS}{CELL}\n",
    "an open quote": f'age,rich\n{ROWS}30,"{NAME}\n',
    "one column twice": f"age,age,rich\n{ROWS}",
    "a column that is missing": f"rich\n{NAME}\n",
    "another separator": f"age;rich\n{ROWS.replace(',', ';')}",
    "latin-1": f"age,rich\n{ROWS}30,J\u00f6rg {NAME}\n".encode("latin-1"),
    "zeros": b"\x00" * 100,
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
}

X = np.full((N, D), CELL)
Y = np.arange(N) % CLASSES
DECLARED: dict[str, Any] = {
    "epsilon": 5.0,
    "delta": 1e-3,
    "unit": "row",
    "adjacency": "replace-one",
    "classes": range(CLASSES),
    "bounds": (0, 1e4),
    "steps": 2,
}


def fit(X: Any = X, y: Any = Y, **changes: Any) -> Any:
    return PrivateClassifier(**{**DECLARED, **changes}).fit(X, y)


def texts() -> Any:
    found = X.astype(object)
    found[3, 1] = NAME
    return found


def nan() -> Any:
    found = X.copy()
    found[3, 1] = np.nan
    return found


SKLEARN: dict[str, tuple[Callable[[], Any], str]] = {
    "texts": (lambda: fit(texts()), "X has cells that are not numbers"),
    "NaN": (lambda: fit(nan()), "NaN or infinite"),
    "labels unknown": (lambda: fit(X, Y + LABEL), "outside the declared classes"),
    "labels of numbers": (lambda: fit(X, Y + 0.5), "Unknown label type"),
    "labels of texts": (lambda: fit(X, [NAME] * N), "outside the declared classes"),
    "no classes": (lambda: fit(classes=None), "classes must be declared"),
    "no bounds": (lambda: fit(bounds=None), "bounds must be declared"),
    "bounds text": (lambda: fit(bounds="wide"), "bounds must contain numbers"),
    "epsilon": (lambda: fit(epsilon=-1.0), "epsilon must be"),
    "epsilon text": (lambda: fit(epsilon="three"), "epsilon must be"),
    "activation": (lambda: fit(hidden=(4,), activation="swish"), "activation must be one of"),
    "rate": (lambda: fit(learning_rate=0.0), "learning_rate must be"),
    "momentum": (lambda: fit(momentum=2), "momentum must be"),
    "batch": (lambda: fit(batch_size="all"), "batch_size must be"),
    "texts to predict": (lambda: fit().predict(texts()), "X has cells that are not numbers"),
    "texts to score": (lambda: fit().score(X, [NAME] * N), "."),
    "targets of texts": (
        lambda: PrivateRegressor(
            epsilon=5.0, delta=1e-3, unit="row", adjacency="zero-out", bounds=(0, 1), target_bounds=(0, 1)
        ).fit(X, [NAME] * N),
        "y must contain numbers",
    ),
    "a survival model of times": (
        lambda: PrivateSurvival(
            epsilon=5.0, delta=1e-3, unit="row", adjacency="zero-out", bounds=(0, 1), time_bounds=(0, 9)
        ).fit(X, [NAME] * N),
        "y must be a structured array",
    ),
    "a survival model without bounds of times": (
        lambda: PrivateSurvival(epsilon=5.0, delta=1e-3, unit="row", adjacency="zero-out", bounds=(0, 1)).fit(
            X, X[:, 0]
        ),
        "time_bounds must be declared",
    ),
    "targets without bounds": (
        lambda: PrivateRegressor(
            epsilon=5.0, delta=1e-3, unit="row", adjacency="zero-out", bounds=(0, 1)
        ).fit(X, X[:, 0]),
        "target_bounds must be declared",
    ),
}


def session() -> PrivateSession:
    return a_session(nn.Linear(D, CLASSES), records(), plan(), generator=None)


NET: Any = nn.Linear(D, CLASSES)
NO_NET: Any = len
OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "evaluate no model": (lambda: evaluate(NO_NET, *records()), "model must be a torch.nn.Module"),
    "evaluate other inputs": (
        lambda: evaluate(NET, torch.full((9, 2), CELL), torch.zeros(9)),
        "float32 of shape (2,)",
    ),
    "evaluate texts": (lambda: evaluate(NET, np.array([[NAME]]), np.zeros(1)), "holds text"),  # type: ignore[arg-type]
    "evaluate lengths": (lambda: evaluate(NET, records()[0], records()[1][:3]), "as many targets as inputs"),
    "evaluate nothing": (lambda: evaluate(NET, torch.zeros(0, D), torch.zeros(0)), "at least one"),
    "evaluate classes as numbers": (
        lambda: evaluate(NET, records()[0], records()[1].float()),
        "targets.long()",
    ),
    "evaluate unknown classes": (
        lambda: evaluate(NET, records()[0], records()[1] + LABEL),
        "must be in 0..2",
    ),
    "evaluate one output": (
        lambda: evaluate(nn.Flatten(0), *records()),
        "the model must return (n, classes)",
    ),
    "train a model": (lambda: train(NET), "session must be a tacit.PrivateSession"),
    "train rows": (lambda: train(session(), rows=0), "rows must be an integer >= 1"),
    "train checkpoints": (lambda: train(session(), checkpoint_every=0), "checkpoint_every must be"),
    "train evaluation": (lambda: train(session(), evaluate=NO_NET.__name__), "evaluate must be a function"),
    "train watchers": (lambda: train(session(), watchers=NO_NET), "watchers must be a tuple"),
    "load nothing": (lambda: session().load("nothing.pt"), "there is no resume state at nothing.pt"),
    "load a folder": (lambda: session().load("."), "cannot be read"),
    "a step of records": (lambda: session().step(records()), "got tuple"),  # type: ignore[arg-type]
    "slots without audit": (lambda: session().slot_evidence(), "audit=AuditSlots(1000)"),
    "statement": (
        lambda: make_statement(NO_NET),
        "session must be the one that trained",
    ),
    "statement of a plan": (lambda: make_statement(plan()), "a plan does not know"),  # type: ignore[arg-type]
    "private ready": (lambda: make_private_ready(NO_NET), "model must be a torch.nn.Module"),
    "layers": (lambda: PerLayerClipping(1.0, norms=NO_NET), "norms must be pairs"),
    "layers of three": (lambda: PerLayerClipping(1.0, norms=((1, 2, 3),)), "norms must be pairs"),  # type: ignore[arg-type]
    "family": (
        lambda: calibrate(CELL, epsilon=1.0, delta=1e-5, adjacency="add-remove"),  # type: ignore[arg-type]
        "family must be a function",
    ),
}


def told(call: Callable[[], object]) -> Exception | None:
    """Return the error that ``call`` raises, or None."""
    try:
        call()
    except Exception as problem:  # noqa: BLE001 (of which kind it is, is what is tested)
        return problem
    return None


def refusal(call: Callable[[], object], kind: type[TacitError] = TacitError) -> str:
    """Return the message, after a check that it is an error of Tacit in whole sentences, without a cell."""
    problem = told(call)
    printed = "" if problem is None else "".join(traceback.format_exception(problem))
    shown = re.sub(r"^  .*$", "", printed, flags=re.MULTILINE)  # without lines of source
    assert isinstance(problem, kind), printed
    assert [secret for secret in SECRETS if secret in shown] == []
    said = str(problem)
    assert said.endswith((".", "?", ")", "'")), said
    return said


def says(said: str, words: Sequence[str]) -> None:
    assert [word for word in words if word not in said] == [], said


@pytest.mark.parametrize("what", DATA)
def test_wrong_records(what: str) -> None:
    make, words = DATA[what]
    says(refusal(lambda: run(make())), [words])


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("what", MODELS)
def test_wrong_models(what: str, engine: str) -> None:
    make, kind, *words = MODELS[what]
    says(refusal(lambda: run(model=make(), engine=engine), kind), words)


@pytest.mark.parametrize("what", LOSSES)
def test_wrong_losses(what: str) -> None:
    loss, *words = LOSSES[what]
    says(refusal(lambda: run(loss=loss)), words)


@pytest.mark.parametrize("what", SESSIONS)
def test_wrong_settings_of_a_session(what: str) -> None:
    settings, *words = SESSIONS[what]
    says(refusal(lambda: run(**settings)), words)


@pytest.mark.parametrize("what", PLANS)
def test_wrong_plans(what: str) -> None:
    changes, words = PLANS[what]
    says(refusal(lambda: plan(**changes), PrivacyRefusal if "guarantee" in words else TacitError), [words])


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), "3", None, 1e9])
def test_wrong_budgets(epsilon: Any) -> None:
    said = refusal(
        lambda: Plan.calibrate(
            epsilon=epsilon, delta=1e-3, records=N, batch_size=N, steps=2, clipping=1.0,
            adjacency="add-remove", unit="row",
        )
    )  # fmt: skip
    says(said, ["epsilon"])


@pytest.mark.parametrize("what", TABLES)
def test_wrong_tables(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file can be read by a stated rule after all, the run is prepared."""
    from tacit.runs import prepare

    monkeypatch.chdir(tmp_path)
    table(TABLES[what])
    Path("run.toml").write_text(CONFIG)
    says(refusal(lambda: prepare("run.toml", out="out")), ["."])


@pytest.mark.parametrize("what", SKLEARN)
def test_wrong_calls_of_the_estimators(what: str) -> None:
    call, words = SKLEARN[what]
    says(refusal(call), [words])


@pytest.mark.parametrize("what", OTHERS)
def test_wrong_calls_of_other_functions(what: str) -> None:
    call, words = OTHERS[what]
    says(refusal(call), [words])
