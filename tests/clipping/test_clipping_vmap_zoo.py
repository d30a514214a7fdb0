"""Unchanged models of transformers and torch: one pass for all records, equal to a loop over them.

Letters: n records, each of K rows.
"""

from __future__ import annotations

import pytest
import torch
from oracles import Batch, equal, equals_a_loop, is_refused, loop, norms_found, plan, run
from torch import Tensor, nn
from vmap_zoo import MORE, SOUND, UNSUPPORTED, ZOO, Entry, heard, of, vectors, without_draws

from tacit.clipping import FlatClipping
from tacit.clipping.fast import FastEngine
from tacit.training import PrivateSession

ALL = {name: entry for name, entry in (ZOO | MORE).items() if name not in UNSUPPORTED}
DOUBLE = [name for name, entry in ALL.items() if entry.double]
N = 3
MOST = {"DeepSeek-V3": 1e-7}
"""Of a model that chooses its experts in single precision, whatever the others are."""
pytestmark = pytest.mark.untraced


def made(entry: Entry, rows: int, dtype: torch.dtype) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    model = entry.make().to(dtype)
    return model, tuple(t.to(dtype) if t.is_floating_point() else t for t in entry.batch(rows))


def check(name: str, dtype: torch.dtype, most: float, views: int = 1, backwards: bool = False) -> None:
    """Sums and norms are those of a loop, up to ``most`` of C, which is the median of the norms."""
    loss = ALL[name].loss
    model, batch = made(ALL[name], N * views, dtype)
    batch = tuple(t.flip(0) for t in batch) if backwards else batch
    without_draws(model)
    C = float(loop(model, loss, batch, 1.0, views)[1].median())
    equals_a_loop(FastEngine(model, loss, FlatClipping(C), views=views), *batch, rtol=most, atol=most * C)


@pytest.mark.thorough(cases=15)
@pytest.mark.parametrize("name", [name for name in DOUBLE if name in ZOO])
def test_one_pass_equals_a_loop_in_double_precision(name: str) -> None:
    check(name, torch.float64, 1e-10)


@pytest.mark.thorough(cases=6)
@pytest.mark.parametrize("name", [name for name in MORE if name in ALL])
def test_one_pass_of_other_models_equals_a_loop(name: str) -> None:
    check(name, torch.float64, MOST.get(name, 1e-10))


@pytest.mark.thorough(cases=6)
@pytest.mark.parametrize("name", ALL)
def test_one_pass_equals_a_loop_in_single_precision(name: str) -> None:
    check(name, torch.float32, 1e-5 if name in ZOO else 1e-4)  # of which a loop itself is off by as much


@pytest.mark.thorough(cases=6)
@pytest.mark.parametrize("name", DOUBLE)
def test_one_pass_of_two_views_equals_a_loop(name: str) -> None:
    check(name, torch.float64, MOST.get(name, 1e-10), views=2)


@pytest.mark.thorough(cases=8)
@pytest.mark.parametrize("name", ALL)
def test_what_a_record_draws_depends_on_no_other(name: str) -> None:
    """With dropout of numbers, paths and layers, as the models come; the last of three is another record.

    It is not padded either.
    """
    entry = ALL[name]
    model, batch = made(entry, N, torch.float64 if entry.double else torch.float32)
    other = tuple(torch.cat([t[:-1], t[1:2].flip(-1)]) for t in batch)
    engine = FastEngine(model, entry.loss, FlatClipping(1.0))
    found = []
    for records in (batch, batch, other):
        torch.manual_seed(1)
        found.append(norms_found(engine, *records))
    equal(found[2][:-1], found[1][:-1], 1e-9 if entry.double else 1e-5, 0.0)
    assert found[2][-1] != found[1][-1]


@pytest.mark.thorough(cases=4)
@pytest.mark.parametrize("name", [name for name in ALL if name.startswith(("GPT-2", "BERT", "Llama", "T5"))])
def test_it_does_not_matter_which_record_is_padded(name: str) -> None:
    """Models ask whether one is; here it is the last, elsewhere the first."""
    check(name, torch.float64, 1e-10, backwards=True)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("name", ["GPT-2", "BERT", "Llama", "T5"])
def test_a_session_trains_them_unchanged(name: str) -> None:
    model = ALL[name].make()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data, steps = ALL[name].batch(40), plan(40, batch_size=8)
    session = PrivateSession(model, optimizer, data, steps, loss=ALL[name].loss, physical_batch_size=5)
    run(session)
    assert session.route == "fast"
    for key, parameter in model.named_parameters():
        assert parameter.isfinite().all()
        assert not torch.equal(parameter, before[key]), key
        assert parameter.grad is None


def test_masks_that_numpy_draws_are_refused() -> None:
    """Wav2Vec2 as it comes hides parts of the sound that NumPy chooses."""
    entry = of("Wav2Vec2Model", heard, vectors(80), mask_time_prob=0.5, mask_time_length=2, **SOUND)
    model, batch = made(entry, N, torch.float32)
    engine = FastEngine(model, entry.loss, FlatClipping(1.0))
    is_refused("draws random numbers from Python or NumPy", engine, *batch)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_vmap_cannot_run_is_refused_by_name(name: str) -> None:
    entry = (ZOO | MORE)[name]
    model, batch = made(entry, N, torch.float32)
    engine = FastEngine(model, entry.loss, FlatClipping(1.0))
    is_refused(f'{UNSUPPORTED[name]}.*engine="reference"', engine, *batch)


@pytest.mark.parametrize("name", ["BERT", "Llama"])
def test_a_partly_padded_batch_takes_one_pass(name: str) -> None:
    """Models of transformers leave out a mask if nothing is padded, which read the records and took two."""
    model, batch = made(ALL[name], N, torch.float32)
    without_draws(model)
    calls = 0

    def loss(model: nn.Module, *rows: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return ALL[name].loss(model, *rows)

    engine = FastEngine(model, loss, FlatClipping(1.0))
    norms_found(engine, *batch)
    first = calls
    norms_found(engine, *batch)
    assert calls == first + 1


def test_nearly_all_are_fast() -> None:
    assert len(ZOO) >= 30
    assert len(ZOO.keys() - UNSUPPORTED.keys()) >= max(27, len(ZOO) - 5)
