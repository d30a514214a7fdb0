"""All usual kinds of records train as they are, and a step's sum is that of a plain autograd loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from made import a_plan, a_session, no_noise, one_step
from scipy import sparse
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
)

from tacit import PrivateSession, collate, evaluate, losses
from tacit.errors import InvalidInput, PrivacyRefusal, UnsupportedModel
from tacit.training import AuditSlots
from tacit.training.records import ArrayRecords, DatasetRecords, as_records

N, D, CLASSES, LONGEST, WORDS = 24, 4, 3, 5, 11
CLIP = 0.3
PLAN = a_plan(records=N, batch_size=12, steps=3, clipping=CLIP)
_RANDOM = np.random.default_rng(5)
X = _RANDOM.normal(size=(N, D))
Y = _RANDOM.integers(0, CLASSES, N)
VALUES = _RANDOM.normal(size=(N, 2))
LENGTHS = _RANDOM.integers(1, LONGEST + 3, N)  # some are cut
TOKENS = [_RANDOM.integers(1, WORDS, length).tolist() for length in LENGTHS]
NAMES = [f"x{column}" for column in range(D)]


class Items(Dataset[Any]):
    """A map-style data set of these items."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


class Stream(IterableDataset[Any]):
    """Gives its items in order alone."""

    def __iter__(self) -> Any:
        yield from zip(X, Y, strict=True)

    def __len__(self) -> int:
        return N


class Columns:
    """Imitates ``datasets.Dataset``: columns by name, rows by position as plain Python values."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = dict(columns)
        self.column_names = list(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        return {name: column[key] for name, column in self._columns.items()}

    def __getitems__(self, positions: list[int]) -> list[Any]:
        return [self[position] for position in positions]


class Pair(NamedTuple):
    x: Tensor
    y: int


class Bag(nn.Module):
    """Averages the embeddings of tokens (n, L), including padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 6), nn.Linear(6, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.out(self.words(tokens).mean(1))
        return found


def mlp(outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, outputs))


