"""A search for settings that stores every try in a file, and repeats none.

A search can be interrupted at any moment, and resumes when it is called again.  The records are public, and
the runs of the search are not part of the epsilon in a row of results.
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
        """Return the mean score of ``settings``: from the file if they were tried, else by ``measure``."""
        return statistics.mean(self.scores(settings, measure))

    def scores(self, settings: Mapping[str, Any], measure: Callable[[], Sequence[float]]) -> list[float]:
        """Return all scores of ``settings`` in the same way; none if nothing could be measured."""
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
        """Return the settings with the largest mean score among those that agree with ``where``.

        Raises:
            InvalidInput: if there are none.
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
            with contextlib.suppress(json.JSONDecodeError):  # a line that was cut off is ignored
                data = json.loads(line)
                yield data["settings"], data["scores"]
