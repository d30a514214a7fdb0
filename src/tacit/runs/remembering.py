"""Tests of what a language model remembers: planted secrets, whole records, and text after repetition.

Letters: n contexts, t tokens per context, L tokens per training record, V tokens in the vocabulary.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.accounting import PrivacyCurve
from tacit.attacks.memorisation import (
    Canary,
    Divergence,
    SecretSpace,
    TrainingText,
    after_repetition,
    exact_exposure,
    extrapolated_exposure,
    greedy,
    log_likelihoods,
    queries_needed,
    sampled,
    sampled_exposure,
)
from tacit.attacks.memorisation.text import NextToken
from tacit.datasets import Dataset, TensorPair
from tacit.datasets.dataset import Spelling
from tacit.datasets.text import END, PADDING, Alphabet
from tacit.errors import InvalidInput
from tacit.losses import logits_of
from tacit.models import WindowModel
from tacit.report.findings import MEMORY
from tacit.report.remembered import Remembered, RememberingModel, RepeatProbe, remembered_found
from tacit.runs.canaries import TAG, secret_space
from tacit.runs.kinds import silent
from tacit.runs.sections import CanariesSection
from tacit.training.evaluation import evaluation_mode

_MOST_RANKED = 10**6  # if there are more candidates, only a sample of them is ranked
_SAMPLE = 20_000
_MOST_NUMBERS = 1 << 26  # outputs of a language model in memory at once
_ASKED = 200  # records that the model is asked to complete
_REPEATS, _ANSWER, _ANSWERS = 20, 40, 10  # for each character: repeats, tokens per answer, answers
_PIECE = 6  # a match of this many characters counts as recited


def next_of_tokens(model: nn.Module, length: int, vocabulary: int) -> NextToken:
    """Convert a language model of transformers to a function that returns next-token logits, for attacks.

    The function reads only the last ``length`` tokens of longer contexts.
    """

    @torch.no_grad()
    def logits(contexts: NDArray[np.int64]) -> NDArray[np.floating]:
        device = next(model.parameters()).device
        window = torch.from_numpy(
            np.array(contexts[:, -length:])
        )  # torch warns of arrays that are for reading only
        rows = max(1, _MOST_NUMBERS // (max(1, window.shape[1]) * vocabulary))
        with evaluation_mode(model):
            parts = [logits_of(model(part.to(device)))[:, -1] for part in torch.split(window, rows)]
        answer: NDArray[np.floating] = torch.cat(parts).float().cpu().numpy()
        return answer

    return logits


def next_token(model: nn.Module, longest: int) -> NextToken:
    """Convert a model to a function from (n, t) tokens since the start of a record to next-token logits.

    Args:
        longest: L - 1, the largest training length; of longer contexts, only the last tokens are read.
    """

    @torch.no_grad()
    def logits(contexts: NDArray[np.int64]) -> NDArray[np.floating]:
        device = next(model.parameters()).device
        if isinstance(model, WindowModel):  # one window suffices for the next token
            start = np.full((len(contexts), model.context), END, dtype=np.int64)
            last = np.concatenate([start, contexts], axis=1)[:, -model.context :]
            outputs = model.after(torch.from_numpy(np.ascontiguousarray(last)).to(device))
        else:
            window = contexts[:, max(0, contexts.shape[1] - longest) :]
            tokens = np.full((len(contexts), longest + 1), END, dtype=np.int64)
            tokens[:, 1 : window.shape[1] + 1] = window
            with evaluation_mode(model):
                outputs = model(torch.from_numpy(tokens).to(device))[:, window.shape[1]]
        answer: NDArray[np.floating] = outputs.float().cpu().numpy()
        return answer

    return logits


def memory_found(
    models: Mapping[str, nn.Module],
    data: Dataset,
    canaries: Sequence[Canary],
    section: CanariesSection,
    curve: PrivacyCurve,
    *,
    private: str,
    rng: np.random.Generator,
    progress: Callable[[str, int, int], None] = silent,
) -> dict[str, Any]:
    """Test what each model remembers, and return the results as plain data.

    ``private`` is the name of the model that was trained with DP, for which ``curve`` holds.
    """
    alphabet = Alphabet(data.alphabet) if data.spelling is None else data.spelling
    members, non_members = (rows_of(pair, whole=data.spelling is None) for pair in (data.train, data.test))
    letters = _letters(alphabet)
    seed, results = int(rng.integers(2**62)), []
    for name, model in models.items():
        ask, same = _asking(model, data), np.random.default_rng(seed)  # same draws for all models
        secrets = []
        for done, canary in enumerate(canaries, 1):
            secrets.append(remembered_secret(ask, canary, secret_space(section), alphabet, same))
            progress(f"secrets {name}", done, len(canaries))
        tell = partial(progress, f"repeating {name}")
        results.append(
            RememberingModel(
                name,
                name == private,
                secrets,
                remembered_records(ask, members, same),
                remembered_records(ask, non_members, same),
                probe_by_repeating(ask, members, non_members, letters, same, tell),
            )
        )
    return remembered_found(
        results,
        curve,
        prefix=section.prefix.replace(TAG, "…"),
        candidates=secret_space(section).size,
        confidence=1.0 - MEMORY,
    )


def _asking(model: nn.Module, data: Dataset) -> NextToken:
    length = data.input_shape[0]
    return (
        next_of_tokens(model, length, data.vocabulary) if data.vocabulary else next_token(model, length - 1)
    )


def _letters(alphabet: Spelling) -> list[int]:
    """Return the tokens of letters, or of all characters if the alphabet has no letters."""
    characters = getattr(alphabet, "characters", string.ascii_lowercase)
    return alphabet.encode("".join(c for c in characters if c.isalpha()) or characters)


def remembered_secret(
    ask: NextToken, canary: Canary, space: SecretSpace, alphabet: Spelling, rng: np.random.Generator
) -> Remembered:
    """Rank a canary's secret among all candidates, and let the model complete it.

    If there are more than a million candidates, the secret is ranked among a sample of them.  The result also
    estimates how many queries generate the secret with probability 0.9.

    Args:
        rng: draws the sample; it must be independent of the secret.
    """
    prefix, secret = alphabet.encode(canary.prefix), alphabet.encode(canary.secret)
    letters, place = np.array(alphabet.encode(space.alphabet)), space.position(canary.secret)
    exact = space.size <= _MOST_RANKED
    positions = np.arange(space.size) if exact else rng.integers(space.size, size=_SAMPLE)
    candidates = letters[space.digits(positions)]
    scores = log_likelihoods(ask, prefix, candidates if exact else np.vstack([candidates, secret]))
    own = float(scores[place if exact else -1])
    other_scores = np.delete(scores, place) if exact else scores[:-1]
    return Remembered(
        canary,
        exposure=exact_exposure(scores, place) if exact else sampled_exposure(own, other_scores),
        extrapolated=_extrapolated(own, other_scores, rng),
        completion=alphabet.decode(greedy(ask, prefix, space.length).tolist()),
        queries=queries_needed(float(log_likelihoods(ask, prefix, [secret])[0]), 0.9),
    )


def _extrapolated(own: float, other_scores: NDArray[np.float64], rng: np.random.Generator) -> float | None:
    """Return the extrapolated exposure, or None if no skew normal distribution fits."""
    try:
        return extrapolated_exposure(own, rng.permutation(other_scores)).exposure
    except InvalidInput:
        return None


def texts(targets: Tensor, alphabet: Alphabet) -> list[str]:
    """Decode (n, L) ``targets`` to the records' texts."""
    return [alphabet.decode(row[(row != PADDING) & (row != END)].tolist()) for row in targets.numpy()]


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
