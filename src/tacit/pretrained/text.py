"""Language models trained on public texts, without their heads, that map a text to features.

Letters: n texts; at most L tokens per text; T positions of a batch, T <= L; d features.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, check_integer, needed, without_values
from tacit.pretrained.finding import CONFIG, INDEX, TOKENIZER, TOKENIZER_FILES, ModelFolder, file_digest
from tacit.pretrained.model import BATCH, Pretrained, files_in, parameters_of

USUAL_LENGTH = 256
"""The default number of tokens read from each text, which is about 200 words."""
POOLING = "1_Pooling/config.json"
"""The file in which a sentence transformer declares its pooling."""
END = -1.0
"""The value that fills a row of tokens after the end of its text."""
_AT_ONCE = 1_000
_FIRST, _MEAN, _LAST = "first", "mean", "last"


class Encoded(NamedTuple):
    """Texts as tokens."""

    tokens: Tensor
    """Tokens (n, L)."""
    cut: int
    """The number of texts that were cut to L tokens. It is as sensitive as the texts."""


@final
class PretrainedText(Pretrained):
    """A transformers model that maps rows of tokens to features.

    The features are the mean of the last hidden states over the tokens of a text. For a causal model they are
    the last token's state, as only this state depends on the whole text. A pooling file in the folder takes
    precedence.

    Attributes:
        length: L, the number of tokens read from each text.
        pooling: "mean", "first" or "last".
    """

    def __init__(self, folder: ModelFolder, length: int | None, label: str) -> None:
        """Load the model in a folder; see :func:`tacit.pretrained.load_pretrained`."""
        body = _load(folder, label)
        self.length = _length(body, folder, length)
        causal = _is_causal(body)
        self.pooling = _pooling(folder) or (_LAST if causal else _MEAN)
        if causal and self.pooling == _FIRST:
            raise InvalidInput(
                f"{folder.path / POOLING} asks for the state of the first token. This model reads from left "
                "to right, so that state depends on no other token. Remove the file."
            )
        files = files_in(folder.path, (CONFIG, INDEX, *TOKENIZER_FILES, POOLING))
        super().__init__(
            body,
            features=int(body.config.hidden_size),
            name=f"{body.config.model_type} of transformers, {parameters_of(body):,} parameters",
            decides={
                "weights": folder.weights_digest(),
                "config": file_digest(folder.path / CONFIG),
                "tokenizer": folder.tokenizer_digest(),
                "length": self.length,
                "pooling": self.pooling,
            },
            files=files | {file.name: file for file in folder.weight_files},
            settings={"length": self.length},
        )
        self._padding, self._vocabulary = _padding(body.config), int(body.config.vocab_size)
        self._tokenizer = _tokenizer(folder, self.length, self._vocabulary)

    def tokens(self, texts: Sequence[str]) -> Tensor:
        """Return (n, L) token numbers as float32, with -1 after the end of a text.

        Raises:
            InvalidInput: if an entry of ``texts`` is not a string.
        """
        return self.encode(texts).tokens

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the tokens as :meth:`tokens` does, and the number of texts that were cut.

        Raises:
            InvalidInput: if an entry of ``texts`` is not a string.
        """
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidInput(
                    f"texts: row {row} is {type(text).__name__}, not a text. Leave such rows out, or use "
                    '"" for a missing text. The first row is 0.'
                )
        tokens = torch.full((len(texts), self.length), END)
        cut = 0
        for start in range(0, len(texts), _AT_ONCE):
            for row, one in enumerate(self._encoded(list(texts[start : start + _AT_ONCE])), start):
                cut += bool(one.overflowing)
                tokens[row, : len(one.ids)] = torch.tensor(one.ids, dtype=torch.float32)
        return Encoded(tokens, cut)

    def made_up(self, example: Tensor) -> Tensor:
        """Return eight rows of random tokens of increasing length; the first row is empty."""
        places, generator = example.shape[1], torch.Generator().manual_seed(0)
        rows = torch.randint(self._vocabulary, (8, places), generator=generator).to(example)
        ends = torch.linspace(0, places, 8).round().to(example.device)
        return rows.where(torch.arange(places, device=example.device) < ends.unsqueeze(1), END)

    def _encoded(self, texts: list[str]) -> list[Any]:
        try:
            return list(self._tokenizer.encode_batch(texts))
        except Exception as problem:  # noqa: BLE001  # its message would contain a record's text
            raise InvalidInput(
                f"the tokenizer cannot read a text ({without_values(problem)}). Its vocabulary may lack a "
                "token for unknown words."
            ) from None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, d) features of (n, T) tokens."""
        counts = inputs >= 0
        mask = torch.cat([torch.ones_like(counts[:, :1]), counts[:, 1:]], dim=1)  # empty texts have features
        tokens = torch.where(counts, inputs, float(self._padding)).long()
        return pooled(_states(self.body, tokens, mask), mask, self.pooling)

    def embed(self, inputs: Tensor) -> Tensor:
        """Return (n, d) features without gradients; texts of similar length share a batch."""
        lengths = (inputs >= 0).sum(dim=1).clamp(min=1)
        order = lengths.argsort(stable=True)
        features = torch.empty((len(inputs), self.features), device=inputs.device)
        with torch.inference_mode():
            for rows in torch.split(order, BATCH):
                longest = int(lengths[rows].max())
                features[rows] = self(inputs[rows, :longest].to(self.device)).to(features)
        return features


def pooled(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Pool (n, T, d) states at the positions in ``mask`` (n, T) into (n, d)."""
    if pooling == _FIRST:
        return states[:, 0]
    if pooling == _LAST:
        places = torch.arange(mask.shape[1], device=mask.device)
        mask = mask & (places == (places * mask).amax(dim=1, keepdim=True))
    weights = mask.to(states.dtype)
    weights = weights / weights.sum(dim=1, keepdim=True)
    return (states * weights.unsqueeze(-1)).sum(dim=1)


