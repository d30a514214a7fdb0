"""Guesses from the name of a column: people, counts, usual bounds.

**Guarantee**

* Every guess depends only on the name and on the kind and unit, never on a cell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PEOPLE = (
    "patient|person|user|customer|client|member|subject|employee|student|participant|respondent|patienten"
    "|personen|proband|probanden|kunde|kunden|mitglied|mitglieds|mitarbeiter|versicherte|versicherten"
)
_NUMBER = "(?:id|no|nr|num|number|nummer|key|code)"
_ONE_OF_PEOPLE = re.compile(rf"(?:.*_)?({_PEOPLE})_?{_NUMBER}|({_PEOPLE})")
_PERSON = re.compile("[pu]?id|ssn|mrn")
_IDENTIFIER = re.compile(r"(?:.*_)?(?:[pu]?id|uuid|guid|ssn|mrn)|(?:lfd_?)?nr")
_COUNT = re.compile(
    "(?:n|nr|num|number|count|total|anz|anzahl)_.*|(?:.*_)?(?:count|number|times|total|anz|anzahl)"
    "|children|kids|babies|kinder"
)


def _words(name: str) -> str:
    """Split a name into lower-case words: ``userId``, ``User Id`` and ``user.id`` become ``user_id``."""
    return re.sub(r"[\W_]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).strip("_").lower()


def is_identifier(name: str) -> bool:
    """Return whether a column of that name contains names or identifiers of people or things."""
    return bool(person_in(name) or _IDENTIFIER.fullmatch(_words(name)))


def person_in(name: str) -> str:
    """Return the word for a person in the name of a column that identifies people; empty if it does not."""
    match = _ONE_OF_PEOPLE.fullmatch(_words(name))
    other = "person" if _PERSON.fullmatch(_words(name)) else ""
    return (match[1] or match[2]) if match else other


def identifies(name: str, unit: str, kind: str = "") -> bool:
    """Return whether a column identifies the units of privacy: it is called as the unit, or as its number.

    If the unit is a person, a column such as ``pid`` identifies it, too.

    Args:
        name: the name of the column.
        unit: the word for the unit.
        kind: the declared kind of the column; empty if it is not declared.
    """
    words, own = _words(name), _words(unit)
    if words == own:
        return own != "" and kind not in ("category", "boolean")
    if own and re.fullmatch(rf"(?:.*_)?{re.escape(own)}_?{_NUMBER}", words):
        return True
    return person_in(name) == "person" and person_in(unit) == own


def is_person(name: str) -> bool:
    """Return whether a name is just a word for people, such as ``customer``: cells may be kinds of people."""
    return person_in(name) == _words(name) != ""


def is_count(name: str) -> bool:
    """Return whether a column of that name contains numbers, even if a sample of it has only 0 and 1."""
    return bool(_COUNT.fullmatch(_words(name)) or usual_bounds(name, "integer"))


# --- usual bounds ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usual:
    lower: int
    upper: int
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.lower} to {self.upper} {self.unit}".rstrip()


_OF_DATE = "(?:(?:birth|start|end|death|admission|entry|exit|release|build|geburts|bau)_?)?"
_USUAL = {
    r"(?:.*_)?(?:age|alter)(?:_at_.*)?(?:_(?:years|yrs|jahre))?": Usual(0, 120, "years"),
    "(?:.*_)?(?:percent|percentage|pct|perc|prozent)|(?:percent|pct|perc|prozent)_.*": Usual(0, 100, "%"),
    "probability|prob|wahrscheinlichkeit": Usual(0, 1),
    f"{_OF_DATE}(?:year|yr|jahr)|year_of_(?:birth|death|admission|entry)|year_?built": Usual(1900, 2100),
    f"{_OF_DATE}(?:month|monat)|month_of_(?:year|birth|admission)": Usual(1, 12),
    "day|day_of_month|dayofmonth|tag": Usual(1, 31),
    "weekday|wday|dow|day_of_week|dayofweek|wochentag": Usual(0, 7),  # days may be counted from 0 or from 1
    "hour|hr|hour_of_day|stunde|uhrzeit": Usual(0, 24),
    "minute|second|sekunde": Usual(0, 59),
    "hours_per_week|weekly_hours|stunden_pro_woche|wochenstunden": Usual(0, 168, "h"),
    "(?:.*_)?(?:latitude|lat|breitengrad)": Usual(-90, 90, "°"),
    "(?:.*_)?(?:longitude|lon|lng|l(?:ä|ae)ngengrad)": Usual(-180, 180, "°"),
    "(?:body_?)?height(?:_cm)?|k(?:ö|oe)rpergr(?:ö|oe)(?:ß|ss)e(?:_cm)?": Usual(30, 250, "cm"),
    "(?:body_?)?weight(?:_kg)?|(?:k(?:ö|oe)rper)?gewicht(?:_kg)?": Usual(0, 300, "kg"),
    "bmi|body_mass_index": Usual(10, 80, "kg/m²"),
    "(?:systolic|sys)(?:_?bp|_blood_pressure)?|sbp|systole|systolisch": Usual(40, 300, "mmHg"),
    "(?:diastolic|dia)(?:_?bp|_blood_pressure)?|dbp|diastole|diastolisch": Usual(20, 200, "mmHg"),
    "blood_?pressure|bp|blutdruck": Usual(20, 300, "mmHg"),
    "heart_?rate|hr_bpm|pulse|pulse_rate|puls|herzfrequenz": Usual(0, 300, "/min"),
    "body_temp(?:erature)?(?:_c)?|k(?:ö|oe)rpertemperatur": Usual(25, 45, "°C"),
    "temp(?:erature)?(?:_c|_celsius)?|temperatur": Usual(-60, 60, "°C"),
    "spo2|o2_?sat|oxygen_saturation|humidity|luftfeuchtigkeit|s(?:ä|ae)ttigung": Usual(0, 100, "%"),
}


def usual_bounds(name: str, kind: str, unit: str = "") -> Usual | None:
    """Return the usual bounds of a column of that name; None if it has none in its unit.

    They are only a proposal: a person who knows the table must confirm, for instance, that a height is not in
    metres.

    Args:
        name: the name of the column.
        kind: the kind of the column.
        unit: the unit in the cells of the column; empty if there is none.
    """
    if kind not in ("number", "integer"):
        return None
    candidates = (usual for form, usual in _USUAL.items() if re.fullmatch(form, _words(name)))
    return next((usual for usual in candidates if unit in ("", usual.unit)), None)
