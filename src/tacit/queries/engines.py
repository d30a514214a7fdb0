"""The interface of engines, their one error after a charge, and tables in PostgreSQL and Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from tacit.columns.reading import declared_missing
from tacit.columns.tables import check_names
from tacit.errors import InvalidInput, TacitError, needed
from tacit.ledger.policy import Policy
from tacit.queries.statements import SOURCE, Statement, exp

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
    """An engine failed on a statement, for a reason that is not shown.

    The message is always the same: the reason may depend on the data, and then it would be an answer without
    noise.
    """

    def __init__(self) -> None:
        super().__init__(
            "The engine could not compute the answer. The reason may depend on the data and is not shown; "
            "the charge stays. The curator can run the statement on the data to see it."
        )


@dataclass(frozen=True)
class Places:
    """The rows that the curator's check finds; they are confidential.

    Attributes:
        count: the number of rows.
        rows: their indices, from 0; None for a database, where rows have no order.
    """

    count: int
    rows: NDArray[np.int64] | None

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

    @abstractmethod
    def check(self, policy: Policy) -> None:
        """Refuse a table that lacks a column of the policy, or has a column whose type does not fit its kind.

        This reads only the schema, before anything is charged.

        Raises:
            InvalidInput: if a column is absent or does not fit; the message names it.
        """

    @abstractmethod
    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        """Run a statement, and return the keys and integers of every group, without noise.

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
        """Read the file now if it is to be read only once, before any charge; a second call does nothing.

        Raises:
            MalformedTable: if the file's rows do not form a table.
        """
        return

    def unreadable(self) -> tuple[Mapping[str, Places], Mapping[str, Places]]:
        """Return the unreadable cells and the objects of another type, by column; both count as missing.

        Raises:
            MalformedTable: if the file's rows do not form a table.
        """
        return {}, {}

    @abstractmethod
    def content(self) -> Iterable[bytes]:
        """Return the content as bytes, for its keyed fingerprint; different bytes are another version."""

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
                f"the unit column {policy.unit_column!r} cannot be of type {kind}: one unit may be written "
                "in several forms, and count several times. Convert it to a number or a text, such as in "
                "a view."
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
                f"column {name!r} is declared {article} {column.kind}, but the table has it as "
                f"{types[name]}. Convert the column, or declare what it is."
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
    """Refuse a policy that declares words for missing values, which a database cannot apply."""
    if columns := [column for column in policy.needed_columns if missing_words_of(column, policy)]:
        name, word = columns[0], missing_words_of(columns[0], policy)[0]
        raise InvalidInput(
            f"column {name!r} has missing_values, which a database cannot apply. Query a view with "
            f"NULLIF(\"{name}\", '{word}') in its place, and delete missing_values from the policy."
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
    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement."""

    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        """See :meth:`Engine.rows`."""
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

    All statements of one engine read the table as it was at the first statement. To see later rows, open
    another engine and close this one: an open transaction keeps the server from cleaning up.

    Args:
        url: the address of the database, such as ``postgresql://user@host/database``.
        table: the exact, case-sensitive name of the table. No character in it has a special meaning.
        schema: the schema that contains the table.

    Raises:
        InvalidInput: if there is no connection, or no such table.
        MissingExtra: if psycopg is not installed.
    """

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
            raise InvalidInput(f"PostgreSQL cannot be reached: {str(problem).strip()}.") from None
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
                f"table {table!r} of schema {schema!r} does not exist or may not be read."
            ) from None

    def check(self, policy: Policy) -> None:
        """See :meth:`Engine.check`."""
        refuse_missing_values(policy)
        check_types({name: _POSTGRES_TYPES.get(kind, kind) for name, kind, _ in self._columns}, policy)
        columns = {*policy.columns, policy.unit_column}
        for name, _, deterministic in self._columns:
            if name in columns and not deterministic:
                raise InvalidInput(
                    f"column {name!r} has a collation under which different texts are equal. Use a view that "
                    f'has it as "{name}" COLLATE "C".'
                )

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement without parameters, so that a percent sign in a literal has no special meaning.

        Each statement has its own savepoint: if it fails, the next statement still reads the same state.
        """
        try:
            with self._connection.transaction():
                return list(self._connection.execute(text).fetchall())
        except self._error:
            raise EngineFailure from None

    def close(self) -> None:
        """Close the connection."""
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

    Spark reads the table again for every statement, so the table must not change meanwhile.

    Args:
        session: the Spark session.
        table: the name of the table, with its schema if needed: ``clinic.visits``.

    Raises:
        InvalidInput: if there is no such table, or the session's settings change the meaning of statements.
        MissingExtra: if pyspark is not installed.
    """

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
                    f"the Spark session has {setting} = {actual}; it must be {value}, or statements mean "
                    f'something else. Set it with session.conf.set("{setting}", "{value}").'
                )
        super().__init__(table.split("."))
        try:
            self._columns = dict(session.table(self._table_name).dtypes)
        except errors.PySparkException:
            raise InvalidInput(f"Spark has no table {table!r}.") from None

    def check(self, policy: Policy) -> None:
        """See :meth:`Engine.check`."""
        refuse_missing_values(policy)
        check_types({name: _SPARK_TYPES.get(kind, kind) for name, kind in self._columns.items()}, policy)
        columns = [name for name in (policy.unit_column, *policy.columns) if name is not None]
        for name in columns:
            if " collate " in self._columns[name]:
                raise InvalidInput(
                    f"column {name!r} has a collation under which different texts may be equal. Cast it to "
                    "a plain string first."
                )

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        from py4j.protocol import Py4JError

        try:
            return [tuple(row) for row in self._session.sql(text).collect()]
        except (self._error, Py4JError):
            raise EngineFailure from None

    def close(self) -> None:
        """Do nothing; the session belongs to the caller."""
