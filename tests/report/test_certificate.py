"""Certificates: their figures are the ledger's, what is changed in them is found, they claim no more."""

from __future__ import annotations

import copy
import functools
import json
import math
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ran import GONE, changed

from tacit.accounting import account
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.events import (
    ApproximateDP,
    Compose,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Gaussian,
    PoissonSampled,
    PrivateSelection,
    Repeat,
)
from tacit.ledger import (
    ApproximateBudget,
    Budget,
    Ledger,
    Policy,
    PureBudget,
    RenyiBudget,
    ZeroConcentratedBudget,
)
from tacit.ledger.ledger import charge_key
from tacit.report.certificate import (
    Certificate,
    CertificateCheck,
    check_certificate,
    group_of,
    guarantee_of,
    make_certificate,
    make_key,
    public_key_of,
    read_certificate,
    run_of,
)
from tacit.report.checklist import GRADES, SECTIONS, STATEMENTS, checklist, in_words
from tacit.report.verification import OtherVersion, check_against, read_schema

Data = dict[str, Any]

COUNT = DiscreteLaplace(scale=40.0, sensitivity=4)
SUM = DiscreteGaussian(scale=64.0)
TRAINING = Repeat(PoissonSampled(0.01, Gaussian(2.0)), 50)
BUDGETS: dict[str, Budget] = {
    "pure": PureBudget(3.0),
    "approximate": ApproximateBudget(3.0, 1e-6),
    "zcdp": ZeroConcentratedBudget(3.0, 1e-6),
    "renyi": RenyiBudget(3.0, 1e-6),
}


def ledger_with(budget: Budget, **changes: Any) -> Ledger:
    ledger = Ledger.create("sqlite://")
    facts: Data = {"unit": "patient", "adjacency": "add-remove", "budget": budget, "largest_table": 10_000}
    ledger.open_dataset("visits", Policy(**{**facts, **changes}))
    return ledger


def spend(ledger: Ledger, event: Event, key: str, *, settle: bool = True, **more: Any) -> None:
    charge = ledger.reserve("visits", event, key=key, request={}, **more)
    if settle:
        ledger.settle(charge, 1)


def typical() -> Ledger:
    ledger = ledger_with(RenyiBudget(3.0, 1e-6), unit_column="id", rows_per_unit=4, note="the board")
    for number in range(3):
        spend(
            ledger, TRAINING, charge_key("run-1", 50 * number, 50 * number + 50), by="grace", label="a model"
        )
    spend(ledger, COUNT, "q1", by="ada")
    spend(ledger, COUNT, "q2", by="bob", settle=False)
    with pytest.raises(PrivacyRefusal):
        spend(ledger, DiscreteLaplace(scale=0.5, sensitivity=4), "q3")
    return ledger


LEDGER = typical()
TYPICAL = make_certificate(LEDGER, "visits", run="run-1", statements={"trials": "one"})


def by_name(certificate: Certificate, name: str) -> Data:
    (line,) = [line for line in certificate.data["lines"] if line["name"] == name]
    return dict(line)


# --- the figures are the ledger's ------------------------------------------------------------------------

BLOCKS = st.sampled_from([None, "a", "b", "c"])
CHARGES = st.lists(st.tuples(st.sampled_from([COUNT, SUM]), BLOCKS, st.booleans()), max_size=8)


