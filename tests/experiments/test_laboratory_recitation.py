"""The recitation of a language model, on models that are known."""

from __future__ import annotations

import numpy as np
from known_models import ALPHABET, CANARY, SPACE, knows, rows

from experiments.laboratory.recitation import (
    _REPEATS,
    probe_by_repeating,
    remembered_records,
    remembered_secret,
)


def test_a_known_secret_needs_one_answer_and_an_unknown_one_fits_no_law() -> None:
    rng = np.random.default_rng(0)
    known = remembered_secret(knows(["pin ab 407"]), CANARY, SPACE, ALPHABET, rng)
    assert (known.exposure, known.completion, known.completed) == (np.log2(1000), "407", True)
    assert known.queries == 1
    blind = remembered_secret(knows([]), CANARY, SPACE, ALPHABET, rng)
    assert (blind.exposure, blind.completed, blind.extrapolated) == (0.0, False, None)


def test_records_that_are_known_come_out_and_others_do_not() -> None:
    rng, records = np.random.default_rng(0), ["anna", "bertold", "carla", "dora"]
    assert remembered_records(knows(records), rows(records), rng) == (4, 4)
    assert remembered_records(knows(records), rows(["emil", "fritz", "g"]), rng) == (0, 2)


def test_a_model_that_recites_after_repeating_is_seen() -> None:
    records = ["aaaaaasecret story", "bbbbbbanother one"]

    def recites(contexts: np.ndarray) -> np.ndarray:
        """Goes through the first record from its sixth letter, whatever was typed."""
        story = ALPHABET.encode("secret story")
        found = np.full((len(contexts), ALPHABET.tokens), -50.0)
        found[:, story[(contexts.shape[1] - _REPEATS) % len(story)]] = 50.0
        return found

    letters, unseen = list(range(2, 28)), rows(["cccccc", "dddddd"])
    probe = probe_by_repeating(recites, rows(records), unseen, letters, np.random.default_rng(0))
    assert probe.after_repeating > 0.8
    assert probe.after_repeating_unseen == 0.0
