"""How does a line of text become a record? As the numbers of its characters in the declared alphabet.

Letters: n lines; L the longest with its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from torch import Tensor

from tacit.datasets.text import END, Alphabet, stream_records, token_pair
from tacit.errors import InvalidInput
from tacit.runs.preprocessing.base import Piece, Preprocessing, about_lines, numbered


@final
@dataclass(frozen=True)
class TextInputs(Preprocessing):
    """Lines of text, of the characters of ``alphabet``, none longer than ``longest``."""

    kind: ClassVar[str] = "text"
    example: ClassVar[str] = "new.txt"
    label: ClassVar[str] = "line"
    alphabet: str
    longest: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.longest + 1,)

    def to_data(self) -> dict[str, Any]:
        return {"alphabet": self.alphabet, "longest": self.longest}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> TextInputs:
        """The same from plain data."""
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
                "the model reads texts: give a list of them, or the path of a file with one a line; got "
                f"{kind}."
            )
        return token_pair([str(line) for line in lines], Alphabet(self.alphabet), self.longest).inputs

    def lengths(self, inputs: Tensor) -> Tensor:
        """(n,) the number of characters of each record of ``inputs`` (n, L)."""
        return (inputs != END).sum(dim=1)

    def count(self, path: Path) -> int | None:
        return about_lines(path)

    def pieces(self, path: Path, rows: int) -> Iterator[Piece]:
        alphabet = Alphabet(self.alphabet)
        lines: list[str] = []
        done = 0
        for line in stream_records(path, alphabet, self.longest):
            lines.append(line)
            if len(lines) == rows:
                yield numbered(done, token_pair(lines, alphabet, self.longest).inputs)
                done, lines = done + rows, []
        if lines:
            yield numbered(done, token_pair(lines, alphabet, self.longest).inputs)
