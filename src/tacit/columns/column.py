"""Public facts about a table: its columns, the format of its file, and dates as numbers."""

from __future__ import annotations

import codecs
import datetime as dt
import difflib
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput, PrivacyRefusal, TacitError, check_in, check_integer, check_real

# Bounds and values are declared, never taken from the data: the largest value of a column belongs to a
# person.

_FIRST = dt.date(1970, 1, 1).toordinal()
_START = dt.datetime(1970, 1, 1)
_SECOND = dt.timedelta(seconds=1)
_ISO_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ISO_DATETIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)


def number_of_moment(moment: dt.date) -> float:
    """Return the number of days (for a datetime, of seconds in UTC) since 1970-01-01."""
    if isinstance(moment, dt.datetime):
        if moment.tzinfo is not None:
            moment = moment.astimezone(dt.UTC).replace(tzinfo=None)
        return (moment - _START) / _SECOND
    return float(moment.toordinal() - _FIRST)


def as_moment(name: str, kind: str, value: object) -> dt.date:
    """Return a public date or datetime from TOML or from a string in ISO format."""
    if isinstance(value, str):
        value = _from_iso(kind, value) or value
    if kind == "date" and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value
    if kind == "datetime" and isinstance(value, dt.date):
        if isinstance(value, dt.datetime):
            return value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
        return dt.datetime(value.year, value.month, value.day)
    form = "2015-01-31" if kind == "date" else "2015-01-31 14:05:00"
    raise InvalidInput(f"{name} must be a {kind}, such as {form}; got {value!r}.")


def _from_iso(kind: str, text: str) -> dt.date | None:
    if not (_ISO_DATE if kind == "date" else _ISO_DATETIME).fullmatch(text):
        return None
    try:
        return dt.date.fromisoformat(text) if kind == "date" else dt.datetime.fromisoformat(text)
    except ValueError:  # such as 31 February
        return None


def check_format(kind: str, form: object) -> str:
    example = dt.datetime(2013, 11, 24, 21, 47)
    try:
        read = dt.datetime.strptime(example.strftime(form), form)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        read = None
    if read is None or read.date() != example.date() or (kind == "datetime" and read.hour != example.hour):
        parts = "day, month and year" if kind == "date" else "day, month, year and time"
        raise InvalidInput(
            f'format must contain {parts}, such as "%d.%m.%Y{"" if kind == "date" else " %H:%M"}"; '
            f"got {form!r}."
        )
    return str(form)


def reader_of_moments(kind: str, form: str | None) -> Callable[[str], float]:
    """Return the function that reads a cell as a number, or as NaN if it is not a date in this format."""

    def read(cell: str) -> float:
        if form is None:
            moment = _from_iso(kind, cell)
        else:
            try:
                moment = dt.datetime.strptime(cell, form)
            except ValueError:
                moment = None
            if moment is not None and kind == "date":
                moment = moment.date()
        try:
            return math.nan if moment is None else number_of_moment(moment)
        except OverflowError:  # a time at the start of year 1, which UTC moves to year 0
            return math.nan

    return read


PART_NAMES: dict[str, tuple[str, ...]] = {
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "month": (
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
        "November", "December",
    ),
    "hour": tuple(f"{hour:02}" for hour in range(24)),
}  # fmt: skip
"""The values of each part, in the order of their numbers."""


