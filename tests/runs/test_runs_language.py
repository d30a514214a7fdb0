"""Language models from a configuration: documents as records, pre-training, LoRA, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from byte_model import END, write_model
from peft import PeftModel
from run_files import changed, run_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig

import tacit
from tacit.cli.app import run as command
from tacit.datasets import Cutting, load_documents
from tacit.datasets.text import Fields, read_documents, sequence_pair
from tacit.errors import InvalidInput, MissingExtra, PrivacyRefusal
from tacit.losses import masked
from tacit.pretrained.finding import ModelFolder
from tacit.report.verification import read_statement
from tacit.runs import prepare, read_config
from tacit.runs.attack import next_of_tokens
from tacit.runs.build import make_session
from tacit.runs.canaries import draw_canaries, with_canaries
from tacit.runs.kinds import load_data
from tacit.runs.kinds.texts import tokens_of
from tacit.runs.model import losses_of
from tacit.runs.plan import make_plan
from tacit.testing import seeded_generator

pytestmark = pytest.mark.usefixtures("no_pictures")
CONFIG = run_file(
    data='jsonl = "{folder}/documents.jsonl"; text = "body"; sequence_length = 8; '
    'documents = "split"; test_fraction = 0.3',
    model='huggingface = "{folder}/base"',
    privacy='epsilon = 8.0; unit = "sequence"; records = 90; clipping_norm = 0.5; loss_bound = 8.0',
    optimizer='name = "adam"; learning_rate = 0.01',
    training="steps = 4",
)
LORA = {"[privacy]": '[lora]\nrank = 2\ntargets = ["c_attn"]\n[privacy]'}


def texts(count: int = 60) -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(chr(97 + int(c)) for c in rng.integers(26, size=5 + i % 12)) for i in range(count)]


def configured(folder: Path, changes: dict[str, str] | None = None, *, weights: bool = True) -> Path:
    if not (folder / "base").exists():
        write_model(folder / "base", weights=weights)
    lines = [json.dumps({"body": text, "who": number}) for number, text in enumerate(texts())]
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")
    path = folder / "run.toml"
    path.write_text(changed(CONFIG.format(folder=folder), changes or {}))
    return path


# --- documents to records ---------------------------------------------------------------------------------


def test_a_record_is_cut_from_one_document_by_the_declared_rule(tmp_path: Path) -> None:
    path = configured(tmp_path, {"sequence_length = 8": "sequence_length = 6"})
    data, _ = make_session(read_config(path), generator=seeded_generator(1))
    own = sorted([*(ord(c) - 33 for c in text), END] for text in texts())
    pieces = sorted(one[at : at + 6] for one in own for at in range(0, len(one), 6))
    found = []
    for inputs, targets in [*zip(*data.train, strict=True), *zip(*data.test, strict=True)]:
        counted = int((targets != -100).sum())
        tokens = inputs[: counted + 1].tolist()
        assert targets[:counted].tolist() == tokens[1:]
        assert (targets[counted:] == -100).all()
        assert (inputs[counted + 1 :] == END).all(), "filled up with the end: the tokenizer has no padding"
        found.append(tokens)
    assert sorted(found) == [piece for piece in pieces if len(piece) > 1]
    first = read_config(configured(tmp_path, {'"split"': '"first"', '"sequence"': '"document"'}))
    data, _ = make_session(first, generator=seeded_generator(1))
    assert len(data.train.inputs) + len(data.test.inputs) == len(texts())
    assert data.source == "documents in documents.jsonl: the first sequence of 8 tokens of each"


def test_one_document_more_moves_no_other_record(tmp_path: Path) -> None:
    cutting = Cutting(4, "split", padding=0)
    files = [tmp_path / "all.jsonl", tmp_path / "fewer.jsonl"]
    lines = [json.dumps({"t": text}) for text in texts()]
    files[0].write_text("\n".join(lines))
    files[1].write_text("\n".join(lines[:20] + lines[21:]))
    rows = []
    for file in files:
        data = load_documents(
            file, text="t", encode=lambda text: [ord(c) for c in text], vocabulary=128, cutting=cutting,
            test_fraction=0.3,
        )  # fmt: skip
        rows.append([tuple(row.tolist()) for row in torch.cat([data.train.inputs, data.test.inputs])])
    gone = len(rows[0]) - len(rows[1])
    kept = [row for row in rows[0] if rows[0].count(row) == rows[1].count(row)]
    assert 0 < gone <= 5
    assert len(kept) >= len(rows[0]) - 2 * gone


def test_inputs_and_targets_fit_a_causal_model() -> None:
    pair = sequence_pair([[5, 6, 7, 8], [9, 4]], Cutting(4, "first", padding=3))
    assert pair.inputs.tolist() == [[5, 6, 7, 8], [9, 4, 3, 3]]
    assert pair.targets.tolist() == [[6, 7, 8, -100], [4, -100, -100, -100]]


def test_a_user_has_one_record_or_the_run_is_refused(tmp_path: Path) -> None:
    path = configured(tmp_path, {'"split"': '"first"\nuser = "who"', '"sequence"': '"user"'})
    make_session(read_config(path), generator=seeded_generator(1))
    lines = [json.dumps({"body": text, "who": number // 2}) for number, text in enumerate(texts())]
    (tmp_path / "documents.jsonl").write_text("\n".join(lines))
    with pytest.raises(PrivacyRefusal, match=r"^\d+ of \d+ users have several records .* up to 2\."):
        make_session(read_config(path), generator=seeded_generator(1))


BAD_LINES = {
    "no JSON": ('{"body": "secret', "line 2 of .* is not JSON"),
    "empty": ("", "line 2 of .* is not JSON"),
    "not an object": ('["secret"]', "line 2 of .* not an object"),
    "no field": ('{"other": "secret"}', 'line 2 of .*: the field "body" is missing'),
    "no text": ('{"body": 7311}', 'line 2 of .*: the field "body" is no text'),
    "half a character": (r'{"body": "secret \ud800"}', "line 2 of .* surrogate"),
    "no user": ('{"body": "secret"}', 'line 2 of .*: the field "who" is missing'),
    "no name": ('{"body": "secret", "who": [7311, null]}', 'line 2 of .*: the field "who" is neither'),
}


@pytest.mark.parametrize("what", BAD_LINES)
def test_a_line_that_cannot_be_read_is_named_by_its_number_alone(what: str, tmp_path: Path) -> None:
    line, words = BAD_LINES[what]
    path = tmp_path / "lines.jsonl"
    path.write_text(f'{{"body": "a text", "who": 1}}\n{line}\n')
    with pytest.raises(InvalidInput, match=words) as caught:
        list(read_documents(path, Fields("body", "who")))
    assert "secret" not in str(caught.value)
    assert "7311" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


# --- runs --------------------------------------------------------------------------------------------------


def perplexity_of(model: Any, data: Any) -> float:
    """By transformers, record by record: its own shifted loss."""
    total, tokens = 0.0, 0
    for row, targets in zip(*data.test, strict=True):
        counted = int((targets != -100).sum())
        labels = row[None, : counted + 1]
        total += counted * float(model(labels, labels=labels).loss.detach())
        tokens += counted
    return math.exp(total / tokens)


def test_pretraining_from_the_shell_leaves_a_model_in_the_layout_of_the_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert command(["train", str(configured(tmp_path, weights=False)), "--out", str(run)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "README.md shows how to load the model in transformers" in out
    stated = " ".join((run / "statement.txt").read_text(encoding="utf-8").split())
    assert "pre-training: all weights were random before the first step" in stated
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {
        path.name for path in run.iterdir()
    }
    model = AutoModelForCausalLM.from_pretrained(run)
    assert model.config.use_cache
    assert AutoTokenizer.from_pretrained(run)("ab")["input_ids"] == tokens_of(run).encode("ab")[:-1]
    data = prepare(tmp_path / "run.toml", out=tmp_path / "other").data
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["loss"] == pytest.approx(math.log(perplexity_of(model.eval(), data)), rel=1e-5)
    counted = data.test.targets[data.test.targets != -100]
    share = torch.bincount(counted).double() / len(counted)
    assert figures["loss_of_a_constant"] == pytest.approx(float(-(share[share > 0]).log() @ share[share > 0]))
    assert figures["measure"] == "accuracy per token"
    statement = read_statement(run / "statement.json")
    assert statement["guarantee"]["unit"] == "sequence"
    assert "its sequences is protected separately" in " ".join(statement["not_covered"])
    assert not any("base model" in line for line in statement["not_covered"])
    assert command(["verify", str(run / "statement.json")]) == 0
    capsys.readouterr()
    assert command(["predict", str(run), "new.txt", "--out", str(tmp_path / "p.csv")]) == 2
    assert "load it in transformers" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(InvalidInput, match=r"perplexity are in .*evaluation\.json"):
        tacit.load(run)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
def test_fine_tuning_with_lora_leaves_an_adapter_and_names_the_base_model(tmp_path: Path) -> None:
    run = prepare(configured(tmp_path, LORA), out=tmp_path / "run", generator=seeded_generator(3))
    trained = [name for name, p in run.session.model.named_parameters() if p.requires_grad]
    assert len(trained) == 2
    assert all("lora_" in name for name in trained)
    assert run.start() is not None
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = PeftModel.from_pretrained(base, tmp_path / "run").eval()
    tokens = run.data.test.inputs[:3]
    with torch.no_grad():
        adapted, own = model(tokens).logits, run.session.model.eval()(tokens).logits
        merged = model.merge_and_unload()(tokens).logits
    assert torch.equal(adapted, own)
    assert torch.allclose(merged, adapted, atol=1e-5)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()
    assert not torch.equal(base(tokens).logits, adapted)
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    digest = sha256((tmp_path / "base" / "model.safetensors").read_bytes()).hexdigest()
    statement = read_statement(tmp_path / "run" / "statement.json")
    assert digest in " ".join(statement["public_data"])
    assert "the data that the base model was trained on" in " ".join(statement["not_covered"])
    assert "LoRA of rank 2 on c_attn" in statement["model"]
    card = (tmp_path / "run" / "README.md").read_text()
    assert digest in card
    assert "library_name: peft" in card
    assert "PeftModel.from_pretrained" in card
    assert json.loads((tmp_path / "run" / "base_model.json").read_text())["weights_sha256"] == digest
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_file_gives_the_weights_of_the_bare_loop(tmp_path: Path) -> None:
    path = configured(tmp_path)
    assert prepare(path, out=tmp_path / "run", generator=seeded_generator(3)).start() is not None
    data, plan = load_data(read_config(path)), make_plan(read_config(path))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base").train()
    session = tacit.PrivateSession(
        model, torch.optim.Adam(model.parameters(), lr=0.01), data.train, plan, loss=masked(),
        generator=seeded_generator(3),
    )  # fmt: skip
    for ticket in session.batches():
        session.step(ticket)
    of_the_file = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    before = AutoModelForCausalLM.from_pretrained(tmp_path / "base").state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, of_the_file.state_dict()[name]), name
        assert not torch.equal(value, before[name]), name


@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_run_is_bit_for_bit_the_same(lora: bool, tmp_path: Path) -> None:
    path = configured(tmp_path, LORA if lora else {})
    name = "adapter_model.safetensors" if lora else "model.safetensors"
    assert prepare(path, out=tmp_path / "whole", generator=seeded_generator(3)).start() is not None
    stopped = prepare(path, out=tmp_path / "stopped", generator=seeded_generator(3))
    assert stopped.start(should_stop=lambda: stopped.session.steps_done == 2) is None
    assert [file.name for file in (tmp_path / "stopped" / "private").glob("*.pt")] == ["resume.pt"]
    assert not (tmp_path / "stopped" / name).exists()
    assert prepare(path, out=tmp_path / "stopped", resume=True).start() is not None
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes()


def test_a_resumed_run_has_the_base_model_that_it_began_with(tmp_path: Path) -> None:
    path = configured(tmp_path, LORA)
    stopped = prepare(path, out=tmp_path / "run", generator=seeded_generator(3))
    assert stopped.start(should_stop=lambda: stopped.session.steps_done == 2) is None
    with torch.random.fork_rng():
        torch.manual_seed(6)
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        model.transformer.wte.weight.data += 1.0
        model.save_pretrained(tmp_path / "base")
    with pytest.raises(PrivacyRefusal, match="weights_sha256 differ"):
        prepare(path, out=tmp_path / "run", resume=True).start()


def test_the_loss_of_a_record_is_the_mean_over_its_own_tokens(tmp_path: Path) -> None:
    data, session = make_session(read_config(configured(tmp_path)), generator=seeded_generator(1))
    inputs, targets = (part[:5] for part in data.train)
    with torch.no_grad():
        found = losses_of(data)(session.model, inputs, targets)
        for row in range(5):
            kept = targets[row] != -100
            logits = session.model(inputs[row : row + 1]).logits[0, kept]
            assert float(found[row]) == pytest.approx(float(F.cross_entropy(logits, targets[row, kept])))


# --- what the model remembers ------------------------------------------------------------------------------

CANARIES = {
    "[training]": '[canaries]\ncount = [8]\ncopies = [2]\nprefix = "p {name}"\nlength = 1\n[training]'
}


@pytest.mark.parametrize("lora", [False, True])
def test_planted_secrets_are_exposed_by_the_attack(
    lora: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"test_fraction = 0.3": "test_fraction = 0.6", **CANARIES, **(LORA if lora else {})}
    path, run = configured(tmp_path, changes), tmp_path / "run"
    prepared = prepare(path, out=run, generator=seeded_generator(3))
    planted = [canary for canary in prepared.canaries if canary.included]
    assert 0 < len(planted) < 8
    assert prepared.start() is not None
    assert command(["attack", str(run), "--shadows", "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["remembered"]
    for model in found["models"]:
        exposures = [value for group in model["planted"] for value in group["exposures"]]
        assert len(exposures) == len(planted)
        assert all(0 <= value <= math.log2(10) for value in exposures)


def test_canaries_are_written_in_one_token_for_each_character(tmp_path: Path) -> None:
    config = read_config(configured(tmp_path, CANARIES))
    data, _ = make_session(config, generator=seeded_generator(3))
    mine = draw_canaries(config, seeded_generator(3))
    rows = with_canaries(data, mine).train.inputs[len(data.train.inputs) :]
    written = sorted(canary.prefix + canary.secret for canary in mine if canary.included for _ in range(2))
    assert (rows[:, 0] == ord("p") - 33).all()
    assert data.spelling is not None
    assert sorted(data.spelling.decode(row[: len(written[0])].tolist()) for row in rows) == written


def test_the_model_is_asked_as_the_attacks_ask(tmp_path: Path) -> None:
    data, session = make_session(read_config(configured(tmp_path)), generator=seeded_generator(1))
    ask = next_of_tokens(session.model, 8, data.vocabulary)
    contexts = data.train.inputs[:3, :5]
    with torch.no_grad():
        assert np.allclose(ask(contexts.numpy()), session.model(contexts).logits[:, -1], atol=1e-5)
    long = torch.arange(24).reshape(2, 12)
    assert np.allclose(ask(long.numpy()), ask(long[:, -8:].numpy()))


# --- refusals ----------------------------------------------------------------------------------------------

WITHOUT_DOCUMENTS = {
    "jsonl =": 'name = "digits" #',
    'text = "body"\nsequence_length = 8\ndocuments = "split"\ntest_fraction = 0.3\n': "",
}
REFUSED: dict[str, tuple[dict[str, str], type[Exception], str]] = {
    "no folder": ({"/base": "/bse"}, InvalidInput, "there is no such folder"),
    "no field": ({'text = "body"': ""}, InvalidInput, "text for documents; .* It names none"),
    "no length": ({"sequence_length": "#"}, InvalidInput, "sequence_length is missing"),
    "no rule": ({"documents = ": "#"}, InvalidInput, 'documents is missing.*"split"'),
    "no test": ({"test_fraction": "#"}, InvalidInput, "test_jsonl or test_parquet"),
    "no file": ({"documents.j": "x.j"}, InvalidInput, "jsonl: there is no file"),
    "another unit": ({'"sequence"': '"person"'}, PrivacyRefusal, 'unit = "sequence"'),
    "users of nobody": (
        {'"split"': '"first"', '"sequence"': '"user"'},
        PrivacyRefusal,
        r"needs \[data\] user",
    ),
    "users and several records": (
        {'"split"': '"split"\nuser = "who"'},
        InvalidInput,
        "gives one user several records",
    ),
    "no documents": (
        WITHOUT_DOCUMENTS,
        InvalidInput,
        "is a text model and cannot read name",
    ),
    "another model": (
        {"huggingface = ": 'name = "window" #'},
        InvalidInput,
        "jsonl .documents. and .model. huggingface .* go together",
    ),
    "two models": ({"huggingface": 'name = "window"\nhuggingface'}, InvalidInput, "exactly one of"),
    "two sources": ({"[data]": '[data]\nname = "names"'}, InvalidInput, "exactly one of"),
    "an option of networks": (
        {"huggingface": "hidden = [3]\nhuggingface"},
        InvalidInput,
        "hidden cannot be set",
    ),
    "a near target": (LORA | {"c_attn": "attn_c"}, InvalidInput, "no layer \"attn_c\".*'c_attn'"),
    "a far target": (LORA | {"c_attn": "xyz"}, InvalidInput, 'no layer "xyz"; it has c_attn'),
    "no target": (LORA | {"targets": "#"}, InvalidInput, "targets is missing"),
    "no rank": (LORA | {"rank": "#"}, InvalidInput, "rank is missing"),
    "too long": ({"sequence_length = 8": "sequence_length = 13"}, InvalidInput, "exceeds the model's 12"),
    "another loss": (
        {"steps = 4": 'steps = 4\nloss = "regression"'},
        InvalidInput,
        'does not fit.*tokens.*loss = "causal"',
    ),
    "lora without a language model": (
        WITHOUT_DOCUMENTS | LORA | {"huggingface =": 'name = "mlp" #'},
        InvalidInput,
        r"\[lora\] is only for language models",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_before_training(what: str, tmp_path: Path) -> None:
    change, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        prepare(configured(tmp_path, change), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def in_parts(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing; the folder contains"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "a broken tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "cannot be read as a"),
    "a broken config": (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
    "a pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "are a pickle, which can run",
    ),
    "an adapter": (lambda f: (f / "adapter_config.json").write_text("{}"), "Merge it into its base model"),
    "own code": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(auto_map={"AutoModel": "x.Y"})), "auto_map",
    ),
    "an unknown type": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(model_type="nosuch")), "cannot be loaded as",
    ),
    "another shape": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(n_layer=2)), "do not fit config.json",
    ),
    "fewer tokens": (
        lambda f: rewrite(f / "config.json", lambda c: c.update(vocab_size=100)), "token 256.* = 100",
    ),
    "a part that is missing": (
        lambda f: in_parts(f, "part-1.safetensors"),
        "names part-1.safetensors, which is missing",
    ),
    "an index that leads elsewhere": (
        lambda f: in_parts(f, "../x.safetensors"),
        "does not name the weight files",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FOLDERS)
def test_a_folder_that_holds_no_such_model_is_refused(what: str, tmp_path: Path) -> None:
    change, words = FOLDERS[what]
    path = configured(tmp_path)
    change(tmp_path / "base")
    with pytest.raises(InvalidInput, match=words):
        prepare(path, out=tmp_path / "run")


def test_lora_needs_weights_and_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=r"frozen, but model\.safetensors is missing"):
        prepare(configured(tmp_path, LORA, weights=False), out=tmp_path / "run")
    find = importlib.util.find_spec

    def without(missing: str) -> Callable[[str], object]:
        return lambda name: None if name == missing else find(name)

    write_model(tmp_path / "base")
    path = configured(tmp_path, LORA)
    for package, extra in (("peft", "lora"), ("transformers", "transformers")):
        monkeypatch.setattr(importlib.util, "find_spec", without(package))
        with pytest.raises(MissingExtra, match=rf"pip install -e '\.\[{extra}\]'"):
            prepare(path, out=tmp_path / "run")


def test_a_model_that_reads_what_it_is_to_predict_is_refused(tmp_path: Path) -> None:
    path = configured(tmp_path)
    (tmp_path / "base" / "model.safetensors").unlink()
    BertConfig(
        vocab_size=257, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=12,
    ).save_pretrained(tmp_path / "base")  # fmt: skip
    with pytest.raises(InvalidInput, match="looks at later tokens to predict"):
        prepare(path, out=tmp_path / "run")


def test_the_digest_of_several_files_is_that_of_sha256sum(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "base", weights=False)
    assert ModelFolder.check(folder).weights_digest() is None
    parts = {"b.safetensors": b"two", "a.safetensors": b"one"}
    for name, data in parts.items():
        (folder / name).write_bytes(data)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}})
    )
    lines = "".join(f"{sha256(parts[name]).hexdigest()}  {name}\n" for name in sorted(parts))
    assert ModelFolder.check(folder).weights_digest() == sha256(lines.encode()).hexdigest()
