"""The page on preparing data declares columns that are read, and its tables name every fact."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

from tacit.columns import Column, Dialect, Encoder
from tacit.columns.column import KINDS, parse_columns

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "prepare-data.md").read_text(encoding="utf-8")


def test_the_columns_are_read_and_have_features() -> None:
    (block,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    data = tomllib.loads(block)
    columns = parse_columns(data["columns"])
    assert {column.kind for column in columns.values()} | {"datetime"} == set(KINDS)
    encoder = Encoder(columns, None, Dialect.from_data(data["table"]))
    cells = {
        "age": ["30"], "weight": ["72,5 kg"], "crp": ["<5"], "ward": [""], "smoker": ["Ja"],
        "admitted": ["01.02.2020"],
    }  # fmt: skip
    found = dict(zip(encoder.features, encoder.inputs(cells)[0].tolist(), strict=True))
    assert (found["ward missing"], found["smoker"], found["admitted month=February"]) == (1.0, 1.0, 1.0)


def test_the_tables_name_every_fact() -> None:
    named = set(
        re.findall(r"`([a-z_]+)`", "".join(line for line in PAGE.splitlines() if line.startswith("|")))
    )
    facts = {item.name for kind in (Column, Dialect) for item in dataclasses.fields(kind)}
    assert facts <= named
    assert set(KINDS) <= named
