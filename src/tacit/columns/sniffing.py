"""Proposals for the format of a table and the kinds of its columns, which the curator has to check."""

# **Guarantee**
#
# * The names of the columns are copied from the file, the cells are not. The proposal for a column comes
#   from fixed lists of kinds, number formats, units, date formats and words for a missing value. The
#   proposal for the file comes from fixed lists of separators, quotes and encodings. No bound, value or
#   count comes from the cells: usual bounds follow from the name of a column.
# * The choice from these lists depends on the first rows, so it is not differentially private. It is for
#   the curator, who knowingly publishes it with the file that contains the proposal.

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from tacit.columns.column import Dialect
from tacit.columns.tables import (
    MISSING_WORDS,
    Cells,
    arrow_cells,
    arrow_with_parquet,
    cells_of_frame,
    check_names,
    names_of_file,
    names_of_frame,
    number_pattern,
    pieces,
    words_of,
)
from tacit.errors import InvalidInput, needed

_DIGITS = (("1", "0"), ("1.0", "0.0"))
_LETTERS = (("t", "f"), ("y", "n"))
_TRUTHS = (("true", "false"), ("yes", "no"), *_LETTERS, *_DIGITS)
_ONE_OF_TWO = (
    "the first rows contain only one value of a pair, such as 0 and 1. If values outside this pair may "
    "follow, declare an integer or a category"
)
REPEATS = (
    "its values repeat: if they identify the person of each row, set it as user in [data] (--user), or as "
    "a policy's unit_column"
)
_LEADING_ZERO = re.compile(r"0[0-9]+")
_DISTINCT = 20  # a column with more values than this, and than half its cells, is text, not a category

_SPACES = ("\u00a0", "\u202f", " ")
_FORMATS = (
    (".", ""), (",", ""), (".", ","), (",", "."),
    *((decimal, space) for space in _SPACES for decimal in ".,"),
    (".", "'"), (".", "’"), (",", "'"),
)  # fmt: skip
"""Pairs of decimal and thousands marks, the likelier ones first."""
_CURRENCIES = ("$", "€", "£", "¥", "CHF", "EUR", "USD", "GBP")  # before or after a number
_UNITS = (
    "%", "‰", "°C", "°F", "°", "kg", "g", "mg", "µg", "ug", "ng", "t", "lb", "lbs", "oz", "st",
    "m", "cm", "mm", "km", "in", "ft", "mi", "m2", "m²", "l", "L", "dl", "dL", "ml", "mL",
    "mg/dl", "mg/dL", "g/dl", "g/dL", "mmol/l", "mmol/L", "kg/m2", "kg/m²", "mmHg", "bpm", "/min",
    "s", "ms", "min", "h", "d", "days", "years", "yrs", "kcal", "kJ", "kW",
    "kWh", "W", "V", "A", "Hz", "km/h",
)  # fmt: skip
_BELOW = "<"
_MAYBE_MISSING = (
    "n/a", "N.A.", "n.a.", "na", "#N/A", "<NA>", "NaT", "-", "--", "---", ".", "..", "*", "unknown",
    "Unknown", "UNKNOWN", "missing", "Missing", "MISSING", "none", "NONE", "nil",
    "not available", "not applicable", "not known", "k.A.", "k. A.",
)  # fmt: skip
"""Words that may mark a missing value, or be values; proposed if all other cells have one format."""
_MAYBE_ANSWERS = ("*", "none", "NONE", "nil", "not applicable", "na", "n/a")
"""Words of the list above that may be an answer in a category, such as no allergy or no grade."""
_SENTINELS = ("-99", "-999", "-9999", "-99.0", "-999.0", "-9999.0")  # if no other number is below zero

_DAYS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y.%m.%d", "%Y%m%d", "%d.%m.%y",
    "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%y",
)  # fmt: skip
_TIMES = (
    " %H:%M:%S", " %H:%M", " %H:%M:%S.%f", "T%H:%M:%S", " %I:%M %p", " %I:%M:%S %p", ", %H:%M:%S", ", %H:%M",
)  # fmt: skip


