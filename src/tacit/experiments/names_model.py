"""A small language model of names with planted secrets: its data, its network, with and without privacy.

Letters: n records, L characters of the longest with its end, W characters of context, V of the vocabulary.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.attacks.memorisation.language import NextToken

__all__ = ["END", "WindowModel", "encode", "next_token", "record_loss", "right_characters", "windows"]

_CHARACTERS = " " + string.ascii_lowercase + string.digits
END = 0
"""The token that ends a record, and that stands before its start."""
_VOCABULARY = 1 + len(_CHARACTERS)
_CONTEXT, _EMBEDDING, _HIDDEN = 12, 12, 96
_PADDING = -100  # a target that costs nothing


def encode(text: str) -> list[int]:
    """The token numbers of a text of small letters, digits and spaces.

    >>> encode("ab 0")
    [2, 3, 1, 28]
    """
    return [1 + _CHARACTERS.index(character) for character in text]


class WindowModel(nn.Module):
    """The last W characters, embedded, to the next: one hidden layer of tanh (Bengio et al., JMLR 3, 2003).

    Shapes: (..., W) token numbers to (..., V) logits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _EMBEDDING)
        self.hidden = nn.Linear(_CONTEXT * _EMBEDDING, _HIDDEN)
        self.output = nn.Linear(_HIDDEN, _VOCABULARY)

    def forward(self, contexts: Tensor) -> Tensor:
        """The logits of the next character."""
        logits: Tensor = self.output(torch.tanh(self.hidden(self.embedding(contexts).flatten(-2))))
        return logits


def windows(records: Sequence[str], longest: int) -> tuple[Tensor, Tensor]:
    """(n, L, W) contexts of every character of every record, and (n, L) the characters themselves.

    :param longest: L - 1.
    """
    contexts = np.full((len(records), longest + 1, _CONTEXT), END, dtype=np.int64)
    targets = np.full((len(records), longest + 1), _PADDING, dtype=np.int64)
    for row, record in enumerate(records):
        tokens = [END] * _CONTEXT + encode(record) + [END]
        for place in range(len(record) + 1):
            contexts[row, place] = tokens[place : place + _CONTEXT]
            targets[row, place] = tokens[place + _CONTEXT]
    return torch.from_numpy(contexts), torch.from_numpy(targets)


def record_loss(model: nn.Module, contexts: Tensor, targets: Tensor) -> Tensor:
    """-log p of each record, in nats: (n, L, W) and (n, L) to (n,)."""
    logits = model(contexts)
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=_PADDING, reduction="none")
    return each.view(targets.shape).sum(dim=1)


@torch.no_grad()
def right_characters(model: nn.Module, contexts: Tensor, targets: Tensor) -> float:
    """The share of characters, ends included, that the model guesses right, in [0, 1]."""
    right = (model(contexts).argmax(dim=-1) == targets).sum()
    return float(right / (targets != _PADDING).sum())


def next_token(model: WindowModel) -> NextToken:
    """The model as the attacks take it: from (n, t) tokens since the start of a record."""

    @torch.no_grad()
    def logits(contexts: NDArray[np.int64]) -> NDArray[np.floating]:
        start = np.full((len(contexts), _CONTEXT), END, dtype=np.int64)
        last = np.concatenate([start, contexts], axis=1)[:, -_CONTEXT:]
        found: NDArray[np.floating] = model(torch.from_numpy(np.ascontiguousarray(last))).numpy()
        return found

    return logits
