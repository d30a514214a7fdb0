"""Tables in memory and in files that DuckDB reads: pandas, Polars, Arrow, Parquet and CSV.

Each table has a separate in-memory connection, which is locked before the first statement. From then on it
can read only the named file. It cannot use the network, extensions or Python variables, or change these
settings.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tacit.columns.names import check_names
from tacit.columns.tables import CsvFile, MalformedTable, is_csv
from tacit.errors import InvalidInput, needed
from tacit.ledger.policy import Policy
from tacit.queries.arrow import Read, arrow_table, file_table, must_be_read, sql_type
from tacit.queries.engines import Engine, EngineFailure, Places, check_types
from tacit.queries.expressions import alias, exp, field
from tacit.queries.statements import SOURCE, Statement

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
_PIECE = 1 << 20


@final
class DuckDBEngine(Engine):
    """A data frame, an Arrow table, or the path of a Parquet or CSV file.

    A CSV file is read once, as the kinds that the policy declares. Cells that do not fit become missing. A
    Parquet file is read again for every statement, unless it contains numbers or dates as texts. Neither file
    may change while the engine is open.

    Args:
        data: the table, or the path of its file.
        policy: the policy of the data set; only its columns are used. The constructor does not check types,
            as they are often inferred from cells; :meth:`check` does.

    Raises:
        InvalidInput: if the table cannot be read, or lacks a column.
        MissingExtra: if duckdb, or pyarrow for a data frame, is not installed.
    """

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
        for setting in (f"SET temp_directory = {_text(_spill())}", *_LOCK):
            self._connection.execute(setting)
        self._stamp = None if self._path is None else _stamp(self._path)

    def _register(self, read: Read) -> None:
        self._read, self._unread = read, None
        try:
            self._connection.register(SOURCE, read.table)
        except self._error:
            types = ", ".join(f"{field.name!r} {field.type}" for field in read.table.schema)
            raise InvalidInput(
                f"DuckDB has no type for a column of the table: {types}. Convert it."
            ) from None

    def _attach(self, path: Path, policy: Policy) -> None:
        if not path.is_file():
            if path.is_dir():
                raise InvalidInput(f"{str(path)!r} is a folder. Name a file in it.")
            raise InvalidInput(f"there is no file {str(path)!r}. Check the path.")
        if is_csv(path):
            CsvFile(path, policy.needed_columns, policy.dialect)
            self._unread = policy
            return
        if path.suffix.lower() != ".parquet":
            raise InvalidInput(
                f"{str(path)!r} is not a table that can be queried. Give a .parquet, .csv or .tsv file; the "
                "last two may end in .gz."
            )
        if any(letter in str(path) for letter in "*?[]{}"):
            raise InvalidInput(
                f"the path {str(path)!r} contains one of *?[]{{}}, which mark a pattern. Rename the file."
            )
        if must_be_read(path, policy):
            self._unread = policy
            return
        quoted = _text(str(path))
        reading = f"read_parquet({quoted}, hive_partitioning = false)"
        try:
            described = self._connection.execute(f"DESCRIBE SELECT * FROM {reading}").fetchall()
            elements = self._connection.execute(
                f"SELECT name, num_children FROM parquet_schema({quoted})"
            ).fetchall()
            columns = ", ".join(_column_sql(str(row[0]), str(row[1]), policy) for row in described)
            self._connection.execute(f"CREATE VIEW {SOURCE} AS SELECT {columns} FROM {reading}")
            self._connection.execute(f"SET allowed_paths = [{quoted}]")
        except self._error:
            raise InvalidInput(
                f"{str(path)!r} cannot be read as Parquet: it is damaged. (DuckDB's message may hold rows "
                "and is not shown.)"
            ) from None
        own = _top_names(elements)
        if [str(row[0]) for row in described] != own:  # a renamed column may have the name of another one
            check_names(own, own, repr(str(path)))
            raise InvalidInput(
                f"DuckDB changes names of columns in {str(path)!r}. Rename them to plain, different names."
            )

    def load(self) -> None:
        """Read a file if that is needed; see :meth:`Engine.load`."""
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
        """See :meth:`Engine.rows`."""
        try:
            self.load()
        except MalformedTable:
            raise EngineFailure from None
        return self._fetch(statement.sql("duckdb", exp.to_table(SOURCE)))

    def unreadable(self) -> tuple[Mapping[str, Places], Mapping[str, Places]]:
        """See :meth:`Engine.unreadable`."""
        self.load()
        if self._read is None:
            return {}, {}
        return _by_column(self._read.unreadable), _by_column(self._read.mistyped)

    def places(self, condition: Any) -> Places:
        """Return places as :meth:`Engine.places` does, with indices, as DuckDB keeps the order of rows."""
        self.load()
        number = exp.Window(this=exp.RowNumber()) - exp.Literal.number(1)
        rows = exp.select(alias(condition, "found"), alias(number, "place")).from_(SOURCE)
        select = exp.select(field("place")).from_(rows.subquery("numbered")).where(field("found"))
        text = str(select.sql(dialect="duckdb"))
        return Places.at(np.array([row[0] for row in self._fetch(text)], dtype=np.int64))

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        try:
            return list(self._connection.execute(text).fetchall())
        except self._error:
            raise EngineFailure from None
        except RuntimeError as problem:  # DuckDB's form of a Ctrl-C
            raise (KeyboardInterrupt if "interrupt" in str(problem) else EngineFailure) from None

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of the file, or the columns in Arrow's format."""
        if self._path is not None:
            yield from _pieces(self._path)
            return
        assert self._read is not None, "a table is in a file or in memory"
        table = self._read.table
        yield str(table.schema).encode()
        for batch in table.combine_chunks().to_batches(max_chunksize=_PIECE):
            yield batch.serialize().to_pybytes()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


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
        return f"CAST({name} AS {sql_type(column, policy)}) AS {name}"
    return name


def _spill() -> str:
    """Return DuckDB's folder for data that do not fit into memory; it is not in the working directory."""
    return str(Path(tempfile.gettempdir()) / f"tacit-{uuid.uuid4().hex}")


def _by_column(rows_of: Mapping[str, NDArray[np.int64]]) -> dict[str, Places]:
    return {column: Places.at(rows) for column, rows in rows_of.items()}


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        raise InvalidInput(f"{str(path)!r} cannot be read now. Check the path.") from None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