def codes_of_part(part: str, kind: str, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of a part, such as the weekday, of each moment; NaN counts as 1970-01-01."""
    unit = "D" if kind == "date" else "s"
    moments = np.floor(np.nan_to_num(values)).astype(np.int64).astype(f"datetime64[{unit}]")
    days = moments.astype("datetime64[D]")
    match part:
        case "weekday":
            return (days.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday
        case "month":
            return days.astype("datetime64[M]").astype(np.int64) % 12
        case _:  # the hour
            return moments.astype("datetime64[h]").astype(np.int64) % 24


_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_IN_NUMBERS = "0123456789+-eE"


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The format of a CSV file, which you declare without looking at the data.

    In a run or policy file, this is the section ``[table]``. Spaces around a cell and empty lines are always
    ignored. A ``.gz`` file is decompressed.

    Args:
        separator: the character between cells; by default a comma, or a tab in a ``.tsv`` file.
        decimal: the decimal point of numbers; by default ``.``.
        thousands: the thousands separator of numbers; none by default.
        encoding: the encoding of the text; by default UTF-8. A byte order mark is skipped.
        quote: the character around a cell that contains a separator; by default ``"``. Inside such a cell,
            write the character twice.
        missing_values: words that mark a missing value in any column, such as ``n/a`` and ``-999``.

    >>> Dialect(separator=";", decimal=",").to_data()
    {'separator': ';', 'decimal': ','}
    """

    separator: str | None = None
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    quote: str = '"'
    missing_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.separator is not None:
            _check_sign("separator", self.separator)
        _check_sign("quote", self.quote)
        if self.separator == self.quote:
            raise InvalidInput(f"separator and quote must differ; both are {self.quote!r}.")
        check_number_form(self.decimal, self.thousands)
        object.__setattr__(self, "missing_values", missing_words(self.missing_values))
        try:
            "".encode(self.encoding)
            name = codecs.lookup(self.encoding).name
        except (LookupError, TypeError, UnicodeError, ValueError):
            raise InvalidInput(
                f"encoding must be the name of a text encoding; got {self.encoding!r}. For example, "
                'encoding = "utf-8", "latin-1", "cp1252" or "utf-16".'
            ) from None
        object.__setattr__(self, "encoding", name)

    def separator_of(self, path: Path) -> str:
        """Return the separator to use for the file ``path``."""
        return self.separator or _SEPARATORS.get(Path(path.name.lower().removesuffix(".gz")).suffix, ",")

    def to_data(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, as a dict."""
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        data["missing_values"] = list(self.missing_values)
        return {
            item.name: data[item.name] for item in fields(self) if getattr(self, item.name) != item.default
        }

    @classmethod
    def from_data(cls, data: object, where: str = "[table]") -> Dialect:
        """Make a dialect from a dict, such as a section of a TOML file.

        Raises:
            InvalidInput: if a setting is unknown or impossible; the message names it.
        """
        settings = check_settings(where, data, [item.name for item in fields(cls)])
        for name, value in settings.items():
            if name != "missing_values" and not isinstance(value, str):
                raise InvalidInput(f"{where} {name} must be a string; got {value!r}.")
        try:
            return cls(**settings)
        except InvalidInput as problem:
            raise InvalidInput(f"{where} {problem}") from None


def nearest(name: str, names: Collection[str], there_are: str = "there are", *, cutoff: float = 0.7) -> str:
    near = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else f"{there_are} {', '.join(names) or 'none'}."


def check_settings(
    where: str, data: object, settings: Collection[str], required: Collection[str] = ()
) -> dict[str, Any]:
    """Check the names of the settings in a section, given as plain data, and return the section."""
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{where} must be a section; got {data!r}.")
    for name in data:
        if name not in settings:
            hint = nearest(str(name), settings)
            raise InvalidInput(f"{where}: unknown setting {name!r}; {hint}")
    for name in required:
        if name not in data:
            raise InvalidInput(f"{where} lacks {name!r}, which has no default. Set it.")
    return dict(data)


def _check_sign(name: str, value: object) -> None:
    if not isinstance(value, str) or len(value) != 1 or value in "\r\n\0 ":
        raise InvalidInput(f"{name} must be one character, not a space or line end; got {value!r}.")


def missing_words(value: object) -> tuple[str, ...]:
    """Return words and numbers that mark a missing value as strings, as a table spells them."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    words = list(value) if is_list else [None]  # type: ignore[call-overload]
    if not all(isinstance(word, str | int | float) and not isinstance(word, bool) for word in words):
        raise InvalidInput(
            f"missing_values must be a list of words or numbers; got {value!r}. For example, missing_values "
            '= ["n/a", "-", -999].'
        )
    whole = [int(word) if isinstance(word, float) and word.is_integer() else word for word in words]
    return tuple(dict.fromkeys(str(word).strip() for word in whole))


def check_number_form(decimal: object, thousands: object) -> None:
    for name, value in (("decimal", decimal), ("thousands", thousands)):
        empty = name == "thousands" and value == ""
        if not empty and (not isinstance(value, str) or len(value) != 1 or value in _IN_NUMBERS):
            raise InvalidInput(f"{name} must be one character, not a digit or sign; got {value!r}.")
    if decimal == thousands:
        raise InvalidInput(f"decimal and thousands must differ; both are {decimal!r}.")


Fact: TypeAlias = str | int | float | bool | dt.date
"""A public value of a column."""

_MOMENT = ("lower", "upper", "missing", "missing_values", "format", "parts")
_NUMBER = (
    "lower", "upper", "bins", "step", "missing", "missing_values", "decimal", "thousands", "unit", "below",
)  # fmt: skip
_ALLOWED: dict[str, tuple[str, ...]] = {
    "number": _NUMBER,
    "integer": (*_NUMBER, "values"),
    "category": ("values", "buckets", "missing", "missing_values"),
    "boolean": ("values", "missing", "missing_values", "true", "false"),
    "date": _MOMENT,
    "datetime": _MOMENT,
    "text": (),
}
KINDS = tuple(_ALLOWED)
"""All kinds of columns."""
PARTS = {"date": ("weekday", "month"), "datetime": ("weekday", "month", "hour")}
"""The parts of a date or datetime that may be features."""
TRUE, FALSE = ("true", "t", "yes", "y", "1", "1.0"), ("false", "f", "no", "n", "0", "0.0")
"""The default words for true and for false in a boolean column; case is ignored."""
_DATA_WORDS = frozenset({"auto", "data", "min", "max", "infer", "quantile"})
_TYPES: dict[str, type] = {"category": str, "integer": int, "boolean": bool}


@dataclass(frozen=True, kw_only=True, repr=False)
class Column:
    """Public facts about one column of a table, which you declare without looking at the data.

    In a run or policy file, this is the section ``[columns.NAME]``.

    Args:
        kind: ``number``, ``integer``, ``category``, ``boolean``, ``date``, ``datetime`` or ``text``. Use
            ``text`` for names and identifiers; it is never a feature.
        lower, upper: the bounds of a number or date; values outside are clipped to them. Declare both or
            neither. Training needs them.
        bins: for a number, how many bins of equal width, or the edges between bins, such as ``[20, 40]``.
            Each bin becomes an extra feature. A value on an edge is in the upper bin.
        step: queries round each value to a multiple of this step; by default 1 for integers, else one to two
            millionths of ``upper - lower``.
        values: all values of a category. Queries can group by them, and then show even a value without rows.
        buckets: the number of hash buckets, for a category with too many values to list, such as towns.
        missing: how training and prediction treat a missing cell. ``refuse`` (the default) raises an error,
            ``indicator`` adds a feature that marks it, and any other value replaces it.
        missing_values: more words or numbers that mean "missing" in this column, such as ``n/a`` and
            ``-999``.
        decimal, thousands: the decimal point and thousands separator of this column, if not those of the
            file.
        unit: a string before or after each number, such as ``kg``, which is removed.
        below: the mark before a number below a detection limit, such as ``<``; "<5" then counts as 5.
        true, false: the words of a boolean; by default true, t, yes, y, 1, 1.0 and false, f, no, n, 0, 0.0.
        format: the format of a date, as for ``strptime``; ISO by default.
        parts: the parts of a date that become features: ``weekday``, ``month`` or, for a datetime, ``hour``.
            Each weekday, month or hour is one feature.

    Raises:
        InvalidInput: if the facts do not fit the kind or contradict each other.
        PrivacyRefusal: if bounds or values would come from the data.

    >>> Column(kind="number", lower=0, upper=100, bins=4).edges
    (25.0, 50.0, 75.0)
    """

    kind: str
    lower: float | dt.date | str | None = None
    upper: float | dt.date | str | None = None
    bins: int | Sequence[float] | None = None
    step: float | None = None
    values: Sequence[str | int | bool] | None = None
    missing: Fact = "refuse"
    decimal: str | None = None
    thousands: str | None = None
    unit: str | None = None
    below: str | None = None
    true: Sequence[str] = ()
    false: Sequence[str] = ()
    format: str | None = None
    parts: Sequence[str] = ()
    missing_values: Sequence[str | float] = ()
    buckets: int | None = None

    def __post_init__(self) -> None:
        for name, value in _checked({item.name: getattr(self, item.name) for item in fields(self)}).items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        facts = ((item.name, getattr(self, item.name)) for item in fields(self))
        texts = ", ".join(f"{name}={value!r}" for name, value in facts if not _unset(name, value))
        return f"Column({texts})"

    @property
    def low(self) -> float | None:
        """The lower bound as a number. A date becomes days since 1970-01-01, a datetime seconds."""
        return None if self.lower is None else self.number_of(self.lower)

    @property
    def high(self) -> float | None:
        """The upper bound as a number. A date becomes days since 1970-01-01, a datetime seconds."""
        return None if self.upper is None else self.number_of(self.upper)

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges between the bins, in increasing order; empty if there are no bins."""
        if not isinstance(self.bins, int):
            return tuple(self.bins or ())
        low, high = self.low, self.high
        assert low is not None, "checked when the column was made"
        assert high is not None, "checked with it"
        return tuple(low + (high - low) * at / self.bins for at in range(1, self.bins))

    @property
    def listed(self) -> tuple[str, ...]:
        """The declared values as strings; for hash buckets, names such as ``bucket 0``."""
        if self.buckets is not None:
            return tuple(f"bucket {number}" for number in range(self.buckets))
        return tuple(map(str, self.values or ()))

    def number_of(self, fact: Fact) -> float:
        """Convert a declared value, such as a bound, to a number; a boolean becomes 0 or 1."""
        return number_of_moment(fact) if isinstance(fact, dt.date) else float(fact)

    @property
    def is_number(self) -> bool:
        """Whether the column's kind is number or integer."""
        return self.kind in ("number", "integer")

    @property
    def is_moment(self) -> bool:
        """Whether the column's kind is date or datetime."""
        return self.kind in ("date", "datetime")

    @property
    def grid_step(self) -> float:
        """The step of queries, which round each value to a multiple of it.

        This is ``step`` if you declared it, else 1 for integers, else a power of two that is one to two
        millionths of ``upper - lower``.

        Raises:
            InvalidInput: if the column has neither bounds nor a step.
        """
        if self.step is not None:
            return self.step
        if self.kind == "integer":
            return 1.0
        if self.low is None or self.high is None:
            raise InvalidInput(
                "queries round numbers to a step, but this column has neither step nor bounds. Declare "
                "lower and upper."
            )
        return 2.0 ** (math.ceil(math.log2(self.high - self.low)) - 20)

    def with_bins(self, bins: int) -> Column:
        """Return a copy with this number of bins.

        An integer column with few possible values gets one bin for each value. A column that is not a number,
        has no bounds, or has values or bins already is returned unchanged.

        >>> Column(kind="number", lower=0, upper=1).with_bins(10).bins
        10
        >>> Column(kind="integer", lower=2003, upper=2006).with_bins(10).edges
        (2003.5, 2004.5, 2005.5)
        """
        low, high = self.low, self.high
        if not self.is_number or self.bins is not None or self.values or low is None or high is None:
            return self
        if self.kind != "integer" or high - low >= bins:
            return replace(self, bins=bins)
        between = [low + step + 0.5 for step in range(math.floor(high - low))]
        return replace(self, bins=between) if len(between) > 1 else self  # two values need no bins

    def to_data(self) -> dict[str, Any]:
        """Return the facts that differ from their defaults, as a dict for :meth:`from_data`.

        >>> Column(kind="date", lower="2015-01-01", upper="2025-12-31").to_data()
        {'kind': 'date', 'lower': '2015-01-01', 'upper': '2025-12-31'}
        """
        data = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: _plain(value) for name, value in data.items() if not _unset(name, value)}

    @classmethod
    def from_data(cls, data: object, where: str = "a column") -> Column:
        """Make a column from a dict, such as a section of a TOML file.

        Raises:
            InvalidInput, PrivacyRefusal: as for the class; the message begins with the string ``where``.
        """
        facts = check_settings(where, data, [item.name for item in fields(cls)])
        if "kind" not in facts:
            raise InvalidInput(f"{where} needs a kind: {', '.join(KINDS)}.")
        try:
            return cls(**facts)
        except TacitError as problem:
            raise type(problem)(f"{where}: {problem}") from None


def parse_columns(data: object, where: str = "columns", *, source: str = "") -> dict[str, Column]:
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{source}[{where}] must contain a section for each column; got {data!r}.")
    columns = {}
    for name, section in data.items():
        place = f"{source}[{where}.{name}]"
        if section is None or isinstance(section, str):
            raise PrivacyRefusal(f"{place}: {no_data_bounds('a column')}")
        columns[str(name)] = section if isinstance(section, Column) else Column.from_data(section, place)
    return columns


def _unset(name: str, value: object) -> bool:
    return value is None or value == () or value == [] or (name == "missing" and value == "refuse")


def _plain(value: object) -> object:
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    return list(value) if isinstance(value, tuple) else value


def no_data_bounds(subject: str) -> str:
    return (
        f"{subject} must have declared bounds or values, not ones from the data: minimum, maximum and the "
        "list of values depend on single records, and no budget covers their release. Declare what is "
        'known without the data, such as kind = "integer", lower = 0, upper = 120 for an age, or kind '
        '= "category", values = ["yes", "no"].'
    )


# --- checks ----------------------------------------------------------------------------------------------


def _checked(settings: dict[str, Any]) -> dict[str, Any]:
    kind = check_in("kind of a column", settings["kind"], KINDS)
    facts = dict(settings)
    for name, value in settings.items():
        if name != "kind" and not _unset(name, value) and name not in _ALLOWED[kind]:
            allowed = ", ".join(_ALLOWED[kind]) or "nothing else"
            raise InvalidInput(f"a column of kind {kind!r} has no {name}; it may have {allowed}.")
        if isinstance(value, str) and value in _DATA_WORDS and name in ("lower", "upper", "values", "bins"):
            raise PrivacyRefusal(no_data_bounds("bins of a column" if name == "bins" else "a column"))

    lower, upper = (_bound(kind, name, settings[name]) for name in ("lower", "upper"))
    _check_bounds(lower, upper)
    facts |= {"lower": lower, "upper": upper}
    if settings["values"] is not None:
        facts["values"] = _values(kind, settings["values"])
    facts["parts"] = tuple(dict.fromkeys(_listed("parts", settings["parts"], '["weekday", "month"]')))
    for part in facts["parts"]:
        check_in(f"parts of a {kind}", part, PARTS.get(kind, ()))
    if settings["bins"] is not None:
        facts["bins"] = _bins(settings["bins"], lower, upper)
    if settings["buckets"] is not None:
        facts["buckets"] = check_integer("buckets of a column", settings["buckets"], low=2, high=1 << 16)
        if settings["values"] is not None:
            raise InvalidInput("a category must have values or buckets, not both. Leave one of them out.")
    if settings["step"] is not None:
        facts["step"] = check_real("step of a column", settings["step"], low=0.0, open_low=True)

    facts |= _form_of_cells(kind, settings) | _truths(settings)
    facts["missing"] = _missing(kind, settings["missing"], facts)
    facts["missing_values"] = _missing_values(settings["missing_values"], facts)
    return facts


def _form_of_cells(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if settings["decimal"] is not None or settings["thousands"] is not None:
        facts["decimal"] = "." if settings["decimal"] is None else settings["decimal"]
        facts["thousands"] = settings["thousands"] or ""
        check_number_form(facts["decimal"], facts["thousands"])
    for name in ("unit", "below"):
        mark = settings[name]
        if mark is None:
            continue
        if not isinstance(mark, str) or not mark.strip() or any(letter.isdigit() for letter in mark):
            raise InvalidInput(f"{name} must be a string without digits; got {mark!r}.")
        facts[name] = mark.strip()
    if settings["format"] is not None:
        facts["format"] = check_format(kind, settings["format"])
    return facts


def _truths(settings: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    facts: dict[str, tuple[str, ...]] = {}
    for name in ("true", "false"):
        words = _listed(name, settings[name], '["ja", "J"]')
        if not all(isinstance(word, str) and word.strip() for word in words):
            raise InvalidInput(f"{name} must be a list of words; got {settings[name]!r}.")
        facts[name] = tuple(word.strip() for word in words)
    if bool(facts["true"]) != bool(facts["false"]):
        raise InvalidInput("true and false must both be declared, or neither. Declare the other one too.")
    if both := set(map(str.casefold, facts["true"])) & set(map(str.casefold, facts["false"])):
        raise InvalidInput(f"a word cannot be both true and false: {', '.join(sorted(both))}.")
    return facts


def _listed(name: str, value: object, example: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple | list):
        raise InvalidInput(f"{name} must be a list, such as {example}; got {value!r}.")
    return tuple(value)


def _bound(kind: str, name: str, value: object) -> object:
    if value is None:
        return None
    if kind in PARTS:
        return as_moment(f"{name} of a column", kind, value)
    return check_real(f"{name} of a column", value)


def _check_bounds(lower: Any, upper: Any) -> None:
    if (lower is None) != (upper is None):
        raise InvalidInput(f"a column must have both bounds or none; got lower {lower!r}, upper {upper!r}.")
    if lower is not None and not lower < upper:
        raise InvalidInput(f"lower must be below upper; got {_plain(lower)!r} and {_plain(upper)!r}.")
    if isinstance(lower, float) and not math.isfinite(2.0 * (upper - lower)):  # a feature needs this factor
        raise InvalidInput(
            f"bounds [{lower!r}, {upper!r}] are too far apart: the distance must be below half of the "
            "largest float64. Declare tighter bounds."
        )


def _bins(bins: object, lower: Any, upper: Any) -> int | tuple[float, ...]:
    if lower is None:
        raise InvalidInput("bins need bounds. Declare lower and upper.")
    if isinstance(bins, int) and not isinstance(bins, bool):
        return check_integer("bins of a column", bins, low=2, high=1000)
    edges = _listed("bins", bins, "[20, 40, 60], or a number")
    for edge in edges:
        check_real("an edge of bins", edge)
    around = (lower, *map(float, edges), upper)
    if not edges or any(one >= other for one, other in itertools.pairwise(around)):
        raise InvalidInput(
            f"bins must be increasing edges between lower {lower!r} and upper {upper!r}; got {bins!r}."
        )
    return around[1:-1]


def _values(kind: str, values: object) -> tuple[str | int | bool, ...]:
    listed = _listed("values", values, '["yes", "no"]')
    if not listed:
        raise InvalidInput("values must be a list of at least one value; got none.")
    for value in listed:
        if type(value) is not _TYPES[kind]:
            raise InvalidInput(
                f"values of a column of kind {kind!r} must be {_TYPES[kind].__name__}; got {value!r}."
            )
    if len(set(listed)) != len(listed):
        raise InvalidInput(f"values must be distinct; got {values!r}.")
    return listed


def _missing(kind: str, value: object, facts: Mapping[str, Any]) -> Fact:
    if isinstance(value, str) and value in ("refuse", "indicator"):
        return value
    if isinstance(value, str) and value in _DATA_WORDS | {"mean", "median", "mode"} and kind != "category":
        raise PrivacyRefusal(
            f"missing = {value!r} would be computed from the data, so one record could change the inputs of "
            'others. Set a public value, or "indicator".'
        )
    if kind == "category" and isinstance(value, str):
        return value
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind in PARTS and isinstance(value, str | dt.date):
        public: Any = as_moment("missing", kind, value)
    elif kind in ("number", "integer") and not isinstance(value, str):
        public = check_real("missing", value)
    else:
        raise InvalidInput(f'missing must be "refuse", "indicator" or a {kind}; got {value!r}.')
    if kind == "integer" and not float(public).is_integer():
        raise InvalidInput(f"missing must be an integer, as the column is; got {public!r}.")
    lower, upper = facts["lower"], facts["upper"]
    if lower is not None and not lower <= public <= upper:
        raise InvalidInput(f"`missing` must be between `lower` and `upper`; got {_plain(public)!r}.")
    fact: Fact = public
    return fact


def _missing_values(value_list: object, facts: Mapping[str, Any]) -> tuple[str, ...]:
    words = missing_words(value_list)
    uses: dict[str, str] = {str(value): "values" for value in facts["values"] or ()}
    if facts["kind"] == "boolean":
        for name, usual in (("true", TRUE), ("false", FALSE)):
            uses |= dict.fromkeys(map(str.casefold, facts[name] or usual), name)
    for word in words:
        if use := uses.get(word if facts["kind"] != "boolean" else word.casefold()):
            raise InvalidInput(f"{word!r} is in missing_values and in {use}. Remove it from one of them.")
    return words