def gpt2() -> nn.Module:
    config: Any = GPT2Config(
        vocab_size=WORDS, n_positions=8, n_embd=8, n_layer=2, n_head=2, pad_token_id=0, bos_token_id=1,
        eos_token_id=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def bert(kind: Any = BertForSequenceClassification) -> nn.Module:
    config: Any = BertConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    config.num_labels = CLASSES
    model: nn.Module = kind(config)
    return model.train()


def entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def of_floats(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return entropy(model, x, y.long())


def of_pair(model: nn.Module, pair: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    return entropy(model, torch.cat(pair, 1), y)


def of_columns(model: nn.Module, y: Tensor, **columns: Tensor) -> Tensor:
    return entropy(model, torch.stack([columns[name] for name in NAMES], 1), y)


def padded(tokens: Sequence[int], value: int = 0) -> list[int]:
    return [*tokens[:LONGEST], *[value] * (LONGEST - len(tokens))]


# --- the plain loop: the loss of record i alone, in words of PyTorch only ---------------------------------


def class_of(model: nn.Module, i: int) -> Tensor:
    x = torch.tensor(X[i : i + 1]).to(next(model.parameters()).dtype)
    return F.cross_entropy(model(x), torch.tensor(Y[i : i + 1]))


def first_class_of(model: Any, i: int) -> Tensor:
    return class_of(model[0], i)


def weighted_class_of(model: nn.Module, i: int) -> Tensor:
    return class_of(model, i) * (1.0 + float(Y[i]))


def word_class_of(model: nn.Module, i: int) -> Tensor:
    return F.cross_entropy(model(torch.tensor([padded(TOKENS[i])])), torch.tensor(Y[i : i + 1]))


def numbers_of(model: Any, i: int) -> Tensor:
    return F.mse_loss(model(torch.tensor(X[i : i + 1])), torch.tensor(VALUES[i : i + 1]))


def even_of(model: nn.Module, i: int) -> Tensor:
    logit = model(torch.tensor(X[i : i + 1]))[0, 0]
    return F.binary_cross_entropy_with_logits(logit, torch.tensor(float(Y[i] % 2)).to(logit))


def next_words_of(model: Any, i: int) -> Tensor:
    """Return -log p of the record's words, without padding and without its mask."""
    words = torch.tensor([TOKENS[i][:LONGEST]])
    if words.shape[1] == 1:
        return torch.zeros((), requires_grad=True).sum()
    logits = model(input_ids=words).logits
    return F.cross_entropy(logits[0, :-1], words[0, 1:])


def bert_class_of(model: Any, i: int) -> Tensor:
    logits = model(input_ids=torch.tensor([TOKENS[i][:LONGEST]])).logits
    return F.cross_entropy(logits, torch.tensor(Y[i : i + 1]))


def masked_words_of(model: Any, i: int) -> Tensor:
    logits = model(input_ids=torch.tensor([TOKENS[i][:LONGEST]])).logits
    return F.cross_entropy(logits[0, :1], torch.tensor(TOKENS[i][:1]))


@dataclass(frozen=True)
class Case:
    data: Callable[[], Any]
    oracle: Callable[[nn.Module, int], Tensor] = class_of
    loss: Any = entropy
    model: Callable[[], nn.Module] = mlp
    collate: Any = None


def frame() -> pd.DataFrame:
    return pd.DataFrame(X, columns=NAMES, index=np.arange(N)[::-1])


def words(labels: Callable[[int], Any]) -> list[dict[str, Any]]:
    """Return records as a tokenizer and a map give them: lists of varying length, with labels inside."""
    return [
        {"input_ids": TOKENS[i], "attention_mask": [1] * len(TOKENS[i]), "labels": labels(i)}
        for i in range(N)
    ]


def in_float_columns() -> dict[str, Any]:
    return {name: X[:, column].tolist() for column, name in enumerate(NAMES)}


PAD = collate.pad(length=LONGEST)
PAD_TEXT = collate.pad(
    length={"input_ids": LONGEST, "attention_mask": LONGEST, "labels": LONGEST}, value={"labels": -100}
)
PAD_WORDS = collate.pad(length={"input_ids": LONGEST, "attention_mask": LONGEST})
CASES: dict[str, Case] = {
    "dict items": Case(lambda: Items([{"x": torch.tensor(X[i]), "y": int(Y[i])} for i in range(N)])),
    "a list of dicts, in any order of keys": Case(
        lambda: [{"x": X[i], "y": Y[i]} if i % 2 else {"y": Y[i], "x": X[i]} for i in range(N)]
    ),
    "a list of tuples": Case(lambda: [(X[i], Y[i]) for i in range(N)]),
    "mapping of arrays": Case(lambda: {"y": Y, "x": X}),
    "nested tuples": Case(
        lambda: Items([((torch.tensor(X[i, :1]), X[i, 1:]), Y[i]) for i in range(N)]), loss=of_pair
    ),
    "nested tuples of columns": Case(lambda: ((X[:, :1], X[:, 1:]), Y), loss=of_pair),
    "nested mappings": Case(
        lambda: {"inputs": {"a": X[:, :1], "b": X[:, 1:]}, "y": Y},
        loss=lambda model, inputs, y: of_pair(model, (inputs["a"], inputs["b"]), y),
    ),
    "named tuples": Case(lambda: Items([Pair(torch.tensor(X[i]), int(Y[i])) for i in range(N)])),
    "varying lengths with pad": Case(
        lambda: Items([{"x": TOKENS[i], "y": int(Y[i])} for i in range(N)]),
        word_class_of, model=Bag, collate=PAD,
    ),
    "columns of varying lengths with pad": Case(
        lambda: (TOKENS, Y.tolist()), word_class_of, model=Bag, collate=PAD
    ),
    "tensors of varying lengths with a collate of the user's": Case(
        lambda: [(torch.tensor(TOKENS[i]), int(Y[i])) for i in range(N)],
        word_class_of,
        model=Bag,
        collate=lambda items: (
            torch.tensor([padded(tokens.tolist()) for tokens, _ in items]),
            torch.tensor([label for _, label in items]),
        ),
    ),
    "list labels": Case(lambda: (X, Y.tolist())),
    "lists alone": Case(lambda: {"x": X.tolist(), "y": Y.tolist()}),
    "pandas, with labels": Case(lambda: (frame(), pd.Series(Y, index=range(100, 100 + N)))),
    "pandas": Case(lambda: frame().assign(y=Y), loss=of_columns),
    "pandas, without names": Case(lambda: (pd.DataFrame(X), Y)),
    "pandas, nullable": Case(lambda: (frame().convert_dtypes(), pd.Series(Y, dtype="Int32"))),
    "pandas, backed by Arrow": Case(
        lambda: (frame().astype("double[pyarrow]"), pd.Series(Y, dtype="int8[pyarrow]"))
    ),
    "Polars, with labels": Case(lambda: (pl.DataFrame(X, schema=NAMES), pl.Series(Y))),
    "Polars": Case(lambda: pl.DataFrame({**in_float_columns(), "y": Y}), loss=of_columns),
    "Polars, lists": Case(
        lambda: pl.DataFrame({"x": TOKENS, "y": Y}), word_class_of, model=Bag, collate=PAD
    ),
    "Arrow, with labels": Case(lambda: (pa.table(in_float_columns()), pa.array(Y))),
    "Arrow": Case(lambda: pa.table({**in_float_columns(), "y": Y}), loss=of_columns),
    "Arrow, lists": Case(lambda: pa.table({"x": TOKENS, "y": Y}), word_class_of, model=Bag, collate=PAD),
    "like datasets.Dataset": Case(lambda: Columns({"x": X.tolist(), "y": Y.tolist()})),
    "TensorDataset": Case(lambda: TensorDataset(torch.tensor(X), torch.tensor(Y))),
    "int32 labels": Case(lambda: (X, Y.astype(np.int32))),
    "uint8 labels": Case(lambda: (X, torch.tensor(Y, dtype=torch.uint8))),
    "uint16 labels": Case(lambda: (X, Y.astype(np.uint16))),
    "another byte order": Case(lambda: (X.astype(">f8"), Y.astype(">i4"))),
    "strides below 0": Case(lambda: (X[::-1].copy()[::-1], Y[::-1].copy()[::-1])),
    "CrossEntropyLoss": Case(lambda: (X, Y), loss=nn.CrossEntropyLoss()),
    "CrossEntropyLoss, keywords": Case(lambda: {"labels": Y, "x": X}, loss=nn.CrossEntropyLoss()),
    "CrossEntropyLoss, sum": Case(lambda: (X, Y), loss=nn.CrossEntropyLoss(reduction="sum")),
    "CrossEntropyLoss, weights": Case(
        lambda: (X, Y), weighted_class_of, loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    ),
    "NLLLoss": Case(
        lambda: (X, Y), first_class_of, loss=nn.NLLLoss(),
        model=lambda: nn.Sequential(mlp(), nn.LogSoftmax(1)),
    ),
    "MSELoss of vectors": Case(
        lambda: (X, VALUES), numbers_of, loss=nn.MSELoss(), model=lambda: mlp(2)
    ),
    "BCEWithLogitsLoss, bool labels": Case(
        lambda: (X, Y % 2 == 1), even_of, loss=nn.BCEWithLogitsLoss(), model=lambda: mlp(1)
    ),
    "classification": Case(lambda: {"x": X, "label": Y}, loss=losses.classification()),
    "classification, weights": Case(
        lambda: (X, Y), weighted_class_of, loss=losses.classification(weight=[1.0, 2.0, 3.0])
    ),
    "regression": Case(lambda: (X, VALUES), numbers_of, loss=losses.regression(), model=lambda: mlp(2)),
    "GPT-2": Case(
        lambda: words(lambda i: TOKENS[i]), next_words_of, losses.causal(), gpt2, PAD_TEXT
    ),
    "GPT-2, tokens alone": Case(
        lambda: [{key: item[key] for key in ("input_ids", "attention_mask")} for item in words(int)],
        next_words_of, losses.causal(), gpt2, PAD_WORDS,
    ),
    "BERT": Case(
        lambda: words(lambda i: int(Y[i])), bert_class_of, losses.classification(), bert, PAD_WORDS
    ),
    "BERT, CrossEntropyLoss": Case(
        lambda: words(lambda i: int(Y[i])), bert_class_of, nn.CrossEntropyLoss(), bert, PAD_WORDS
    ),
    "BERT, masked words": Case(
        lambda: words(lambda i: [TOKENS[i][0], *[-100] * (len(TOKENS[i]) - 1)]),
        masked_words_of, losses.masked(), lambda: bert(BertForMaskedLM), PAD_TEXT,
    ),
}  # fmt: skip


def session(case: Case, **changes: Any) -> PrivateSession:
    torch.manual_seed(1)
    model = case.model().double()
    settings = {"loss": case.loss, "collate": case.collate, **changes}
    return a_session(model, case.data(), PLAN, lr=0.1, **settings)


def released(run: PrivateSession, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Return the sum that one step gives the optimizer, without its noise, times the divisor."""
    seen: dict[str, Tensor] = {}
    with monkeypatch.context() as patched:
        no_noise(patched)
        patched.setattr(run._run.optimizer, "step", seen.update)
        one_step(run)
    return {name: gradient * PLAN.expected_batch_size for name, gradient in seen.items()}


def looped(run: PrivateSession, oracle: Callable[[nn.Module, int], Tensor]) -> dict[str, Tensor]:
    """Return the clipped sum of the first step's records, by a loop of autograd calls."""
    trained = dict(run.model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in trained.items()}
    chosen = PLAN.sampling.indices(run._run.generator, 0, N).tolist()
    assert 6 < len(chosen) < N
    for i in chosen:
        gradients = torch.autograd.grad(
            oracle(run.model, i), list(trained.values()), allow_unused=True, materialize_grads=True
        )
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        for name, gradient in zip(trained, gradients, strict=True):
            total[name] += min(1.0, CLIP / norm if norm > 0 else 1.0) * gradient
    return total


def check(run: PrivateSession, oracle: Callable[[nn.Module, int], Tensor], patch: pytest.MonkeyPatch) -> None:
    wanted = looped(run, oracle)
    found = released(run, patch)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.untraced
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_step_is_that_of_a_plain_loop(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    run = session(case)
    check(run, case.oracle, monkeypatch)
    assert run.route == "fast"


@pytest.mark.parametrize("name", ["dict items", "varying lengths with pad", "nested tuples", "pandas"])
def test_engines_workers_and_cuts_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    wanted = released(session(case), monkeypatch)
    for changes in ({"engine": "reference"}, {"physical_batch_size": 3}):
        for key, gradient in released(session(case, **changes), monkeypatch).items():
            torch.testing.assert_close(gradient, wanted[key], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["dict items", "pandas", "columns of varying lengths with pad"])
def test_records_of_any_kind_can_carry_canaries(name: str) -> None:
    run = session(CASES[name], audit=AuditSlots(4))
    for batch in run.batches():
        run.step(batch)
    assert run.route == "fast"
    assert run.slot_evidence().observed.shape == (PLAN.steps, 4)


def test_workers_read_what_the_session_would(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["dict items"]
    wanted = released(session(case), monkeypatch)
    for key, gradient in released(session(case, workers=1), monkeypatch).items():
        assert torch.equal(gradient, wanted[key])


def test_a_data_set_of_hugging_face_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    check(session(Case(lambda: rows)), class_of, monkeypatch)
    wide = Case(lambda: rows.with_format("torch", dtype=torch.float64), loss=of_floats)
    check(session(wide), class_of, monkeypatch)
    text = words(lambda i: TOKENS[i])
    columns = {key: [item[key] for item in text] for key in text[0]}
    case = CASES["GPT-2"]
    check(session(case, collate=PAD_TEXT), next_words_of, monkeypatch)
    as_rows = Case(lambda: datasets.Dataset.from_dict(columns), case.oracle, case.loss, gpt2, PAD_TEXT)
    check(session(as_rows), next_words_of, monkeypatch)


# --- the casting rule ------------------------------------------------------------------------------------


def test_float64_arrays_train_a_float32_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (np.float64, np.float16):
        torch.manual_seed(1)
        model = mlp()
        x = X.astype(kind)
        run = a_session(model, (x, Y), PLAN, loss=entropy)

        def of(net: nn.Module, i: int, x: Any = x) -> Tensor:
            return F.cross_entropy(net(torch.tensor(x[i : i + 1]).float()), torch.tensor(Y[i : i + 1]))

        wanted = looped(run, of)
        for name, gradient in released(run, monkeypatch).items():
            assert gradient.dtype == torch.float32
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-5, atol=1e-6)
        assert run.route == "fast"


@pytest.mark.parametrize(
    ("given", "floating", "wanted"),
    [
        (np.float64, torch.float32, torch.float32),
        (np.float16, torch.float32, torch.float32),
        (np.longdouble, torch.float64, torch.float64),
        (">f4", torch.float64, torch.float64),
        (np.float32, torch.bfloat16, torch.bfloat16),
        (np.float64, None, torch.float64),
        (np.int8, torch.float32, torch.int64),
        (">i2", torch.float32, torch.int64),
        (np.uint32, torch.float32, torch.int64),
        (np.uint64, None, torch.int64),
        (np.int64, torch.float32, torch.int64),
        (np.bool_, torch.float32, torch.bool),
        (np.complex64, torch.float32, torch.complex64),
    ],
)
def test_the_casting_rule(given: Any, floating: torch.dtype | None, wanted: torch.dtype) -> None:
    array = np.array([[0, 1], [1, 1], [1, 0]], dtype=given)
    some = np.array([0, 2])
    expected = torch.tensor([[0, 1], [1, 0]]).to(wanted)
    for data in ((array,), [(row,) for row in array], (array.tolist(),) if given is np.int64 else (array,)):
        for indices in (some, np.arange(3)):
            (found,) = as_records(data, floating=floating).take(indices, seed=0)
            assert found.dtype == wanted
        assert torch.equal(as_records(data, floating=floating).take(some, seed=0)[0], expected)


def test_a_model_of_several_types_gets_numbers_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(D, 2).double(), nn.Linear(2, CLASSES))

    def loss(net: Any, x: Tensor, y: Tensor) -> Tensor:
        assert x.dtype == torch.float64
        return F.cross_entropy(net[1](net[0](x).float()), y, reduction="none")

    run = a_session(model, (X, Y), PLAN, loss=loss, engine="reference")
    one_step(run)


def test_a_cast_full_batch_leaves_the_records_alone() -> None:
    """A model that changes its input in place changes a cast copy."""
    kept = X.copy()
    records = ArrayRecords((X, Y), floating=torch.float32)
    for _ in range(3):
        x, _ = records.take(np.arange(N), seed=0)
        x.zero_()
    assert np.array_equal(X, kept)


# --- a collate cannot mix records ------------------------------------------------------------------------


def to_the_longest(items: list[Any]) -> Any:
    longest = max(len(tokens) for tokens, _ in items)
    return (
        torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens, _ in items]),
        torch.tensor([label for _, label in items]),
    )


def by_the_mean(items: list[Any]) -> Any:
    x = torch.stack([torch.as_tensor(x) for x, _ in items])
    return x / x.abs().mean(), torch.tensor([label for _, label in items])


def scaled_class_of(model: nn.Module, i: int) -> Tensor:
    x = torch.tensor(X[i : i + 1])
    return F.cross_entropy(model(x / x.abs().mean()), torch.tensor(Y[i : i + 1]))


def test_planted_bug_a_collate_that_pads_to_the_longest_is_refused() -> None:
    run = session(Case(lambda: [*zip(TOKENS, Y.tolist(), strict=True)], model=Bag, collate=to_the_longest))
    with pytest.raises(InvalidInput, match=r"part 0 differs in shape.*pad\(length.*one record at a time"):
        one_step(run)


SCALED = Case(lambda: [*zip(X, Y.tolist(), strict=True)], scaled_class_of, collate=by_the_mean)


def test_planted_bug_a_collate_that_scales_by_the_batch_scales_by_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(session(SCALED), scaled_class_of, monkeypatch)


def test_planted_bug_the_check_above_sees_a_collate_of_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def together(records: Any, indices: Any, *, seed: int) -> tuple[Tensor, ...]:
        records._template = (0, 1)
        x, y = records.collate([records.dataset[int(i)] for i in indices])
        return x, y

    run = session(SCALED)
    monkeypatch.setattr(DatasetRecords, "take", together)
    with pytest.raises(AssertionError):
        check(run, scaled_class_of, monkeypatch)


class Remembering:
    """Adds the item that it got last."""

    def __init__(self) -> None:
        self.last = torch.zeros(D, dtype=torch.float64)

    def __call__(self, items: list[Any]) -> Any:
        ((x, y),) = items
        x, self.last = torch.as_tensor(x) + self.last, torch.as_tensor(x)
        return x[None], torch.tensor([y])


def remembering() -> Callable[[list[Any]], Any]:
    """Return a function that stores the last item in a variable around it."""
    last, seen = torch.zeros(D, dtype=torch.float64), [0.0]

    def added(items: list[Any]) -> Any:
        nonlocal last
        ((x, y),) = items
        x, last = torch.as_tensor(x) + last + seen[-1], torch.as_tensor(x)
        seen.append(float(x.sum()))
        return x[None], torch.tensor([y])

    return added


@pytest.mark.parametrize("made", [Remembering, remembering])
def test_planted_bug_a_collate_that_remembers_records_is_refused(made: Callable[[], Any]) -> None:
    run = session(Case(lambda: [*zip(X, Y.tolist(), strict=True)], collate=made()))
    with pytest.raises(UnsupportedModel, match="changes with the items read before"):
        one_step(run)


def test_pad_depends_on_the_record_alone() -> None:
    records = as_records((TOKENS, Y.tolist()), collate=PAD)
    whole = records.take(np.arange(N), seed=0)
    assert whole[0].shape == (N, LONGEST)
    for i in range(N):
        alone = records.take(np.array([i]), seed=0)
        assert all(torch.equal(part[i : i + 1], of_one) for part, of_one in zip(whole, alone, strict=True))
        assert alone[0][0].tolist() == padded(TOKENS[i])


def test_pad_by_part() -> None:
    made = collate.pad(length={0: 3}, value={0: -1})([([5], [[1, 2]], 7)])
    assert [part.tolist() for part in made] == [[[5, -1, -1]], [[[1, 2]]], [7]]
    made = collate.pad(length=2, value=0.5)([{"a": np.ones((1, 2)), "b": 3}])
    assert made["a"].tolist() == [[[1, 1], [0.5, 0.5]]]
    assert made["b"].tolist() == [3]
    assert collate.pad(length=2)([[9, 8, 7]]).tolist() == [[9, 8]]


# --- the resume state ------------------------------------------------------------------------------------


IDLE = collate.pad(length=D)


def other(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return 2 * entropy(model, x, y)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": other}, "the loss"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "the loss"),
        ({"collate": collate.pad(length={"x": D}, value=1.0)}, "the collate function"),
        ({"data": lambda: [(x, y) for x, y in zip(X, Y.tolist(), strict=True)]}, "the structure"),
    ],
)
def test_a_state_belongs_to_loss_collate_and_structure(
    change: dict[str, Any], words: str, tmp_path: Any
) -> None:
    case = Case(lambda: [{"x": x, "y": y} for x, y in zip(X, Y.tolist(), strict=True)], collate=IDLE)
    run = session(case)
    one_step(run)
    run.save(tmp_path / "state")
    again = session(case)
    again.load(tmp_path / "state")
    one_step(again)
    given = dict(change)
    data = given.pop("data", case.data)
    with pytest.raises(PrivacyRefusal, match=words):
        session(Case(data, collate=IDLE), **given).load(tmp_path / "state")


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1.0, 1.0, 2.0]])
def test_a_state_belongs_to_the_weights_of_a_loss_module(weights: list[float], tmp_path: Any) -> None:
    case = CASES["CrossEntropyLoss"]
    run = session(case, loss=nn.CrossEntropyLoss(weight=torch.ones(3)))
    run.save(tmp_path / "state")
    resumed = session(case, loss=nn.CrossEntropyLoss(weight=torch.tensor(weights)))
    if weights[2] == 1.0:
        resumed.load(tmp_path / "state")
    else:
        with pytest.raises(PrivacyRefusal, match="the loss"):
            resumed.load(tmp_path / "state")


