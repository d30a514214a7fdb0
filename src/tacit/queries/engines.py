"""Engines that run statements on a table: DuckDB for data frames and files, PostgreSQL, Spark."""

from __future__ import annotations

import datetime
import os
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from tacit.columns.tables import (
    Cells,
    CsvFile,
    MalformedTable,
    arrow_cells,
    check_names,
    declared_missing,
    is_csv,
    kind_of_frame,
    names_of_frame,
    numbers_of,
    pieces,
    words_of,
)
from tacit.errors import InvalidInput, TacitError, needed
from tacit.ledger.policy import Policy
from tacit.queries.statements import SOURCE, Statement, alias, exp, field

_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_FLOATS = ("FLOAT", "DOUBLE", "DECIMAL")
_UNIT_TYPES = (  # types whose equal values have equal texts, up to signs, zeros and points at the ends
    *_NUMBERS,
    *("VARCHAR", "TEXT", "CHARACTER VARYING", "CHARACTER", "CHAR", "NAME", "ENUM", "UUID", "OID", "BOOLEAN"),
    *("STRING", "BLOB", "BYTEA", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", '"NULL"'),
    *("TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP_NTZ", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"),
)
_TIMES = (
    *("DATE", "TIMESTAMP", "TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP_NTZ"),
    *("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"),
)


class EngineFailure(TacitError):
    """An engine failed on a statement; the reason is not shown.

    The message is always the same, because a reason could depend on the data, and would reveal it without
    noise.
    """

    def __init__(self) -> None:
        super().__init__(
            "The engine could not compute the answer. The reason may depend on the data and is not shown; "
            "the charge stays. The data owner can run the statement on the data to see it."
        )


@dataclass(frozen=True)
class Places:
    """The rows that the curator's check finds; they are confidential."""

    count: int  # the number of rows
    rows: NDArray[np.int64] | None  # their indices, from 0; None for a database, where rows have no order

    @classmethod
    def at(cls, rows: NDArray[np.int64]) -> Self:
        return cls(len(rows), rows)

    def without(self, others: Places) -> Places:
        """Return these rows without ``others``; unchanged if some indices are unknown."""
        if self.rows is None or others.rows is None:
            return self
        return Places.at(np.setdiff1d(self.rows, others.rows))


class Engine(ABC):
    """A table that runs statements; the base class of engines.

    **Guarantee**

    * An engine runs trees that Tacit built, never a text that a user wrote.
    * To answer a question, it returns only the result of :meth:`rows`, and Tacit adds noise to that.
    """

    product: ClassVar[str]

    @abstractmethod
    def check(self, policy: Policy) -> None:
        """Refuse a table that lacks a column of the policy, or has a column whose type does not fit its kind.

        This reads only the schema, before anything is charged.

        Raises:
            InvalidInput: if a column is absent or does not fit; the message names it.
        """

    @abstractmethod
    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        """Run a statement; return the keys and integers of each group, without noise.

        Raises:
            EngineFailure: if anything fails; the reason is not given.
        """

    def places(self, condition: Any) -> Places:
        """Return the rows for which ``condition``, an SQL tree, is true; only for the curator's check.

        Raises:
            EngineFailure: if anything fails; the reason is not given.
        """
        tree = exp.select(exp.Count(this=exp.Star())).from_(SOURCE).where(condition)
        ((count,),) = self.rows(Statement((), tree, 0))
        return Places(int(count), None)

    def load(self) -> None:
        """Load a file that is read only once, before any charge; a second call does nothing.

        Raises:
            MalformedTable: if the file's rows do not form a table.
        """
        return

    def unreadable(self) -> tuple[Mapping[str, Places], Mapping[str, Places]]:
        """Return the unreadable and the mistyped cells, by column; both count as missing.

        Raises:
            MalformedTable: if the file's rows do not form a table.
        """
        return {}, {}

    @abstractmethod
    def content(self) -> Iterable[bytes]:
        """Return the content as bytes, for its keyed fingerprint; other bytes are another version."""

    @abstractmethod
    def close(self) -> None:
        """Free the engine's resources."""


# --- types -----------------------------------------------------------------------------------------------


def check_types(types: Mapping[str, str], policy: Policy) -> None:
    check_names(list(types), policy.needed_columns, "the table")
    if policy.unit_column is not None:
        kind = types[policy.unit_column]
        if _base(kind) not in _UNIT_TYPES:
            raise InvalidInput(
                f"column {policy.unit_column!r} identifies a {policy.unit}, so it cannot be of type {kind}: "
                f"one {policy.unit} could be written in several ways. Convert it to an integer or a string, "
                "such as in a view."
            )
    for name, column in policy.columns.items():
        if name == policy.unit_column:
            continue  # always read as text, whatever is declared: 007 and 7 are two people
        kind = _base(types[name])
        fits = {
            "number": kind in _NUMBERS,
            "integer": kind in _NUMBERS,
            "boolean": kind == "BOOLEAN",
            "date": kind == "DATE",
            "datetime": kind in _TIMES,
            "text": kind in _UNIT_TYPES,
            "category": kind not in (*_FLOATS, "BOOLEAN") and not kind.startswith(("STRUCT", "MAP", "BLOB")),
        }
        if not fits[column.kind]:
            article = "an" if column.kind == "integer" else "a"
            raise InvalidInput(
                f"column {name!r} is declared {article} {column.kind}, but its type is {types[name]}. "
                "Convert the column, or correct the declaration."
            )


def _base(name: str) -> str:
    """Return the name of a type without its parameters; for unsigned numbers, that of the signed type."""
    base = name.upper().split("(")[0]
    return base.removeprefix("U") if base.removeprefix("U") in _NUMBERS else base


if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import SparkSession


def missing_words_of(column: str, policy: Policy) -> tuple[str, ...]:
    return declared_missing(policy.columns.get(column), policy.dialect)


def refuse_missing_values(policy: Policy) -> None:
    """Refuse a policy with ``missing_values``, which a database cannot apply."""
    if columns := [column for column in policy.needed_columns if missing_words_of(column, policy)]:
        name, word = columns[0], missing_words_of(columns[0], policy)[0]
        raise InvalidInput(
            f"column {name!r} has missing_values, which are not supported in a database. Create a view with "
            f"NULLIF(\"{name}\", '{word}') as this column, and delete missing_values from the policy."
        )


class _Database(Engine):
    _dialect: ClassVar[str]
    _digest: ClassVar[str]
    """The SQL for the digest of one row of the table ``t``; ``_half`` turns half a digest into an integer."""
    _half: ClassVar[str]

    def __init__(self, names: Sequence[str]) -> None:
        quoted = [exp.to_identifier(name, quoted=True) for name in reversed(names)]
        self._table = exp.Table(**dict(zip(("this", "db", "catalog"), quoted, strict=False)))
        self._table_name = str(self._table.sql(dialect=self._dialect))
        self._columns: Any = None

    @abstractmethod
    def _fetch(self, text: str) -> list[tuple[Any, ...]]: ...

    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        return self._fetch(statement.sql(self._dialect, self._table))

    def content(self) -> Iterator[bytes]:
        """Yield the columns, then the number of rows and the sum of their digests, which ignores order."""
        yield repr(self._columns).encode()
        halves = ", ".join(f"sum({self._half.format(start)})" for start in (1, 16))
        digests = f"SELECT {self._digest} AS digest FROM {self._table_name} AS t"
        yield repr(self._fetch(f"SELECT count(*), {halves} FROM ({digests}) AS d")).encode()


# Settings that change the meaning of a statement. They replace the server's defaults.
_SESSION = (
    "SET search_path = pg_catalog",  # statements find only the server's functions and operators
    "SET standard_conforming_strings = on",  # a backslash in a literal is a backslash
    "SET client_encoding = 'UTF8'",
    "SET DateStyle = 'ISO, YMD'",
)
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL), coalesce(c.collisdeterministic, true)
FROM pg_attribute AS a LEFT JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_POSTGRES_TYPES = {"double precision": "DOUBLE", "real": "FLOAT", "numeric": "DECIMAL"}


@final
class PostgresEngine(_Database):
    """A table or view in PostgreSQL, read in one read-only transaction.

    All statements read the table as it was at the first one. To see later rows, close this engine and open
    another: an open transaction keeps the server from cleaning up.

    Args:
        url: the address of the database, such as ``postgresql://user@host/database``.
        table: the exact, case-sensitive name of the table; no character in it is special.
        schema: the schema that contains the table.

    Raises:
        InvalidInput: if there is no connection, or no such table.
        MissingExtra: if psycopg is not installed.
    """

    product = "PostgreSQL"
    _dialect = "postgres"
    _digest = "md5(t::text)"
    _half = "('x' || substr(digest, {}, 15))::bit(60)::bigint"

    def __init__(self, url: str, table: str, *, schema: str = "public") -> None:
        psycopg = needed("psycopg", "postgres", "Asking a table in PostgreSQL")
        self._error: type[Exception] = psycopg.Error
        super().__init__([schema, table])
        try:
            self._connection: Connection[Any] = psycopg.connect(url.replace("+psycopg:", ":", 1))
        except psycopg.Error as problem:
            raise InvalidInput(
                f"PostgreSQL cannot be reached: {str(problem).strip()}. Check address and server."
            ) from None
        self._connection.read_only = True
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        try:
            for setting in _SESSION:
                self._connection.execute(setting)
            self._connection.commit()  # without this, a later failure would undo the settings
            self._columns = self._connection.execute(_COLUMNS, [self._table_name]).fetchall()
        except psycopg.Error:
            self.close()
            raise InvalidInput(
                f"table {table!r} of schema {schema!r} does not exist, or this user cannot read it. Check "
                "the names."
            ) from None

    def check(self, policy: Policy) -> None:
        refuse_missing_values(policy)
        check_types({name: _POSTGRES_TYPES.get(kind, kind) for name, kind, _ in self._columns}, policy)
        columns = {*policy.columns, policy.unit_column}
        for name, _, deterministic in self._columns:
            if name in columns and not deterministic:
                raise InvalidInput(
                    f"column {name!r} compares some different strings as equal, by its collation. Create a "
                    f'view with "{name}" COLLATE "C" as this column.'
                )

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement without parameters, so that a percent sign in a literal has no special meaning."""
        # Each statement has its own savepoint: if it fails, the next statement still reads the same state.
        try:
            with self._connection.transaction():
                return list(self._connection.execute(text).fetchall())
        except self._error:
            raise EngineFailure from None

    def close(self) -> None:
        self._connection.close()


# Settings that change the meaning of a statement.
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",  # a sum that is too large fails instead of wrapping around
    "spark.sql.parser.escapedStringLiterals": "false",  # a backslash in a literal is written twice
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
}
_SPARK_TYPES = {"string": "VARCHAR", "int": "INTEGER"}


@final  # pragma: no cover - make test-spark
class SparkEngine(_Database):
    """A table, or a view of a data frame, in a Spark session.

    Spark reads the table for every statement, so it must not change while the engine is open.

    Args:
        session: the Spark session.
        table: the name of the table, with its schema if needed: ``clinic.visits``.

    Raises:
        InvalidInput: if there is no such table, or a setting of the session changes what statements mean.
        MissingExtra: if pyspark is not installed.
    """

    product = "Spark"
    _dialect = "spark"
    _digest = "md5(to_json(struct(*)))"
    _half = "CAST(conv(substr(digest, {}, 15), 16, 10) AS DECIMAL(20, 0))"

    def __init__(self, session: SparkSession, table: str) -> None:
        errors = needed("pyspark.errors", "spark", "Asking a table in Spark")
        self._error: type[Exception] = errors.PySparkException
        self._session = session
        for setting, value in _SETTINGS.items():
            actual = session.conf.get(setting)
            if actual != value:
                raise InvalidInput(
                    f"the Spark session has {setting} = {actual}, which would change the results of queries. "
                    f'Call session.conf.set("{setting}", "{value}").'
                )
        super().__init__(table.split("."))
        try:
            self._columns = dict(session.table(self._table_name).dtypes)
        except errors.PySparkException:
            raise InvalidInput(f"Spark has no table {table!r}.") from None

    def check(self, policy: Policy) -> None:
        refuse_missing_values(policy)
        check_types({name: _SPARK_TYPES.get(kind, kind) for name, kind in self._columns.items()}, policy)
        columns = [name for name in (policy.unit_column, *policy.columns) if name is not None]
        for name in columns:
            if " collate " in self._columns[name]:
                raise InvalidInput(
                    f"column {name!r} may compare different strings as equal, by its collation. Cast it to a "
                    "plain string first."
                )

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        from py4j.protocol import Py4JError

        try:
            return [tuple(row) for row in self._session.sql(text).collect()]
        except (self._error, Py4JError):
            raise EngineFailure from None

    def close(self) -> None:
        """Do nothing; the session belongs to the caller."""


# --- DuckDB: frames, Parquet and CSV, read as Arrow tables -------------------------------------------------
#
# The content of a cell neither decides how other cells are read nor makes reading fail. A cell that is not as
# its column declares becomes missing, and its position is recorded for the curator's check.


@dataclass(frozen=True)
class Read:
    """A table that was read; the cells in these places became missing."""

    table: Any  # a pyarrow Table with the policy's columns
    unreadable: Mapping[str, Places]  # by column, cells that are not as the column declares
    mistyped: Mapping[str, Places]  # by column, Python objects of another type


_TEXT = ("VARCHAR", "string")
_TYPES = {
    "number": ("DOUBLE", "double"),
    "integer": ("DOUBLE", "double"),
    "boolean": ("BOOLEAN", "bool"),
    "category": _TEXT,
    "text": _TEXT,
    "date": ("DATE", "date32"),
    "datetime": ("TIMESTAMP", "timestamp[us]"),
}
"""For each kind of column, its type in SQL and in Arrow."""


def _kind(column: str, policy: Policy) -> str:
    """Return the declared kind; the unit column is read as text, whatever is declared."""
    return "text" if column == policy.unit_column else policy.columns[column].kind


def _pyarrow() -> Any:
    return needed("pyarrow", "query", "Asking a data frame or a CSV file")


def _arrow_type(column: str, policy: Policy) -> Any:
    return _pyarrow().type_for_alias(_TYPES[_kind(column, policy)][1])


# --- files -----------------------------------------------------------------------------------------------


def file_table(path: Path, policy: Policy) -> Read:
    pa, columns = _pyarrow(), policy.needed_columns
    schema = pa.schema([(column, _arrow_type(column, policy)) for column in columns])
    unreadable: dict[str, list[NDArray[np.int64]]] = {column: [] for column in columns}
    batches, rows = [], 0
    names = columns or CsvFile(path, (), policy.dialect).header[:1]
    for piece in pieces(path, names, policy.dialect):
        read = {column: _read_cells(piece[column], column, policy) for column in columns}
        for column, (_, places) in read.items():
            unreadable[column].append(places + rows)
        rows += len(next(iter(piece.values())))
        batches.append(pa.record_batch([array for array, _ in read.values()], schema=schema))
    table = pa.Table.from_batches(batches, schema=schema) if columns else _rows_alone(rows)
    return Read(
        table, _places({name: np.concatenate(found) for name, found in unreadable.items() if found}), {}
    )


def _places(rows_of: Mapping[str, NDArray[np.int64]]) -> dict[str, Places]:
    return {column: Places.at(rows) for column, rows in rows_of.items() if len(rows)}


def _read_cells(cells: Cells, column: str, policy: Policy) -> tuple[Any, NDArray[np.int64]]:
    """Return cells as an Arrow array of the declared kind, and the indices of the unreadable cells."""
    pa, kind = _pyarrow(), _kind(column, policy)
    if kind in ("category", "text"):
        declared = () if column not in policy.columns else map(str, policy.columns[column].values or ())
        words = words_of(cells, tuple(declared), missing_words_of(column, policy))
        return pa.array(words, pa.string()), np.empty(0, dtype=np.int64)
    try:
        numbers, places = numbers_of(cells, policy.columns[column], policy.dialect)
    except InvalidInput as problem:
        raise InvalidInput(f"column {column!r}: {problem} Convert it, or correct its declaration.") from None
    lacking = np.isnan(numbers)
    if kind == "boolean":
        return pa.array(numbers == 1.0, pa.bool_(), mask=lacking), places
    if kind in ("date", "datetime"):
        scale, whole = (1.0, pa.int32()) if kind == "date" else (1e6, pa.int64())
        counts = np.round(np.nan_to_num(numbers) * scale).astype(np.int64)
        return pa.array(counts, whole, mask=lacking).cast(_arrow_type(column, policy)), places
    return pa.array(numbers, from_pandas=True), places


def _needs_reading(column: str, arrow_type: Any, policy: Policy) -> bool:
    """Return whether to read a column of this Arrow type cell by cell, such as numbers in strings."""
    types = _pyarrow().types
    string = (
        types.is_string(arrow_type) or types.is_large_string(arrow_type) or types.is_string_view(arrow_type)
    )
    moment = types.is_timestamp(arrow_type)
    read = {
        "number": string,
        "integer": string,
        "boolean": string or types.is_integer(arrow_type) or types.is_floating(arrow_type),
        "date": string or moment,
        "datetime": string or (moment and arrow_type.tz is not None),
    }
    return bool(missing_words_of(column, policy) or read.get(_kind(column, policy)))


def must_be_read(path: Path, policy: Policy) -> bool:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:  # without pyarrow, only types that the engine itself can read are supported
        return False
    try:
        schema = parquet.read_schema(path)
    except (OSError, ArrowException):  # the engine reports the problem
        return False
    columns = [column for column in policy.needed_columns if schema.names.count(column) == 1]
    return any(_needs_reading(column, schema.field(column).type, policy) for column in columns)


# --- data frames -----------------------------------------------------------------------------------------


def arrow_table(data: object, policy: Policy) -> Read:
    """Return the policy's columns of a data frame or Arrow table; numbers are not copied if possible."""
    pa, names, kind = _pyarrow(), policy.needed_columns, kind_of_frame(data)
    if kind == "mapping":
        raise InvalidInput(
            "data must be a table; got a mapping. Pass a data frame, a pyarrow Table or the path of a file."
        )
    check_names(names_of_frame(data), names, "the table")
    frame: Any = data
    rows = len(frame)
    frame = frame.select(names).to_arrow() if kind == "polars" else frame
    columns: dict[str, Any] = {}
    unreadable: dict[str, NDArray[np.int64]] = {}
    mistyped: dict[str, NDArray[np.int64]] = {}
    for column in names:
        cells = _pandas_column(frame[column]) if kind == "pandas" else frame.column(column)
        if cells is None:
            cells, places = _cell_by_cell(frame[column], column, policy)
            texts = np.array([isinstance(frame[column].iloc[at], str) for at in places], dtype=np.bool_)
            unreadable[column], mistyped[column] = places[texts], places[~texts]
        if _needs_reading(column, cells.type, policy):
            cells, places = _read_cells(arrow_cells(cells), column, policy)
            unreadable.setdefault(column, places)
        elif pa.types.is_null(cells.type):  # the column contains only None
            cells = cells.cast(_arrow_type(column, policy))
        columns[column] = cells
    table = pa.table(columns) if columns else _rows_alone(rows)
    return Read(table, _places(unreadable), _places(mistyped))


def _rows_alone(rows: int) -> Any:
    pa = _pyarrow()
    return pa.table({"row": pa.nulls(rows)})


def _pandas_column(series: Any) -> Any:
    pa = _pyarrow()
    if str(series.dtype) == "object":
        return None
    try:
        return pa.chunked_array(pa.array(series, from_pandas=True))
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError):
        return None  # a cell that cannot be converted is of another type


