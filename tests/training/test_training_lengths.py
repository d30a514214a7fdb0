"""Records of several lengths: their sum, the number of passes, and what a record's gradient depends on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made import a_plan, a_session, finish, no_noise, one_step, sums_of
from regression import Recorder
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from tacit import PrivateSession, collate, losses
from tacit.clipping import AdaptiveClipping, MemoryBudget
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.plan import LossReport
from tacit.sampling.samplers import Indices
from tacit.training import AuditSlots, UserRecords, step
from tacit.training.by_record import FlipAndCrop
from tacit.training.records import as_records
from tacit.training.step import covering

N, WORDS, LONGEST = 40, 13, 16
LENGTHS = (3, 8, LONGEST)
_DICE = np.random.default_rng(3)
SIZES = np.concatenate([_DICE.integers(1, LONGEST + 3, N - 3), [3, 8, LONGEST]])  # some are cut
TOKENS = [_DICE.integers(1, WORDS, size).tolist() for size in SIZES]
TEXTS = [{"input_ids": t, "attention_mask": [1] * len(t), "labels": t} for t in TOKENS]
CLASSES = [{**text, "labels": number % 3} for number, text in enumerate(TEXTS)]
WEIGHTED = [(tokens, [1.0] * len(tokens)) for tokens in TOKENS]
SMALL = MemoryBudget(pass_bytes=1)


def padding(length: Any = LENGTHS, *, labels: bool = True, **settings: Any) -> collate.Pad:
    names = ["input_ids", "attention_mask", *(["labels"] if labels else [])]
    value: dict[str | int, float] = {"labels": -100} if labels else {}
    return collate.pad(length=dict.fromkeys(names, length), value=value, **settings)


def llama() -> nn.Module:
    torch.manual_seed(1)
    config: Any = LlamaConfig(
        vocab_size=WORDS, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=LONGEST,
    )  # fmt: skip
    model: nn.Module = LlamaForCausalLM(config)
    return model.double()


def gpt2(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    sizes = {"vocab_size": WORDS, "n_positions": LONGEST, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config: Any = GPT2Config(**sizes, **rates, bos_token_id=None, eos_token_id=None)
    model: nn.Module = GPT2LMHeadModel(config)
    return model.double()


def bert() -> nn.Module:
    torch.manual_seed(1)
    config: Any = BertConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12,
        max_position_embeddings=LONGEST, num_labels=3, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: nn.Module = BertForSequenceClassification(config)
    return model.double()


def session(
    model: nn.Module | None = None,
    data: Any = TEXTS,
    *,
    pad: collate.Pad | None = None,
    plan: dict[str, Any] | None = None,
    **settings: Any,
) -> PrivateSession:
    model = llama() if model is None else model
    plan = {"records": N, "batch_size": 12, "steps": 4, "clipping": 0.3, **(plan or {})}
    settings = {"loss": losses.causal(), "optimizer": Recorder(model.parameters()), **settings}
    return a_session(model, data, a_plan(**plan), collate=padding() if pad is None else pad, **settings)


# --- the sum ---------------------------------------------------------------------------------------------


USERS: dict[str, Any] = {"plan": {"records": 14, "unit": "user", "batch_size": 5}}
CASES: dict[str, Callable[[Any], PrivateSession]] = {
    "Llama": lambda length: session(pad=padding(length)),
    "GPT-2": lambda length: session(gpt2(), pad=padding(length)),
    "BERT": lambda length: session(
        bert(), CLASSES, pad=padding(length, labels=False), loss=losses.classification()
    ),
    "all parts": lambda length: session(
        data=WEIGHTED, pad=collate.pad(length=length),
        loss=first_tokens,
    ),
    "small physical batches": lambda length: session(pad=padding(length), physical_batch_size=2),
    "small passes": lambda length: session(pad=padding(length), memory=SMALL),
    "reference": lambda length: session(pad=padding(length), engine="reference"),
    "workers": lambda length: session(pad=padding(length), workers=2, physical_batch_size=4),
    "users": lambda length: session(
        data=UserRecords(TEXTS, np.arange(N) % 14, rows_per_user=2), pad=padding(length), **USERS
    ),
    "rows of users": lambda length: session(
        data=UserRecords(TEXTS, np.arange(N) % 14, rows_per_user=2), pad=padding(length),
        plan={"unit": "user", "rows_per_user": 2, "records": 28},
    ),
    "canaries": lambda length: session(pad=padding(length), audit=AuditSlots(4)),
    "adaptive": lambda length: session(
        pad=padding(length),
        plan={"clipping": AdaptiveClipping(0.3), "loss_report": LossReport(bound=3.0)},
    ),
    "largest batch": lambda length: session(pad=padding(length), plan={"largest_batch": 16}),
}  # fmt: skip


def first_tokens(model: nn.Module, tokens: Tensor, weights: Tensor) -> Tensor:
    """Learn the tokens where the weights are not 0."""
    logits = model(tokens).logits[:, :-1].log_softmax(-1)
    each = logits.gather(2, tokens[:, 1:, None])[..., 0] * weights[:, 1:]
    total: Tensor = each.sum(1)
    return -total


def check_sums(make: Callable[[Any], PrivateSession], patch: pytest.MonkeyPatch) -> None:
    """Check that the sums are those of one length."""
    no_noise(patch)
    run, whole = make(LENGTHS), make(LONGEST)
    found, wanted = sums_of(run, 2), sums_of(whole, 2)
    assert min(float(sums.abs().max()) for sums in wanted) > 0.01
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    assert run._run.thresholds == pytest.approx(whole._run.thresholds)


@pytest.mark.parametrize("name", CASES)
def test_the_sums_are_those_of_one_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_sums(CASES[name], monkeypatch)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("shares", [(0.98, 0.01, 0.01), (0.01, 0.01, 0.98)])
@pytest.mark.parametrize("physical", [1, 512])
def test_shares_that_do_not_fit_the_data_change_no_sum(
    shares: tuple[float, ...], physical: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(length: Any) -> PrivateSession:
        pad = padding(length, shares=None if length == LONGEST else shares)
        return session(pad=pad, physical_batch_size=physical)

    check_sums(make, monkeypatch)


def test_a_sum_is_that_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    no_noise(monkeypatch)
    run = session()
    model, parameters = run.model, [*run.model.parameters()]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for record in run._run.participants(0).tolist():
        tokens = torch.tensor([TOKENS[record][:LONGEST]])
        own = model(tokens).logits[0, :-1].log_softmax(-1)
        loss = -own.gather(1, tokens[0, 1:, None]).sum() / max(1, tokens.shape[1] - 1)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        total += gradient * min(1.0, 0.3 / max(float(gradient.norm()), 1e-9))
    torch.testing.assert_close(sums_of(run, 1)[0], total, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bug", ["the content counts as padding", "one length too short"])
def test_planted_bugs_in_the_length_of_a_record(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.training.lengths import Lengths

    real = Lengths._numbers

    def numbers(self: Any, batch: Any, template: Any) -> Tensor:
        found = real(self, batch, template)
        return found * 0 if bug == "the content counts as padding" else (found - 1).clamp(min=0)

    monkeypatch.setattr(Lengths, "_numbers", numbers)
    with pytest.raises(AssertionError):
        check_sums(CASES["Llama"], monkeypatch)


def test_each_record_is_computed_at_the_smallest_length_that_holds_it() -> None:
    several = padding().several
    assert several is not None
    records = as_records(TEXTS, collate=padding())
    groups = several.split(records.take(np.arange(N), seed=0), records.template, 1)
    assert [tokens.shape[1] for tokens, _, _ in groups] == [*LENGTHS]
    places = np.searchsorted(LENGTHS, np.minimum(SIZES, LONGEST))
    assert [len(tokens) for tokens, _, _ in groups] == np.bincount(places).tolist()
    for number, (tokens, mask, _) in enumerate(groups):
        own = [TOKENS[i][:LONGEST] for i in np.flatnonzero(places == number)]
        assert [row[row > 0].tolist() for row in tokens] == own
        assert mask.sum(1).tolist() == [len(one) for one in own]


# --- the number of passes --------------------------------------------------------------------------------


class Counting:
    """The causal loss, with the shapes of its calls."""

    def __init__(self) -> None:
        self.shapes: list[torch.Size] = []

    def __call__(self, model: nn.Module, **record: Tensor) -> Tensor:
        self.shapes.append(record["input_ids"].shape)
        return losses.causal()(model, **record)


KINDS: dict[str, dict[str, Any]] = {
    "one pass": {},
    "small physical batches": {"physical_batch_size": 1},
    "small passes": {"memory": SMALL},
    "workers": {"workers": 1, "physical_batch_size": 3},
    "canaries": {"audit": AuditSlots(4)},
}
SHORT, LONG = np.flatnonzero(LENGTHS[0] >= SIZES), np.flatnonzero(LENGTHS[1] < SIZES)
DRAWS = {"none": SHORT[:0], "short": SHORT, "long": LONG, "all": np.arange(N), "one": LONG[:1]}


def calls(kind: str, draw: Indices | None) -> list[tuple[int, ...]]:
    """Return the lengths of the calls of the loss in the first steps, where each draw is ``draw``."""
    loss = Counting()
    run = session(loss=loss, **KINDS[kind])
    real = run._run.participants
    run._run.participants = lambda step: real(step) if draw is None else draw  # type: ignore[method-assign]
    found = []
    for ticket in run.batches():
        run.step(ticket)
        found.append(tuple(shape[1] for shape in loss.shapes))
        loss.shapes.clear()
        if run.steps_done == 3:
            break
    return found


def check_calls(kind: str, draw: Indices) -> None:
    assert calls(kind, draw) == calls(kind, None)


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draw", DRAWS)
def test_the_calls_of_the_loss_do_not_depend_on_the_records(kind: str, draw: str) -> None:
    check_calls(kind, DRAWS[draw])


@pytest.mark.parametrize("draw", ["none", "short", "long", "one"])
def test_planted_bug_lengths_without_records_are_skipped(draw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = step._calls

    def some(*arguments: Any) -> Iterator[Any]:
        return (call for call in real(*arguments) if len(call.batch[0]) > 0)

    monkeypatch.setattr(step, "_calls", some)
    with pytest.raises(AssertionError):
        check_calls("one pass", DRAWS[draw])


def test_the_checks_run_once_for_each_length() -> None:
    first, *later = calls("one pass", None)
    assert len(set(map(len, later))) == 1
    assert set(later[0]) == set(first) == set(LENGTHS)
    assert len(later[0]) == len(LENGTHS)


# --- what a gradient depends on --------------------------------------------------------------------------


def sum_of(records: Any, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Tensor:
    """Return the sum of a step with these participants, under dropout."""
    run = session(gpt2(dropout=0.5), **settings)
    run._run.participants = lambda step: np.array(records)  # type: ignore[method-assign]
    return sums_of(run, 1)[0]


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("kind", ["one pass", "small physical batches", "small passes"])
def test_a_gradient_does_not_depend_on_the_lengths_of_others(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under dropout, a record's gradient is the same beside any record of another length."""
    no_noise(monkeypatch)
    short, long = SHORT[0], LONG[0]
    middle = np.flatnonzero((LENGTHS[0] < SIZES) & (LENGTHS[1] >= SIZES))[0]
    alone = {one: sum_of([one], monkeypatch, **KINDS[kind]) for one in (short, middle, long)}
    assert all(float(one.abs().max()) > 1e-3 for one in alone.values())
    for pair in ((short, long), (short, middle), (middle, long), (long, short)):
        both = sum_of(pair, monkeypatch, **KINDS[kind])
        torch.testing.assert_close(both, alone[pair[0]] + alone[pair[1]], rtol=1e-9, atol=1e-9)


