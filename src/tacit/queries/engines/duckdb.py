"""Tables in memory and in files, by DuckDB: pandas, Polars, Arrow, Parquet and CSV.

Each table has a connection of its own, in memory.  It is locked before the first statement: no file but the
one that was named, no network, no extension, no Python variable, no change of these settings.
"""

from __future__ import annotations

import csv
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from tacit.errors import InvalidInput, MissingExtra
from tacit.ledger.policy import Policy
from tacit.queries.engines.base import Engine, EngineFailure
from tacit.queries.statements import SOURCE, Statement, syntax

__all__ = ["DuckDBEngine", "check_types"]

_LOCK = (
    "SET enable_external_access = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET python_enable_replacements = false",
    # It takes x <= infinity for true where a row group of a file has statistics, which leave NaN out.
    "SET disabled_optimizers = 'statistics_propagation'",
    "SET enable_progress_bar = false",  # it would be drawn among the answers, and tell of the data
    "SET lock_configuration = true",
)
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_FLOATS = ("FLOAT", "DOUBLE", "DECIMAL")
_WHO = (  # types in which equal values are written alike, but for signs, zeros and points at the ends
    *_NUMBERS,
    *("VARCHAR", "TEXT", "CHARACTER VARYING", "CHARACTER", "CHAR", "NAME", "ENUM", "UUID", "OID", "BOOLEAN"),
    *("STRING", "BLOB", "BYTEA", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", '"NULL"'),
    *("TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP_NTZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"),
)
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_PIECE = 1 << 20


@final
class DuckDBEngine(Engine):
    """A data frame, an Arrow table, or the path of a Parquet or CSV file.

    A CSV file is read once, every field as text and then as what the policy declares: what is no number
    is missing.  A Parquet file is read where it is, each time; it must not change while it is open.

    Args:
        data: the table.
        policy: of the data set; only its columns are looked at.

    Raises:
        InvalidInput: the table cannot be read, or lacks a column.
        MissingExtra: duckdb, or pyarrow for a data frame, is not installed.
    """

    def __init__(self, data: object, policy: Policy) -> None:
        try:
            import duckdb
        except ImportError:
            raise MissingExtra("duckdb", "query", "Asking a private table") from None
        self._error: type[Exception] = duckdb.Error
        self._connection = duckdb.connect(":memory:")
        self._path = Path(os.fspath(data)).resolve() if isinstance(data, str | os.PathLike) else None
        self._table: Any = None
        if self._path is None:
            self._table = _arrow(data, policy)
            self._register()
        else:
            self._attach(self._path, policy)
        for setting in (f"SET temp_directory = {_text(_spill())}", *_LOCK):
            self._connection.execute(setting)
        self._stamp = None if self._path is None else _stamp(self._path)
        self._version: str = duckdb.__version__
        self.check(policy)

    @property
    def name(self) -> str:
        """DuckDB and its version."""
        return f"DuckDB {self._version}, locked, in memory"

    def _register(self) -> None:
        try:
            self._connection.register(SOURCE, self._table)
        except self._error:
            types = ", ".join(f"{field.name!r} {field.type}" for field in self._table.schema)
            raise InvalidInput(
                f"DuckDB has no type for a column of the table: {types}. Convert it."
            ) from None

    def _attach(self, path: Path, policy: Policy) -> None:
        suffix = path.suffix.lower()
        if suffix not in (".parquet", *_DELIMITERS):
            raise InvalidInput(f"a table is read from a .parquet, .csv or .tsv file; got {str(path)!r}.")
        if not path.is_file():
            raise InvalidInput(f"there is no file {str(path)!r}.")
        if any(letter in str(path) for letter in "*?[]{}"):
            raise InvalidInput(f"the path {str(path)!r} looks like a pattern; rename the file.")
        quoted = _text(str(path))
        try:
            if suffix == ".parquet":
                reading = f"read_parquet({quoted}, hive_partitioning = false)"
                self._connection.execute(f"CREATE VIEW {SOURCE} AS SELECT * FROM {reading}")
                self._connection.execute(f"SET allowed_paths = [{quoted}]")
            else:
                self._connection.execute(_load_csv(path, quoted, policy))
        except self._error:
            raise InvalidInput(
                f"{str(path)!r} cannot be read as {suffix[1:]}: it is damaged, or its rows do not have the "
                "columns of its first line. (The reason in full may hold rows and is not repeated.)"
            ) from None

    def check(self, policy: Policy) -> None:
        """See :meth:`Engine.check`; a file that has changed is refused too."""
        if self._path is not None and _stamp(self._path) != self._stamp:
            raise InvalidInput(f"{str(self._path)!r} has changed since it was opened. Open it again.")
        described = self._connection.execute(f"DESCRIBE {SOURCE}").fetchall()
        check_types({str(row[0]): str(row[1]) for row in described}, policy)

    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        """See :meth:`Engine.rows`."""
        text = statement.sql("duckdb", syntax().to_table(SOURCE))
        try:
            return list(self._connection.execute(text).fetchall())
        except self._error:
            raise EngineFailure from None
        except RuntimeError as problem:  # so DuckDB tells of a Ctrl-C
            raise (KeyboardInterrupt if "interrupt" in str(problem) else EngineFailure) from None

    def content(self) -> Iterator[bytes]:
        """The bytes of the file, or the columns in Arrow's format."""
        if self._path is not None:
            yield from _pieces(self._path)
            return
        yield str(self._table.schema).encode()
        for batch in self._table.combine_chunks().to_batches(max_chunksize=_PIECE):
            yield batch.serialize().to_pybytes()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _text(value: str) -> str:
    return str(syntax().Literal.string(value).sql(dialect="duckdb"))


def _name(value: str) -> str:
    return str(syntax().to_identifier(value, quoted=True).sql(dialect="duckdb"))


def _spill() -> str:
    """Where DuckDB puts what does not fit into memory, until it is closed: not in the working directory."""
    return str(Path(tempfile.gettempdir()) / f"tacit-{uuid.uuid4().hex}")


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        raise InvalidInput(f"{str(path)!r} cannot be read any more.") from None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


# --- data frames -----------------------------------------------------------------------------------------


def _arrow(data: object, policy: Policy) -> Any:
    """The policy's columns as an Arrow table; numbers are shared with the data frame, not copied."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("pyarrow", "tables", "Asking a data frame") from None
    wanted = _wanted(policy)
    kind = type(data).__module__.split(".")[0]
    if isinstance(data, pa.Table):
        _lacks_none(data.column_names, wanted)
        return _with_rows(data.select(wanted).replace_schema_metadata(None), data.num_rows)
    if kind == "polars" and type(data).__name__ == "DataFrame":
        frame: Any = data
        _lacks_none(frame.columns, wanted)
        return _with_rows(frame.select(wanted).to_arrow(), len(frame))
    if kind == "pandas" and type(data).__name__ == "DataFrame":
        frame = data
        _lacks_none(list(frame.columns), wanted)
        try:
            table = pa.Table.from_pandas(frame[wanted], preserve_index=False)
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):
            raise InvalidInput(
                "a column of the data frame holds values of different types, or one that no type holds. "
                "Convert it first, with pandas.to_numeric or astype(str)."
            ) from None
        return _with_rows(table.replace_schema_metadata(None), len(frame))
    raise InvalidInput(
        "data must be a pandas or Polars DataFrame, a pyarrow Table, or the path of a Parquet or CSV file; "
        f"got {type(data).__module__}.{type(data).__name__}."
    )


def _with_rows(table: Any, rows: int) -> Any:
    """The table, or its rows alone where the policy declares no column."""
    import pyarrow as pa

    return table if table.num_columns else pa.table({"row": pa.nulls(rows)})


def _wanted(policy: Policy) -> list[str]:
    return list(dict.fromkeys([*([policy.unit_column] if policy.unit_column else []), *policy.columns]))


def _lacks_none(columns: Iterable[object], wanted: Iterable[str]) -> None:
    found = list(columns)
    lacking = [name for name in wanted if name not in found]
    if lacking:
        raise InvalidInput(
            f"the table has no column {', '.join(map(repr, lacking))}, which the policy declares; it has "
            f"{', '.join(map(repr, found)) or 'none'}."
        )
    double = [name for name in wanted if found.count(name) > 1]
    if double:
        raise InvalidInput(f"the table has more than one column {double[0]!r}.")


# --- CSV -------------------------------------------------------------------------------------------------


def _load_csv(path: Path, quoted: str, policy: Policy) -> str:
    """Names from the first line, texts from all others, types from the policy: no row decides anything."""
    delimiter = _DELIMITERS[path.suffix.lower()]
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file, delimiter=delimiter), [])
    except (UnicodeDecodeError, csv.Error):
        raise InvalidInput(f"the first line of {str(path)!r} is no list of column names in UTF-8.") from None
    wanted = _wanted(policy)
    _lacks_none(header, wanted)
    fields = ", ".join(f"{_text(f'c{place}')}: 'VARCHAR'" for place in range(len(header)))
    types = {"number": "DOUBLE", "integer": "DOUBLE", "boolean": "BOOLEAN"}
    shown = []
    for column in wanted:
        field = f"c{header.index(column)}"
        kind = None if column == policy.unit_column else types.get(policy.columns[column].kind)
        # without TRIM DuckDB reads the field as that type in the first place, and fails where it is not
        value = field if kind is None else f"TRY_CAST(TRIM({field}) AS {kind})"
        shown.append(f"{value} AS {_name(column)}")
    settings = (
        f"auto_detect = false, header = true, delim = {_text(delimiter)}, quote = '\"', escape = '\"', "
        f"columns = {{{fields}}}"
    )
    return f"CREATE TABLE {SOURCE} AS SELECT {', '.join(shown) or '1'} FROM read_csv({quoted}, {settings})"


# --- types -----------------------------------------------------------------------------------------------


def check_types(found: Mapping[str, str], policy: Policy) -> None:
    """Whether the columns of a table are there, in types that fit the policy's kinds.

    Raises:
        InvalidInput: which one is not, and what would be.

    >>> from tacit.ledger import Column, Policy, PureBudget
    >>> age = {"age": Column(kind="number", lower=0, upper=120)}
    >>> policy = Policy(unit="row", adjacency="add-remove", budget=PureBudget(1.0), columns=age)
    >>> check_types({"age": "VARCHAR"}, policy)
    Traceback (most recent call last):
    tacit.errors.InvalidInput: column 'age' is declared a number, but the table has it as VARCHAR. ...
    """
    _lacks_none(found, _wanted(policy))
    if policy.unit_column is not None:
        kind = found[policy.unit_column]
        if _base(kind) not in _WHO:
            raise InvalidInput(
                f"the unit column {policy.unit_column!r} is of the type {kind}, in which a value may be "
                "written in several ways. Have it as a number or a text, in a view if need be."
            )
    for name, column in policy.columns.items():
        kind = _base(found[name])
        fits = {
            "number": kind in _NUMBERS,
            "integer": kind in _NUMBERS,
            "boolean": kind == "BOOLEAN",
            "category": kind not in (*_FLOATS, "BOOLEAN") and not kind.startswith(("STRUCT", "MAP", "BLOB")),
        }
        if not fits[column.kind]:
            article = "an" if column.kind == "integer" else "a"
            raise InvalidInput(
                f"column {name!r} is declared {article} {column.kind}, but the table has it as "
                f"{found[name]}. Convert the column, or declare what it is."
            )


def _base(name: str) -> str:
    """A type without its parameters; an unsigned number as a signed one."""
    base = name.upper().split("(")[0]
    return base.removeprefix("U") if base.removeprefix("U") in _NUMBERS else base
