"""Prompts with completions, chats and preferences from a run file: records, losses, runs, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from byte_model import END, write_model
from run_files import changed, run_file
from transformers import AutoModelForCausalLM

from tacit.cli.app import run as command
from tacit.clipping.fast import FastEngine
from tacit.clipping.rules import FlatClipping
from tacit.columns.examples import in_run_file, proposed_fields
from tacit.datasets import Dataset
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.report.verdict import verdict
from tacit.report.verification import read_statement
from tacit.runs import prepare, read_config
from tacit.runs.build import make_session
from tacit.runs.canaries import check_nothing_planted
from tacit.runs.kinds import load_data
from tacit.runs.learners import new_model
from tacit.runs.model import training_loss
from tacit.testing import seeded_generator
from tacit.training.evaluation import evaluate_pairs

pytestmark = [
    pytest.mark.usefixtures("no_pictures"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # of peft
]
PLAIN = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}.{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for turn in messages %}<{{ turn.role }}>{% if turn.role == 'assistant' %}{% generation %}"
    "{{ turn.content }}.{% endgeneration %}{% else %}{{ turn.content }}.{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
STRICT = (
    "{% for turn in messages %}{% if turn.role not in ('user', 'assistant') %}"
    "{{ raise_exception('no role ' ~ turn.role ~ ' of ' ~ turn.content) }}{% endif %}"
    "<{{ turn.role }}>{{ turn.content }}.{% endfor %}"
)
DEAF = (
    "{% for turn in messages %}{% if turn.role in ('user', 'assistant') %}"
    "<{{ turn.role }}>{{ turn.content }}.{% endif %}{% endfor %}"
)
FORGETFUL = (  # answers before the last one lose their end
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}{% if loop.last %}.{% endif %}{% endfor %}"
)
ALTERNATING = (  # as Mistral's
    "{% for turn in messages %}{% if (turn.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if turn.role == 'user' %}[{{ turn.content }}]{% else %}{{ turn.content }}.{% endif %}{% endfor %}"
)
LENGTH = 40
LORA = {"[privacy]": '[lora]\nrank = 2\ntargets = ["c_attn"]\n[privacy]'}
RNG = np.random.default_rng(5)


def word(most: int, least: int = 0) -> str:
    return "".join(chr(97 + int(c)) for c in RNG.integers(26, size=int(RNG.integers(least, most + 1))))


def turns(*texts: str) -> list[dict[str, str]]:
    return [
        {"role": "assistant" if place % 2 else "user", "content": text} for place, text in enumerate(texts)
    ]


COMPLETIONS = [{"prompt": word(50), "completion": word(45), "who": number // 2} for number in range(40)]
CHATS: list[dict[str, Any]] = [
    {"messages": turns(*(word(9) for _ in range(2 + 2 * (number % 2)))), "who": number}
    for number in range(40)
]
PAIRS = [{"prompt": word(9), "chosen": word(45), "rejected": word(9)} for _ in range(40)]
CHAT_PAIRS: list[dict[str, Any]] = [
    {
        "chosen": turns(one["prompt"], "ok", "and?", one["chosen"]),
        "rejected": turns(one["prompt"], "ok", "and?", one["rejected"]),
    }
    for one in PAIRS
]
FORMS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "completions": ('prompt = "prompt"\ncompletion = "completion"', COMPLETIONS),
    "chats": ('messages = "messages"', CHATS),
    "pairs": ('prompt = "prompt"\nchosen = "chosen"\nrejected = "rejected"', PAIRS),
    "pairs of chats": ('chosen = "chosen"\nrejected = "rejected"', CHAT_PAIRS),
}
CONFIG = run_file(
    data='jsonl = "{folder}/examples.jsonl"; {fields}; sequence_length = 40; test_fraction = 0.3',
    model='huggingface = "{folder}/base"',
    privacy='epsilon = 8.0; unit = "line"; records = 40; clipping_norm = 0.5; loss_bound = 8.0',
    optimizer='name = "adam"; learning_rate = 0.01',
    training="steps = 4",
)


def write_lines(path: Path, examples: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(example) + "\n" for example in examples))


def configured(
    folder: Path,
    form: str,
    changes: Mapping[str, str] | None = None,
    *,
    examples: list[dict[str, Any]] | None = None,
    template: str | None = PLAIN,
) -> Path:
    fields, usual = FORMS[form]
    if not (folder / "base").exists():
        write_model(folder / "base", n_positions=64)
    if template is not None:
        (folder / "base" / "chat_template.jinja").write_text(template)
    write_lines(folder / "examples.jsonl", usual if examples is None else examples)
    path = folder / "run.toml"
    path.write_text(changed(CONFIG.format(folder=folder, fields=fields), changes or {}))
    return path


# --- records, by hand --------------------------------------------------------------------------------------


def letters(text: str) -> list[int]:
    return [ord(c) - 33 for c in text]


def cut(prompt: list[int], rest: list[int], learned: list[bool], room: int | None = None) -> Any:
    """A record by hand: its tokens, and for each whether it is learned."""
    room = max(0, LENGTH - len(rest)) if room is None else room
    while len(prompt) > room:
        prompt = prompt[1:]
    tokens = prompt + rest
    marks = [False] * len(prompt) + learned
    while len(tokens) > LENGTH:
        tokens, marks = tokens[:-1], marks[:-1]
    return tuple(tokens), tuple(marks)


def completion_by_hand(example: dict[str, Any]) -> Any:
    rest = [*letters(example["completion"]), END]
    return cut(letters(example["prompt"]), rest, [True] * len(rest))


def chat_by_hand(example: dict[str, Any]) -> Any:
    tokens: list[int] = []
    marks: list[bool] = []
    for turn in example["messages"]:
        head, content = letters(f"<{turn['role']}>"), letters(turn["content"] + ".")
        tokens += head + content
        marks += [False] * len(head) + [turn["role"] == "assistant"] * len(content)
    first = marks.index(True)
    return cut(tokens[:first], tokens[first:], marks[first:])


def pair_by_hand(example: dict[str, Any]) -> Any:
    answers = [[*letters(example[key]), END] for key in ("chosen", "rejected")]
    room = max(0, LENGTH - max(map(len, answers)))
    return tuple(cut(letters(example["prompt"]), one, [True] * len(one), room) for one in answers)


def chat_pair_by_hand(example: dict[str, Any]) -> Any:
    same = letters("".join(f"<{t['role']}>{t['content']}." for t in example["chosen"][:-1]) + "<assistant>")
    answers = [letters(example[key][-1]["content"] + ".") for key in ("chosen", "rejected")]
    room = max(0, LENGTH - max(map(len, answers)))
    return tuple(cut(same, one, [True] * len(one), room) for one in answers)


BY_HAND: dict[str, Callable[[dict[str, Any]], Any]] = {
    "completions": completion_by_hand,
    "chats": chat_by_hand,
    "pairs": pair_by_hand,
    "pairs of chats": chat_pair_by_hand,
}


def read_back(inputs: torch.Tensor, targets: torch.Tensor, of: Any) -> bool:
    """Whether a row holds exactly a record by hand, with padding and -100 elsewhere."""
    tokens, marks = of
    expected = [token if mark else -100 for token, mark in zip(tokens[1:], marks[1:], strict=True)]
    row = [*expected, *[-100] * (LENGTH - len(expected))][:LENGTH]
    filled = [*tokens, *[END] * (LENGTH - len(tokens))]
    return bool(inputs.tolist() == filled and targets.tolist() == row)


def rows_of(data: Dataset) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [*zip(*data.train, strict=True), *zip(*data.test, strict=True)]


def is_by_hand(form: str, row: tuple[torch.Tensor, torch.Tensor], expected: Any) -> bool:
    if not form.startswith("pairs"):
        return read_back(*row, expected)
    return all(read_back(row[0][place], row[1][place], expected[place]) for place in (0, 1))


def all_by_hand(form: str, data: Dataset) -> bool:
    expected = [BY_HAND[form](example) for example in FORMS[form][1]]
    for row in rows_of(data):
        found = next((one for one in expected if is_by_hand(form, row, one)), None)
        if found is None:
            return False
        expected.remove(found)
    return not expected


@pytest.mark.parametrize("form", FORMS)
def test_records_are_those_by_hand(form: str, tmp_path: Path) -> None:
    assert all_by_hand(form, load_data(read_config(configured(tmp_path, form))))


@pytest.mark.parametrize("form", FORMS)
def test_learned_prompts_are_caught(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tacit.datasets.text as module

    whole = module.answered_pair

    def with_prompts(examples: Any, cutting: Any) -> Any:
        planted = [
            [module.Answered(one.tokens, [True] * len(one.tokens)) for one in each] for each in examples
        ]
        return whole(planted, cutting)

    monkeypatch.setattr(module, "answered_pair", with_prompts)
    assert not all_by_hand(form, load_data(read_config(configured(tmp_path, form))))


def test_a_template_that_marks_answers_gives_the_same_records(tmp_path: Path) -> None:
    plain = load_data(read_config(configured(tmp_path, "chats")))
    marked = load_data(read_config(configured(tmp_path, "chats", template=MARKED)))
    assert torch.equal(plain.train.inputs, marked.train.inputs)
    assert torch.equal(plain.train.targets, marked.train.targets)
    pairs = [
        load_data(read_config(configured(tmp_path, "pairs of chats", template=one))).train
        for one in (PLAIN, MARKED)
    ]
    assert torch.equal(pairs[0].inputs, pairs[1].inputs)
    assert torch.equal(pairs[0].targets, pairs[1].targets), "earlier answers belong to the prompt"


def test_a_template_may_want_turns_that_alternate(tmp_path: Path) -> None:
    data = load_data(read_config(configured(tmp_path, "chats", template=ALTERNATING)))
    found = []
    for inputs, targets in rows_of(data):
        marks = [False, *(targets != -100).tolist()]
        found.append(
            "".join(
                chr(33 + int(c)) if c != END else "" for c, mark in zip(inputs, marks, strict=False) if mark
            )
        )
    expected = ["".join(f"{turn['content']}." for turn in one["messages"][1::2]) for one in CHATS]
    assert sorted(found) == sorted(expected)


def test_prompts_and_answers_may_be_lists_of_messages(tmp_path: Path) -> None:
    whole = load_data(read_config(configured(tmp_path, "pairs of chats")))
    split = [
        {"prompt": one["chosen"][:3], "chosen": one["chosen"][3:], "rejected": one["rejected"][3:]}
        for one in CHAT_PAIRS
    ]
    changes = {
        'chosen = "chosen"': 'prompt = "prompt"\nchosen = "chosen"',
        "test_fraction = 0.3": 'test_jsonl = "X"',
    }
    path = configured(tmp_path, "pairs of chats", changes, examples=split)
    path.write_text(path.read_text().replace('"X"', f'"{tmp_path}/examples.jsonl"'))
    data = load_data(read_config(path))
    assert sorted(data.train.inputs.flatten(1).tolist()) == sorted(
        torch.cat([whole.train.inputs, whole.test.inputs]).flatten(1).tolist()
    )


def shared_gpt(messages: list[dict[str, str]]) -> list[dict[str, str]]:
    names = {"user": "human", "assistant": "gpt"}
    return [{"from": names[turn["role"]], "value": turn["content"]} for turn in messages]


def alpaca(example: dict[str, Any], number: int) -> dict[str, Any]:
    """A prompt in two fields; of every third one the second is empty or missing."""
    instruction, _, rest = example["prompt"].partition("\n\n")
    others: list[dict[str, Any]] = [{"input": rest}, {"input": ""}, {"input": None}, {}]
    return {"instruction": instruction, **others[number % 4], "output": example["completion"]}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_of_alpaca_and_sharegpt_are_read_as_what_they_mean(kind: str, tmp_path: Path) -> None:
    prompts = [f"{word(9)}\n\n{word(9, 1)}" if number % 4 == 0 else word(9) for number in range(40)]
    completions = [{"prompt": prompt, "completion": word(9)} for prompt in prompts]
    others = {
        "completions": (completions, [alpaca(one, number) for number, one in enumerate(completions)]),
        "chats": (CHATS, [{"conversations": shared_gpt(one["messages"])} for one in CHATS]),
    }
    for form, (usual, other) in others.items():
        # Whether a record is for testing depends on a hash of its content, so it is the same in both files.
        meant = load_data(read_config(configured(tmp_path, form, examples=usual)))
        fields = in_run_file(proposed_fields(other[0])).replace(", completion", "\ncompletion")
        path = configured(tmp_path, form, {FORMS[form][0]: fields}, examples=other)
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(other), tmp_path / "examples.parquet")
            path.write_text(
                changed(path.read_text(), {"jsonl =": "parquet =", "examples.jsonl": "examples.parquet"})
            )
        data = load_data(read_config(path))
        assert torch.equal(data.train.inputs, meant.train.inputs)
        assert torch.equal(data.train.targets, meant.train.targets)
        assert torch.equal(data.test.targets, meant.test.targets)


@pytest.mark.parametrize("form", FORMS)
def test_parquet_gives_the_same_records(form: str, tmp_path: Path) -> None:
    path = configured(tmp_path, form)
    lines = load_data(read_config(path))
    pq.write_table(pa.Table.from_pylist(FORMS[form][1]), tmp_path / "examples.parquet")
    path.write_text(changed(path.read_text(), {"jsonl =": "parquet =", "examples.jsonl": "examples.parquet"}))
    rows = load_data(read_config(path))
    assert torch.equal(lines.train.inputs, rows.train.inputs)
    assert torch.equal(lines.test.targets, rows.test.targets)


def test_one_example_more_moves_no_other(tmp_path: Path) -> None:
    whole = load_data(read_config(configured(tmp_path, "pairs")))
    fewer = load_data(read_config(configured(tmp_path, "pairs", examples=PAIRS[1:])))
    for more, less in ((whole.train, fewer.train), (whole.test, fewer.test)):
        rows = {tuple(row.flatten().tolist()) for row in more.inputs}
        assert {tuple(row.flatten().tolist()) for row in less.inputs} <= rows


# --- losses and gradients ----------------------------------------------------------------------------------


def log_probability(model: Any, tokens: tuple[int, ...], marks: tuple[bool, ...]) -> torch.Tensor:
    """The sum over learned tokens, one by one, without padding."""
    total = torch.zeros((), dtype=torch.float64)
    logits = model(torch.tensor([tokens])).logits[0]
    for place in range(1, len(tokens)):
        if marks[place]:
            total = total + logits[place - 1].log_softmax(0)[tokens[place]]
    return total


def loss_by_hand(form: str, model: Any, base: Any, record: Any, beta: float) -> torch.Tensor:
    if not form.startswith("pairs"):
        counted = int(sum(record[1][1:]))
        return -log_probability(model, *record) / max(1, counted)
    own = [log_probability(model, *answer) for answer in record]
    with torch.no_grad():
        other = [log_probability(base, *answer) for answer in record]
    loss: torch.Tensor = -F.logsigmoid(beta * ((own[0] - other[0]) - (own[1] - other[1])))
    return loss


def moved_model(config: Any, data: Dataset) -> Any:
    """The model of a run and its loss, after its weights have moved from those of the public model."""
    model = new_model(config, data, seeded_generator(1)).double().train()
    loss = training_loss(config, model, data)
    draws = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.add_(0.2 * torch.randn(value.shape, generator=draws, dtype=value.dtype))
    return model, loss


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_losses_and_clipped_sums_equal_a_loop_over_records_without_padding(
    form: str, lora: bool, tmp_path: Path
) -> None:
    beta = 0.3 if form.startswith("pairs") else 0.1
    changes = ({"steps = 4": "steps = 4\nbeta = 0.3"} if beta == 0.3 else {}) | (LORA if lora else {})
    config = read_config(configured(tmp_path, form, changes))
    data = load_data(config)
    model, loss = moved_model(config, data)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").double()
    expected = [BY_HAND[form](example) for example in FORMS[form][1]]
    rows = rows_of(data)[:12]
    records = [next(one for one in expected if is_by_hand(form, row, one)) for row in rows]
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}

    norm = 0.05
    sums = {name: torch.zeros_like(value) for name, value in trained.items()}
    losses = []
    for record in records:
        one = loss_by_hand(form, model, base, record, beta)
        losses.append(float(one.detach()))
        gradients: tuple[Any, ...] = torch.autograd.grad(one, list(trained.values()), allow_unused=True)
        length = torch.stack([g.norm() for g in gradients if g is not None]).norm()
        for name, gradient in zip(trained, gradients, strict=True):
            if gradient is not None:
                sums[name] += gradient * min(1.0, norm / float(length))

    batch = tuple(torch.stack([row[part] for row in rows]) for part in (0, 1))
    with torch.no_grad():
        found = loss(model, *batch)
    np.testing.assert_allclose(found.numpy(), losses, rtol=1e-9, atol=1e-9)

    engine = FastEngine(model, loss, FlatClipping(norm))
    clipped = {name: torch.zeros_like(value) for name, value in trained.items()}
    engine.add_clipped_sum(clipped, batch, None, torch.tensor([norm], dtype=torch.float64))
    assert engine.route == "fast"
    for name in trained:
        torch.testing.assert_close(clipped[name], sums[name], rtol=1e-8, atol=1e-10)


def test_planted_mistakes_of_the_losses_are_caught(tmp_path: Path) -> None:
    """A mean over the batch's tokens, and a reference with its adapters on."""
    config = read_config(configured(tmp_path, "chats"))
    data = load_data(config)
    model, loss = moved_model(config, data)
    inputs, targets = (part[:6] for part in data.train)
    with torch.no_grad():
        each = F.cross_entropy(model(inputs).logits.transpose(1, 2), targets, reduction="none").sum(1)
        of_batch = each / (targets != -100).sum() * len(targets)
        assert not torch.allclose(of_batch, loss(model, inputs, targets), rtol=1e-2)

    config = read_config(configured(tmp_path, "pairs", LORA))
    data = load_data(config)
    model, loss = moved_model(config, data)
    with torch.no_grad():
        right = loss(model, *(part[:6] for part in data.train))
        for layer in model.modules():
            if hasattr(layer, "_disable_adapters"):
                type(layer).disable_adapters = property(lambda _: False)
        try:
            wrong = loss(model, *(part[:6] for part in data.train))
        finally:
            for layer in model.modules():
                if "disable_adapters" in vars(type(layer)):
                    del type(layer).disable_adapters
    assert torch.allclose(wrong, torch.full_like(wrong, np.log(2)))
    assert not torch.allclose(right, wrong, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_a_record_without_learned_tokens_adds_nothing(form: str, tmp_path: Path) -> None:
    config = read_config(configured(tmp_path, form))
    data = load_data(config)
    model, loss = moved_model(config, data)
    inputs, targets = (part[:4].clone() for part in data.train)
    targets[1] = -100
    sums = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    engine = FastEngine(model, loss, FlatClipping(1.0))
    engine.add_clipped_sum(sums, (inputs[1:2], targets[1:2]), None, torch.tensor([1.0]))
    assert all(not value.any() for value in sums.values())


@pytest.mark.parametrize(
    ("form", "empty"), [("completions", {"prompt": [], "completion": []}), ("chats", {"messages": []})]
)
def test_an_example_without_any_token_adds_nothing(form: str, empty: Any, tmp_path: Path) -> None:
    usual = FORMS[form][1]
    data = load_data(read_config(configured(tmp_path, form, examples=[*usual, empty])))
    rows = [*data.train.targets, *data.test.targets]
    assert sum(bool((row == -100).all()) for row in rows) == 1
    assert len(rows) == len(usual) + 1


def test_an_equal_pair_has_no_gradient(tmp_path: Path) -> None:
    equal = [{"prompt": "a", "chosen": "same", "rejected": "same"}, *PAIRS]
    config = read_config(configured(tmp_path, "pairs", examples=equal))
    data = load_data(config)
    row = next(row for row in rows_of(data) if torch.equal(row[0][0], row[0][1]))
    model, loss = moved_model(config, data)
    sums = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    engine = FastEngine(model, loss, FlatClipping(1.0))
    engine.add_clipped_sum(sums, (row[0][None], row[1][None]), None, torch.tensor([1.0]))
    assert max(float(value.abs().max()) for value in sums.values()) < 1e-6


# --- runs --------------------------------------------------------------------------------------------------


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_run_from_the_shell_says_what_a_record_is(form: str, lora: bool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    path = configured(tmp_path, form, LORA if lora else {})
    assert command(["train", str(path), "--out", str(run)]) == 0
    assert command(["verify", str(run / "statement.json")]) == 0
    statement = read_statement(run / "statement.json")
    said = " ".join([*statement["notes"], statement["data"]])
    words = {
        "completions": "its completion, which alone is learned",
        "chats": "only the turns of the assistant",
    }
    assert words.get(form, "DPO with beta = 0.1") in said
    assert f"{LENGTH} tokens" in said
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["measure"] == ("preference accuracy" if "pairs" in form else "accuracy per token")


def test_the_figures_of_preferences_are_those_of_a_loop(tmp_path: Path) -> None:
    run = prepare(configured(tmp_path, "pairs", LORA), out=tmp_path / "run", generator=seeded_generator(3))
    outcome = run.start()
    assert outcome is not None
    expected = [pair_by_hand(example) for example in PAIRS]
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = run.session.current_model.eval()
    margins, own_order, public_order = [], [], []
    for row in zip(*run.data.test, strict=True):
        pair = next(one for one in expected if is_by_hand("pairs", row, one))
        with torch.no_grad():
            own = [float(log_probability(model, *answer)) for answer in pair]
            public = [float(log_probability(base, *answer)) for answer in pair]
        margins.append(0.1 * (own[0] - public[0] - own[1] + public[1]))
        own_order.append(own[0] > own[1])
        public_order.append(public[0] > public[1])
    found = outcome.evaluation
    assert found.score == pytest.approx(np.mean(np.array(margins) > 0))
    assert found.pairs is not None
    assert found.pairs.count == len(margins)
    assert found.pairs.margin == pytest.approx(np.mean(margins), abs=1e-6)
    assert found.pairs.by_probability == pytest.approx(np.mean(own_order))
    assert found.pairs.reference_by_probability == pytest.approx(np.mean(public_order))
    assert found.loss == pytest.approx(np.mean(np.log1p(np.exp(-np.array(margins)))), abs=1e-6)


def test_few_pairs_may_be_right_by_chance() -> None:
    own = torch.tensor([[1.0, 0.0]] * 7 + [[0.0, 1.0]] * 3)
    few, many = (evaluate_pairs(own.repeat(times, 1), torch.zeros(10 * times, 2), 0.1) for times in (1, 30))
    assert few.score == many.score == pytest.approx(0.7)
    assert verdict(few, (), "the public model").useless
    assert not verdict(many, (), "the public model").useless


@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_run_on_pairs_is_bit_for_bit_the_same(lora: bool, tmp_path: Path) -> None:
    path = configured(tmp_path, "pairs", LORA if lora else {})
    name = "adapter_model.safetensors" if lora else "model.safetensors"
    assert prepare(path, out=tmp_path / "whole", generator=seeded_generator(3)).start() is not None
    stopped = prepare(path, out=tmp_path / "stopped", generator=seeded_generator(3))
    assert stopped.start(should_stop=lambda: stopped.session.steps_done == 2) is None
    assert prepare(path, out=tmp_path / "stopped", resume=True).start() is not None
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes()


def test_people_have_several_examples_or_one(tmp_path: Path) -> None:
    of_people = {"test_fraction": 'user = "who"\nrows_per_user = 2\ntest_fraction', '"line"': '"person"'}
    path = configured(tmp_path, "completions", of_people)
    data, session = make_session(read_config(path), generator=seeded_generator(1))
    assert session.of_people
    assert data.owners is not None
    assert not set(data.owners) & set(data.test_owners or ())
    outcome = prepare(path, out=tmp_path / "run", generator=seeded_generator(1)).start()
    assert outcome is not None
    said = " ".join(outcome.statement.data["notes"])
    assert "one row is a prompt with its completion" in said
    assert "one record is one person" in said
    one = {"test_fraction": 'user = "who"\ntest_fraction', '"line"': '"person"'}
    with pytest.raises(PrivacyRefusal, match="users have several records"):
        make_session(read_config(configured(tmp_path, "completions", one)), generator=seeded_generator(1))
    make_session(read_config(configured(tmp_path, "chats", one)), generator=seeded_generator(1))
    alone = [{**example, "who": 7} for example in COMPLETIONS]
    with pytest.raises(InvalidInput, match=r"no example is left for (training|testing)"):
        load_data(read_config(configured(tmp_path, "completions", of_people, examples=alone)))


# --- refusals ----------------------------------------------------------------------------------------------

SECRET = "secret7311"
BAD: dict[str, tuple[str, Any, str, str]] = {
    "a missing field": (
        "completions", {"prompt": SECRET}, PLAIN, 'line 41 .*"completion" is missing. Correct',
    ),
    "a number beside a prompt": (
        "two fields", {"instruction": SECRET, "input": 7311, "output": ""}, PLAIN, '"input" is no text',
    ),
    "no value": ("chats", {"messages": [{"from": "gpt", "text": SECRET}]}, PLAIN, "no list of messages"),
    "a number": (
        "completions", {"prompt": SECRET, "completion": 7311}, PLAIN, '"completion" is no text and no list',
    ),
    "no content": ("chats", {"messages": [{"role": SECRET}]}, PLAIN, '"messages" is no list of messages'),
    "a text as a chat": ("chats", {"messages": SECRET}, PLAIN, '"messages" is no list of messages'),
    "another form": (
        "chats", {"prompt": SECRET, "completion": ""}, PLAIN, 'Set .* prompt = "prompt", comp',
    ),
    "usual names": (
        "chats", {"question": SECRET, "answer": ""}, PLAIN, 'prompt = "question", completion = "an',
    ),
    "names that may tell": ("chats", {SECRET: turns("a", "b")}, PLAIN, "Name the field"),
    "an unknown role": (
        "chats", {"messages": [*turns("a", "b"), {"role": "bot", "content": SECRET}]}, STRICT,
        "line 41 .* the chat template refuses",
    ),
    "a role that is left out": (
        "chats", {"messages": [{"role": "bot", "content": SECRET}, *turns("a", "b")]}, DEAF,
        "line 41 .* omits turn 1",
    ),
    "a template that is none": (
        "chats", {"messages": turns(SECRET, "b")}, "\n{% for %}", "not valid Jinja at line 2",
    ),
    "a template that rewrites": (
        "chats", {"messages": turns(SECRET, "b", "c", "d")}, FORGETFUL, "writes the first",
    ),
    "texts without a prompt": (
        "pairs of chats", {"chosen": SECRET, "rejected": ""}, PLAIN, "set .data. prompt",
    ),
    "a prompt before whole chats": (
        "pairs", {"prompt": SECRET, "chosen": turns("a", "b"), "rejected": turns("a", "c")}, PLAIN,
        "remove prompt",
    ),
    "half a character": ("completions", {"prompt": "\ud800" + SECRET, "completion": ""}, PLAIN, "surrogate"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_an_example_that_cannot_be_read_is_named_by_its_number_alone(what: str, tmp_path: Path) -> None:
    form, example, template, words = BAD[what]
    usual, changes = FORMS["completions"][1], {}
    if form == "two fields":
        form, usual = "completions", [alpaca(one, 0) for one in usual]
        changes = {FORMS[form][0]: 'prompt = ["instruction", "input"]\ncompletion = "output"'}
    else:
        usual = FORMS[form][1]
    path = configured(tmp_path, form, changes, examples=[*usual, example], template=template)
    with pytest.raises(InvalidInput, match=words) as caught:
        load_data(read_config(path))
    assert SECRET not in str(caught.value)
    assert "7311" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("form", "field", "words"),
    [
        (
            "completions",
            "prompt",
            'this field alone.* Set .data. prompt = "prompt", comp',
        ),
        ("pairs", "chosen", 'prompt = "prompt", chosen = "chosen", rejected = "rejected"'),
        ("pairs of chats", "chosen", 'chosen = "chosen", rejected = "rejected"'),
        ("chats", "messages", 'this field alone.* Set .data. messages = "messages"'),
    ],
)
@pytest.mark.parametrize("parquet", [False, True])
def test_a_part_of_an_example_is_no_document(
    form: str, field: str, words: str, parquet: bool, tmp_path: Path
) -> None:
    fields, examples = FORMS[form]
    path = configured(tmp_path, form, {fields: f'text = "{field}"\ndocuments = "first"'})
    if parquet:
        pq.write_table(pa.Table.from_pylist(examples), tmp_path / "examples.parquet")
        path.write_text(
            changed(path.read_text(), {"jsonl =": "parquet =", "examples.jsonl": "examples.parquet"})
        )
        words = words if isinstance(examples[0][field], str) else "must hold strings"
    with pytest.raises(InvalidInput, match=words):
        load_data(read_config(path))


def test_a_chat_beside_a_prompt_shows_that_the_prompt_is_no_document(tmp_path: Path) -> None:
    examples = [{"prompt": "Hi", **one} for one in CHATS]
    path = configured(
        tmp_path, "chats", {FORMS["chats"][0]: 'text = "prompt"\ndocuments = "first"'}, examples=examples
    )
    with pytest.raises(InvalidInput, match=r'Set \[data\] messages = "messages"'):
        load_data(read_config(path))
    pq.write_table(pa.Table.from_pylist(examples), tmp_path / "examples.parquet")
    path.write_text(changed(path.read_text(), {"jsonl =": "parquet =", "examples.jsonl": "examples.parquet"}))
    with pytest.raises(InvalidInput, match=r'Set \[data\] messages = "messages"'):
        load_data(read_config(path))


CANARIES = "[canaries]\ncount = [8]\ncopies = [2]\nlength = 1\n[training]"
REFUSED: dict[str, tuple[str, dict[str, str], str]] = {
    "half a form": ("completions", {'prompt = "prompt"': ""}, "messages for chats.* It names completion = "),
    "two forms": ("chats", {"messages =": 'text = "a"\nmessages ='}, "fields of one kind of example"),
    "no form": ("chats", {'messages = "messages"': ""}, "prompt and completion; .* It names none"),
    "no length": ("chats", {"sequence_length": "#"}, "sequence_length is missing"),
    "split": ("chats", {"sequence_length": 'documents = "split"\nsequence_length'}, "Remove documents"),
    "beta for chats": ("chats", {"steps = 4": "steps = 4\nbeta = 0.1"}, "beta is only for preferences"),
    "another loss": ("pairs", {"steps = 4": 'steps = 4\nloss = "causal"'}, 'pairs. Set loss = "preference"'),
    "canaries": ("chats", {"[training]": CANARIES}, "are documents, but this run"),
    "noisy scores": ("pairs", {"records = 40": "records = 40\ntest_noise = 9.0"}, "does not support"),
    "a table": (
        "chats", {"test_fraction": 'target = "x"\ntest_fraction'}, "messages is only for language",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused_before_training(what: str, tmp_path: Path) -> None:
    form, changes, words = REFUSED[what]
    with pytest.raises(InvalidInput, match=words):
        prepare(configured(tmp_path, form, changes), out=tmp_path / "run")


def test_chats_need_a_template_and_preferences_weights(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has no chat template.*chat_template\.jinja"):
        prepare(configured(tmp_path, "chats", template=None), out=tmp_path / "run")
    with pytest.raises(InvalidInput, match="has no chat template"):
        load_data(read_config(configured(tmp_path, "pairs of chats", template=None)))
    (tmp_path / "base" / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match="DPO, which compares with a public model"):
        prepare(configured(tmp_path, "pairs"), out=tmp_path / "run")


def test_a_template_with_a_token_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    path = configured(tmp_path, "chats", template="<|new|>" + PLAIN)
    named = tmp_path / "base" / "tokenizer_config.json"
    named.write_text(json.dumps(json.loads(named.read_text()) | {"additional_special_tokens": ["<|new|>"]}))
    with pytest.raises(InvalidInput, match="must be int64 tokens below 257"):
        load_data(read_config(path))


def test_batches_are_written_of_documents_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="needs documents, but"):
        check_nothing_planted(read_config(configured(tmp_path, "chats")))


def test_code_in_the_folder_of_a_tokenizer_is_not_run(tmp_path: Path) -> None:
    path = configured(tmp_path, "chats")
    named, marker = tmp_path / "base" / "tokenizer_config.json", tmp_path / "was_run"
    own = {"auto_map": {"AutoTokenizer": [None, "own.Own"]}, "tokenizer_class": "Own"}
    named.write_text(json.dumps(json.loads(named.read_text()) | own))
    (tmp_path / "base" / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    load_data(read_config(path))
    assert not marker.exists()


def test_preferences_are_audited_and_not_attacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["train", str(configured(tmp_path, "pairs")), "--out", str(tmp_path / "run")]) == 0
    assert f"  tacit audit {tmp_path / 'run'}\n" in capsys.readouterr().out
    assert command(["attack", str(tmp_path / "run"), "--shadows", "0"]) == 2
    assert "attacks do not support preferences" in " ".join(capsys.readouterr().err.split())


# --- proposed run files ------------------------------------------------------------------------------------


def test_forms_are_proposed_by_names_and_types() -> None:
    for fields, examples in FORMS.values():
        assert "\n".join(f'{key} = "{name}"' for key, name in proposed_fields(examples[0]).items()) == fields
    assert proposed_fields({"id": 3, "question": "a", "answer": "b"}) == {
        "prompt": "question",
        "completion": "answer",
    }
    assert proposed_fields({"turns": turns("a", "b"), "title": "c"}) == {"messages": "turns"}
    assert proposed_fields({"instruction": "a", "input": "b", "output": "c"}) == {
        "prompt": ("instruction", "input"),
        "completion": "output",
    }
    assert proposed_fields({"instruction": "a", "response": "c", "category": "d"}) == {
        "prompt": "instruction",
        "completion": "response",
    }
    assert proposed_fields({"conversations": shared_gpt(turns("a"))}) == {"messages": "conversations"}
    assert proposed_fields({"conversations": [{"from": "human", "value": 3}]}) == {}
    assert proposed_fields({"body": "a", "author": "b"}) == {"text": "body"}
    assert proposed_fields({"a": "x", "b": "y"}) == {}
    assert proposed_fields({"prompt": "a", "messages": turns("a", "b")}) == {"messages": "messages"}
    assert proposed_fields({"prompt": "a", "chosen": turns("a"), "rejected": turns("a")}) == {
        "chosen": "chosen",
        "rejected": "rejected",
    }


@pytest.mark.parametrize("form", FORMS)
def test_init_writes_a_run_file_that_trains(form: str, tmp_path: Path) -> None:
    configured(tmp_path, form)
    lines = tmp_path / "examples.jsonl"
    facts = ["--epsilon", "8", "--delta", "1e-4", "--unit", "line", "--adjacency", "add-remove"]
    arguments = ["init", str(lines), "--model", str(tmp_path / "base"), *facts, "--records", "400"]
    assert command(arguments) == 0
    text = (tmp_path / "examples.toml").read_text()
    assert not any(value in text for value in FORMS[form][1][0].values() if isinstance(value, str) and value)
    config = read_config(tmp_path / "examples.toml")
    assert "\n".join(f'{key} = "{name}"' for key, name in config.data.fields.items()) == FORMS[form][0]
    assert config.lora.targets == ["c_attn"]
    assert config.data.sequence_length == 64
    prepare(tmp_path / "examples.toml", out=tmp_path / "run")


def test_init_writes_a_run_file_for_a_prompt_in_two_fields(tmp_path: Path) -> None:
    examples = [alpaca(one, 0) for one in COMPLETIONS]
    configured(tmp_path, "completions", examples=examples)
    facts = ["--epsilon", "8", "--delta", "1e-4", "--unit", "line", "--adjacency", "add-remove"]
    arguments = ["init", str(tmp_path / "examples.jsonl"), "--model", str(tmp_path / "base"), *facts]
    assert command([*arguments, "--records", "400"]) == 0
    path = tmp_path / "examples.toml"
    assert 'prompt = ["instruction", "input"]' in path.read_text()
    prepare(path, out=tmp_path / "run")
    path.write_text(changed(path.read_text(), {'["instruction", "input"]': '["input", "instruction"]'}))
    write_lines(tmp_path / "examples.jsonl", [*examples, {"instruction": SECRET, "output": "b"}])
    with pytest.raises(InvalidInput, match=r'line 41 .*"input" is missing') as caught:
        prepare(path, out=tmp_path / "other")
    assert SECRET not in str(caught.value)


def test_init_leaves_what_only_the_user_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "examples.jsonl"
    write_lines(lines, [{"a": SECRET, "b": "y", "who": 1}])
    assert command(["init", str(lines), "--json"]) == 0
    left = {blank["key"] for blank in json.loads(capsys.readouterr().out)["left_to_fill_in"]}
    assert left == {"text", "huggingface", "targets", "epsilon", "delta", "unit", "adjacency", "records"}
    assert SECRET not in (tmp_path / "examples.toml").read_text()
    base = str(write_model(tmp_path / "base", weights=False))
    named = ["init", str(lines), "--text", "a", "--user", "who", "--out", str(tmp_path / "other.toml")]
    named += ["--model", base]
    assert command(named) == 0
    text = (tmp_path / "other.toml").read_text()
    assert 'text = "a"' in text
    assert 'user = "who"' in text
    assert "[lora]" not in text, "no weights to correct"
    assert command(["init", str(lines), "--bounds", "a=1:2", "--out", str(tmp_path / "third.toml")]) == 2
    unknown = ["init", str(lines), "--text", "c", "--model", base, "--out", str(tmp_path / "third.toml")]
    assert command(unknown) == 2
