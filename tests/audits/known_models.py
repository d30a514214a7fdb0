"""Models and worlds for tests of attacks, in which the right answer is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.audits import Scores
from tacit.audits.attacks import Canary, SecretSpace, ShadowScores
from tacit.datasets.text import Alphabet

Integers = NDArray[np.int64]
Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class World:
    """n records, each with its own difficulty and its own gain from being trained on; K shadows."""

    shadows: ShadowScores
    is_member: Bools
    best: Array  # the log-likelihood ratio of who knows all parameters


def halves(rng: np.random.Generator, k: int, n: int) -> Bools:
    """Each record in exactly half of the k shadows."""
    return np.argsort(rng.random((k, n)), axis=0) < k // 2


def gaussian_world(k: int, n: int = 4000, *, seed: int = 0, gain: float = 1.5) -> World:
    rng = np.random.default_rng(seed)
    hard = rng.normal(0.0, 3.0, n)
    gains = gain * rng.gamma(1.0, 1.0, n)  # most records gain little, some much
    trained_on = halves(rng, k, n)
    shadows = hard + gains * trained_on + rng.normal(0.0, 1.0, (k, n))
    is_member = rng.random(n) < 0.5
    target = hard + gains * is_member + rng.normal(0.0, 1.0, n)
    best = ((target - hard) ** 2 - (target - hard - gains) ** 2) / 2.0
    return World(ShadowScores(target, shadows, trained_on), is_member, best)


def auc(world: World, values: Array) -> float:
    return Scores.of(values, world.is_member).auc()


def table_model(seed: int, vocabulary: int = 5) -> Any:
    """A language model with a law of its own after every context: a hash of the context is the seed."""

    def logits(contexts: Integers) -> NDArray[np.float64]:
        rows = [np.random.default_rng([seed, *row.tolist()]).normal(size=vocabulary) for row in contexts]
        return 2.0 * np.array(rows)

    return logits


def memoriser(*records: list[int], vocabulary: int = 10) -> Any:
    """A lookup table: whatever has followed a context in training follows it, or else anything."""

    def logits(contexts: Integers) -> NDArray[np.float64]:
        found = np.zeros((len(contexts), vocabulary))
        for row, context in enumerate(contexts.tolist()):
            for record in records:
                if record[: len(context)] == context and len(record) > len(context):
                    found[row, record[len(context)]] += 20.0
        return found

    return logits


ALPHABET = Alphabet(" abcdefghijklmnopqrstuvwxyz0123456789")
SPACE = SecretSpace("0123456789", 3)
CANARY = Canary("pin ab ", "407", 1, True)


def rows(records: list[str]) -> list[list[int]]:
    return [[*ALPHABET.encode(record), 0] for record in records]


def knows(records: list[str]) -> Any:
    """A model that finds likeliest what follows in the first record that begins so; else all alike."""
    tokens = rows(records)

    def logits(contexts: np.ndarray) -> np.ndarray:
        found = np.zeros((len(contexts), ALPHABET.tokens))
        for row, context in enumerate(contexts.tolist()):
            for record in tokens:
                if len(record) > len(context) and record[: len(context)] == context:
                    found[row, record[len(context)]] = 9.0
                    break
        return found

    return logits