@dataclass(frozen=True)
class FoundColumn:
    """The proposed kind of a column, and its formats."""

    kind: str  # the kind as in ``[columns.NAME]``; empty if all cells of the sample are missing
    # decimal, thousands, unit, below and format, if they differ from the table's; and missing_values, the
    # words from the lists here that stand for a missing value
    settings: Mapping[str, Any] = field(default_factory=dict)
    formats: tuple[str, ...] = ()  # the date formats, if more than one fits the sample
    # for a boolean, its words for true and for false, in the case of letters of the sample
    words: tuple[str, ...] = ()
    doubt: str = ""  # another possible meaning of the cells, in words; empty if there is none


def corrected_by_name(name: str, column: FoundColumn, cells: Sequence[str] = ()) -> FoundColumn:
    if is_identifier(name) and not (is_person(name) and column.kind == "boolean"):  # student: yes or no
        different = len(set(cells))
        doubt = REPEATS if different < len(cells) else ""
        if is_person(name) and column.kind == "category" and different <= _DISTINCT:
            return replace(column, doubt=doubt)  # "customer" may be private or business
        return FoundColumn("text", doubt=doubt)
    if column.kind == "boolean" and column.words in _DIGITS and is_count(name):
        return replace(column, kind="integer", words=(), doubt="")
    return column


def looks_like_data(cell: str) -> bool:
    """Return whether a cell of the first line is a number or a date and so no name; a year may be a name."""
    if re.fullmatch(r"(?:19|20)[0-9]{2}", cell):
        return False
    return any(number_pattern(*marks).fullmatch(cell) for marks in _FORMATS) or bool(cell and _dates([cell]))


def find_columns(
    cells: Mapping[str, Sequence[str]], separator: str, form: tuple[str, str] | None = None
) -> tuple[dict[str, str], dict[str, FoundColumn]]:
    """Return proposals for the number format of a table, and for its columns by name."""
    present = {name: [cell for cell in column if cell not in MISSING_WORDS] for name, column in cells.items()}
    missing = {name: _missing_words(column) for name, column in present.items()}
    values = {
        name: [cell for cell in column if cell not in missing[name]] for name, column in present.items()
    }
    fits = {name: _number_formats(column) for name, column in values.items()}
    order = list(_FORMATS)
    if separator == ",":  # 1,234 is then in quotes, and likelier 1234 than 1.234
        order.sort(key=lambda marks: (marks != (".", ""), marks != (".", ",")))
    table = form or max(order, key=lambda marks: sum(marks in numbers.formats for numbers in fits.values()))
    columns = {}
    for name in cells:
        column = _column_of(values[name], fits[name], table)
        column = _with_missing_words(column, missing[name], values[name])
        columns[name] = corrected_by_name(name, column, values[name])
    return {"decimal": table[0], "thousands": table[1]}, columns


# --- numbers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Numbers:
    formats: frozenset[tuple[str, str]] = frozenset()
    bare: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


def _number_formats(cells: Sequence[str]) -> _Numbers:
    bare, settings = list(cells), {}
    if not cells:
        return _Numbers()
    if unit := _unit(cells):
        bare = [cell.removesuffix(unit).removeprefix(unit).strip() for cell in bare]
        settings["unit"] = unit
    if any(cell.startswith(_BELOW) for cell in bare):
        bare = [cell.removeprefix(_BELOW).strip() for cell in bare]
        settings["below"] = _BELOW
    formats = frozenset(
        marks
        for marks in _FORMATS
        if all(map(number_pattern(*marks).fullmatch, bare))  # stops at the first misfit
    )
    return _Numbers(formats, tuple(bare), settings)


def _unit(cells: Sequence[str]) -> str:
    """Find the unit that all cells end with, or the currency that they begin with; empty if there is none."""
    for unit in sorted((*_UNITS, *_CURRENCIES), key=len, reverse=True):
        ending = f" {unit}" if unit.isalpha() and len(unit) == 1 else unit  # 12A may be a room
        if all(cell.endswith(ending) for cell in cells):
            return unit
        if unit in _CURRENCIES and all(cell.startswith(unit) for cell in cells):
            return unit
    return ""


def _number_column(numbers: _Numbers, table: tuple[str, str]) -> FoundColumn:
    marks = table if table in numbers.formats else next(each for each in _FORMATS if each in numbers.formats)
    decimal, thousands = marks
    settings = dict(numbers.settings)
    if marks != table:
        settings = {"decimal": decimal, "thousands": thousands} | settings
    whole = not any(set(cell) & {decimal, "e", "E"} for cell in numbers.bare)
    return FoundColumn("integer" if whole else "number", settings, doubt=_doubt(numbers))


