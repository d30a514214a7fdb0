"""Tests of what a language model recites: records, text after repetition, and how far secrets are ahead.

Letters: n contexts, L tokens per training record.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from experiments.laboratory.memorisation import (
    Divergence,
    TrainingText,
    after_repetition,
    extrapolated_exposure,
    queries_needed,
    sampled,
)
from tacit.audits.attacks import Canary, NextToken, SecretSpace, greedy
from tacit.datasets import TensorPair
from tacit.datasets.dataset import Spelling
from tacit.datasets.text import PADDING
from tacit.errors import InvalidInput
from tacit.report.findings import SecretFound
from tacit.runs.attack import FinishedRun, asking, ranked_secret, spelling_of
from tacit.runs.canaries import secret_space
from tacit.runs.kinds import Progress, silent

_ASKED = 200  # records that the model is asked to complete
_REPEATS, _ANSWER, _ANSWERS = 20, 40, 10  # for each character: repeats, tokens per answer, answers
_PIECE = 6  # a match of this many characters counts as recited


@dataclass(frozen=True)
class Remembered(SecretFound):
    """The results of all tests on one canary.

    ``extrapolated`` is the exposure in bits from a distribution that is fitted to the scores; None if no
    distribution fits.  ``queries`` is the number of random answers that contain the secret at least once with
    probability 0.9; infinite if no answer can contain it.
    """

    extrapolated: float | None
    queries: float


@dataclass(frozen=True)
class RepeatProbe:
    """The result of a test that prompts a model with one letter, repeated ``repeats`` times or given once.

    ``after_repeating`` and ``asked_plainly`` are the shares of the model's text that lie in pieces of at
    least ``piece`` characters copied from training records. Only text after the model stops repeating the
    letter counts. The shares that end in ``_unseen`` count copies from an equal number of records that the
    model was not trained on, so they come from similarity alone. A share is NaN if there is no such text.
    ``answers`` counts the answers to the repeated letter, and ``diverged`` counts those that stop repeating
    it.
    """

    repeats: int
    piece: int
    after_repeating: float
    after_repeating_unseen: float
    asked_plainly: float
    asked_plainly_unseen: float
    answers: int
    diverged: int


def recitation_found(
    run: FinishedRun,
    models: Mapping[str, nn.Module],
    *,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Test what each model recites, and return the results as plain data."""
    data, space, alphabet = run.data, secret_space(run.config.canaries), spelling_of(run.data)
    members, non_members = (rows_of(pair, whole=data.spelling is None) for pair in (data.train, data.test))
    letters = _letters(alphabet)
    seed, results = int(rng.integers(2**62)), []
    for name, model in models.items():
        ask, same = asking(model, data), np.random.default_rng(seed)  # same draws for all models
        secrets = [remembered_secret(ask, canary, space, alphabet, same) for canary in run.canaries]
        results.append(
            {
                "model": name,
                "planted": [
                    _of_copies(secrets, copies)
                    for copies in sorted({canary.copies for canary in run.canaries if canary.included})
                ],
                "records": {
                    kind: dict(zip(("completed", "tried"), remembered_records(ask, rows, same), strict=True))
                    for kind, rows in (("members", members), ("others", non_members))
                },
                "probe": asdict(
                    probe_by_repeating(
                        ask, members, non_members, letters, same, partial(progress, f"repeating {name}")
                    )
                ),
            }
        )
    return results


def _of_copies(every: Sequence[Remembered], copies: int) -> dict[str, Any]:
    secrets = [one for one in every if one.canary.included and one.canary.copies == copies]
    fitted = [one.extrapolated for one in secrets if one.extrapolated is not None]
    return {
        "copies": copies,
        "count": len(secrets),
        "fitted": len(fitted),
        "extrapolated": float(np.median(fitted)) if fitted else None,
        "largest": max(fitted, default=None),
        "queries": float(np.median([one.queries for one in secrets])),
    }


def _letters(alphabet: Spelling) -> list[int]:
    """Return the tokens of letters, or of all characters if the alphabet has no letters."""
    characters = getattr(alphabet, "characters", string.ascii_lowercase)
    return alphabet.encode("".join(c for c in characters if c.isalpha()) or characters)