def _cell_by_cell(series: Any, column: str, policy: Policy) -> tuple[Any, NDArray[np.int64]]:
    pa, kind = _pyarrow(), _kind(column, policy)
    cells = series.to_numpy(dtype=object, na_value=None)
    if kind not in ("category", "text"):
        return _read_cells(cells, column, policy)
    read = _as_text if kind == "category" else _as_name
    missing = series.isna().to_numpy()
    values = [None if lacks else read(cell) for cell, lacks in zip(cells, missing, strict=True)]
    readable = np.array([value is not None for value in values], dtype=np.bool_)
    return pa.array(values, pa.string()), np.flatnonzero(~readable & ~missing)


def _as_text(cell: object) -> str | None:
    """Return a string that can be encoded: half of a surrogate pair cannot."""
    is_text = isinstance(cell, str) and cell.encode(errors="ignore").decode() == cell
    return str(cell) if is_text else None


def _as_name(cell: object) -> str | None:
    """Return the identifier of a row's unit as text; None if the cell's type cannot be an identifier."""
    if isinstance(cell, int | np.integer | uuid.UUID | datetime.date) and not isinstance(cell, bool):
        return str(cell)
    return _as_text(cell)


_LOCK = (
    "SET enable_external_access = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET python_enable_replacements = false",
    # Without this, x <= infinity is true for NaN if a row group of a file has statistics, which ignore NaN.
    "SET disabled_optimizers = 'statistics_propagation'",
    "SET enable_progress_bar = false",  # a progress bar would reveal the size of the data
    "SET lock_configuration = true",
)
_IS_LOCKED = """SELECT current_setting('lock_configuration') AND NOT current_setting('enable_external_access')
    AND current_setting('disabled_optimizers') = 'statistics_propagation'"""