def _doubt(numbers: _Numbers) -> str:
    signs = [sign for sign in ",." if any(sign in cell for cell in numbers.bare)]
    if not signs or len({decimal for decimal, _ in numbers.formats}) == 1:
        return ""
    return f'is "{signs[0]}" the decimal point, or between thousands? Both fit'


# --- dates -------------------------------------------------------------------------------------------------


_ISO_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"


def _dates(cells: Sequence[str]) -> list[tuple[str, str]]:
    """Return each kind and format in which all cells are dates or datetimes; ISO is an empty format."""
    if not any(map(str.isdigit, cells[0])):
        return []
    if all(re.fullmatch(_ISO_DAY, cell) and _reads(cell, "%Y-%m-%d") for cell in cells):
        return [("date", "")]
    if all(map(_is_iso_time, cells)):
        return [("datetime", "")]
    days = [("date", form) for form in _DAYS if _all_read(cells, form)]
    return days or [
        ("datetime", day + time)
        for day in ("%Y-%m-%d", *_DAYS)
        for time in _TIMES
        if _all_read(cells, day + time)
    ]


def _is_iso_time(cell: str) -> bool:
    try:
        return bool(re.match(f"{_ISO_DAY}[T ]", cell) and datetime.fromisoformat(cell))
    except ValueError:
        return False


def _all_read(cells: Sequence[str], form: str) -> bool:
    return all(_reads(cell, form) for cell in cells)


def _reads(cell: str, form: str) -> bool:
    try:
        return 1850 <= datetime.strptime(cell, form).year <= 2150
    except ValueError:
        return False


# --- all kinds ---------------------------------------------------------------------------------------------


def _column_of(cells: Sequence[str], numbers: _Numbers, table: tuple[str, str]) -> FoundColumn:
    if not cells:
        return FoundColumn("")
    words = {cell.lower() for cell in cells}
    for pair in _TRUTHS:
        if words == set(pair):
            return FoundColumn("boolean", words=_in_case(pair, cells))
        if words < set(pair) and pair not in _LETTERS:  # f without t may belong to f and m
            return FoundColumn("boolean", words=_in_case(pair, cells), doubt=_ONE_OF_TWO)
    if any(map(_LEADING_ZERO.fullmatch, cells)):  # 00123 is a code, not the number 123
        return _word_column(cells)
    days = all(len(cell) == 8 and cell.isdigit() for cell in cells) and _all_read(cells, "%Y%m%d")
    if numbers.formats and not days:
        return _number_column(numbers, table)
    if dates := _dates(cells):
        kind, form = dates[0]
        if len(dates) > 1:
            return FoundColumn(kind, formats=tuple(each for _, each in dates))
        return FoundColumn(kind, {"format": form} if form else {})
    return _word_column(cells)


def _in_case(pair: tuple[str, str], cells: Sequence[str]) -> tuple[str, str]:
    """Return the two words in the case in which the cells have them; in lower case if there are several."""
    spellings = [(change(pair[0]), change(pair[1])) for change in (str.lower, str.capitalize, str.upper)]
    return next((words for words in spellings if set(cells) <= set(words)), pair)


def _word_column(cells: Sequence[str]) -> FoundColumn:
    distinct = len(set(cells))
    numbers = sum(any(number_pattern(*marks).fullmatch(cell) for marks in _FORMATS[:4]) for cell in cells)
    codes = any(map(_LEADING_ZERO.fullmatch, cells))
    doubt = _MOST_ARE_NUMBERS if not codes and len(cells) / 2 < numbers < len(cells) else ""
    return FoundColumn("text" if distinct > max(_DISTINCT, len(cells) / 2) else "category", doubt=doubt)


_MOST_ARE_NUMBERS = (
    'most cells are numbers. If the others stand for a missing value, declare kind = "number" and name them '
    "in missing_values"
)


# --- words for a missing value -----------------------------------------------------------------------------


def _missing_words(cells: Sequence[str]) -> frozenset[str]:
    words = frozenset(_MAYBE_MISSING).intersection(cells)
    rest = [cell for cell in cells if cell not in words]
    one_form = rest and (_is_truths(rest) or _number_formats(rest).formats or _dates(rest))
    return words if words and one_form else frozenset()