@settings(max_examples=12, deadline=None)
@given(mode=st.sampled_from(sorted(BUDGETS)), charges=CHARGES, exchange=st.booleans())
def test_what_is_spent_is_what_the_ledger_says(
    mode: str, charges: list[tuple[Event, str | None, bool]], exchange: bool
) -> None:
    relation: Data = {"adjacency": "replace-one", "public_records": 10} if exchange else {}
    ledger = ledger_with(BUDGETS[mode], blocks=("a", "b", "c"), **relation)
    for number, (event, block, settle) in enumerate(charges):
        priced = COUNT if mode == "pure" or (exchange and mode == "renyi") else event
        delta = 1e-8 if mode == "approximate" and priced is SUM else None
        spend(ledger, priced, f"q{number}", settle=settle, block=block, delta=delta)
    certificate = make_certificate(ledger, "visits")
    status, stated = ledger.status("visits"), certificate.data["guarantee"]
    assert tuple(stated["spent"]["units"]) == status.spent
    assert stated["spent"]["epsilon"] == status.spent_epsilon
    assert (stated["cap"]["epsilon"], stated["cap"]["delta"]) == (status.cap_epsilon, status.cap_delta)
    assert tuple(stated["cap"]["units"]) == status.cap
    assert sum(group["charges"] for group in certificate.data["mechanisms"]) == len(charges)
    found = check_certificate(json.loads(certificate.to_json()), ledger=ledger)
    assert found.agrees, found.in_words()


def test_the_figure_for_all_in_advance_is_the_tight_one_and_said_not_to_be_the_promise() -> None:
    ledger = ledger_with(ZeroConcentratedBudget(3.0, 1e-6))
    for number in range(4):
        spend(ledger, Gaussian(16.0), f"q{number}")
    certificate = make_certificate(ledger, "visits")
    stated = certificate.data["guarantee"]["if_fixed_in_advance"]
    # four Gaussians of multiplier 16 are one of multiplier 8: Gaussian noise by its closed form
    low, high = account(Gaussian(8.0), adjacency="add-remove").epsilon_bounds(1e-6)
    assert low * (1 - 1e-6) <= stated["epsilon"] <= high * (1 + 1e-6)
    line = by_name(certificate, "If fixed in advance")
    assert "not the promise" in line["value"]
    assert line["grade"] == "not covered"


@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-9), (1.0, 0.0), (3.0, 1e-6)])
def test_groups_have_the_sum_of_a_path_from_one_to_the_other(epsilon: float, delta: float, size: int) -> None:
    found = group_of(epsilon, delta, size)
    by_sum = delta * math.fsum(math.exp(step * epsilon) for step in range(size))
    assert found["delta"] == pytest.approx(by_sum, rel=1e-12)
    assert found["epsilon"] == size * epsilon
    assert group_of(10.0, 1e-3, 5) == {"epsilon": None, "delta": 1.0}


def test_a_run_has_its_own_part_and_an_unknown_one_is_refused() -> None:
    alone = ledger_with(RenyiBudget(3.0, 1e-6))
    for number in range(3):
        spend(alone, TRAINING, f"training/x/{number}")
    run = TYPICAL.data["run"]
    assert run["id"] == "run-1"
    assert run["spent"]["epsilon"] == alone.status("visits").spent_epsilon
    with pytest.raises(
        InvalidInput, match=r"'run-2' has no charge in data set 'visits'. The runs with charges are: run-1"
    ):
        make_certificate(LEDGER, "visits", run="run-2")


def test_a_run_with_a_test_key_is_no_promise() -> None:
    ledger = ledger_with(RenyiBudget(3.0, 1e-6))
    spend(
        ledger,
        TRAINING,
        charge_key("r", 0, 50),
        label="training run r: steps 0 to 49, NOT PRIVATE (test key)",
    )
    certificate = make_certificate(ledger, "visits")
    assert by_name(certificate, "NOT PRIVATE")["value"].startswith(
        "1 charge: the noise came from a fixed test key"
    )
    assert certificate.to_text().split("\n")[3].startswith("NOT PRIVATE")
    assert "NOT PRIVATE: ε = 3" in certificate.to_html()
    assert "NOT PRIVATE" not in TYPICAL.to_text() + TYPICAL.to_html()


