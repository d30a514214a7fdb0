"""Public models in a run file: features once, a head or the body trained, the folder alone predicts."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from byte_model import write_model
from torch import Tensor, nn

import tacit
from tacit.cli.app import run as command
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.pretrained import load_pretrained
from tacit.pretrained.model import Head, TunedModel
from tacit.pretrained.networks import PretrainedText
from tacit.report.verification import read_statement
from tacit.runs import prepare, read_config
from tacit.runs.kinds import load_data
from tacit.runs.predict import load

pytestmark = pytest.mark.usefixtures("no_pictures")

RUN = """
[data]
table = "{folder}/reviews.csv"
text = "text"
target = "label"
test_fraction = 0.2

[columns.label]
kind = "category"
values = ["bad", "good"]

[model]
huggingface = "{folder}/model"
{tune}

[privacy]
epsilon = 8.0
delta = 1e-4
unit = "review"
adjacency = "add-remove"
records = 240
"""


def rows(count: int = 300) -> list[dict[str, str]]:
    rng = np.random.default_rng(0)
    found = []
    for number in range(count):
        good = bool(rng.integers(2))
        letters = rng.choice(list("abc" if good else "xyz"), size=4 + number % 7)
        found.append(
            {"text": "".join(letters), "age": str(20 + number % 50), "label": "good" if good else "bad"}
        )
    return found


def write_rows(path: Path, table: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return path


def configured(folder: Path, tune: str = "", changes: dict[str, str] | None = None) -> Path:
    if not (folder / "model").exists():
        write_model(folder / "model", n_embd=16)
    write_rows(folder / "reviews.csv", rows())
    text = RUN
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    text = text.replace("{folder}", str(folder)).replace("{tune}", tune)
    path = folder / "run.toml"
    path.write_text(text)
    return path


def texts() -> dict[str, list[str]]:
    return {"text": [row["text"] for row in rows(40)], "age": [row["age"] for row in rows(40)]}


# --- from the file to a folder that predicts ---------------------------------------------------------------


def test_the_recipe_fills_in_what_the_file_leaves_out(tmp_path: Path) -> None:
    config = read_config(configured(tmp_path))
    assert config.model.tune == "head"
    assert config.training.batch_size == "full"
    assert config.training.steps is not None
    assert config.optimizer.momentum == 0.9
    said = read_config(configured(tmp_path, changes={"[privacy]": "[training]\nsteps = 7\n[privacy]"}))
    assert said.training.steps == 7
    assert said.optimizer == config.optimizer


@pytest.mark.parametrize("tune", ["head", "lora", "full"])
def test_the_folder_alone_predicts_as_the_trained_model_to_the_bit(tmp_path: Path, tune: str) -> None:
    lora = '\n[lora]\nrank = 2\ntargets = ["c_attn"]\n' if tune == "lora" else ""
    steps = "" if tune == "head" else "\n[training]\nbatch_size = 60\nsteps = 5\n"
    path = configured(tmp_path, f'tune = "{tune}"\n{lora}{steps}')
    run = prepare(path, out=tmp_path / "run")
    outcome = run.start()
    assert outcome is not None
    (tmp_path / "model").rename(tmp_path / "gone")
    predictor = load(tmp_path / "run")
    piece = next(predictor._pieces(texts()))
    model: Any = run.session.current_model
    if tune == "head":
        encoder = load_pretrained(tmp_path / "gone")
        model = TunedModel(encoder, model)
    with torch.no_grad():
        expected = model.eval()(piece.inputs)
    found = predictor.outputs_of(piece)
    if tune == "lora":  # corrections are added to the weights
        assert torch.allclose(found, expected, atol=1e-5)
    else:
        assert torch.equal(found, expected)
    assert outcome.evaluation.score > (0.8 if tune == "head" else 0.0)
    began = json.loads((tmp_path / "run" / "public_model.json").read_text())["sha256"]
    changed = predictor.description.pretrained != began
    assert changed == (tune != "head")


def test_ordinary_columns_stand_beside_the_text(tmp_path: Path) -> None:
    path = configured(
        tmp_path,
        changes={
            "[columns.label]": '[columns.age]\nkind = "integer"\nlower = 0\nupper = 120\n[columns.label]'
        },
    )
    run = prepare(path, out=tmp_path / "run")
    run.start()
    assert run.data.train.inputs.shape[1] == 16 + 1
    predictor = load(tmp_path / "run")
    found = predictor.predict(texts())
    other = predictor.predict_proba({**texts(), "age": ["119"] * 40})
    assert set(found) <= {"bad", "good"}
    assert not np.array_equal(other, predictor.predict_proba(texts()))


def test_json_lines_with_a_target_are_a_table(tmp_path: Path) -> None:
    path = configured(tmp_path)
    table = prepare(path, out=tmp_path / "one").data
    lines = "".join(json.dumps(row) + "\n" for row in rows())
    (tmp_path / "reviews.jsonl").write_text(lines)
    path.write_text(path.read_text().replace("table =", "jsonl =").replace("reviews.csv", "reviews.jsonl"))
    again = prepare(path, out=tmp_path / "two").data
    assert torch.equal(table.train.inputs, again.train.inputs)
    assert torch.equal(table.train.targets, again.train.targets)


def test_features_are_computed_once_and_found_by_runs_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    embed = PretrainedText.embed

    def counted(self: PretrainedText, inputs: Tensor) -> Tensor:
        seen.append(len(inputs))
        return embed(self, inputs)

    monkeypatch.setattr(PretrainedText, "embed", counted)
    path = configured(tmp_path)
    first = prepare(path, out=tmp_path / "runs" / "first").data
    assert sum(seen) == 300
    second = prepare(path, out=tmp_path / "runs" / "second").data
    again = prepare(path, out=tmp_path / "runs" / "first").data
    assert sum(seen) == 300
    for other in (second, again):
        assert torch.equal(first.train.inputs, other.train.inputs)


def test_features_are_of_the_records_without_the_cache(tmp_path: Path) -> None:
    path = configured(tmp_path)
    config = read_config(path)
    data, raw = prepare(path, out=tmp_path / "run").data, load_data(config)
    encoder = load_pretrained(tmp_path / "model")
    with torch.no_grad():
        expected = torch.cat([encoder(row[None]) for row in raw.train.inputs])
    assert torch.allclose(data.train.inputs, expected, atol=1e-5)


# --- what a run says of the public model -------------------------------------------------------------------


def test_the_statement_names_the_public_model_and_what_is_not_covered(tmp_path: Path) -> None:
    prepare(configured(tmp_path), out=tmp_path / "run").start()
    digest = load_pretrained(tmp_path / "model").digest
    statement = read_statement(tmp_path / "run" / "statement.json")
    said = json.dumps(statement)
    assert digest in said
    assert "the data that the public model was trained on" in said
    card = (tmp_path / "run" / "README.md").read_text()
    assert "the data that the public model was trained on" in card


def test_another_public_model_does_not_go_on(tmp_path: Path) -> None:
    path = configured(tmp_path)
    run = prepare(path, out=tmp_path / "run")
    run.start(should_stop=lambda: True)
    assert not run.ended
    with torch.random.fork_rng():
        write_model(tmp_path / "model", n_embd=16, n_layer=2)
    with pytest.raises((PrivacyRefusal, InvalidInput), match=r"public model|records|features"):
        prepare(path, out=tmp_path / "run", resume=True).start()


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = configured(tmp_path)
    run = prepare(path, out=tmp_path / "run")
    run.start(should_stop=lambda: run.session.steps_done == 3)
    again = prepare(path, out=tmp_path / "run", resume=True)
    assert again.session.steps_done == 3
    assert again.start() is not None


def test_a_body_that_is_not_the_run_s_is_refused(tmp_path: Path) -> None:
    prepare(configured(tmp_path), out=tmp_path / "run").start()
    write_model(tmp_path / "other", n_embd=16, n_layer=2)
    load_pretrained(tmp_path / "other").save(tmp_path / "run" / "encoder")
    with pytest.raises(InvalidInput, match="does not belong to its last layer"):
        tacit.load(tmp_path / "run")


# --- what is refused ---------------------------------------------------------------------------------------


OTHER_MODEL = """name = "logistic"
[optimizer]
learning_rate = 1
[training]
batch_size = 9
steps = 1"""
WITH_LORA = 'tune = "head"\n[lora]\nrank = 2\ntargets = ["c_attn"]'


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({'text = "text"\n': ""}, r"Set \[data\] text to the text column"),
        ({'text = "text"': 'text = "label"'}, "(also )?be the target"),
        ({'huggingface = "{folder}/model"': OTHER_MODEL}, "needs a public model to read that column"),
        ({"{tune}": WITH_LORA}, "applies only to"),
        ({"{tune}": WITH_LORA.replace("head", "full")}, "applies only to"),
        ({"[columns.label]": "sequence_length = 99\n[columns.label]"}, "at most 12"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    path = configured(tmp_path, changes=changes)
    with pytest.raises(InvalidInput, match=words):
        prepare(path, out=tmp_path / "run")


def test_a_row_without_a_text_is_named_and_nothing_shown(tmp_path: Path) -> None:
    path = configured(tmp_path)
    table = rows()
    table[4]["text"] = ""
    write_rows(tmp_path / "reviews.csv", table)
    with pytest.raises(InvalidInput, match=r"rows of column 'text' .* \(row 5\)"):
        prepare(path, out=tmp_path / "run")


def test_a_layer_of_lora_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = configured(tmp_path, 'tune = "lora"\n[lora]\nrank = 2\ntargets = ["query"]')
    with pytest.raises(InvalidInput, match='no layer "query"'):
        prepare(path, out=tmp_path / "run")


# --- the command line --------------------------------------------------------------------------------------


def test_three_commands_go_from_a_table_to_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(tmp_path)
    table, out = str(tmp_path / "reviews.csv"), str(tmp_path / "made.toml")
    init = (
        f"init {table} --text text --target label --leave-out age --model {tmp_path / 'model'} --out {out} "
        "--values label=bad,good --epsilon 8 --delta 1e-4 --unit review --adjacency add-remove --records 240"
    )
    assert command([*init.split(), "--no-input"]) == 0
    assert command(["train", out, "--out", str(tmp_path / "run")]) == 0
    assert command(["predict", str(tmp_path / "run"), table, "--out", str(tmp_path / "found.csv")]) == 0
    found = [row["prediction"] for row in csv.DictReader((tmp_path / "found.csv").read_text().splitlines())]
    truth = [row["label"] for row in rows()]
    assert np.mean([one == other for one, other in zip(found, truth, strict=True)]) > 0.8


def test_pictures_go_through_weights_of_an_architecture(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from tacit.pretrained.networks import MobileNetV2

    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(MobileNetV2().state_dict(), tmp_path / "weights.pth")
    rng = np.random.default_rng(0)
    for name, colour in (("dark", 40), ("light", 200)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(20):
            pixels = (colour + rng.integers(-30, 30, size=(8, 8, 3))).astype(np.uint8)
            image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    init = (
        f"init {tmp_path / 'pictures'} --model {tmp_path / 'weights.pth'} --architecture mobilenet_v2 "
        f"--out {tmp_path / 'run.toml'} --epsilon 8 --delta 1e-3 --unit picture --adjacency add-remove "
        "--records 32"
    )
    assert command(init.split()) == 0
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("image_size = 128", "image_size = 32"))
    run = prepare(tmp_path / "run.toml", out=tmp_path / "run")
    assert run.start() is not None
    assert run.data.train.inputs.shape[1] == 1280
    found = load(tmp_path / "run").predict(tmp_path / "pictures" / "dark")
    assert len(found) == 20


def test_the_head_begins_at_zero_and_takes_features_of_any_length() -> None:
    head = Head(4, 3, columns=2)
    assert torch.equal(head(torch.randn(5, 6)), torch.zeros(5, 3))
    layer: Any = head[1]
    nn.init.normal_(layer.weight)
    inputs = torch.randn(5, 6)
    longer = torch.cat([inputs[:, :4] * 100, inputs[:, 4:]], dim=1)
    assert torch.allclose(head(inputs), head(longer), atol=1e-5)