def _is_truths(cells: Sequence[str]) -> bool:
    return {cell.lower() for cell in cells} in map(set, _TRUTHS)


def _with_missing_words(column: FoundColumn, words: frozenset[str], cells: Sequence[str]) -> FoundColumn:
    if column.kind in ("number", "integer"):
        below = {cell for cell in cells if cell.startswith("-")}
        words |= below if below and below <= set(_SENTINELS) and below != set(cells) else set()
    if column.kind == "category":
        marks = {*_MAYBE_MISSING, *_SENTINELS} - set(_MAYBE_ANSWERS)
        words |= marks.intersection(cells) if not marks.issuperset(cells) else set()
    if not words:
        return column
    return replace(column, settings={**column.settings, "missing_values": sorted(words)})


SAMPLE_ROWS = 1000
"""The number of first rows of a table that are read."""

_ENDINGS = {".csv": ",", ".txt": ",", ".tsv": "\t", ".tab": "\t"}
_SEPARATORS = (",", ";", "\t", "|")
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_LONGEST_LINE = 1 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class Sniffed:
    """The proposed format of a table and of its columns."""

    # the settings of ``[table]``: separator, quote, encoding, decimal, thousands. They are empty for a
    # Parquet file.
    dialect: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, FoundColumn]  # for each column, its kind and formats
    unnamed: tuple[int, ...] = ()  # the positions, from 1, of columns without a name, which cannot be used
    rows: int = 0  # the number of rows that were read


def sniff(path: Path | str) -> Sniffed:
    """Propose the dialect and the columns of a table; see the guarantee of the module.

    Args:
        path: a .csv or .tsv file, which may also end in .gz, or a .parquet file.

    Raises:
        InvalidInput: if the file cannot be read, is not a table, or does not begin with a line of names.
        MissingExtra: if the file is Parquet, and pyarrow is not installed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("name;weight;born\\nA;72,5;1.2.1980\\nB;80,0;30.11.1975\\n")
    >>> table = sniff(path)
    >>> table.dialect["separator"], table.dialect["decimal"], table.columns["born"].settings
    (';', ',', {'format': '%d.%m.%Y'})
    """
    path = Path(path)
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if ending in (".parquet", ".pq"):
        return _typed_table(path)
    if ending not in _ENDINGS:
        fix = "Use a .csv or .tsv file (also with .gz), or a .parquet file. Save a spreadsheet as CSV."
        if ending == ".json":
            fix = (
                "For a language model, write its objects one per line to a .jsonl file: "
                "jq -c '.[]' IN.json > OUT.jsonl. Save a table as CSV."
            )
        raise InvalidInput(f"{path.name!r} is not a table that can be read. {fix}")
    raw, whole = _first_lines(path)
    encoding = _encoding(raw, path)
    text = _decoded(raw, encoding, whole)
    separator, quote = _best_dialect(text, _ENDINGS[ending])
    header, rows = _checked_rows(path, _rows(text, separator, quote)[0])
    cells = {name: [row[at].strip() for row in rows] for at, name in enumerate(header) if name}
    numbers, columns = find_columns(cells, separator)
    columns |= {
        name: replace(columns[name], doubt="its name is also a value: does the first line contain names?")
        for name in _names_among_values(header, rows)
    }
    dialect = {"separator": separator, "quote": quote, "encoding": encoding, **numbers}
    unnamed = tuple(at for at, name in enumerate(header, 1) if not name)
    return Sniffed(dialect=dialect, columns=columns, unnamed=unnamed, rows=len(rows))


# --- bytes to text -----------------------------------------------------------------------------------------


def _first_lines(path: Path) -> tuple[bytes, bool]:
    if not path.is_file():
        raise InvalidInput(f"there is no table at {path}. Check the path.")
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            lines = [file.readline(_LONGEST_LINE) for _ in range(SAMPLE_ROWS + 1)]
            return b"".join(lines), not file.read(1)
    except (OSError, EOFError):
        raise InvalidInput(f"the table {path} cannot be read. Check the path and its permissions.") from None


