"""A model for other programs computes what the model in Python does, for any number of rows."""

from __future__ import annotations

import importlib
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from torch import Tensor, nn

import tacit
from tacit.cli.app import run as command
from tacit.errors import InvalidInput, MissingExtra
from tacit.models import build
from tacit.runs.kinds import Arrays, Text
from tacit.runs.learners import Description, save_model
from tacit.runs.predict import FORMATS, export_model
from tacit.runs.sections import ModelSection

STATEMENT: dict[str, Any] = {
    "private": True,
    "guarantee": {"epsilon": 2.5, "delta": 1e-5, "unit": "person", "adjacency": "add-remove"},
}
NETWORKS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "logistic": ((1, 8, 8), {"normalise": True}),
    "mlp": ((12,), {"hidden": [8, 8], "activation": "tempered-sigmoid"}),
    "papernot-mnist-cnn": ((1, 28, 28), {}),
    "scattering-cnn": ((81, 7, 7), {}),
    "window": ((9,), {"hidden": [8]}),
}
ONNX = ("onnx", "onnxscript", "onnxruntime")


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def described(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> Description:
    text = name == "window"
    return Description(
        model=ModelSection(name=name, **options),
        input_shape=shape,
        outputs=5,
        task="text" if text else "classes",
        classes=() if text else ("a", "b", "c", "d", "é"),
        target_bounds=(),
        preprocessing=Text("abcd", shape[0] - 1) if text else Arrays(shape, 0.0, 1.0, "made up"),
        features="raw",
        statement_digest="0" * 64,
    )


def network(name: str) -> tuple[nn.Module, Description]:
    shape, options = NETWORKS[name]
    torch.manual_seed(0)
    model = build(name, input_shape=shape, classes=5, **options)
    with torch.no_grad():
        for weight in model.parameters():  # those of a logistic model start at zero
            weight.copy_(torch.randn(weight.shape) / math.sqrt(max(1, weight[0].numel())))
    return model.eval(), described(name, shape, options)


def rows(description: Description, count: int) -> Tensor:
    shape = (count, *description.input_shape)
    return torch.randint(0, 5, shape) if description.task == "text" else torch.rand(shape)


def reader(kind: str, path: Path) -> tuple[Callable[[Tensor], Tensor], dict[str, Any]]:
    """Return the outputs of the file, from an independent reader, and its metadata."""
    extra = {"tacit": ""}
    if kind == "torch-export":
        program = torch.export.load(path, extra_files=extra)
        return program.module(), json.loads(extra["tacit"])
    runtime: Any = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    (given,), (found,) = session.get_inputs(), session.get_outputs()
    assert (given.name, found.name) == ("inputs", "outputs")
    assert isinstance(given.shape[0], str), "the number of rows is free"
    metadata = session.get_modelmeta().custom_metadata_map["tacit"]
    return lambda x: torch.from_numpy(session.run(None, {"inputs": x.numpy()})[0]), json.loads(metadata)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", FORMATS)
def test_the_file_computes_what_the_model_does(kind: str, name: str) -> None:
    if kind == "onnx":
        for package in ONNX:
            pytest.importorskip(package)
    model, description = network(name)
    path = Path(f"model.{kind}")
    export_model(model, description, STATEMENT, path, format=kind)
    again, metadata = reader(kind, path)
    for count in (1, 2, 3, 7, 64):
        inputs = rows(description, count)
        with torch.no_grad():
            wanted, found = model(inputs), again(inputs)
        assert found.shape == wanted.shape
        assert float((found - wanted).abs().max()) <= 1e-6
    guarantee = STATEMENT["guarantee"]
    assert {name: metadata[name] for name in guarantee} == guarantee
    assert metadata["private"] is True
    assert metadata["classes"] == list(description.classes)
    assert Description.from_data(metadata) == description
    assert [file.name for file in Path().iterdir()] == [path.name]
    assert b"site-packages" not in path.read_bytes(), "no path of the machine that exported it"


SPOKEN = """
import sys
import warnings
warnings.simplefilter("default")
sys.path.insert(0, {here!r})
import test_runs_export as tests
for name in ("scattering-cnn", "window"):
    tests.export_model(*tests.network(name), tests.STATEMENT, tests.Path(name), format={kind!r})
described = tests.described("mlp", (12,), {{}})
for model in (tests.Remembers(), tests.Warns()):
    tests.export_model(model, described, None, tests.Path(type(model).__name__), format={kind!r})
"""


class Remembers(nn.Module):
    """Recurrent: torch warns of the weights of its own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(12, 5, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.gru(inputs[:, None])[0][:, 0]
        return found


class Warns(nn.Module):
    """A network with something to say itself."""

    def forward(self, inputs: Tensor) -> Tensor:
        warnings.warn("of the network itself", UserWarning, stacklevel=1)
        return inputs[:, :5]


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_is_said_that_the_user_cannot_change(kind: str) -> None:
    """Neither of torch's own future nor of packages that it could use; what the network says is shown."""
    if kind == "onnx":
        for package in ONNX:
            pytest.importorskip(package)
    script = SPOKEN.format(here=str(Path(__file__).parent), kind=kind)
    done = warm.run(script)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "Warning:" in line or not line.startswith("  ")]
    assert said
    assert all("UserWarning: of the network itself" in line for line in said), done.stderr
    assert done.stdout == ""


class ByRows(nn.Module):
    """Another result for another number of rows."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, :5] * len(inputs) if len(inputs) == 2 else inputs[:, :5]


class ByValues(nn.Module):
    """Another result for other values."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs[:, :5] * 2 if float(inputs.sum()) > 25 else inputs[:, :5]


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "onnx"])
@pytest.mark.parametrize("model", [ByRows(), ByValues()], ids=["rows", "values"])
def test_planted_bug_a_file_that_computes_something_else_is_not_written(model: nn.Module, kind: str) -> None:
    description = described("mlp", (12,), {})
    with pytest.raises(InvalidInput, match=r"gives other results than the model|cannot export"):
        export_model(model, description, STATEMENT, Path("model"), format=kind)
    assert list(Path().iterdir()) == []


def test_files_are_not_replaced_and_formats_have_names(capsys: pytest.CaptureFixture[str]) -> None:
    model, description = network("mlp")
    save_model(model, description, Path("run/model.safetensors"))
    Path("mine").write_text("mine")
    loaded = tacit.load("run")
    with pytest.raises(InvalidInput, match="mine exists already"):
        loaded.export("mine", format="torch-export")
    assert Path("mine").read_text() == "mine"
    with pytest.raises(InvalidInput, match="format must be one of onnx, torch-export"):
        loaded.export("other", format="onyx")
    assert command(["export", "run", "--format", "torch-export", "--out", "mine", "--overwrite"]) == 0
    assert "Model as torch-export: mine" in capsys.readouterr().out
    inputs = torch.rand(3, 12)
    with torch.no_grad():
        assert torch.equal(torch.export.load("mine").module()(inputs), loaded.model(inputs))
    extra = {"tacit": ""}
    torch.export.load("mine", extra_files=extra)
    assert "epsilon" not in json.loads(extra["tacit"]), "without a statement nothing is promised"


def test_onnx_without_its_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    model, description = network("mlp")
    with pytest.raises(MissingExtra, match=r"pip install -e '\.\[onnx\]'"):
        export_model(model, description, STATEMENT, Path("model.onnx"), format="onnx")