def test_a_derived_data_set_charges_its_parent_and_the_run_is_seen_there() -> None:
    ledger = ledger_with(PureBudget(3.0))
    child = Policy(unit="patient", adjacency="add-remove", budget=PureBudget(2.0), parent="visits")
    ledger.open_dataset("north", child)
    ledger.settle(ledger.reserve("north", COUNT, key="training/r/1", request={}, by="ada"), 1)
    for name in ("visits", "north"):
        certificate = make_certificate(ledger, name, run="r")
        assert certificate.data["run"]["spent"]["epsilon"] == pytest.approx(0.1)
        assert check_certificate(certificate.data, ledger=ledger).agrees
    assert "pays for it too" in by_name(make_certificate(ledger, "north"), "Lineage")["value"]


def test_a_raised_cap_a_new_content_and_a_recovery_are_shown(tmp_path: Path) -> None:
    ledger = ledger_with(PureBudget(1.0))
    spend(ledger, COUNT, "q1")
    ledger.register_content("visits", ledger.fingerprint([b"one"]))
    ledger.register_content("visits", ledger.fingerprint([b"two"]))
    ledger.raise_cap("visits", PureBudget(2.0), reason="a second study", by="the board")
    certificate = make_certificate(ledger, "visits")
    assert certificate.data["guarantee"]["cap"]["epsilon"] == 2.0
    assert "'a second study'" in by_name(certificate, "Changes of the cap")["value"]
    assert "void" in by_name(certificate, "Changes of the cap")["value"]
    assert by_name(certificate, "Fingerprint")["value"] == ledger.fingerprint([b"two"])
    assert by_name(certificate, "Contents")["value"].startswith("2 fingerprints, all on this budget")
    assert by_name(certificate, "Recoveries from backup")["value"] == "none"
    assert check_certificate(certificate.data, ledger=ledger).agrees


def test_after_an_old_copy_was_put_back_all_is_spent(tmp_path: Path) -> None:
    path, kept = tmp_path / "ledger.db", tmp_path / "kept.db"
    ledger = Ledger.create(path)
    ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=PureBudget(1.0)))
    spend(ledger, COUNT, "q1")
    ledger.close()
    for other in tmp_path.glob("ledger.db-*"):
        other.unlink()
    kept.write_bytes(path.read_bytes())
    ledger = Ledger.open(path)
    spend(ledger, COUNT, "q2")
    anchor, issued = ledger.anchor("visits"), make_certificate(ledger, "visits")
    ledger.close()
    restored = Ledger.open(kept)
    found = check_certificate(issued.data, ledger=restored)
    assert any("old backup" in text for text in found.problems)
    restored.recover_from_backup("visits", anchor)
    certificate = make_certificate(restored, "visits")
    assert certificate.data["guarantee"]["spent"]["epsilon"] == 1.0
    assert "burned" in by_name(certificate, "Recoveries from backup")["value"]
    assert check_certificate(certificate.data, ledger=restored).agrees
    restored.close()


# --- what is changed is found ----------------------------------------------------------------------------


Place = tuple[str | int, ...]


def leaves(data: Any, path: Place = ()) -> Iterator[Place]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else None
    if items is None:
        yield path
        return
    for key, value in items:
        yield from leaves(value, (*path, key))


def altered(data: Data, path: Place) -> Data:
    """A copy with another value of the same type at the end of the path."""
    inner: Any = data
    for key in path:
        inner = inner[key]
    match inner:
        case bool(value):
            return changed(data, path, not value)
        case int(value) | float(value):
            return changed(data, path, value + 1 if value < 1 or isinstance(value, int) else value * 0.9)
        case str(value):
            return changed(data, path, f"{value[:-1]}{'0' if value[-1:] != '0' else '1'}")
    return changed(data, path, 0)


def missed(data: Data, paths: list[Place], check: Callable[[Data], CertificateCheck]) -> list[Place]:
    """The places at which a change is not found."""

    def agrees(path: Place) -> bool:
        try:
            return check(altered(data, path)).agrees
        except (InvalidInput, PrivacyRefusal):
            return False

    return [path for path in paths if agrees(path)]


