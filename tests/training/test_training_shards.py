"""A model that ``fully_shard`` sharded over two ranks: the sum, the noise and the weights of one process."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import shard_worker
import torch
from rank_worker import Pool
from scipy import stats
from shard_worker import KINDS

from tacit.errors import InvalidInput, UnsupportedModel
from tacit.training import Alone
from tacit.training.shards import check_sharding, new_folder, read_part, remove_others, write_part

SCRIPT = shard_worker.__file__


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(script=SCRIPT)
    yield made
    made.close()


# --- the released sum ------------------------------------------------------------------------------------


def check_sum(pool: Pool, kind: str, bug: str | None = None) -> None:
    """Check that the shards of two ranks form the release of one process, up to the order of summation."""
    steps = 12 if kind == "small batches" else 2
    alone, scalars, _ = shard_worker.released(Alone(), kind=kind, steps=steps)
    assert np.abs(alone).max() > 0.01
    for found, numbers, types in pool("released", kind=kind, bug=bug, steps=steps):
        assert types == "torch.float64"
        assert np.abs(found - alone).max() <= 1e-12
        for got, want in zip(numbers, scalars, strict=True):
            assert got == pytest.approx(want, abs=1e-12)


@pytest.mark.thorough(cases=7)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("no batches", "gpt-2")])
def test_two_ranks_release_the_sum_of_one_process(pool: Pool, kind: str) -> None:
    check_sum(pool, kind)


@pytest.mark.thorough(instead="test_two_ranks_release_the_sum_of_one_process")
def test_a_gpt2_of_transformers_has_the_sum_of_one_process(pool: Pool) -> None:
    check_sum(pool, "gpt-2")


@pytest.mark.parametrize("bug", ["norm of a part", "mean for sum", "no reduction"])
def test_planted_bugs_in_the_sum(pool: Pool, bug: str) -> None:
    with pytest.raises(AssertionError):
        check_sum(pool, "tied", bug)


# --- the noise -------------------------------------------------------------------------------------------


def check_bits(pool: Pool, dtype: str, bug: str | None = None) -> None:
    """Check that the shards of empty batches are the noise of one process, to the last bit."""
    alone, _, types = shard_worker.released(Alone(), kind="no batches", noise=True, dtype=dtype)
    assert types == f"torch.{dtype}"
    assert abs(alone[0].std() / 0.5 - 1) < 0.2
    for found, _, _ in pool("released", kind="no batches", noise=True, dtype=dtype, bug=bug):
        assert (found == alone).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_noise_has_the_same_bits_however_it_is_sharded(pool: Pool, dtype: str) -> None:
    check_bits(pool, dtype)


CORRELATED = ["banded", "buffers", "inverse"]


def check_correlated_bits(pool: Pool, kind: str, dtype: str, bug: str | None = None) -> None:
    settings = {"kind": "no batches", "plan": KINDS[kind]["plan"], "noise": True, "dtype": dtype, "steps": 7}
    alone, _, _ = shard_worker.released(Alone(), **settings)
    for found, _, _ in pool("released", bug=bug, **settings):
        assert (found == alone).all()


@pytest.mark.thorough(cases="values")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", CORRELATED)
def test_correlated_noise_has_the_same_bits_however_it_is_sharded(pool: Pool, kind: str, dtype: str) -> None:
    check_correlated_bits(pool, kind, dtype)


@pytest.mark.parametrize("bug", ["noise of the shard", "kept noise lost at one rank"])
def test_planted_bugs_in_correlated_noise(pool: Pool, bug: str) -> None:
    with pytest.raises(AssertionError):
        check_correlated_bits(pool, "buffers", "float64", bug)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("kind", CORRELATED)
def test_a_run_with_correlated_noise_is_that_of_one_process_and_resumes(
    pool: Pool, kind: str, tmp_path: Path
) -> None:
    whole, other = pool("trained", kind=kind, stop=8)
    assert (whole == other).all()
    assert np.abs(whole - shard_worker.trained(Alone(), kind=kind, stop=8)).max() < 1e-9
    state = tmp_path / "state.pt"
    pool("trained", kind=kind, stop=5, save=state)
    for resumed in pool("trained", kind=kind, stop=8, load=state):
        assert (resumed == whole).all()


def check_noise(pool: Pool, bug: str | None = None) -> None:
    """Check that the noise is N(0, (sigma C)^2), fresh in each step and in each half of the numbers."""
    settings = {"kind": "no batches", "steps": 12}
    noise = pool("released", noise=True, bug=bug, **settings)[0][0] / 0.5
    noise = noise[:, : noise.shape[1] // 4 * 4]
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    parts = noise.reshape(-1, noise.shape[1] // 4)
    for part in parts:
        assert math.isclose(part.std(), 1.0, abs_tol=5 / math.sqrt(2 * part.size))
    together = np.corrcoef(parts)[np.triu_indices(len(parts), 1)]
    assert np.abs(together).max() < 5 / math.sqrt(parts.shape[1])


def test_the_noise_is_that_of_one_step(pool: Pool) -> None:
    check_noise(pool)


@pytest.mark.parametrize("bug", ["noise on one shard", "noise of the shard", "share of noise"])
def test_planted_bugs_in_the_noise(pool: Pool, bug: str) -> None:
    with pytest.raises(AssertionError):
        check_bits(pool, "float64", bug)


@pytest.mark.parametrize("bug", ["noise on one shard", "share of noise"])
def test_planted_bugs_in_the_law_of_the_noise(pool: Pool, bug: str) -> None:
    with pytest.raises(AssertionError):
        check_noise(pool, bug)


# --- a whole run -----------------------------------------------------------------------------------------


def test_a_run_is_that_of_one_process_and_a_resumed_run_is_the_same_to_the_last_bit(
    pool: Pool, tmp_path: Path
) -> None:
    whole, other = pool("trained", stop=14)
    assert (whole == other).all()
    assert np.abs(whole - shard_worker.trained(Alone(), stop=14)).max() < 1e-9
    state = tmp_path / "state.pt"
    pool("trained", stop=4, save=state)
    pool("trained", stop=8, save=state)  # in the place of the other
    assert len([*tmp_path.iterdir()]) == 2
    for resumed in pool("trained", stop=14, load=state):
        assert (resumed == whole).all()


def test_between_steps_a_rank_holds_its_shards_alone(pool: Pool) -> None:
    first, second = pool("held")
    assert first["parameters"] == second["parameters"] == first["own"] + second["own"]
    assert 0 < second["own"] <= first["own"] < 0.6 * first["parameters"]
    for found in (first, second):
        assert found["states"] == 2 * found["own"]  # the two means of Adam
        assert found["gathered"] == 0
        assert found["gradients"] == []
        assert found["hooks"] == [1] * len(found["hooks"])


@pytest.mark.parametrize("rank", [0, 1])
def test_where_one_rank_fails_none_takes_the_step(pool: Pool, rank: int) -> None:
    found = pool("failing", rank=rank)
    done, kind, told, same = found[rank]
    assert (done, kind, same) == (0, "InvalidInput", True)
    assert "ValueError: not here" in told
    done, kind, told, same = found[1 - rank]
    assert (done, kind, same) == (0, "ProcessLost", True)
    assert f"process {rank} of this run failed" in told


def test_shards_of_optimizers_with_other_settings_are_refused(pool: Pool) -> None:
    first, second = pool("apart")
    assert first[:2] == (1, "ProcessLost")
    assert second[:2] == (1, "PrivacyRefusal")
    assert "in its optimizer lr is 0.02, not 0.01" in second[2]


def test_the_same_noise_on_another_sum_is_refused(pool: Pool, tmp_path: Path) -> None:
    found = pool("reusing", folder=tmp_path)
    assert any(told.startswith("PrivacyRefusal: step 1 was taken before") for told in found)
    assert all(told.startswith(("PrivacyRefusal", "ProcessLost")) for told in found)


def test_weights_that_diverge_in_one_shard_are_told_at_each_rank(pool: Pool) -> None:
    first, second = pool("diverging")
    assert first == second
    assert first.startswith("Diverged: weights are NaN or infinite after step 0: 4.weight. ")


def test_parameters_in_16_bits_have_sums_and_noise_in_32(pool: Pool) -> None:
    alone, _, _ = shard_worker.released(Alone(), kind="tied", dtype="float32")
    for found, _, types in pool("in_16_bits"):
        assert types == "torch.float32"
        assert 0 < np.abs(found - alone).max() < 0.05 * np.abs(alone).max()
    noise, _, _ = shard_worker.released(Alone(), kind="no batches", noise=True, dtype="float32")
    for found, _, _ in pool("in_16_bits", kind="no batches", noise=True):
        assert (found == noise).all()


@pytest.mark.thorough(instead="test_where_one_rank_fails_none_takes_the_step")
def test_a_killed_rank_stops_the_others_and_nothing_is_lost(pool: Pool, tmp_path: Path) -> None:
    whole = pool("trained", stop=6)[0]
    short = Pool(script=SCRIPT)
    short.send("ends", at=3, folder=tmp_path)
    told = short.receive(0)
    assert told.startswith("ProcessLost: another process of this run cannot be reached")
    assert told.endswith(" 3")
    short.processes[1].join(10)
    assert short.processes[1].exitcode == 9
    short.close()
    for resumed in pool("trained", stop=6, load=tmp_path / "state"):
        assert (resumed == whole).all()


# --- what is refused -------------------------------------------------------------------------------------

REFUSED = {
    "tensor parallel": "UnsupportedModel: parameter '0.weight' is a DTensor .* tensor, sequence and expert",
    "tensor parallel and sharded": "UnsupportedModel: parameter '0.weight' .* tensor, sequence and expert",
    "hybrid": "UnsupportedModel: parameter '0.weight' is a DTensor .* hybrid sharding",
    "columns": "UnsupportedModel: parameter '2.weight' is a DTensor .* shard_placement_fn",
    "ignored": "UnsupportedModel: trained parameter '0.bias' is not sharded",
    "alone": "UnsupportedModel: parameter '0.weight' .* in the session this is rank 0 of 1",
    "twice": "UnsupportedModel: fully_shard cannot prepare the model: .* share",
    "ema": "InvalidInput: ema_decay does not support a model sharded",
    "audit": "InvalidInput: audit does not support a model sharded",
    "engine": r"UnsupportedModel: the model .*ranks=tacit.training.ProcessRanks\(\)",
}


def test_stages_of_a_pipeline_are_refused(pool: Pool) -> None:
    first, second = pool("refused", how="pipeline")
    assert first.startswith("ProcessLost: process 1 of this run failed")
    assert re.match(
        "UnsupportedModel: the model of process 1 differs .* 0.bias, 0.weight. .* pipeline", second
    )


@pytest.mark.parametrize("how", REFUSED)
def test_other_forms_are_refused_by_name(pool: Pool, how: str) -> None:
    for told in pool("refused", how=how):
        assert re.match(REFUSED[how], told, re.DOTALL), told


def test_an_older_fully_shard_is_refused() -> None:
    """PyTorch 2.9 keeps one group, and lets parts share a parameter that are sharded apart ("twice")."""
    module = SimpleNamespace(_get_fsdp_state=lambda: SimpleNamespace(_fsdp_param_group=None))
    with pytest.raises(UnsupportedModel, match=r"too old for fully_shard .* Use a newer PyTorch; 2.13"):
        check_sharding({}, {}, [module], Alone())


# --- the files -------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 2),
        "b": torch.tensor(4, dtype=torch.int64),
        "c": torch.randn(5).bfloat16(),
    }
    write_part(folder := tmp_path / new_folder(tmp_path / "state"), 1, tensors)
    assert folder.stat().st_mode & 0o777 == 0o700
    with read_part(folder, 1) as found:
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    (tmp_path / "other.shards-1").mkdir()
    old = tmp_path / new_folder(tmp_path / "state")
    assert old.is_dir()
    remove_others(tmp_path / "state", folder.name)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.shards-1", folder.name]


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("executed",)


def test_a_damaged_folder_is_refused_and_not_executed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(name: str) -> None:
        with read_part(tmp_path, 0) as found:
            torch.zeros(4).copy_(found[name])

    with pytest.raises(InvalidInput, match="is incomplete or damaged"):
        read("a")
    write_part(tmp_path, 0, {"a": torch.zeros(3), "c": torch.zeros(4)})
    read("c")
    for name in "ab":  # one of another shape, and one that is not there
        with pytest.raises(InvalidInput, match="or damaged"):
            read(name)
    (tmp_path / "0.pt").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(InvalidInput, match="or damaged"):
        read("c")
    torch.save(Evil(), tmp_path / "0.pt")
    with pytest.raises(InvalidInput, match="or damaged"):
        read("c")
    assert "executed" not in capsys.readouterr().out