# --- losses ----------------------------------------------------------------------------------------------


def test_a_record_without_a_position_that_counts_has_no_gradient() -> None:
    model = nn.Embedding(WORDS, WORDS).double()
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    labels = torch.tensor([[1, -100, -100], [-100, -100, 6]])
    for loss, nothing in ((losses.causal(), 0), (losses.masked(), None)):
        found = loss(model, tokens, labels)
        assert found.isfinite().all()
        if nothing is not None:
            assert not found[nothing].any()
            (gradient,) = torch.autograd.grad(found[nothing], model.weight)
            assert not gradient.any()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    ("module", "targets"),
    [
        (nn.MSELoss, VALUES),
        (nn.L1Loss, VALUES),
        (nn.SmoothL1Loss, VALUES),
        (nn.HuberLoss, VALUES),
        (nn.SoftMarginLoss, np.sign(VALUES)),
        (nn.PoissonNLLLoss, np.abs(VALUES)),
        (nn.HingeEmbeddingLoss, np.sign(VALUES)),
        (nn.BCEWithLogitsLoss, VALUES > 0),
        (nn.MultiLabelSoftMarginLoss, VALUES > 0),
        (nn.MultiMarginLoss, Y % 2),
        (nn.CrossEntropyLoss, Y % 2),
    ],
)
def test_a_module_gives_the_mean_over_a_records_own_numbers(
    module: Any, targets: Any, reduction: str
) -> None:
    model = nn.Linear(D, 2).double()
    x, y = torch.tensor(X), torch.tensor(targets)
    found = losses.per_record(module(reduction=reduction), model)(model, x, y)
    for i in range(N):
        target = y[i : i + 1].to(torch.float64) if y.dtype is torch.bool else y[i : i + 1]
        torch.testing.assert_close(found[i], module()(model(x[i : i + 1]), target))