def test_whatever_is_changed_after_signing_is_found(tmp_path: Path) -> None:
    make_key(tmp_path / "key.pem")
    ledger = ledger_with(PureBudget(1.0))  # of which every figure is a sum, and priced at once
    spend(ledger, COUNT, "q1")
    data = make_certificate(ledger, "visits").signed(tmp_path / "key.pem").data
    key = public_key_of(tmp_path / "key.pem")
    assert check_certificate(data, public_key=key).agrees
    paths = [path for path in leaves(data) if path[0] != "lines" or path[1] in (0, 20)]
    assert len(paths) > 60
    assert missed(data, paths, lambda other: check_certificate(other, public_key=key)) == []


def test_without_a_signature_what_figures_follow_from_is_still_found() -> None:
    data = TYPICAL.data
    paths = [path for path in leaves(data) if path[0] not in ("lines", "policy")]
    # what neither a figure nor a line is made of: who signs it vouches for it, and its ledger shows it
    alone = missed(data, paths, check_certificate)
    assert {path[0] for path in alone} <= {"software", "kinds", "mechanisms"}
    assert {path[-1] for path in alone if path[0] == "mechanisms"} <= {"first", "last", "delta"}
    beside = {path[0] for path in missed(data, alone, lambda other: check_certificate(other, ledger=LEDGER))}
    assert beside <= {"software"}


def test_a_certificate_of_another_version_is_not_verified_with_the_ledger_either() -> None:
    data = changed(changed(TYPICAL.data, "software.tacit", "0.1.9"), "lines.0.value", "nothing is revealed")
    with pytest.raises(OtherVersion, match=r"written by tacit 0\.1\.9"):
        check_certificate(data, ledger=LEDGER)


def forged(where: str, to: object) -> Data:
    """A certificate in which something was changed, and all that follows from it was made again."""
    data = changed(TYPICAL.data, where, to)
    policy = Policy.from_data(data["policy"])
    data["guarantee"] = guarantee_of(policy, data["mechanisms"], data["burned"])
    data["run"] = run_of(policy, data["mechanisms"], "run-1")
    data["lines"] = checklist(data)
    return data


