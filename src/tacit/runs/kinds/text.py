"""Records of a text file: its lines, each character as its number in the declared alphabet.

Letters: n lines; L characters in the longest line, including its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from tacit.errors import InvalidInput
from tacit.runs.config import Config
from tacit.runs.kinds.base import (
    Kind,
    Piece,
    Progress,
    about_lines,
    check_loss,
    check_no_pictures,
    check_path,
    numbered,
)

if TYPE_CHECKING:
    from torch import Tensor

    from tacit.datasets import Dataset


def check_characters(config: Config) -> None:
    check_loss(config.training.loss, "characters")


@final
@dataclass(frozen=True)
class Text(Kind):
    """Lines of text, each with at most ``longest`` characters of ``alphabet``."""

    kind: ClassVar[str] = "text"
    sources: ClassVar[tuple[str, ...]] = ("text",)
    example: ClassVar[str] = "new.txt"
    label: ClassVar[str] = "line"
    alphabet: str
    longest: int

    @classmethod
    def check(cls, config: Config) -> None:
        section = config.data
        check_path("text", section.text, "text")
        check_path("test_text", section.test_text, "text")
        if section.alphabet is None or section.longest is None:
            raise InvalidInput(
                "[data] text needs alphabet and longest: every character that a line may hold, and the "
                "maximum length of a line. Declare what is known without the data."
            )
        check_characters(config)
        check_no_pictures(config, "text")

    @classmethod
    def load(cls, config: Config, progress: Progress) -> Dataset:
        from tacit.datasets import load_text

        section = config.data
        return load_text(
            Path(str(section.text)),
            alphabet=section.alphabet or "",
            longest=section.longest or 1,
            test_fraction=section.test_fraction,
            test_path=None if section.test_text is None else Path(section.test_text),
            unit=config.privacy.unit,
        )

    @classmethod
    def of(cls, config: Config, data: Dataset) -> Text:
        return cls(data.alphabet, data.input_shape[0] - 1)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.longest + 1,)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Text:
        from tacit.datasets.text import Alphabet

        return cls(Alphabet(data["alphabet"]).characters, int(data["longest"]))

    def describe(self) -> str:
        return (
            f"Text, one record a line, at most {self.longest} characters, of the {len(self.alphabet)} that "
            "are declared."
        )

    def inputs(self, records: Any) -> Tensor:
        lines = list(records) if isinstance(records, list | tuple | np.ndarray) else None
        if not lines or not all(isinstance(line, str) for line in lines):
            kind = "an empty one" if lines == [] else type(records).__name__
            raise InvalidInput(
                "the model reads texts: give a list of them, or the path of a file with one text per line; "
                f"got {kind}."
            )
        return self._tokens([str(line) for line in lines])

    def _tokens(self, lines: list[str]) -> Tensor:
        from tacit.datasets.text import Alphabet, token_pair

        return token_pair(lines, Alphabet(self.alphabet), self.longest).inputs

    def lengths(self, inputs: Tensor) -> Tensor:
        """Return the number of characters of each record of ``inputs``: (n, L) to (n,)."""
        from tacit.datasets.text import END

        return (inputs != END).sum(dim=1)

    def count(self, path: Path) -> int | None:
        return about_lines(path)

    def pieces(self, path: Path, rows: int) -> Iterator[Piece]:
        from tacit.datasets.text import Alphabet, stream_records

        lines, done = stream_records(path, Alphabet(self.alphabet), self.longest), 0
        while some := list(islice(lines, rows)):
            yield numbered(done, self._tokens(some))
            done += len(some)
