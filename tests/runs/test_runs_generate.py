"""``tacit generate``: texts are samples of the model, the same after an interruption; what is refused."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import warm
from byte_model import END, write_model
from peft import PeftModel
from run_files import run_file
from scipy.stats import chisquare
from transformers import AutoModelForCausalLM
from undrawn import undrawn

from tacit.cli.app import run as command
from tacit.runs import completing, prepare
from tacit.runs.completing import complete
from tacit.runs.generate import Generation, _encoded, _sole_writer
from tacit.runs.kinds.texts import Tokens
from tacit.testing import seeded_generator

CONFIG = run_file(
    data='jsonl = "{folder}/documents.jsonl"; text = "body"; sequence_length = 8; documents = "first"; '
    "test_fraction = 0.3",
    model='huggingface = "{folder}/base"',
    privacy='epsilon = 8.0; unit = "document"; records = 40; clipping_norm = 0.5; loss_bound = 8.0',
    optimizer='name = "adam"; learning_rate = 0.05',
    training="steps = 3",
)
LORA = '\n[lora]\nrank = 2\ntargets = ["c_attn"]\n'
PROMPTS = ["ab", "abcde", "z"]
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] not in ('user', 'assistant') %}{{ raise_exception('role ' + m['content']) }}{% endif %}"
    "{{ m['role'][0] + m['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base model and its finished runs: "whole" with all weights, "lora" with an adapter."""
    folder = tmp_path_factory.mktemp("runs")
    write_model(folder / "base")
    (folder / "base" / "chat_template.jinja").write_text(TEMPLATE)
    lines = [json.dumps({"body": f"{number:x} is a text"}) for number in range(40)]
    (folder / "documents.jsonl").write_text("\n".join(lines))
    (folder / "prompts.txt").write_text("\n".join(PROMPTS) + "\n\n")
    with undrawn():
        for name, more in (("whole", ""), ("lora", LORA)):
            (folder / f"{name}.toml").write_text(CONFIG.format(folder=folder) + more)
            run = prepare(folder / f"{name}.toml", out=folder / name, generator=seeded_generator(3))
            assert run.start() is not None
            shutil.rmtree(folder / name / "private")  # which must not be needed
    return folder


def generated(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "texts.jsonl").read_text().split("\n") if line]


def generate(runs: Path, out: Path, *options: str, run: str = "whole") -> int:
    return command(["generate", str(runs / run), "--out", str(out), *options])


# --- what is written ---------------------------------------------------------------------------------------


def written_alone(model: Any, prompt: list[int], seed: int, temperature: float, top_p: float) -> str:
    """One text by a plain loop: no batch, no padding, no cache, and nothing of transformers' generation."""
    generator, tokens = torch.Generator().manual_seed(seed), list(prompt)
    while len(tokens) < len(prompt) + 3:
        logits = model(torch.tensor([tokens])).logits[0, -1].detach() / temperature
        order = logits.argsort(descending=True)
        before = logits[order].softmax(0).cumsum(0) - logits[order].softmax(0)
        allowed = order[before < top_p]
        noise = torch.empty(len(logits)).exponential_(generator=generator)
        token = int(allowed[(logits[allowed] - noise[allowed].log()).argmax()])
        if token == END:
            break
        tokens.append(token)
    return bytes(letters_of(tokens[len(prompt) :])).decode(errors="replace")


