"""A search of settings: every try on validation records goes into a file, and none is made twice.

A search can be broken off at any moment: called again, it goes on where it stopped.  The records are public;
the runs that chose a setting are not part of the epsilon that a row of results states.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import InvalidInput


@dataclass(frozen=True)
class Tries:
    """The tries of a search, one line of JSON each in ``path``.

    >>> import tempfile
    >>> tries = Tries(Path(tempfile.mkdtemp()) / "tries.jsonl")
    >>> tries.make({"epsilon": 1.0, "rate": 2.0}, lambda: [0.5, 0.7])
    0.6
    >>> tries.make({"epsilon": 1.0, "rate": 2.0}, lambda: 1 / 0)  # found in the file, and not made again
    0.6
    >>> tries.best({"epsilon": 1.0})
    {'epsilon': 1.0, 'rate': 2.0}
    """

    path: Path

    def make(self, settings: Mapping[str, Any], measure: Callable[[], Sequence[float]]) -> float:
        """The mean score of ``settings``, from the file if it was tried; a line is whole or not there."""
        return statistics.mean(self.scores(settings, measure))

    def scores(self, settings: Mapping[str, Any], measure: Callable[[], Sequence[float]]) -> list[float]:
        """All scores of ``settings``, likewise; none where nothing could be measured."""
        for found, scores in self._lines():
            if found == dict(settings):
                return scores
        scores = list(measure())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(
                ("\n" if cut else "") + json.dumps({"settings": dict(settings), "scores": scores}) + "\n"
            )
        return scores

    def best(self, where: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with the largest mean score among those that agree with ``where``.

        Raises:
            InvalidInput: there is none.
        """
        fits = [
            (statistics.mean(scores), settings)
            for settings, scores in self._lines()
            if where.items() <= settings.items()
        ]
        if not fits:
            raise InvalidInput(f"{self.path} has no try with {dict(where)}. Make one first.")
        return max(fits, key=lambda pair: pair[0])[1]

    def _lines(self) -> Iterator[tuple[dict[str, Any], list[float]]]:
        if not self.path.exists():
            return
        for line in self.path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # one that was cut off counts for nothing
                data = json.loads(line)
                yield data["settings"], data["scores"]
