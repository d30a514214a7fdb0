"""Facts from the name of a column alone: people, counts and usual bounds."""

from __future__ import annotations

import pytest

from tacit.columns import Column
from tacit.columns.sniffing import _USUAL, is_count, is_identifier, person_in, usual_bounds

USUAL = {
    "age": "0 to 120 years", "Age (years)": "0 to 120 years", "ageAtDiagnosis": "0 to 120 years",
    "Alter": "0 to 120 years", "fat_pct": "0 to 100 %", "birth_year": "1900 to 2100",
    "Geburtsjahr": "1900 to 2100", "YearBuilt": "1900 to 2100", "month": "1 to 12", "hour": "0 to 24",
    "weekday": "0 to 7",
    "pickup_latitude": "-90 to 90 °", "lng": "-180 to 180 °", "height": "30 to 250 cm",
    "Körpergröße": "30 to 250 cm", "weight (kg)": "0 to 300 kg", "SystolicBP": "40 to 300 mmHg",
    "heart rate": "0 to 300 /min",
    "temperature": "-60 to 60 °C", "body_temp": "25 to 45 °C",
}  # fmt: skip
NONE = (
    "wage", "stage", "mileage", "age_group", "income_per_month", "months", "weight_lb", "height_m", "temp_f",
    "year_of_service_pay", "longing", "flat", "x",
)  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
def test_usual_bounds_follow_from_the_name(name: str) -> None:
    for kind in ("number", "integer"):
        assert str(usual_bounds(name, kind)) == USUAL[name]
    for kind in ("category", "boolean", "date", "text", ""):
        assert usual_bounds(name, kind) is None


@pytest.mark.parametrize("name", NONE)
def test_other_names_have_none(name: str) -> None:
    assert usual_bounds(name, "number") is None


def test_a_column_in_another_unit_has_none() -> None:
    assert usual_bounds("weight", "number", "kg") is not None
    assert usual_bounds("weight", "number", "lb") is None
    assert usual_bounds("temperature", "number", "°F") is None


def test_all_usual_bounds_can_be_declared() -> None:
    for usual in _USUAL.values():
        assert Column(kind="integer", lower=usual.lower, upper=usual.upper).low == usual.lower


PEOPLE = {
    "patient_id": "patient", "PatientID": "patient", "userid": "user", "Customer No": "customer",
    "KundenNr": "kunden", "person": "person", "pid": "person", "id": "person",
}  # fmt: skip


@pytest.mark.parametrize("name", PEOPLE)
def test_the_name_says_whose_a_row_is(name: str) -> None:
    assert (person_in(name), is_identifier(name)) == (PEOPLE[name], True)


@pytest.mark.parametrize(
    "name", ["paid", "grid", "n_users", "members", "cost_per_customer", "is_student", "valid"]
)
def test_no_other_name_does(name: str) -> None:
    assert (person_in(name), is_identifier(name)) == ("", False)


def test_counts() -> None:
    names = ("n_visits", "Anzahl", "children", "no_show", "total", "ill")
    assert [is_count(name) for name in names] == [True, True, True, False, True, False]
