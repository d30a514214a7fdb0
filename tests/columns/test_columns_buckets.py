"""Categories whose values nobody can list: a hash of the value decides, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.columns import Column, Encoder
from tacit.errors import InvalidInput

TOWN = Column(kind="category", buckets=8, missing="indicator")
ENCODER = Encoder({"town": TOWN})


@given(st.lists(st.text(min_size=1).filter(lambda word: word.strip() == word), min_size=1, max_size=9))
def test_a_value_has_one_bucket_whatever_stands_beside_it(words: list[str]) -> None:
    together = ENCODER.inputs({"town": words})
    alone = np.concatenate([ENCODER.inputs({"town": [word]}) for word in words])
    np.testing.assert_array_equal(together, alone)
    assert set(together.sum(1)) == {1.0}


def test_buckets_are_used_about_alike_and_are_the_same_in_another_process() -> None:
    towns = [f"town {number}" for number in range(4000)]
    found = ENCODER.inputs({"town": towns})
    assert found[:, :8].sum(0).min() > 400
    program = (
        "from tacit.columns import Column, Encoder; import json;"
        "e = Encoder({'town': Column(kind='category', buckets=8)});"
        "print(json.dumps(e.inputs({'town': ['Ulm', 'Bonn', 'K\u00f6ln']}).argmax(1).tolist()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (
        json.loads(done.stdout) == ENCODER.inputs({"town": ["Ulm", "Bonn", "K\u00f6ln"]}).argmax(1).tolist()
    )


def test_a_missing_cell_is_in_no_bucket_and_names_say_what_a_feature_is() -> None:
    assert ENCODER.inputs({"town": ["", "Ulm"]})[:, -1].tolist() == [1.0, 0.0]
    assert ENCODER.features[:2] == ("town=bucket 0", "town=bucket 1")
    assert Column.from_data(TOWN.to_data()) == TOWN


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"kind": "category", "buckets": 8, "values": ["a"]}, "values or buckets, not both"),
        ({"kind": "category", "buckets": 1}, "buckets of a column"),
        ({"kind": "number", "buckets": 8}, "has no buckets"),
    ],
)
def test_mistakes_are_named(facts: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Column.from_data(facts)


def test_a_target_has_classes_and_no_buckets() -> None:
    with pytest.raises(InvalidInput, match="has buckets, and a model cannot tell"):
        Encoder({"town": TOWN, "x": Column(kind="number", lower=0, upper=1)}, "town")