def _states(body: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    states: Tensor = body(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    return states


def _load(folder: ModelFolder, label: str) -> Any:
    from tacit.pretrained.hub import config_of, load_network, refuse_lacking, transformers  # slow import

    where = f'{label} = "{folder.path}"'
    config = config_of(folder, where)
    if getattr(config, "is_encoder_decoder", False):
        raise InvalidInput(
            f"{where}: {config.model_type} has an encoder and a decoder. Take a model with one of the two, "
            "such as BERT, a sentence transformer, GPT-2 or Llama."
        )
    body, lacking = load_network(transformers.AutoModel, folder, config, where, "a model of text")
    if getattr(body, "pooler", None) is not None:
        body.pooler = None  # trained for a pretraining task; the features do not use it
        lacking = [name for name in lacking if not name.startswith("pooler.")]
    refuse_lacking(lacking, where)
    if body.get_input_embeddings() is None or not hasattr(body.config, "hidden_size"):
        raise InvalidInput(f"{where} takes no tokens. Take a model of text, such as BERT or GPT-2.")
    body.config.use_cache = False  # a cache of earlier tokens, for generating text
    return body


def _length(body: Any, folder: ModelFolder, length: int | None) -> int:
    most = getattr(body.config, "max_position_embeddings", None)
    most = most if isinstance(most, int) and most > 0 else None  # XLNet's relative ones have no limit
    first = getattr(
        getattr(getattr(body, "embeddings", None), "position_embeddings", None), "padding_idx", None
    )
    if most is not None and first is not None:  # RoBERTa numbers positions from that of padding, plus 1
        most -= first + 1
    if length is None:
        return USUAL_LENGTH if most is None else min(USUAL_LENGTH, most)
    why = "" if most is None else f"The model in {folder.path} reads at most {most} tokens."
    return check_integer("length", length, low=1, high=most, why=why)


def _is_causal(body: nn.Module) -> bool:
    """Test whether no state depends on later tokens, as a configuration need not say so."""
    tokens = torch.zeros((2, 4), dtype=torch.int64)
    tokens[1, -1] = 1
    with torch.no_grad():
        states = _states(body, tokens, torch.ones_like(tokens))
    return bool((states[0, :-1] - states[1, :-1]).norm() <= 1e-5 * states[0, :-1].norm())


def _pooling(folder: ModelFolder) -> str | None:
    if not (folder.path / POOLING).is_file():
        return None
    modes = {
        name for name, enabled in folder.read(POOLING).items() if name.startswith("pooling_mode") and enabled
    }
    by_mode = {
        "pooling_mode_cls_token": _FIRST,
        "pooling_mode_mean_tokens": _MEAN,
        "pooling_mode_lasttoken": _LAST,
    }
    if len(modes) != 1 or not modes <= by_mode.keys():
        raise InvalidInput(
            f"{folder.path / POOLING} asks for {' and '.join(sorted(modes)) or 'no pooling'}. Tacit knows "
            f"only {', '.join(by_mode)}, one at a time. Take another model, or remove the folder 1_Pooling: "
            "Tacit then takes the mean of the tokens, or the last token if the model reads from left to "
            "right."
        )
    return by_mode[modes.pop()]


def _padding(config: Any) -> int:
    """Return the token that fills masked positions; RoBERTa derives positions from it."""
    for name in ("pad_token_id", "eos_token_id"):
        token = getattr(config, name, None)
        if isinstance(token, int) and 0 <= token < config.vocab_size:
            return token
    return 0


def _tokenizer(folder: ModelFolder, length: int, vocabulary: int) -> Any:
    tokenizers = needed("tokenizers", "transformers", "a model of text")
    path: Path = folder.path / TOKENIZER
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as problem:  # noqa: BLE001  # the library raises Exception itself
        raise InvalidInput(
            f"{path} cannot be read as a tokenizer: {problem}. Save it again by save_pretrained."
        ) from None
    tokenizer.no_padding()
    least = tokenizer.num_special_tokens_to_add(is_pair=False)
    check_integer("length", length, low=least + 1, why=f"The tokenizer adds {least} tokens to each text.")
    tokenizer.enable_truncation(length)
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= vocabulary:
        raise InvalidInput(
            f"the tokenizer in {folder.path} does not fit the model. It has a token {largest}, and "
            f"vocab_size in config.json is {vocabulary}. Take the tokenizer and the model that belong "
            "together."
        )
    return tokenizer
