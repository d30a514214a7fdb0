"""The experiments on memorisation: their machinery on a few records, and what their results must show."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import names_memorisation, pictures_memorisation
from experiments.base import Request, Row
from experiments.laboratory import recitation
from experiments.laboratory.recitation import Remembered
from experiments.registry import reproduce
from tacit.audits.attacks import Canary, SecretSpace, log_likelihoods
from tacit.datasets import Dataset, TensorPair
from tacit.datasets.text import NAMES_ALPHABET, Alphabet, load_names, token_pair
from tacit.errors import InvalidInput
from tacit.models import WindowModel
from tacit.runs.attack import next_token
from tacit.runs.model import text_loss

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def names(count: int) -> tuple[str, ...]:
    letters = np.random.default_rng(0).integers(26, size=(count, 5))
    return tuple("".join(chr(97 + int(letter)) for letter in row) for row in letters)


def test_names_experiment_runs_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_memorisation, "load_names", lambda: names(400))
    small = names_memorisation._Setting(
        names=200,
        held_out=50,
        canaries=((1, 4), (4, 3)),
        plain_passes=1.0,
        private_passes=2.0,
        private_batch=64,
    )
    monkeypatch.setattr(names_memorisation, "_SETTING", small)
    monkeypatch.setattr(names_memorisation, "_SPACE", SecretSpace("0123456789", 2))
    monkeypatch.setattr(recitation, "_ANSWERS", 1)
    plain, private = reproduce("names-memorisation", Request(tmp_path, epsilons=(3.0,), seeds=2))
    assert (plain.epsilon, plain.noise_multiplier) == (math.inf, None)
    assert 0 < private.epsilon <= 3.0
    for row in (plain, private):
        planted = sum(part["count"] for part in row.details["canaries"])
        assert planted + row.details["not_planted"]["count"] == 2 * 7, "each canary is in or out"
        assert 0 <= row.details["repeated"]["after_repeating"] <= 1
        assert 0 < float(row.accuracy_mean or 0.0) < 1
    saved = json.loads((tmp_path / "names-memorisation.json").read_text())
    assert [row["epsilon"] for row in saved["rows"]] == [None, private.epsilon]
    assert (tmp_path / "names-memorisation.png").stat().st_size > 5_000


def test_pictures_experiment_runs_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = TensorPair(torch.rand(300, 1, 28, 28), torch.arange(300) % 10)
    data = Dataset("mnist", pictures, pictures, tuple("abcdefghij"), "made up", "image")
    monkeypatch.setattr(pictures_memorisation, "load", lambda name: data)
    small = pictures_memorisation._Setting(
        pictures=((1, 40), (4, 20)),
        plain_passes=2.0,
        private_passes=2.0,
        private_batch=20,
        made=64,
        neighbours=9,
    )
    monkeypatch.setattr(pictures_memorisation, "_SETTING", small)
    plain, private = reproduce("pictures-memorisation", Request(tmp_path, epsilons=(3.0,), seeds=1))
    assert plain.epsilon == math.inf
    assert 0 < private.epsilon <= 3.0
    for row in (plain, private):
        assert sum(part["pictures"] for part in row.details["counts"]) == 60
    assert (tmp_path / "pictures-memorisation.png").stat().st_size > 5_000


def test_the_attacked_model_is_the_trained_one() -> None:
    """The attacks see the loss that training lowers, token by token, with the opposite sign."""
    alphabet = Alphabet(NAMES_ALPHABET)
    model, record = WindowModel(alphabet.tokens), "pin ab 12345"
    loss = float(text_loss(model, *token_pair([record], alphabet, 15)).detach())
    found = log_likelihoods(next_token(model, 15), [], [[*alphabet.encode(record), 0]])
    assert -float(found[0]) == pytest.approx(loss, rel=1e-5)


def secret(exposure: float) -> Remembered:
    return Remembered(Canary("pin ab ", "12345", 1, True), exposure, "00000", None, math.inf)


def test_exposures_above_the_bound_are_reported() -> None:
    """The planted bug: a run that remembers what its claimed epsilon rules out."""
    plan = names_memorisation._plan(1.0)
    bad = names_memorisation._Found(plan)
    bad.secrets = [secret(16.6)] * 40
    assert names_memorisation._above_bound(bad, 1)
    good = names_memorisation._Found(plan)
    chance = -np.log2((np.arange(40) + 0.5) / 40)
    good.secrets = [secret(float(value)) for value in chance]
    assert names_memorisation._above_bound(good, 1) == []
    assert names_memorisation._above_bound(names_memorisation._Found(None), 1) is None


def test_names_are_found_plain_and_gzipped_or_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(InvalidInput, match="makemore"):
        load_names(folder=tmp_path)
    (tmp_path / "names.txt.gz").write_bytes(gzip.compress(b"emma\nolivia\n"))
    assert load_names(folder=tmp_path) == ("emma", "olivia")
    (tmp_path / "names.txt").write_bytes(b"ava\n")
    assert load_names(folder=tmp_path) == ("ava",)
    (tmp_path / "names.txt").write_bytes(b"\n")
    with pytest.raises(InvalidInput, match="empty"):
        load_names(folder=tmp_path)
    (tmp_path / "names.txt").unlink()
    (tmp_path / "names.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(InvalidInput, match="cannot read"):
        load_names(folder=tmp_path)


def test_other_data_sets_are_refused(tmp_path: Path) -> None:
    for name in ("names-memorisation", "pictures-memorisation"):
        with pytest.raises(InvalidInput, match="runs on"):
            reproduce(name, Request(tmp_path, dataset="digits"))


def rows(name: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(
        (ROOT / "experiments" / "results" / f"{name}.json").read_text()
    )["rows"]
    return found


def test_row_without_privacy_is_valid_json() -> None:
    row = Row("x", "names", "m", math.inf, 0.0, "none", None, 0.5, None, 1, 1.0, "none")
    assert json.loads(json.dumps(row.to_json(), allow_nan=False))["epsilon"] is None


def test_the_results_hold_the_bar() -> None:
    """16 copies: at least 14 bits, and completed; at epsilon 8 single copies are near chance, none above the
    bound."""
    plain, private = (row["details"] for row in rows("names-memorisation"))
    assert isinstance(plain, dict)
    assert isinstance(private, dict)
    once, _, often = plain["canaries"]
    assert often["least"] >= 14
    assert often["completed"] == often["count"] > 0
    assert once["median"] > 2
    assert private["canaries"][0]["median"] < 4
    assert all(part["above_bound"] == [] for part in private["canaries"])
