"""Which language model comes with Tacit? A small one, of single records.

Letters: n records, L tokens of one, W tokens of context, E of the embedding, V of the vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.errors import check_integer

_START = 0  # the token that stands before a record


class WindowModel(nn.Module):
    """The last W tokens, embedded, to the next: one hidden layer of tanh (Bengio et al., JMLR 3, 2003).

    Shapes: (n, L) token numbers to (n, L, V) logits; those at place l have seen the tokens 0..l alone.

    >>> import torch
    >>> model = WindowModel(27, context=4)
    >>> model(torch.zeros(2, 9, dtype=torch.int64)).shape
    torch.Size([2, 9, 27])
    """

    def __init__(self, vocabulary: int, *, context: int = 12, embedding: int = 12, hidden: int = 96) -> None:
        super().__init__()
        self.context = check_integer("context", context, low=1)
        check_integer("vocabulary", vocabulary, low=2)
        self.embedding = nn.Embedding(vocabulary, check_integer("embedding", embedding, low=1))
        self.hidden = nn.Linear(context * embedding, check_integer("hidden", hidden, low=1))
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the token after each."""
        padded = F.pad(tokens, (self.context - 1, 0), value=_START)
        return self.after(padded.unfold(-1, self.context, 1))

    def after(self, contexts: Tensor) -> Tensor:
        """The logits of the token after each context, (..., W) to (..., V)."""
        logits: Tensor = self.output(torch.tanh(self.hidden(self.embedding(contexts).flatten(-2))))
        return logits
