"""The page on settings: its table of what a search costs is right."""

from __future__ import annotations

import re

from pages import text_of

from tacit.accounting import account
from tacit.events import PrivateSelection, Repeat
from tacit.plan import Plan

PAGE = "which-settings.md"


def test_the_prices_in_the_table_are_right() -> None:
    plan = Plan.calibrate(
        epsilon=1.5, delta=1e-5, records=60_000, batch_size=600, epochs=10, clipping=1.0,
        adjacency="add-remove", unit="image",
    )  # fmt: skip
    events = (
        plan.event,
        Repeat(plan.event, 10),
        PrivateSelection(plan.event, distribution="negative-binomial", mean=10, shape=1.0),
        PrivateSelection(plan.event, distribution="poisson", mean=10),
    )
    methods = ("pld", "pld", "rdp", "rdp")
    prices = [
        account(event, adjacency="add-remove", method=method).epsilon(1e-5)
        for event, method in zip(events, methods, strict=True)
    ]
    shown = [float(value) for value in re.findall(r"\| (\d\.\d\d) \|$", text_of(PAGE), flags=re.MULTILINE)]
    assert shown == [round(price, 2) for price in prices]