def _encoding(raw: bytes, path: Path) -> str:
    for mark, name in _MARKS.items():
        if raw.startswith(mark):
            return name
    if b"\x00" in raw:
        raise InvalidInput(
            f"{path} is not a text file: it contains NUL bytes. Save the table as CSV in UTF-8."
        )
    try:
        codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError:
        # Most bytes of 0x80 to 0x9f are printable in Windows' code page, and control characters in Latin-1.
        return "cp1252" if re.search(rb"[\x80\x82-\x8c\x8e\x91-\x9c\x9e\x9f]", raw) else "latin-1"
    return "utf-8"


def _decoded(raw: bytes, encoding: str, whole: bool) -> str:
    decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)
    return decoder(errors="replace").decode(raw, whole)


# --- text to rows ------------------------------------------------------------------------------------------


def _best_dialect(text: str, usual: str) -> tuple[str, str]:
    """Choose the separator and quote with which most rows have as many cells as the first row (2 or more)."""
    separators = sorted(_SEPARATORS, key=lambda each: each != usual)
    scores = {(each, quote): _score(text, each, quote) for quote in "\"'" for each in separators}
    separator, quote = max(scores, key=scores.__getitem__)
    if scores[separator, quote][1] < 2:  # the table has one column, so any separator fits
        return usual, '"'
    if quote == '"' and _quoted_by_apostrophes(_rows(text, separator, quote)[0]):
        quote = "'"
    return separator, quote


def _score(text: str, separator: str, quote: str) -> tuple[float, int]:
    rows, fits = _rows(text, separator, quote)
    width = len(rows[0]) if rows else 0
    if width < 2 or not fits:
        return 0.0, width
    return sum(len(row) == width for row in rows) / len(rows), width


def _rows(text: str, separator: str, quote: str) -> tuple[list[list[str]], bool]:
    """Return the header and the rows below it, without empty ones, and whether all of the text was read."""
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=separator, quotechar=quote, skipinitialspace=True, strict=True)
    rows: list[list[str]] = []
    try:
        rows.extend(islice(filter(None, reader), SAMPLE_ROWS + 1))
    except csv.Error:  # a wrong quote or separator or, at the end, a quoted cell that the sample cuts
        return rows, not lines.read(1)
    return rows, True


def _quoted_by_apostrophes(rows: Sequence[Sequence[str]]) -> bool:
    for column in zip(*rows[1:], strict=False):
        cells = [cell.strip() for cell in column if cell.strip()]
        if cells and all(len(cell) > 1 and cell[0] == cell[-1] == "'" for cell in cells):
            return True
    return False


