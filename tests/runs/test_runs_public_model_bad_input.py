"""Public models that are none, records that they cannot read, and runs that go on from another place."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_runs_public_model import configured, rows, write_rows
from torch import Tensor, nn

import tacit
from tacit.cli.app import run as command
from tacit.errors import InvalidInput, UnsupportedModel
from tacit.runs import prepare
from tacit.runs.checks import check_run
from tacit.runs.predict import load

pytestmark = pytest.mark.usefixtures("no_pictures")

PICTURES = """
[data]
images = "{folder}/pictures"
classes = ["dark", "light"]
size = [8, 8]
test_fraction = 0.3

[model]
encoder = "{folder}/{file}"

[privacy]
epsilon = 8.0
delta = 1e-2
unit = "picture"
adjacency = "add-remove"
records = 12
"""


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def as_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def with_code(folder: Path) -> None:
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, "auto_map": {"AutoModel": "modeling_x.X"}}))


# --- a model that is none ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (shutil.rmtree, r'huggingface = ".*model": there is no such file or folder'),
        (without("tokenizer.json"), r'huggingface = ".*model": tokenizer.json is missing'),
        (without("config.json"), "config.json is missing"),
        (without("model.safetensors"), "has no weights"),
        (as_pickle, "are a pickle, which can run any code"),
        (with_code, "which Tacit does not run"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_before_a_row_is_read(
    tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    path = configured(tmp_path)
    change(tmp_path / "model")
    (tmp_path / "reviews.csv").write_text("no table")
    with pytest.raises(InvalidInput, match=rf"^\[model\] {words}|^\[model\] huggingface .*{words}"):
        check_run(path, out=tmp_path / "run")


def test_a_model_is_looked_at_without_torch(tmp_path: Path) -> None:
    path = configured(tmp_path)
    code = (
        "import sys; from tacit.runs.checks import check_run; "
        f"check_run({str(path)!r}, out={str(tmp_path / 'run')!r}); "
        "sys.exit(bool({'torch', 'transformers'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"{tune}": "image_size = 32"}, r"^\[model\] image_size does not apply to \[model\] huggingface"),
        ({"[columns.label]": "sequence_length = 99\n[columns.label]"}, r"^\[data\] sequence_length must be"),
        ({"{folder}/model": "{folder}/reviews.csv"}, r"huggingface = .* must end in \.pth"),
    ],
)
def test_settings_of_a_model_are_named_as_in_the_file(
    tmp_path: Path, changes: dict[str, str], words: str
) -> None:
    path = configured(tmp_path, changes=changes)
    with pytest.raises(InvalidInput, match=words):
        prepare(path, out=tmp_path / "run")


class Mixing(nn.Module):
    """Channels of pictures, from which the mean over the batch is taken."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.mixes = mixes

    def forward(self, pictures: Tensor) -> Tensor:
        found = pictures.mean(dim=(2, 3))
        return found - found.mean(dim=0) if self.mixes else found


@pytest.mark.parametrize("mixes", [False, True])
def test_a_program_that_mixes_records_is_refused(tmp_path: Path, mixes: bool) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, colour in (("dark", 40), ("light", 200)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.full((8 + number, 9, 3), colour + number, dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    sizes = {0: torch.export.Dim("n", min=1, max=1024)}
    program = torch.export.export(
        Mixing(mixes).eval(), (torch.rand(4, 3, 8, 8),), dynamic_shapes={"pictures": sizes}
    )
    torch.export.save(program, tmp_path / "encoder.pt2")
    text = PICTURES.replace("{folder}", str(tmp_path)).replace("{file}", "encoder.pt2")
    (tmp_path / "run.toml").write_text(text)
    if not mixes:
        assert prepare(tmp_path / "run.toml", out=tmp_path / "run").data.train.inputs.shape[1] == 3
        return
    with pytest.raises(
        UnsupportedModel, match=r'^\[model\] encoder = ".*": the encoder.s features of a record depend'
    ):
        prepare(tmp_path / "run.toml", out=tmp_path / "run")
    assert not (tmp_path / "run" / "private" / "features").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("reviews.csv --text text --model run.toml", r'--model = "run.toml" must end in .pth'),
        ("reviews.csv --text text --model weights.pth", "name --architecture"),
        ("reviews.csv --text text --model model.onnx", "is for images, but reviews.csv is a table"),
        ("model --model model", "is for text, but model is a folder of images"),
        ("reviews.csv --model model", "set --text to one of text, age, label"),
    ],
)
def test_init_takes_no_model_that_does_not_fit(
    tmp_path: Path,
    options: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    configured(tmp_path)
    for name in ("weights.pth", "model.onnx"):
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert command(["init", *options.split(), "--target", "label", "--out", "new.toml"]) == 2
    assert words.lower() in " ".join(capsys.readouterr().err.split()).lower()
    assert not (tmp_path / "new.toml").exists()


# --- records that it cannot read ---------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["", "  ", None, ["a"], 7, "\ud800"])
def test_what_is_no_text_is_named_by_its_row(tmp_path: Path, cell: Any) -> None:
    path = configured(tmp_path)
    table: list[dict[str, Any]] = [*rows(30)]
    table[6] = {**table[6], "text": cell}
    (tmp_path / "reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    path.write_text(path.read_text().replace("table =", "jsonl =").replace("reviews.csv", "reviews.jsonl"))
    with pytest.raises(InvalidInput, match=r"rows of column 'text' .* \(row 7\)") as found:
        prepare(path, out=tmp_path / "run")
    assert "xyz" not in str(found.value)


def test_texts_of_any_language_and_length_are_read(tmp_path: Path) -> None:
    path = configured(tmp_path)
    table = rows()
    for row, text in enumerate(["\u4f60\u597d", "\U0001f600" * 50, "\u05e9\u05dc\u05d5\u05dd", "a" * 5000]):
        table[row]["text"] = text
    write_rows(tmp_path / "reviews.csv", table)
    run = prepare(path, out=tmp_path / "run")
    assert bool(run.data.train.inputs.isfinite().all())


def test_a_list_of_texts_is_enough_where_nothing_else_is_read(tmp_path: Path) -> None:
    prepare(configured(tmp_path), out=tmp_path / "run").start()
    predictor = load(tmp_path / "run")
    texts = ["abcabc", "xyzxyz"]
    expected = predictor.predict_proba({"text": texts})
    for given in (texts, tuple(texts), np.array(texts), iter(texts)):
        assert np.array_equal(predictor.predict_proba(given), expected)
    with pytest.raises(InvalidInput, match="is a single string"):
        predictor.predict({"text": "abc"})
    with pytest.raises(InvalidInput, match=r"have no text \(row 2\)"):
        predictor.predict(["abc", None])


# --- a run that goes on ------------------------------------------------------------------------------------


def test_a_public_model_may_be_elsewhere_when_a_run_goes_on(tmp_path: Path) -> None:
    path = configured(tmp_path)
    run = prepare(path, out=tmp_path / "run")
    run.start(should_stop=lambda: run.session.steps_done == 3)
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(InvalidInput, match="there is no such file or folder"):
        prepare(path, out=tmp_path / "run", resume=True)
    path.write_text(path.read_text().replace("/model", "/moved"))
    again = prepare(path, out=tmp_path / "run", resume=True)
    assert again.session.steps_done == 3
    assert again.start() is not None
    assert tacit.load(tmp_path / "run").predict(["abc"]).shape == (1,)
