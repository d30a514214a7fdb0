"""How does the text of a document become tokens? By the tokenizer.json of the language model's folder.

The tokens of a document are those that the tokenizer gives, then the token of the end, where there is one.
The tokenizer is taken to be public: one that was trained on the records would say something about them.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

from tacit.errors import InvalidInput, MissingExtra, without_values
from tacit.runs.hub_layout import ModelFolder

try:
    from tokenizers import Tokenizer
except ImportError:
    raise MissingExtra("tokenizers", "transformers", "[model] huggingface") from None


@final
class Tokens:
    """The tokens of one folder's tokenizer: ``vocabulary`` of them, ``end`` that of the end or None, and
    ``padding``, what fills a record up: the tokenizer's own, else the end, else token 0, for it costs no loss
    and no token before it sees it.
    """

    def __init__(self, folder: ModelFolder) -> None:
        path = folder.path / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as problem:  # noqa: BLE001  # the library raises Exception itself
            raise InvalidInput(
                f"{path} cannot be read as a tokenizer: {problem}. Save it anew by save_pretrained."
            ) from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        ids = {name: self._tokenizer.token_to_id(text) for name, text in folder.special_tokens.items()}
        self.end = _known(ids.get("eos_token"), folder.config.get("eos_token_id"))
        padding = _known(ids.get("pad_token"), folder.config.get("pad_token_id"), self.end)
        self.padding = 0 if padding is None else padding
        self.vocabulary = int(folder.config.get("vocab_size") or 0)
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        largest = max(largest, self.padding, -1 if self.end is None else self.end)
        if largest >= self.vocabulary:
            raise InvalidInput(
                f"the tokenizer in {folder.path} has a token {largest}, and by its config.json the model "
                f"has {self.vocabulary} (vocab_size). Take the tokenizer and the model that belong together."
            )

    def encode(self, text: str) -> list[int]:
        """The tokens of a whole document, with the end."""
        tokens = self._ids(text)
        return tokens if self.end is None or tokens[-1:] == [self.end] else [*tokens, self.end]

    @property
    def spelling(self) -> Spelled:
        """The same tokenizer, one token for each character."""
        return Spelled(self._tokenizer)

    def _ids(self, text: str) -> list[int]:
        try:
            return list(self._tokenizer.encode(text).ids)
        except Exception as problem:  # noqa: BLE001  # whose text would hold that of the record
            raise InvalidInput(
                f"the tokenizer cannot read a document ({without_values(problem)}). Its vocabulary may lack "
                "a token for what it does not know."
            ) from None


@final
class Spelled:
    """Made-up text in the tokens of a tokenizer, one for each character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """The tokens of the characters of a text.

        Raises:
            InvalidInput: the tokenizer has none for a character alone.
        """
        found = [self._tokenizer.encode(character, add_special_tokens=False).ids for character in text]
        for character, tokens in zip(text, found, strict=True):
            if len(tokens) != 1:
                raise InvalidInput(
                    f"the tokenizer writes {character!r} as {len(tokens)} tokens, and [canaries] need one "
                    "for each character. Take other characters, or plant no canaries."
                )
        return [token for tokens in found for token in tokens]

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))


def tokens_of(folder: Path | str) -> Tokens:
    """The tokens of the model in ``folder``."""
    return Tokens(ModelFolder.check(folder))


def _known(*values: object) -> int | None:
    for value in values:
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int) and not isinstance(first, bool):
            return first
    return None