_PIECE = 1 << 20


@final
class DuckDBEngine(Engine):
    """A data frame, an Arrow table, or the path of a Parquet or CSV file, or of a folder of Parquet files.

    A CSV file is read once, with the kinds that the policy declares; cells that do not fit become missing. A
    Parquet file is read for every statement, unless it contains numbers or dates as strings. Neither file may
    change while the engine is open.

    Args:
        data: the table, or the path of its file.
        policy: the policy of the data set; only its columns are used. :meth:`check` checks the types, not the
            constructor, because types are often inferred from cells.

    Raises:
        InvalidInput: if the table cannot be read, or lacks a column.
        MissingExtra: if duckdb, or pyarrow for a data frame, is not installed.
    """

    product = "DuckDB"

    def __init__(self, data: object, policy: Policy) -> None:
        duckdb = needed("duckdb", "query", "Asking a private table")
        self._error: type[Exception] = duckdb.Error
        self._connection = duckdb.connect(":memory:")
        self._path = Path(os.fspath(data)).resolve() if isinstance(data, str | os.PathLike) else None
        self._read: Read | None = None
        self._unread: Policy | None = None  # set while a file must still be read cell by cell
        if self._path is None:
            self._register(arrow_table(data, policy))
        else:
            self._attach(self._path, policy)
        # data that do not fit into memory go to a folder outside the working directory
        spill = _text(str(Path(tempfile.gettempdir()) / f"tacit-{uuid.uuid4().hex}"))
        for setting in (f"SET temp_directory = {spill}", *_LOCK):
            self._connection.execute(setting)
        self._stamp = None if self._path is None else _stamp(self._path)

    def _register(self, read: Read) -> None:
        self._read, self._unread = read, None
        try:
            self._connection.register(SOURCE, read.table)
        except self._error:
            types = ", ".join(f"{field.name!r} {field.type}" for field in read.table.schema)
            raise InvalidInput(f"DuckDB has no type for one of the columns: {types}. Convert it.") from None

    def _attach(self, path: Path, policy: Policy) -> None:
        files = _files_of(path)
        if not files and path.is_dir():
            raise InvalidInput(
                f"{str(path)!r} is a folder. Name a file in it, or a folder of .parquet files."
            )
        if not files:
            raise InvalidInput(f"there is no file {str(path)!r}. Check the path.")
        if is_csv(path):
            CsvFile(path, policy.needed_columns, policy.dialect)
            self._unread = policy
            return
        if path.is_file() and path.suffix.lower() != ".parquet":
            raise InvalidInput(
                f"{str(path)!r} is not a table that can be queried. Use a .parquet, .csv or .tsv file; the "
                "last two may end in .gz."
            )
        if strange := [file for file in files if any(letter in str(file) for letter in "*?[]{}")]:
            raise InvalidInput(
                f"the path {str(strange[0])!r} contains one of *?[]{{}}, which are wildcards. Rename the "
                "file."
            )
        if any(must_be_read(file, policy) for file in files):
            if path.is_dir():
                raise InvalidInput(
                    f"the folder {str(path)!r} has numbers or dates as strings, or missing_values, which "
                    "Tacit reads only from a single file. Convert these columns."
                )
            self._unread = policy
            return
        quoted = f"[{', '.join(_text(str(file)) for file in files)}]"
        reading = f"read_parquet({quoted}, hive_partitioning = false)"
        try:
            described = self._connection.execute(f"DESCRIBE SELECT * FROM {reading}").fetchall()
            schemas = [
                self._connection.execute(
                    f"SELECT name, num_children FROM parquet_schema({_text(str(file))})"
                ).fetchall()
                for file in files
            ]
            columns = ", ".join(_column_sql(str(row[0]), str(row[1]), policy) for row in described)
            self._connection.execute(f"CREATE VIEW {SOURCE} AS SELECT {columns} FROM {reading}")
            self._connection.execute(f"SET allowed_paths = {quoted}")
        except self._error:
            raise InvalidInput(
                f"{str(path)!r} cannot be read as Parquet: it is damaged. (DuckDB's message may contain "
                "rows and is not shown.)"
            ) from None
        own, *others = map(_top_names, schemas)
        if any(names != own for names in others):
            raise InvalidInput(
                f"the files of {str(path)!r} have different columns. Write them with the same columns."
            )
        if [str(row[0]) for row in described] != own:  # a renamed column may have the name of another one
            check_names(own, own, repr(str(path)))
            raise InvalidInput(
                f"DuckDB reads some columns of {str(path)!r} under other names. Rename these columns to "
                "plain, distinct names."
            )

    def load(self) -> None:
        """Load a file that is read only once; see :meth:`Engine.load`."""
        if self._unread is not None and self._path is not None:
            self._register(file_table(self._path, self._unread))

    def check(self, policy: Policy) -> None:
        """Check types as in :meth:`Engine.check`; refuse a file that has changed."""
        if self._path is not None and _stamp(self._path) != self._stamp:
            raise InvalidInput(f"{str(self._path)!r} has changed since it was opened. Open it again.")
        if self._unread is None:  # a file that is read cell by cell gets the policy's types
            described = self._connection.execute(f"DESCRIBE {SOURCE}").fetchall()
            check_types({str(row[0]): str(row[1]) for row in described}, policy)

    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        try:
            self.load()
        except MalformedTable:
            raise EngineFailure from None
        return self._fetch(statement.sql("duckdb", exp.to_table(SOURCE)))

    def unreadable(self) -> tuple[Mapping[str, Places], Mapping[str, Places]]:
        self.load()
        return ({}, {}) if self._read is None else (self._read.unreadable, self._read.mistyped)

    def places(self, condition: Any) -> Places:
        """Return places as :meth:`Engine.places` does, with indices: DuckDB preserves the order of rows."""
        self.load()
        number = exp.Window(this=exp.RowNumber()) - exp.Literal.number(1)
        rows = exp.select(alias(condition, "found"), alias(number, "place")).from_(SOURCE)
        select = exp.select(field("place")).from_(rows.subquery("numbered")).where(field("found"))
        text = str(select.sql(dialect="duckdb"))
        return Places.at(np.array([row[0] for row in self._fetch(text)], dtype=np.int64))

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        return _fetched(self._connection, text)

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of the file, or the columns in Arrow's format."""
        if self._path is not None:
            for file in _files_of(self._path):
                yield from _pieces(file)
            return
        assert self._read is not None, "a table is in a file or in memory"
        table = self._read.table
        yield str(table.schema).encode()
        for batch in table.combine_chunks().to_batches(max_chunksize=_PIECE):
            yield batch.serialize().to_pybytes()

    def close(self) -> None:
        self._connection.close()