def letters_of(tokens: list[int]) -> list[int]:
    """The byte of each token: GPT-2's alphabet begins with the printable ones, in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [printable[token] if token < len(printable) else other(token - len(printable)) for token in tokens]


def other(place: int) -> int:
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    return [byte for byte in range(256) if byte not in printable][place]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
@pytest.mark.parametrize("run", ["whole", "lora"])
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 0.95), (0.5, 1.0), (2.0, 0.3)])
def test_each_text_is_that_of_a_plain_loop(
    run: str, temperature: float, top_p: float, runs: Path, tmp_path: Path
) -> None:
    options = ["--prompts", str(runs / "prompts.txt"), "--count", "3", "--max-new-tokens", "3", "--seed", "7"]
    settings = ["--temperature", str(temperature), "--top-p", str(top_p), "--batch-size", "4"]
    assert generate(runs, tmp_path / "out", *options, *settings, run=run) == 0
    model = AutoModelForCausalLM.from_pretrained(runs / ("base" if run == "lora" else run)).eval()
    if run == "lora":
        model = PeftModel.from_pretrained(model, runs / run).eval()
    expected = []
    for number, prompt in enumerate(prompt for prompt in PROMPTS for _ in range(3)):
        digest = hashlib.sha256(f"7 {number}".encode()).hexdigest()
        tokens = [ord(letter) - 33 for letter in prompt]
        text = written_alone(model, tokens, int(digest[:16], 16) >> 1, temperature, top_p)
        expected.append({"prompt": prompt, "completion": text})
    assert generated(tmp_path / "out") == expected
    assert len({row["completion"] for row in expected}) > 3


def next_tokens(model: Any, prompt: list[int], seeds: range, **settings: float) -> np.ndarray:
    rows = complete(model, [prompt] * len(seeds), stop=[], padding=0, longest=1, seeds=[*seeds], **settings)
    return np.array([row[0] for row in rows])


def test_tokens_have_the_distribution_of_the_settings(runs: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(runs / "whole").eval()
    logits = model(torch.tensor([[65, 66, 67]])).logits[0, -1].detach().double()
    scaled = (6.0 * logits / 1.5).softmax(0)  # sharper than random weights are
    ordered, order = scaled.sort(descending=True)
    kept = order[: int((ordered.cumsum(0) < 0.6).sum()) + 1]
    share = (scaled[kept] / scaled[kept].sum()).numpy()
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(6.0)
        model.transformer.ln_f.bias.mul_(6.0)

    def p_value(**settings: float) -> float:
        drawn = next_tokens(model, [65, 66, 67], range(4000), **settings)
        counts = np.array([(drawn == token).sum() for token in kept.tolist()])
        if counts.sum() < len(drawn):
            return 0.0  # a token that top_p rules out
        return float(chisquare(counts, share * len(drawn)).pvalue)

    assert len(kept) > 5
    assert p_value(temperature=1.5, top_p=0.6) > 1e-3
    assert p_value(temperature=1.5, top_p=0.7) < 1e-6
    assert p_value(temperature=1.0, top_p=0.6) < 1e-6
    assert p_value(temperature=2.0, top_p=0.45) < 1e-6


def test_a_text_ends_at_the_end_and_the_models_own_settings_change_nothing(runs: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(runs / "whole").eval()
    plain = complete(model, [[65, 66]], stop=[], padding=0, longest=6)
    assert len(plain[0]) == 6
    stop = plain[0][3]
    assert (
        complete(model, [[65, 66]], stop=[stop], padding=0, longest=6)[0] == plain[0][: plain[0].index(stop)]
    )
    model.generation_config.repetition_penalty = 50.0
    model.generation_config.min_new_tokens = 5
    own = model.generation_config
    assert complete(model, [[65, 66]], stop=[], padding=0, longest=6) == plain
    assert model.generation_config is own


def test_the_statement_and_the_settings_lie_beside_the_texts(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (tmp_path / "prompts.jsonl").write_text(
        '{"prompt": "ab", "label": "good"}\n{"prompt": "c", "label": 3}\n'
    )
    assert generate(runs, out, "--prompts", str(tmp_path / "prompts.jsonl"), "--count", "2", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"run": str(runs / "whole"), "out": str(out), "texts": 4}
    assert [(row["prompt"], row["label"]) for row in generated(out)] == [("ab", "good")] * 2 + [("c", 3)] * 2
    for name in ("statement.json", "statement.txt"):
        assert (out / name).read_bytes() == (runs / "whole" / name).read_bytes()
    assert command(["verify", str(out / "statement.json")]) == 0
    settings = json.loads((out / "settings.json").read_text())
    digest = hashlib.sha256((runs / "whole" / "model.safetensors").read_bytes()).hexdigest()
    assert settings["weights_sha256"] == digest
    assert (settings["seed"], settings["temperature"], settings["top_p"]) == (0, 1.0, 0.95)


def test_a_run_of_all_weights_needs_nothing_but_its_folder(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "whole", tmp_path / "elsewhere")
    text = (tmp_path / "elsewhere" / "config.toml").read_text()
    (tmp_path / "elsewhere" / "config.toml").write_text(text.replace(str(runs), "/nowhere"))
    options = ["--count", "2", "--out"]
    assert command(["generate", str(tmp_path / "elsewhere"), *options, str(tmp_path / "out")]) == 0
    assert generate(runs, tmp_path / "same", "--count", "2") == 0
    assert generated(tmp_path / "out") == generated(tmp_path / "same")
    assert [[*row] for row in generated(tmp_path / "out")] == [["text"]] * 2


def test_messages_are_written_in_the_template_and_answered(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []

    def recorded(network: Any, prompts: list[list[int]], **settings: Any) -> list[list[int]]:
        asked.extend(prompts)
        return complete(network, prompts, **settings)

    monkeypatch.setattr(completing, "complete", recorded)
    turn = {"role": "user", "content": "hi"}
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": [turn], "topic": "greeting"}))
    assert generate(runs, tmp_path / "out", "--prompts", str(tmp_path / "chats.jsonl")) == 0
    assert asked == [[ord(letter) - 33 for letter in "uhia"]]
    (row,) = generated(tmp_path / "out")
    assert row["topic"] == "greeting"
    assert row["messages"][0] == turn
    assert row["messages"][1]["role"] == "assistant"
    assert set(row) == {"messages", "topic"}


def test_a_model_of_chats_gets_a_text_as_the_users_message(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "whole", tmp_path / "whole")
    config = tmp_path / "whole" / "config.toml"
    of_chats = re.sub('text = "[a-z]*"', 'messages = "messages"', config.read_text())
    config.write_text(re.sub("documents = .*", "", of_chats))
    wanted = Generation(tmp_path / "whole", tmp_path / "out", prompts=({"prompt": "hi"},))
    tokens = Tokens(wanted.folder)
    (asked,) = _encoded(wanted, tokens)
    assert asked == tokens.chats.begin([{"role": "user", "content": "hi"}], "")
    assert asked != tokens.begin("hi")


def test_another_seed_gives_other_texts(runs: Path, tmp_path: Path) -> None:
    for seed in ("0", "1"):
        assert generate(runs, tmp_path / seed, "--count", "20", "--seed", seed) == 0
    first, second = ([row["text"] for row in generated(tmp_path / seed)] for seed in ("0", "1"))
    assert len({*first, *second}) > 35, "also the second text of one seed is not the first of the next"


# --- interruptions -----------------------------------------------------------------------------------------

LONG = ["--count", "40", "--batch-size", "3"]


@pytest.fixture(scope="module")
def whole(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("texts") / "whole"
    assert generate(runs, out, *LONG) == 0
    return (out / "texts.jsonl").read_bytes()


def test_after_a_ctrl_c_the_same_command_continues_and_writes_the_same(
    whole: bytes,
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calls = 0

    def interrupted(*arguments: Any, **settings: Any) -> list[list[int]]:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt
        return complete(*arguments, **settings)

    monkeypatch.setattr(completing, "complete", interrupted)
    assert generate(runs, tmp_path, *LONG) == 130
    assert "texts.jsonl has 12 of 40 samples; the same command continues" in " ".join(
        capsys.readouterr().err.split()
    )
    assert whole.startswith((tmp_path / "texts.jsonl").read_bytes())
    assert generate(runs, tmp_path, *LONG) == 0
    assert (tmp_path / "texts.jsonl").read_bytes() == whole
    assert calls == 5 + math.ceil((40 - 12) / 3)
    assert generate(runs, tmp_path, *LONG) == 0
    assert calls == 5 + math.ceil((40 - 12) / 3), "a finished file is left as it is"


@pytest.mark.parametrize("kept", ["nothing", "half a line", "half a batch", "all but the last byte"])
def test_a_file_that_was_cut_anywhere_is_continued(
    kept: str, whole: bytes, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert generate(runs, tmp_path, *LONG) == 0
    lines = whole.splitlines(keepends=True)
    cut = {
        "nothing": b"",
        "half a line": b"".join(lines[:4]) + lines[4][:5],
        "half a batch": b"".join(lines[:7]),
        "all but the last byte": whole[:-1],
    }
    (tmp_path / "texts.jsonl").write_bytes(cut[kept])
    sizes: list[int] = []

    def counted(network: Any, prompts: list[list[int]], **settings: Any) -> list[list[int]]:
        sizes.append(len(prompts))
        return complete(network, prompts, **settings)

    monkeypatch.setattr(completing, "complete", counted)
    assert generate(runs, tmp_path, *LONG) == 0
    assert (tmp_path / "texts.jsonl").read_bytes() == whole
    assert sizes[:-1] == [3] * (len(sizes) - 1), "the same batches, and so the same rounding"
    assert sizes[-1] == 1


def test_a_killed_process_is_continued(whole: bytes, runs: Path, tmp_path: Path) -> None:
    script, out = tmp_path / "started.py", tmp_path / "out"
    script.write_text("from tacit.cli import main; main()")
    words = ["generate", str(runs / "whole"), "--out", str(out), *LONG]
    process = warm.start(script, *words, streams=[os.devnull, tmp_path / "said", tmp_path / "complained"])
    path, end = out / "texts.jsonl", time.monotonic() + 100
    while not (path.exists() and path.stat().st_size) and time.monotonic() < end:
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert path.stat().st_size > 0
    assert generate(runs, out, *LONG) == 0
    assert path.read_bytes() == whole


# --- refusals ----------------------------------------------------------------------------------------------

SECRET = "a secret"
FILES = {
    "empty.txt": "\n\n",
    "long.txt": "ab\n123456789\n",
    "both.jsonl": json.dumps({"prompt": SECRET, "messages": []}),
    "neither.jsonl": json.dumps({"prompt": "a"}) + "\n" + json.dumps({"text": SECRET}),
    "number.jsonl": json.dumps({"prompt": 7311}),
    "record.jsonl": json.dumps({"prompt": SECRET, "completion": SECRET}),
    "broken.jsonl": '{"prompt": "a secret',
    "half.jsonl": json.dumps({"prompt": "a\ud800"}),
    "roles.jsonl": json.dumps({"messages": [{"role": "critic", "content": SECRET}]}),
    "answered.jsonl": json.dumps({"messages": [{"role": "assistant", "content": SECRET}]}),
    "strings.jsonl": json.dumps({"messages": [SECRET]}),
    "parts.jsonl": json.dumps({"messages": [{"role": "user", "content": [SECRET]}]}),
}
REFUSED: dict[str, tuple[list[str], str]] = {
    "no texts": (["--count", "0"], "--count must be"),
    "no tokens": (["--max-new-tokens", "0"], "--max-new-tokens must be"),
    "no batch": (["--batch-size", "0"], "--batch-size must be"),
    "a temperature of 0": (["--temperature", "0"], "--temperature must be"),
    "no token allowed": (["--top-p", "0"], "--top-p must be"),
    "more than all": (["--top-p", "1.5"], "--top-p must be"),
    "a seed below 0": (["--seed", "-1"], "--seed must be"),
    "no file": (["--prompts", "{files}/nothing.txt"], "cannot read the prompts in"),
    "a folder": (["--prompts", "{files}"], "cannot read the prompts in"),
    "an empty file": (["--prompts", "{files}/empty.txt"], "contains no prompt"),
    "a prompt that fills a record": (["--prompts", "{files}/long.txt"], "prompt 2 has 9 tokens"),
    "more than the model reads": (["--max-new-tokens", "12"], "reads at most 12 tokens"),
    "both": (["--prompts", "{files}/both.jsonl"], 'prompt 1 of .* either "prompt"'),
    "neither": (["--prompts", "{files}/neither.jsonl"], 'prompt 2 of .* either "prompt"'),
    "a number": (["--prompts", "{files}/number.jsonl"], "is not a string"),
    "a record": (["--prompts", "{files}/record.jsonl"], "Prompts must be public"),
    "no JSON": (["--prompts", "{files}/broken.jsonl"], "line 1 of .* is not a JSON object"),
    "half a character": (["--prompts", "{files}/half.jsonl"], "unpaired surrogate"),
    "a role that the template refuses": (
        ["--prompts", "{files}/roles.jsonl"],
        "prompt 1: the chat template refuses",
    ),
    "an answered chat": (["--prompts", "{files}/answered.jsonl"], "must not end with the assistant"),
    "messages without roles": (["--prompts", "{files}/strings.jsonl"], '"messages" must be a list'),
    "content in parts": (
        ["--prompts", "{files}/parts.jsonl"],
        '"messages" must be a list .* with string contents',
    ),
    "an unknown device": (["--device", "abacus"], 'device = "abacus" cannot be used'),
}


@pytest.fixture
def no_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the weights were read")

    monkeypatch.setattr("tacit.runs.language_model._load", refuse)


def refused(run: Path, out: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert command(["generate", str(run), "--out", str(out), *options]) == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("no_weights_are_read")
@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_request_is_refused_before_any_weights_are_read(
    what: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, words = REFUSED[what]
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    named = [option.format(files=tmp_path) for option in options]
    told = refused(runs / "whole", tmp_path / "out", capsys, *named)
    assert re.search(words, told), told
    assert SECRET not in told
    assert "7311" not in told
    assert not (tmp_path / "out" / "texts.jsonl").exists()


@pytest.mark.usefixtures("no_weights_are_read")
@pytest.mark.parametrize(
    ("gone", "words"),
    [
        ("", "there is no run at"),
        ("base_model.json", "For other models"),
        ("statement.json", "is not finished: statement.json is missing"),
        ("config.toml", "is not finished: config.toml is missing"),
        ("model.safetensors", "no trained weights"),
        ("tokenizer.json", "tokenizer.json is missing"),
    ],
)
def test_a_folder_without_a_finished_language_model_is_refused(
    gone: str, words: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if gone:
        shutil.copytree(runs / "whole", tmp_path / "run")
        (tmp_path / "run" / gone).unlink()
    assert words in refused(tmp_path / "run", tmp_path / "out", capsys)


@pytest.mark.usefixtures("no_weights_are_read")
def test_an_adapter_needs_the_base_model_of_its_run(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "lora", tmp_path / "run")
    write_model(tmp_path / "other", n_layer=2)
    text = (tmp_path / "run" / "config.toml").read_text()
    (tmp_path / "run" / "config.toml").write_text(text.replace(f"{runs}/base", f"{tmp_path}/other"))
    assert command(["generate", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 1
    assert "is not the public model of this run: weights_sha256" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("no_weights_are_read")
def test_messages_need_a_chat_template(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "whole", tmp_path / "run")
    (tmp_path / "run" / "chat_template.jinja").unlink()
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": SECRET}]}))
    told = refused(tmp_path / "run", tmp_path / "out", capsys, "--prompts", str(tmp_path / "chats.jsonl"))
    assert "has no chat template" in told
    assert SECRET not in told


def test_texts_of_other_settings_are_not_continued(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(runs, tmp_path / "out") == 0
    for options, words in {
        ("--seed", "1"): "settings.json: seed",
        ("--count", "2"): "settings.json: texts_for_each_prompt. Use the same",
        ("--prompts", str(runs / "prompts.txt")): "settings.json: prompts_sha256, prompts. Use the same",
    }.items():
        assert words in refused(runs / "whole", tmp_path / "out", capsys, *options)
    assert "settings.json: run, weights_sha256. Use the same" in refused(
        runs / "lora", tmp_path / "out", capsys
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("mine")
    assert "it contains diary.txt" in refused(runs / "whole", tmp_path / "mine", capsys)
    assert "is a file" in refused(runs / "whole", tmp_path / "mine" / "diary.txt", capsys)
    assert (tmp_path / "mine" / "diary.txt").read_text() == "mine"


def test_two_processes_do_not_write_the_same_texts(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with _sole_writer(tmp_path):
        assert "another process is writing" in refused(runs / "whole", tmp_path, capsys)