def _checked_rows(path: Path, rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return the header, and the rows of the same width; no error shows cells, which may be a record's."""
    if not rows:
        raise InvalidInput(f"the table {path} is empty. Begin it with a line of column names.")
    header = [name.strip() for name in rows[0]]
    below = [row for row in rows[1:] if len(row) == len(header)]
    named = [name for name in header if name]
    counted = [[str(at + first) for at in range(len(named))] for first in (0, 1)]  # defaults of data frames
    are_counted = len(named) > 1 and named in counted
    wrong = [at for at, name in enumerate(header, 1) if looks_like_data(name) and not are_counted]
    among = _names_among_values(header, below)
    if 2 * len(among) >= sum(map(bool, header)):  # if fewer, names such as "male" may equal values by chance
        wrong += [header.index(name) + 1 for name in among]
    if wrong:
        raise InvalidInput(
            f"the first line of {path} must contain column names, but its cell {wrong[0]} looks like data. "
            "Add a line of names, each with a letter."
        )
    if not any(header):
        raise InvalidInput(f"the first line of {path} has no column names. Add a line of names.")
    check_names(named, named, f"the table {path}")
    return header, below


def _names_among_values(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the names that also occur as a value of their column, if the column has other values too."""
    cells = {name: {row[at].strip() for row in rows} for at, name in enumerate(header) if name}
    return [name for name, values in cells.items() if name in values and len(values - MISSING_WORDS) > 1]


# --- files with types --------------------------------------------------------------------------------------


def _typed_table(path: Path) -> Sniffed:
    pyarrow = arrow_with_parquet()
    types = needed("pyarrow.types", "tables", "reading the types of a table")
    if not path.is_file():
        raise InvalidInput(f"there is no table at {path}. Check the path.")
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            batches = list(islice(file.iter_batches(batch_size=SAMPLE_ROWS), 1))
            first = pyarrow.Table.from_batches(batches, schema=file.schema_arrow)
    except (OSError, ValueError):  # pyarrow's errors are ValueErrors; their messages may contain a cell
        raise InvalidInput(f"the table {path} cannot be read: it is damaged, or not parquet.") from None
    check_names(first.schema.names, first.schema.names, f"the table {path}")
    kinds = {
        "boolean": [types.is_boolean],
        "integer": [types.is_integer],
        "number": [types.is_floating, types.is_decimal],
        "date": [types.is_date],
        "datetime": [types.is_timestamp],
        "category": [types.is_string, types.is_large_string, types.is_dictionary],
    }
    typed = {}
    cells = {}
    for column in first.schema:
        kind = next((kind for kind, tests in kinds.items() if any(is_of(column.type) for is_of in tests)), "")
        typed[column.name] = kind
        if kind in ("integer", "number", "category"):  # the rows may say more than the type
            cells[column.name] = [word or "" for word in words_of(arrow_cells(first.column(column.name)))]
    _, by_rows = find_columns(cells, ",", (".", ""))
    columns = {
        name: _merged(kind, by_rows[name]) if name in by_rows else corrected_by_name(name, FoundColumn(kind))
        for name, kind in typed.items()
    }
    return Sniffed(columns=columns, rows=first.num_rows)


def _merged(kind: str, column: FoundColumn) -> FoundColumn:
    """Return the kind that the rows suggest for strings, and numbers that are booleans; else the type's."""
    if (
        kind == "category"
        or column.kind in (kind, "text")
        or (kind in ("integer", "number") and column.kind == "boolean")
    ):
        return column if column.kind else FoundColumn(kind)
    return FoundColumn(kind, {k: v for k, v in column.settings.items() if k == "missing_values"})


# --- guesses from the name of a column, which never depend on a cell ---------------------------------------

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
    return bool(person_in(name) or _IDENTIFIER.fullmatch(_words(name)))


def person_in(name: str) -> str:
    """Return the word for a person in the name of a column that identifies people; empty if it does not."""
    match = _ONE_OF_PEOPLE.fullmatch(_words(name))
    other = "person" if _PERSON.fullmatch(_words(name)) else ""
    return (match[1] or match[2]) if match else other


def identifies(name: str, unit: str, kind: str = "") -> bool:
    """Return whether a column identifies the units of privacy: it is called as the unit, or as its number."""
    # If the unit is a person, a column such as ``pid`` identifies it, too.
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
    """Return the usual bounds of a column of that name; None if it has none in its unit."""
    # They are only a proposal: a person who knows the table must confirm, for instance, that a height is not
    # in metres.
    if kind not in ("number", "integer"):
        return None
    candidates = (usual for form, usual in _USUAL.items() if re.fullmatch(form, _words(name)))
    return next((usual for usual in candidates if unit in ("", usual.unit)), None)


# --- repeated units ----------------------------------------------------------------------------------------


def unit_columns(names: Sequence[str], unit: str, kinds: Mapping[str, str]) -> list[str]:
    return [name for name in names if identifies(name, unit, kinds.get(name, ""))]


def repeated_in_file(
    path: Path, unit: str, kinds: Mapping[str, str], dialect: Dialect | None = None
) -> str | None:
    """Return a column of a file that identifies units and repeats; None if there is none."""
    columns = unit_columns(names_of_file(path, dialect), unit, kinds)
    return _repeated(columns, lambda: pieces(path, columns, dialect))


def repeated_in_frame(frame: object, unit: str, kinds: Mapping[str, str] | None = None) -> str | None:
    """Return a column of a data frame that identifies units and repeats; None if there is none.

    If ``patient_id`` repeats and the unit is a patient, a promise for one row is none for a patient.

    **Guarantee**

    * The result depends on single records. It is only for the person who has the table, and nothing that is
      released may contain it.
    """
    columns = unit_columns(names_of_frame(frame), unit, kinds or {})
    return _repeated(columns, lambda: [cells_of_frame(frame, columns)])


def _repeated(columns: Collection[str], read: Callable[[], Iterable[Mapping[str, Cells]]]) -> str | None:
    if not columns:
        return None

    values: dict[str, set[str]] = {name: set() for name in columns}
    for piece in read():
        for name, before in values.items():
            words = [word for word in words_of(piece[name]) if word is not None]
            distinct = before.union(words)
            if len(distinct) < len(before) + len(words):
                return name
            values[name] = distinct
    return None