HALF = [part // 2 for part in TYPICAL.data["mechanisms"][0]["cost"]]
COSTS = {
    "a lower cost": ("mechanisms.0.cost", HALF),
    "less noise": ("mechanisms.1.event.scale", 10.0),
    "more than the cap": ("mechanisms.1.charges", 500),
}
WHAT_HAPPENED = {
    "a mechanism left out": ("mechanisms.1", GONE),
    "a charge left out": ("mechanisms.1.charges", 1),
    "another unit": ("policy.unit", "family"),
}


@pytest.mark.parametrize("what", COSTS)
def test_a_consistent_forgery_of_costs_is_found_by_pricing(what: str) -> None:
    assert not check_certificate(forged(*COSTS[what])).agrees


@pytest.mark.parametrize("what", WHAT_HAPPENED)
def test_a_consistent_forgery_of_what_happened_is_found_by_its_ledger_alone(what: str) -> None:
    data = forged(*WHAT_HAPPENED[what])
    assert check_certificate(data).agrees
    assert any("--ledger" in text for text in check_certificate(data).remarks)
    assert not check_certificate(data, ledger=LEDGER).agrees


def test_the_certificate_of_another_ledger_is_found() -> None:
    other = typical()
    assert any("belongs to ledger" in text for text in check_certificate(TYPICAL.data, ledger=other).problems)


def test_later_charges_are_no_contradiction() -> None:
    ledger = typical()
    issued = make_certificate(ledger, "visits")
    spend(ledger, COUNT, "later")
    found = check_certificate(issued.data, ledger=ledger)
    assert found.agrees, found.problems
    assert any("2 came later" in text for text in found.checked)


def test_a_key_that_did_not_sign_and_a_missing_signature_are_found(tmp_path: Path) -> None:
    make_key(tmp_path / "mine.pem")
    signed = TYPICAL.signed(tmp_path / "mine.pem").data
    assert check_certificate(signed).agrees
    assert any("who holds that key" in text for text in check_certificate(signed).remarks)
    assert "not with" in check_certificate(signed, public_key="ab" * 32).problems[0]
    assert check_certificate(TYPICAL.data, public_key="ab" * 32).problems == ("it is not signed.",)


NASTY: list[Any] = [
    None, True, -1, 0, 1.5, -0.5, 1e308, 10**40, "", "x", [], {}, [0], {"event": "Compose", "of": []},
    "9" * 5000,
]  # fmt: skip


@functools.cache
def with_blocks() -> tuple[Data, list[Place]]:
    """A certificate, and each place in it, of a figure or of a part."""
    ledger = ledger_with(ApproximateBudget(1.0, 1e-6), blocks=("a", "b"))
    spend(ledger, COUNT, charge_key("r", 0, 1), block="a")
    data = make_certificate(ledger, "visits", run="r").data
    places = [place for place in leaves(data) if place[0] != "lines"]
    places += [place[:size] for place in places for size in range(1, len(place))]
    return data, list(dict.fromkeys(places))


@pytest.mark.thorough(cases=6)
@pytest.mark.parametrize("value", NASTY)
def test_whatever_stands_in_the_file_is_an_answer_or_a_refusal(value: Any) -> None:
    data, places = with_blocks()
    refused = 0
    for place in places:
        try:
            check_certificate(changed(data, place, value))
        except (InvalidInput, PrivacyRefusal):
            refused += 1
    assert refused > 60


def test_what_is_nested_without_end_is_refused() -> None:
    data = copy.deepcopy(TYPICAL.data)
    for _ in range(100):
        data["mechanisms"][0]["event"] = {"event": "Repeat", "count": 1, "of": data["mechanisms"][0]["event"]}
    with pytest.raises(InvalidInput, match="nested more than"):
        check_certificate(data)


# --- what it says ----------------------------------------------------------------------------------------


def test_every_section_and_every_line_has_a_grade_and_blanks_say_so() -> None:
    assert {line["section"] for line in TYPICAL.data["lines"]} == set(SECTIONS)
    assert {line["grade"] for line in TYPICAL.data["lines"]} == set(GRADES)
    blank = [line["name"] for line in TYPICAL.data["lines"] if line["value"] is None]
    assert len(blank) == len(STATEMENTS) - 1 + 1  # one is stated; the fingerprint is blank too
    assert all(line["grade"] == "not covered" for line in TYPICAL.data["lines"] if line["value"] is None)
    assert TYPICAL.to_text().count("NOT STATED") == len(blank) + 1  # and in the legend
    assert TYPICAL.to_html().count('<dd><span class="blank">NOT STATED') == len(blank)
    assert by_name(TYPICAL, "Trials") == {
        "section": "G",
        "name": "Trials",
        "value": "one",
        "grade": "assumed",
    }


def everything_that_can_be_said() -> list[Certificate]:
    made = [TYPICAL, make_certificate(LEDGER, "visits")]
    for budget in BUDGETS.values():
        ledger = ledger_with(budget, adjacency="replace-one", public_records=500, blocks=("a", "b"))
        spend(ledger, COUNT, "q")
        made.append(make_certificate(ledger, "visits"))
    hopeless = ledger_with(ApproximateBudget(400.0, 0.5))
    spend(hopeless, ApproximateDP(1.0, 0.01), "q")
    return [*made, make_certificate(hopeless, "visits")]


def test_no_epsilon_stands_without_its_delta_and_nothing_is_called_anonymous() -> None:
    for certificate in everything_that_can_be_said():
        for line in [
            *certificate.data["lines"],
            {"name": "head", "value": certificate.to_text().split("A  The")[0]},
        ]:
            value = line["value"] or ""
            if re.search(r"(ε|epsilon)\s*[=≤]", value):
                assert re.search(r"δ", value), line
        text = certificate.to_text() + certificate.to_html() + certificate.to_json()
        assert "anonym" not in text.lower()


def test_a_delta_that_is_no_promise_is_called_so() -> None:
    hopeless = everything_that_can_be_said()[-1]
    assert "NOT below 1" in by_name(hopeless, "δ times the number")["value"]
    groups = by_name(hopeless, "Groups of 2")
    assert (groups["grade"], groups["value"]) == (
        "not covered",
        "nothing is promised to a group of this size",
    )


def test_without_a_column_of_ids_there_is_no_promise_to_persons() -> None:
    certificate = make_certificate(ledger_with(PureBudget(1.0)), "visits")
    line = by_name(certificate, "Bound on one unit's rows")
    assert "protected only as a group" in line["value"]
    assert line["grade"] == "not covered"


def test_a_note_that_claims_too_much_is_left_out() -> None:
    ledger = ledger_with(PureBudget(1.0), note="ANONYMOUS data, so no approval was needed")
    certificate = make_certificate(ledger, "visits")
    assert "left out" in by_name(certificate, "Note in the policy")["value"]
    ledger.raise_cap("visits", PureBudget(2.0), reason="they are anonymised now", by="me")
    certificate = make_certificate(ledger, "visits")
    assert "left out" in by_name(certificate, "Changes of the cap")["value"]
    assert "anonym" not in certificate.to_json().lower()
    assert check_certificate(certificate.data, ledger=ledger).agrees
    with pytest.raises(InvalidInput, match="anonymous"):
        make_certificate(ledger, "visits", statements={"raw_access": "nobody: the data were Anonymised"})


def test_there_are_words_for_all_mechanisms() -> None:
    selection = PrivateSelection(Gaussian(8.0), distribution="poisson", mean=10)
    assert in_words(Compose(())) == "nothing that depends on a record"
    assert in_words(Compose((COUNT, SUM))).count("; and ") == 1
    assert "secret number of trials" in in_words(selection)
    ledger = ledger_with(RenyiBudget(3.0, 1e-6))
    spend(ledger, selection, "selection/r")
    assert by_name(make_certificate(ledger, "visits"), "Private selection")["value"].startswith(
        "1 charge for"
    )


class _Page(HTMLParser):
    """The tags that are open, and what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.fetched += [
            f"{tag} {name}"
            for name, value in attributes
            if tag == "script" or (name in ("src", "href") and not str(value).startswith("data:"))
        ]
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_fetches_nothing_and_runs_nothing() -> None:
    ledger = ledger_with(PureBudget(1.0), unit="<script>alert(1)</script>", note="<img src=x>")
    page = make_certificate(ledger, "visits").to_html()
    parsed = _Page()
    parsed.feed(page)
    assert parsed.open == []
    assert parsed.fetched == []
    assert "&lt;script&gt;" in page
    assert "http" not in re.sub(r'xmlns="[^"]*"|href="data:[^"]*"', "", page)
    assert "color-scheme: light dark" in page


# --- the file --------------------------------------------------------------------------------------------


def test_the_json_is_as_the_published_schema_says_and_is_read_back(tmp_path: Path) -> None:
    schema = read_schema("certificate.schema.json")
    for certificate in everything_that_can_be_said():
        check_against(schema, json.loads(certificate.to_json()), what="the certificate")
    path = tmp_path / "certificate.json"
    path.write_text(TYPICAL.to_json(), encoding="utf-8")
    assert read_certificate(path) == TYPICAL.data
    for text, words in (
        ("{", "is not JSON"),
        ("[]", "is not of type 'object'"),
        ("{}", "'certificate' is a required property"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidInput, match=words):
            read_certificate(path)
    with pytest.raises(InvalidInput, match="there is no certificate"):
        read_certificate(tmp_path / "none.json")
