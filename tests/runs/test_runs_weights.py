"""The number of weights that a run file trains, without torch, is that of the run's model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from byte_model import write_model
from safetensors.torch import save_file

from tacit.errors import InvalidInput
from tacit.runs.config import Config, parse_config, read_config
from tacit.runs.plan import ranked_ways, tensor_shapes, trained_weights

TABLE = """
[data]
table = "people.csv"
target = "sick"
test_fraction = 0.2
[columns.age]
kind = "number"
lower = 0
upper = 120
[columns.sex]
kind = "category"
values = ["f", "m"]
[columns.sick]
kind = "category"
values = ["no", "yes"]
[model]
{model}
[privacy]
epsilon = 3.0
delta = 1e-4
unit = "person"
adjacency = "add-remove"
records = 1000
clipping_norm = 1.0
[optimizer]
name = "sgd"
learning_rate = 0.5
[training]
steps = 20
batch_size = "full"
"""


def config_of(model: str) -> Config:
    return parse_config(TABLE.format(model=model), "run.toml")


@pytest.mark.parametrize("model", ['name = "logistic"', 'name = "mlp"', 'name = "mlp"\nhidden = [32, 16]'])
def test_a_network_on_a_table_has_as_many_as_the_file_tells(model: str) -> None:
    from tacit.columns.encoder import Encoder
    from tacit.runs.model import build_model

    config = config_of(model)
    encoder = Encoder(config.read_columns(), "sick", config.read_dialect())
    built = build_model(config.model, (len(encoder.features),), 2)
    assert trained_weights(config) == sum(p.numel() for p in built.parameters())


def test_it_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(TABLE.format(model='name = "logistic"'))
    code = (
        "import sys; from tacit.runs.config import read_config; from pathlib import Path\n"
        "from tacit.runs.plan import trained_weights\n"
        f"assert trained_weights(read_config(Path({str(path)!r}))); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_only_the_model_can_tell_is_not_guessed() -> None:
    assert trained_weights(config_of('factory = "mine:model"')) is None


def test_shapes_are_those_of_the_header(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a.weight": torch.zeros(3, 5), "b": torch.zeros(2)}, path, metadata={"x": "y"})
    assert tensor_shapes(path) == {"a.weight": (3, 5), "b": (2,)}


@pytest.mark.parametrize("content", [b"", b"12345678", b"\x05\0\0\0\0\0\0\0[1,2]"])
def test_a_damaged_file_of_weights_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="is not a valid safetensors file"):
        tensor_shapes(path)


def public_run(folder: Path, tune: str) -> Path:
    """A run file of a BERT of two blocks, 8 wide, which transformers has written."""
    from transformers import BertConfig, BertModel

    write_model(folder / "model")  # for its tokenizer
    sizes = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng():
        BertModel(BertConfig(vocab_size=257, **sizes)).save_pretrained(folder / "model")
    path = folder / "public.toml"
    path.write_text(
        f'data = {{table = "t.csv", text = "text", target = "good", test_fraction = 0.2}}\n'
        f'columns = {{good = {{kind = "boolean"}}}}\n'
        f'model = {{huggingface = "{folder / "model"}", tune = "{tune}"}}\n'
        'privacy = {epsilon = 3, delta = 1e-5, unit = "row", adjacency = "add-remove", records = 5000}\n'
    )
    return path


@pytest.mark.parametrize("tune", ["head", "lora", "full"])
def test_each_way_to_tune_is_ranked_by_what_it_trains(tmp_path: Path, tune: str) -> None:
    path = public_run(tmp_path, tune)
    counts = {one.name: one.weights for one in ranked_ways(path)}
    head = (8 + 1) * 2
    assert counts["head"] == head
    assert counts["lora"] == head + 4 * (8 + 8) * 2  # rank 4, query and value of the upper block alone
    assert counts["full"] > counts["lora"]
    assert trained_weights(read_config(path)) == counts[tune]


def test_weights_in_a_file_have_no_known_layers_to_correct(tmp_path: Path) -> None:
    path = public_run(tmp_path, "auto")
    text = path.read_text().replace('text = "text", ', "").replace("table =", "images =")
    text = text.replace('target = "good", ', 'size = [8, 8], classes = ["a", "b"], ')
    text = text.replace('columns = {good = {kind = "boolean"}}\n', "")
    path.write_text(text.replace(f'huggingface = "{tmp_path / "model"}"', 'encoder = "w.pth"'))
    assert ranked_ways(path) == []