def _fetched(connection: Any, text: str) -> list[tuple[Any, ...]]:
    import duckdb

    try:
        return list(connection.execute(text).fetchall())
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except duckdb.Error:
        raise EngineFailure from None
    except RuntimeError as problem:  # DuckDB's other form of a Ctrl-C
        raise (KeyboardInterrupt if "interrupt" in str(problem) else EngineFailure) from None


@final
class DuckDBDatabase(_Database):
    """A table or view in the file of a DuckDB database, read in one read-only transaction.

    Args:
        path: the file of the database.
        table: the name of the table.
        schema: the schema that contains the table.

    Raises:
        InvalidInput: if there is no such database or table, or another process writes to it.
        MissingExtra: if duckdb is not installed.
    """

    product = "DuckDB"
    _dialect = "duckdb"
    _digest = "md5(t::VARCHAR)"
    _half = "('0x' || substr(digest, {}, 15))::BIGINT"

    def __init__(self, path: Path | str, table: str, *, schema: str = "main") -> None:
        duckdb = needed("duckdb", "query", "Asking a table in DuckDB")
        super().__init__([schema, table])
        try:
            self._connection = duckdb.connect(os.fspath(path), read_only=True)
            # A process has one instance of a database, whose settings an earlier engine may have locked.
            (locked,) = self._connection.execute(_IS_LOCKED).fetchone()
            for setting in () if locked else _LOCK:
                self._connection.execute(setting)
        except duckdb.Error:
            raise InvalidInput(
                f"{str(path)!r} cannot be opened as a DuckDB database. Check the path, and close programs "
                "that write to it."
            ) from None
        try:
            self._connection.execute("BEGIN")
            self._columns = self._connection.execute(f"DESCRIBE {self._table_name}").fetchall()
        except duckdb.Error:
            self.close()
            raise InvalidInput(f"{str(path)!r} has no table {table!r} in schema {schema!r}.") from None

    def check(self, policy: Policy) -> None:
        refuse_missing_values(policy)
        check_types({str(row[0]): str(row[1]) for row in self._columns}, policy)

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        return _fetched(self._connection, text)

    def close(self) -> None:
        self._connection.close()