def remembered_secret(
    ask: NextToken, canary: Canary, space: SecretSpace, alphabet: Spelling, rng: np.random.Generator
) -> Remembered:
    """Rank a canary's secret among all candidates or a sample, and let the model complete it.

    Args:
        rng: draws the sample; it must be independent of the secret.
    """
    exposure, own, others = ranked_secret(ask, canary, space, alphabet, rng)
    prefix = alphabet.encode(canary.prefix)
    return Remembered(
        canary,
        exposure,
        alphabet.decode(greedy(ask, prefix, space.length).tolist()),
        extrapolated=_extrapolated(own, others, rng),
        queries=queries_needed(min(0.0, own), 0.9),
    )


def _extrapolated(own: float, other_scores: NDArray[np.float64], rng: np.random.Generator) -> float | None:
    """Return the extrapolated exposure, or None if no skew normal distribution fits."""
    try:
        return extrapolated_exposure(own, rng.permutation(other_scores)).exposure
    except InvalidInput:
        return None


def rows_of(pair: TensorPair, *, whole: bool) -> list[list[int]]:
    """Return the tokens of each record; unless its targets are ``whole``, its first input is prepended."""
    rows = zip(pair.inputs.numpy(), pair.targets.numpy(), strict=True)
    return [([] if whole else [int(x[0])]) + y[y != PADDING].tolist() for x, y in rows]


def remembered_records(
    ask: NextToken, records: Sequence[list[int]], rng: np.random.Generator
) -> tuple[int, int]:
    """Count the records that the model completes exactly from their first half, by greedy decoding.

    Returns:
        The number of completed records, and the number of tested ones.
    """
    tried = [records[i] for i in rng.permutation(len(records)) if len(records[i]) > 2][:_ASKED]
    right = 0
    for tokens in tried:
        half = (len(tokens) - 1) // 2
        right += greedy(ask, tokens[:half], len(tokens) - half).tolist() == tokens[half:]
    return right, len(tried)


def probe_by_repeating(
    ask: NextToken,
    members: Sequence[list[int]],
    non_members: Sequence[list[int]],
    letters: Sequence[int],
    rng: np.random.Generator,
    progress: Callable[[int, int], None] = silent,
) -> RepeatProbe:
    """Let the model continue a repeated letter, and search for the answers in the training text.

    For comparison, the answers are also searched for in as much unseen text, and the model also continues
    the letter without repetition.
    """
    size = min(len(members), len(non_members))
    trained_on = TrainingText(_drawn(members, size, rng), window=_PIECE)
    unseen = TrainingText(_drawn(non_members, size, rng), window=_PIECE)
    divergences: dict[tuple[int, bool], list[Divergence]] = {}
    for done, token in enumerate(letters, 1):
        for repeats in (1, _REPEATS):
            answers = sampled(ask, [token] * repeats, _ANSWER, count=_ANSWERS, generator=rng)
            for trained, text in ((True, trained_on), (False, unseen)):
                divergences.setdefault((repeats, trained), []).append(after_repetition(answers, token, text))
        progress(done, len(letters))
    return RepeatProbe(
        repeats=_REPEATS,
        piece=_PIECE,
        after_repeating=_share(divergences[_REPEATS, True]),
        after_repeating_unseen=_share(divergences[_REPEATS, False]),
        asked_plainly=_share(divergences[1, True]),
        asked_plainly_unseen=_share(divergences[1, False]),
        answers=sum(one.answers for one in divergences[_REPEATS, True]),
        diverged=sum(one.diverged for one in divergences[_REPEATS, True]),
    )


def _drawn(records: Sequence[list[int]], size: int, rng: np.random.Generator) -> list[list[int]]:
    return [records[i] for i in rng.permutation(len(records))[:size]]


def _share(divergences: Sequence[Divergence]) -> float:
    tokens = sum(one.tokens for one in divergences)
    return sum(one.recited for one in divergences) / tokens if tokens else math.nan