def test_a_module_is_copied_and_left_as_it_was() -> None:
    module = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    session(CASES["CrossEntropyLoss"], loss=module)
    assert module.reduction == "mean"
    assert module.weight is not None
    assert module.weight.dtype == torch.float32


def test_the_loss_of_transformers_itself_is_not_used() -> None:
    """With labels the model would return a mean over the batch, so the loss does not pass them."""
    model: Any = gpt2()
    seen: list[object] = []
    forward = model.forward

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None) -> Any:
            seen.append(labels)
            return forward(input_ids=input_ids, attention_mask=attention_mask)

    batch = {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
    losses.causal()(Watched(), **batch, labels=batch["input_ids"])
    assert seen == [None]


# --- what is refused -------------------------------------------------------------------------------------

CELL = "P" + str(48 * 10**6 + 151_623)  # made here, as a traceback shows lines of source


def items(make: Callable[[int], Any]) -> Callable[[], Any]:
    return lambda: Items([make(i) for i in range(N)])


def at_one(i: int, wrong: Any, right: Any) -> Any:
    return wrong if i == 7 else right


WRONG_RECORDS: dict[str, tuple[Callable[[], Any], str]] = {
    "text in a tuple": (items(lambda i: (X[i], CELL)), r"part 1 is of type str.*Turn text into numbers"),
    "text in a dict": (
        items(lambda i: {"x": X[i], "y": CELL}), r"key 'y' is of type str.*Turn text into numbers"
    ),
    "bytes": (items(lambda i: (X[i], CELL.encode())), r"part 1 is of type bytes.*Turn text into numbers"),
    "None": (items(lambda i: (X[i], at_one(i, None, 1))), r"part 1 is None.*fixed public rule"),
    "an object": (items(lambda i: (X[i], object())), r"part 1 is of type object.*Give tensors, arrays"),
    "a set": (items(lambda i: {1, 2}), r"the record is of type set"),
    "an array of text": (lambda: (X, np.full(N, CELL)), r"part 1 .*text.*Turn text into numbers"),
    "an array of objects": (
        lambda: (X, np.array([CELL] * N, dtype=object)), r"part 1 .*objects \(str\).*Turn text into numbers"
    ),
    "a list of text": (lambda: (X, [CELL] * N), r"part 1 is of type str.*Turn text into numbers"),
    "mixed lists": (lambda: (X, [1, CELL] * (N // 2)), r"part 1 .*(list|text).*"),
    "dates": (lambda: (X, np.full(N, "2020-01-01", "datetime64[D]")), r"part 1 .*dates.*days since"),
    "a structured array": (
        lambda: np.zeros(N, dtype=[("x", "f8"), ("y", "i8")]), r"structured.*mapping of its fields"
    ),
    "masked cells": (
        lambda: (np.ma.masked_less(X, 0.0), Y), r"part 0 is an array with masked cells.*fixed public rule"
    ),
    "NaN": (lambda: (np.where(X > 1, np.nan, X), Y), r"part 0 of the data contains NaN.*fixed rule"),
    "beyond float32": (
        lambda: (X * 1e300, Y), r"part 0 of the data contains numbers beyond torch\.float32.*public bounds"
    ),
    "beyond int64": (lambda: (X, np.full(N, 2**63, dtype=np.uint64)), r"part 1 .*for int64.*public list"),
    "an integer beyond int64": (items(lambda i: (X[i], 10**30)), r"part 1 .*for int64.*public list"),
    "a sparse tensor": (lambda: (torch.tensor(X).to_sparse(), Y), r"part 0 is a sparse tensor.*to_dense"),
    "a text column": (
        lambda: frame().assign(ward=[CELL] * N), r"column 'ward' is of type.*Encoder"
    ),
    "a text column of a matrix": (
        lambda: (frame().assign(ward=[CELL] * N), Y), r"column 'ward' is of type.*tacit\.columns\.Encoder"
    ),
    "a text column of Polars": (
        lambda: (pl.DataFrame({"ward": [CELL] * N}), Y), r"column 'ward' is of type String.*Encoder"
    ),
    "a text column of Arrow": (
        lambda: (pa.table({"ward": [CELL] * N}), Y), r"column 'ward' is of type string.*Encoder"
    ),
    "a categorical column": (
        lambda: (pd.DataFrame({"ward": pd.Categorical([CELL] * N)}), Y), r"column 'ward' is of type category"
    ),
    "missing cells of pandas": (
        lambda: (pd.DataFrame({"age": pd.array([None, *range(N - 1)], dtype="Int64")}), Y),
        r"column 'age' \(Int64\) has missing cells.*fixed public rule",
    ),
    "missing cells of Polars": (
        lambda: (pl.DataFrame({"age": [None, *range(N - 1)]}), Y), r"column 'age' .*missing cells"
    ),
    "missing cells of Arrow": (
        lambda: (pa.table({"age": [None, *range(N - 1)]}), Y), r"column 'age' .*missing cells"
    ),
    "a lazy frame": (lambda: pl.DataFrame({"a": Y}).lazy(), r"LazyFrame.*collect\(\)"),
    "two columns of one name": (
        lambda: pd.DataFrame(X, columns=["a", "a", "b", "c"]), r"two columns 'a'.*Rename"
    ),
    "columns without names": (lambda: pd.DataFrame(X), r"must be strings.*, or pass \(frame"),
    "varying lengths without a collate": (
        lambda: (TOKENS, Y), r"part 0 differs in shape.*tacit\.collate\.pad\(length"
    ),
    "items of varying lengths without a collate": (
        items(lambda i: {"x": TOKENS[i], "y": 1}), r"key 'x' differs in shape.*tacit\.collate\.pad\(length"
    ),
    "types that differ": (
        items(lambda i: (X[i], at_one(i % 8, 0.5, 1))), r"part 1 differs in type.*float\(\.\.\.\)"
    ),
    "keys that differ": (
        items(lambda i: {"x": X[i], f"{CELL}{i}": 1}), r"differ in structure.*the same keys"
    ),
    "a number of parts that differs": (
        items(lambda i: (X[i], 1, 2)[: 2 + i % 2]), r"differ in structure.*the same number of parts"
    ),
    "a key that is no word": (items(lambda i: {0: X[i], 1: 1}), r"key of type int.*Rename the keys"),
    "lengths that differ": (lambda: {"x": X, "y": Y[:-1]}, r"same leading dimension.*key 'x'.*key 'y'"),
    "a part that is one number": (lambda: (torch.zeros(()),), r"leading dimension"),
    "an empty mapping": (dict, r"empty dict"),
    "a mapping of data sets": (
        lambda: {"train": Columns({"x": X}), "test": Columns({"x": X})},
        r"key 'train' is a dataset.*data\[\"train\"\]",
    ),
    "a generator": (lambda: iter(X), r"generator|iterator|got .*DataLoader"),
    "a loader": (lambda: DataLoader(Items(list(X)), 4), r"is a DataLoader.*=loader\.dataset.*as collate\.$"),
    "a loader with weights": (
        lambda: DataLoader(Items(list(X)), 4, sampler=WeightedRandomSampler([1.0] * N, N)),
        r"data=loader\.dataset.*Its WeightedRandomSampler is lost.*Weight the classes",
    ),
    "a stream with a length": (Stream, r"dataset \(Stream\) has no length, or no access.*data=list\(dataset"),
    "an empty item": (items(lambda i: {}), r"empty dict.*tensors of a record"),
    "a sparse array of SciPy": (lambda: sparse.csr_array(X), r"data of type csr_array"),
    "a sparse part of SciPy": (lambda: (sparse.csr_matrix(X), Y), r"part 0 is of type csr_matrix.*toarray"),
    "a column of categories that are numbers": (
        lambda: (pd.DataFrame({"ward": pd.Categorical(Y)}), Y), r"column 'ward' is of type category.*Encoder"
    ),
    "a list of arrays of varying length": (
        lambda: [np.array(row) for row in TOKENS], r"same leading dimension.*pass \(data,\)"
    ),
    "a word": (lambda: "rows.csv", r"data of type str cannot be used"),
    "None as data": (lambda: None, r"data of type NoneType"),
}  # fmt: skip


def explained(error: BaseException) -> Iterator[str]:
    while error is not None:
        yield f"{error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)  # type: ignore[assignment]


def check_refused(attempt: Callable[[], object], pattern: str) -> None:
    with pytest.raises(InvalidInput, match=r"(?s)" + pattern) as caught:
        attempt()
    shown = " ".join(explained(caught.value))
    assert CELL not in shown
    assert CELL[1:] not in shown
    assert "151623" not in shown


def any_loss(model: nn.Module, *parts: Any, **named: Any) -> Tensor:
    found = [*parts, *named.values()]
    return model(found[0])[:, 0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("what", WRONG_RECORDS)
def test_wrong_records_are_refused_by_name(what: str) -> None:
    make, pattern = WRONG_RECORDS[what]

    def attempt() -> None:
        torch.manual_seed(0)
        full = a_plan(records=N, batch_size=None, steps=1, clipping=CLIP)
        run = a_session(mlp(), make(), full, loss=any_loss)
        one_step(run)

    check_refused(attempt, pattern)


WRONG_LOSSES: dict[str, tuple[dict[str, Any], str]] = {
    "a class": ({"loss": nn.CrossEntropyLoss}, r"the class CrossEntropyLoss.*CrossEntropyLoss\(\)"),
    "a word": ({"loss": "mse"}, r"loss must be a function.*tacit\.losses.*got str"),
    "not called": ({"loss": losses.causal}, r"tacit\.losses\.causal, a function.*tacit\.losses\.causal\(\)"),
    "of torch.nn.functional": ({"loss": F.cross_entropy}, r"functional\.cross_entropy.*lambda model, x, y"),
    "three inputs": ({"loss": nn.TripletMarginLoss()}, r"TripletMarginLoss takes arguments besides.*Pass"),
    "CTC": ({"loss": nn.CTCLoss()}, r"CTCLoss takes arguments besides.*Pass a function"),
    "other parameters": (
        {"loss": lambda model, x: x}, r"takes \(model, x\).*2 parts.*def loss\(model, x, y\)"
    ),
    "keywords that it does not take": (
        {"data": lambda: {"a": X, "b": Y}}, r"takes \(model, x, y\).*a mapping.*def loss\(model, \*\*record\)"
    ),
    "inputs of another shape": (
        {"data": lambda: (X[:, 1:], Y)},
        r"float64 of shape \(3,\), int64.*Make it accept these arguments",
    ),
    "targets of another type": (
        {"data": lambda: (X, Y + 0.5)},
        r"float64 of shape \(4,\), float64.*y\.long\(\)",
    ),
    "weights that are no numbers": (
        {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, math.nan, 1.0]))}, r"weight=.*finite"
    ),
    "one part": ({"data": lambda: (X,), "loss": nn.CrossEntropyLoss()}, r"1 part.*\(inputs, targets\)"),
    "no key for the target": (
        {"data": lambda: {"a": X, "b": Y}, "loss": losses.classification()}, r"labels, label.*Rename"
    ),
    "keys that the model does not take": (
        {"data": lambda: {"a": X, "b": X, "y": Y}, "loss": losses.classification()},
        r"Sequential\.forward, and some.*Remove or rename these keys",
    ),
    "floating classes": (
        {"data": lambda: (X, Y + 0.5), "loss": losses.classification()}, r"must be integers.*astype\(int\)"
    ),
    "classes in columns": (
        {"data": lambda: (X, Y[:, None]), "loss": nn.CrossEntropyLoss()}, r"shape \(1,\).*Reshape the labels"
    ),
    "numbers of another shape": (
        {"data": lambda: (X, VALUES), "loss": nn.MSELoss()}, r"shape \(3,\).*shape \(2,\).*Make the model"
    ),
    "labels of tokens for one class": (
        {"loss": losses.masked()}, r"masked needs logits \(L, tokens\).*tacit\.losses\.classification"
    ),
    "no tokens": ({"data": lambda: {"a": X}, "loss": losses.causal()}, r"no labels and no tok.*Rename"),
    "a collate that is none": ({"collate": 5}, r"must be a function.*collate\.pad.*got int"),
    "a collate without a batch": (
        {"collate": lambda items: items[0]}, r"collate returned part \d without a leading dimension of 1"
    ),
    "a collate that fails": ({"collate": lambda items: [][5]}, r"collate failed on record \d+: IndexError"),
    "pad of no such key": (
        {"collate": collate.pad(length={"tokens": 3})}, r"pad is set for 'tokens', which a record does not"
    ),
    "pad of a number": ({"collate": collate.pad(length={1: 3})}, r"pad is set for part 1, a single number"),
    "pad of integers by a fraction": (
        {"data": lambda: (TOKENS, Y), "collate": collate.pad(length=5, value=0.5)}, r"with 0\.5.*integer"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG_LOSSES)
def test_wrong_losses_and_collates_are_refused_by_name(what: str) -> None:
    changes, pattern = WRONG_LOSSES[what]
    changes = dict(changes)
    data = changes.pop("data", lambda: (X, Y))

    def attempt() -> None:
        run = session(Case(data), **changes)
        one_step(run)

    check_refused(attempt, pattern)


class Prompted(nn.Module):
    """Adds two virtual tokens before the tokens, as prompt tuning does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 9)

    def forward(self, input_ids: Tensor) -> Tensor:
        return F.pad(self.table(input_ids), (0, 0, 2, 0))


def test_labels_of_a_model_with_virtual_tokens_may_begin_with_ignored_ones() -> None:
    tokens = torch.arange(4).expand(N, 4)

    def run_with(labels: Tensor, loss: Any) -> PrivateSession:
        data = {"input_ids": tokens, "labels": labels}
        run = session(Case(lambda: data, loss=loss, model=Prompted))
        one_step(run)
        return run

    for loss in (losses.causal(), losses.masked()):
        assert run_with(F.pad(tokens, (2, 0), value=-100), loss).route == "fast"
    assert run_with(tokens, losses.causal()).route == "fast"
    pattern = r"6 positions and its labels have 4.*adds 2 tokens.*F\.pad\(labels, \(2, 0\), value=-100\)"
    check_refused(lambda: run_with(tokens, losses.masked()), pattern)


def test_a_model_without_logits_is_refused() -> None:
    model = Wrapped(lambda scores: {"scores": scores})
    run = session(Case(lambda: (X, Y), loss=losses.classification(), model=lambda: model))
    check_refused(lambda: one_step(run), r"returns dict without a tensor named logits")


def test_pad_checks_its_arguments() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"length": 0}, "length must be an integer >= 1"),
        ({"length": {"a": 2.5}}, r"length\['a'\] must be"),
        ({"length": 3, "value": math.inf}, "value must be a real number"),
        ({"length": {"a": 3}, "value": {"b": 1}}, "but length is not"),
    )
    for arguments, words in cases:
        with pytest.raises(InvalidInput, match=words):
            collate.pad(**arguments)


# --- models that return objects --------------------------------------------------------------------------


@dataclass
class Output:
    logits: Tensor


class Wrapped(nn.Module):
    """Returns the outputs of a network in an object."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.wrap = mlp().double(), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.inner(x))


@pytest.mark.parametrize("wrap", [Output, lambda t: {"logits": t}, lambda t: (t, None)])
def test_logits_are_read_from_what_a_model_returns(
    wrap: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(lambda: (X, Y), loss=losses.classification(), model=lambda: Wrapped(wrap))
    check(session(case), lambda model, i: class_of(model.inner, i), monkeypatch)  # type: ignore[arg-type]


# --- the ledger recognises records ------------------------------------------------------------------------


def test_records_of_varying_length_have_content_for_the_ledger() -> None:
    def content(tokens: Any) -> bytes:
        found = as_records((tokens, Y), collate=PAD).content()
        assert found is not None
        return b"".join(bytes(part) for part in found)

    assert content(TOKENS) == content([np.array(row) for row in TOKENS])
    assert content(TOKENS) != content([*TOKENS[1:], TOKENS[0]])
    assert as_records(Items([(1, 2)])).content() is None


def test_the_fingerprint_of_cast_arrays_is_that_of_the_arrays() -> None:
    one, other = (as_records((X, Y), floating=kind).fingerprint(b"k") for kind in (None, torch.float32))
    assert one == other


def test_such_a_model_is_evaluated() -> None:
    model, x, y = Wrapped(Output), torch.tensor(X), torch.tensor(Y)
    assert evaluate(model, x, y) == evaluate(model.inner, x, y)