def database_at(source: str, table: str | None) -> Engine | None:
    """Return ``table`` (or ``schema.table``) of a database; None if ``source`` is a file or folder."""
    of_postgres = source.startswith(("postgresql:", "postgresql+psycopg:", "postgres:"))
    if not of_postgres and not source.endswith(".duckdb"):
        return None
    if table is None:
        raise InvalidInput(
            "the table of the database is not named. Set --table schema.table, or [data] table in a run file."
        )
    schema, _, name = table.rpartition(".")
    if of_postgres:
        return PostgresEngine(source, name, schema=schema or "public")
    return DuckDBDatabase(source, name, schema=schema or "main")


def _text(value: str) -> str:
    return str(exp.Literal.string(value).sql(dialect="duckdb"))


def _top_names(elements: list[tuple[str, int | None]]) -> list[str]:
    """Return the names of a Parquet file's columns from its schema: the root, then a tree in preorder."""
    names = []
    unread = 0  # the elements of the current column that are still to come
    for name, children in elements[1:]:
        if not unread:
            names.append(str(name))
            unread = 1
        unread += (children or 0) - 1
    return names


def _column_sql(column: str, kind: str, policy: Policy) -> str:
    """Return the SQL for a file's column; a column of only NULL has no type, and gets the declared one."""
    name = str(exp.to_identifier(column, quoted=True).sql(dialect="duckdb"))
    if kind == '"NULL"' and column in policy.needed_columns:
        return f"CAST({name} AS {_TYPES[_kind(column, policy)][0]}) AS {name}"
    return name


def _files_of(path: Path) -> list[Path]:
    """Return the file, or the Parquet files of a folder in the order of their names."""
    return [path] if path.is_file() else sorted(path.glob("*.parquet"))


def _stamp(path: Path) -> tuple[tuple[int, int, int], ...]:
    try:
        states = [file.stat() for file in _files_of(path) or [path]]
    except OSError:
        raise InvalidInput(f"{str(path)!r} cannot be read now. Check the path.") from None
    return tuple((state.st_ino, state.st_size, state.st_mtime_ns) for state in states)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def engine_of(data: object, policy: Policy) -> Engine:
    return data if isinstance(data, Engine) else DuckDBEngine(data, policy)