def test_a_model_that_reads_the_padding_is_refused() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(WORDS, 4), nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            result: Tensor = self.out(self.words(tokens).mean(1))
            return result

    data = [(tokens, number % 3) for number, tokens in enumerate(TOKENS)]
    loss = losses.classification()
    one_step(session(Bag(), data, pad=collate.pad(length=LONGEST), loss=loss))
    with pytest.raises(InvalidInput, match="changes with its padding"):
        one_step(session(Bag(), data, pad=collate.pad(length=LENGTHS), loss=loss))
    # without a mask, the tokens of the padding are labels
    tokens = [{"input_ids": tokens} for tokens in TOKENS]
    with pytest.raises(InvalidInput, match="changes with its padding"):
        one_step(session(data=tokens, pad=collate.pad(length=LENGTHS)))


# --- runs ------------------------------------------------------------------------------------------------


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("settings", [{"workers": 1, "physical_batch_size": 3}, {}])
def test_a_resumed_run_is_equal_to_the_last_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    def run() -> PrivateSession:
        model = gpt2(dropout=0.2)
        return session(model, optimizer=torch.optim.AdamW(model.parameters(), 0.01), **settings)

    whole, begun, resumed = finish(run()), run(), run()
    finish(begun, 2).save(tmp_path / "state")
    resumed.load(tmp_path / "state")
    finish(resumed)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    for other in (padding((3, LONGEST)), padding(shares=(0.5, 0.25, 0.25)), padding(LONGEST)):
        with pytest.raises(PrivacyRefusal, match="collate function"):
            session(gpt2(dropout=0.2), pad=other, optimizer=None).load(tmp_path / "state")


