"""The report of the laboratory: that of the package, with exposed records and reconstructed pictures."""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ET
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from experiments.laboratory.page import charts_of, grey_picture, page, write_report
from tacit.accounting import account
from tacit.events import Gaussian
from tacit.report.findings import risk_found
from tacit.report.risk import risk_sheet


def whole() -> dict[str, Any]:
    curve_of = account(Gaussian(1.0), adjacency="add-remove")
    card = {
        "record": 7,
        "label": "<3>",
        "picture": grey_picture(np.eye(4)),
        "without_dp": 4.0,
        "with_dp": 2.1,
        "chance_without_dp": 1.4,
        "chance_with_dp": 1.4,
    }
    curve = {"model": "with DP", "private": True, "percent": [5.0, 95.0], "values": [2.0, -0.5]}
    return {
        "run": {"name": "first", "unit": "image", "data": "digits", "model": "linear", "private": True},
        "risk": risk_found(risk_sheet(curve_of, delta=1e-5, unit="image")),
        "exposed": {"curves": [curve], "most": [card], "least": [card | {"picture": None}]},
    }


def evidence_in(text: str) -> str:
    return text.split("Who is exposed most")[1].split("The limits of this report")[0].split("<h3>")[0]


def test_the_most_exposed_record_is_shown_with_its_figures() -> None:
    evidence = evidence_in(page(whole()))
    words = "the model without DP exposes it by 4.0 standard deviations, the model with DP exposes it by 2.1"
    assert words in evidence
    assert "&lt;3&gt;" in evidence
    assert evidence.count('class="bar"') == 2
    assert evidence.count("<img") == 1


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize(("without", "with_dp"), [(-2.0, -0.7), (0.0, None), (1.3, 0.4)])
def test_where_nobody_stands_out_the_page_says_so_and_draws_no_bar(
    without: float, with_dp: float | None
) -> None:
    data = whole()
    data["exposed"]["most"][0] |= {"without_dp": without, "with_dp": with_dp}
    text = page(data)
    evidence = evidence_in(text)
    assert "No image stands out." in evidence
    assert "chance alone gives up to 1.4" in evidence
    assert 'class="bar"' not in evidence
    assert "exposed most without DP" not in text
    assert "Exposed most without DP" not in text
    assert "Ranked first without DP: none stands out" in text


def test_a_model_that_exposes_a_record_no_more_than_chance_has_no_bar() -> None:
    data = whole()
    data["exposed"]["most"][0]["with_dp"] = -0.7
    evidence = evidence_in(page(data))
    assert "without DP exposes it by 4.0 standard deviations" in evidence
    assert "with DP exposes it by no more than chance (−0.7; chance gives up to 1.4)" in evidence
    assert evidence.count('class="bar"') == 1
    data["exposed"]["most"][0] |= {"without_dp": 1.2, "with_dp": 2.0}
    assert "The image ranked first without DP is record 7" in page(data)


def test_what_was_drawn_stands_beside_the_mean() -> None:
    picture = grey_picture(np.eye(4))
    one = {"name": "<7>", "mean": picture, "without_dp": picture, "with_dp": picture}
    text = page(whole() | {"inversion": {"classes": [one, one]}})
    table = text.split("Pictures reconstructed from the model")[1].split("</table>")[0]
    assert table.count("<img") == 6
    assert "&lt;7&gt;" in table
    assert "make the person the unit" in text
    assert ".drawn img { width:" in text, "pictures of a few pixels are shown large"


def test_what_is_written_can_be_read_back(tmp_path: Path) -> None:
    data = whole()
    path = write_report(data, tmp_path / "report")
    assert path.read_text(encoding="utf-8") == page(data)
    assert json.loads((tmp_path / "report" / "report.json").read_text())["exposed"]["most"][0]["record"] == 7
    assert set(charts_of(data)) == {"two-worlds", "exposed"}
    ET.parse(tmp_path / "report" / "exposed.svg")
    assert path.stat().st_mode & 0o077 == 0
    assert not re.findall(r'(?:src|href)="(?!data:)[^"]*"', page(data)), "the page stands alone"


def test_what_a_model_recites_has_a_section() -> None:
    probe = {"repeats": 20, "piece": 6, "after_repeating": 0.1, "after_repeating_unseen": 0.05}
    probe |= {"asked_plainly": float("nan"), "asked_plainly_unseen": 0.0, "answers": 260, "diverged": 255}
    group = {
        "copies": 1,
        "count": 3,
        "fitted": 2,
        "extrapolated": 5.0,
        "largest": 7.0,
        "queries": float("inf"),
    }
    records = {kind: {"completed": 3, "tried": 200} for kind in ("members", "others")}
    one = {"model": "with DP", "planted": [group], "records": records, "probe": probe}
    data = whole()
    del data["exposed"]
    text = page(data | {"recitation": [one]})
    for words in ("5.0, largest 7.0 (2 fitted)", "never", "3 of 200 training records and 3 of 200", "–"):
        assert words in text


@pytest.mark.parametrize("shape", [(3, 5), (1, 3, 5), (3, 3, 5)], ids=str)
def test_pictures_are_what_another_reader_sees(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).random(shape)
    picture = Image.open(BytesIO(base64.b64decode(grey_picture(values).partition(",")[2])))
    seen = np.asarray(picture, dtype=float)
    wanted = 255 * (values - values.min()) / (values.max() - values.min())
    wanted = np.moveaxis(wanted, 0, -1) if len(shape) == 3 else wanted
    assert np.abs(seen.reshape(wanted.shape) - wanted).max() <= 0.5 + 1e-9
