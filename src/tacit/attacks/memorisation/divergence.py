"""What does a model write once it stops repeating a token? The divergence probe.

Nasr et al. (2023, 2311.17035) let a large model repeat a word; when it stopped repeating it recited training
data far more often than in plain answers.  The figure is the share of the text after the repetition inside a
verbatim piece of the training data.  Small models show the method and no more.

Letters: n answers, t tokens of one, w tokens of the shortest piece that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.attacks.memorisation.completion import Sampler, sampled
from tacit.attacks.memorisation.language import NextToken
from tacit.errors import check_integer

Integers: TypeAlias = NDArray[np.int64]
_PLAIN = Sampler()


class TrainingText:
    """All pieces of ``window`` tokens of the training records, to look answers up in.

    >>> text = TrainingText([[1, 2, 3, 4]], window=3)
    >>> text.recited([9, 1, 2, 3, 4, 9]).tolist()
    [False, True, True, True, True, False]
    """

    def __init__(self, records: Iterable[Sequence[int]], *, window: int) -> None:
        self.window = check_integer("window", window, low=1)
        self._pieces = {
            tuple(record[start : start + window])
            for record in ([int(token) for token in record] for record in records)
            for start in range(len(record) - window + 1)
        }

    def recited(self, answer: ArrayLike) -> NDArray[np.bool_]:
        """Which tokens of an answer, (t,), lie inside a piece of at least ``window`` training tokens."""
        tokens = [int(token) for token in np.asarray(answer)]
        inside = np.zeros(len(tokens), dtype=np.bool_)
        for start in range(len(tokens) - self.window + 1):
            if tuple(tokens[start : start + self.window]) in self._pieces:
                inside[start : start + self.window] = True
        return inside


@dataclass(frozen=True)
class Divergence:
    """``answers``: how many were drawn; ``diverged``: how many of them stopped repeating.

    ``recited`` of the ``tokens`` after the repetition lie inside pieces of the training data.
    """

    answers: int
    diverged: int
    tokens: int
    recited: int

    @property
    def share(self) -> float:
        """The part of the tokens after the repetition that is recited; 0 where there are none."""
        return self.recited / self.tokens if self.tokens else 0.0


def repeat_probe(
    model: NextToken,
    token: int,
    text: TrainingText,
    *,
    repeats: int,
    length: int,
    count: int,
    generator: np.random.Generator,
    sampler: Sampler = _PLAIN,
) -> Divergence:
    """Prompt with ``repeats`` times ``token``, draw ``count`` answers, look up what follows the repetition.

    Give the same probe other tokens, or ``repeats=1``, for the rate to compare with.

    :param token: the number of the token that is repeated.
    :param length: tokens of an answer.
    """
    check_integer("token", token, low=0)
    prompt = [token] * check_integer("repeats", repeats, low=1)
    answers = sampled(model, prompt, length, count=count, generator=generator, sampler=sampler)
    return after_repetition(answers, token, text)


def after_repetition(answers: Integers, token: int, text: TrainingText) -> Divergence:
    """What of the answers, (n, t), that follows the repetition of ``token`` is recited.

    >>> text = TrainingText([[1, 2, 3]], window=3)
    >>> after_repetition(np.array([[9, 9, 1, 2, 3], [9, 9, 9, 9, 9]]), 9, text)
    Divergence(answers=2, diverged=1, tokens=3, recited=3)
    """
    tails = [answer[int(np.argmax(answer != token)) :] for answer in answers if (answer != token).any()]
    return Divergence(
        answers=len(answers),
        diverged=len(tails),
        tokens=sum(len(tail) for tail in tails),
        recited=sum(int(text.recited(tail).sum()) for tail in tails),
    )