def test_the_size_that_fits_is_found_at_each_length(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    run = session(gpt2(), pad=padding(shares=(0.5, 0.25, 0.25)))
    engine = run._run.engine

    def add(sums: Any, batch: tuple[Tensor, ...], *rest: Any) -> None:
        seen.append(tuple(batch[0].shape))

    monkeypatch.setattr(engine, "add_clipped_sum", add)
    assert step.fits(run._run, 2, 0, np.arange(3))
    # of 12 records 6, 3 and 3 are expected; 10, 4 and 2 fit in tokens of two of the longest
    wanted = zip((covering(6), covering(3), math.ceil(covering(4) / 2)), LENGTHS, strict=True)
    assert seen == [*wanted]


def test_views_are_refused() -> None:
    with pytest.raises(InvalidInput, match="augmentation does not support several lengths"):
        session(plan={"views": 2}, augmentation=FlipAndCrop(1))


# --- arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"length": (8, 4)}, r"length must be lengths in ascending order; got \[8, 4\]"),
        ({"length": (4, 4)}, r"length must be lengths in ascending order; got \[4, 4\]"),
        ({"length": ()}, "length must be lengths in ascending order"),
        ({"length": (0, 4)}, "length must be an integer >= 1; got 0"),
        ({"length": {"a": (2, 4.5)}}, r"length\['a'\] must be an integer"),
        ({"length": "12"}, "length must be an integer"),
        ({"length": {"a": (2, 4), "b": (1, 2, 3)}}, "2 lengths for some parts of a record and 3 for others"),
        ({"length": (2, 4), "shares": (0.5, 0.4)}, r"shares must be 2 numbers.* add up to 1"),
        ({"length": (2, 4), "shares": (1.0,)}, r"shares must be 2 numbers"),
        ({"length": (2, 4), "shares": (0.0, 1.0)}, r"shares must be a real number in \(0"),
        ({"length": (2, 4), "shares": (-1.0, 2.0)}, r"shares must be a real number"),
        ({"length": (2, 4), "shares": (math.nan, 1.0)}, r"shares must be a real number"),
        ({"length": 4, "shares": (1.0,)}, "shares needs several lengths"),
    ],
)
def test_wrong_lengths_and_shares_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        collate.pad(**arguments)


def test_parts_have_lengths_of_their_own() -> None:
    pad = collate.pad(length={"question": (2, 4), "answer": (3, 5), "image": 1}, value={"answer": -1})
    record = {"question": [1, 2], "answer": [3, 4, 5, 6], "image": [7, 8]}
    made = pad([record])
    wanted = {"question": [[1, 2, 0, 0]], "answer": [[3, 4, 5, 6, -1]], "image": [[7]]}
    assert {name: part.tolist() for name, part in made.items()} == wanted
    assert pad.several is not None
    records = as_records([record, {**record, "answer": [3]}], collate=pad)
    short, long = pad.several.split(records.take(np.arange(2), seed=0), records.template, 1)
    assert [part.tolist() for part in short] == [[[1, 2]], [[3, -1, -1]], [[7]]]
    assert [part.tolist() for part in long] == [[[1, 2, 0, 0]], [[3, 4, 5, 6, -1]], [[7]]]
