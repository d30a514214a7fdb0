"""Tables in PostgreSQL and Spark, which run the same statements in their dialects of SQL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, final

from tacit.errors import InvalidInput, needed
from tacit.ledger.policy import Policy
from tacit.queries.arrow import refuse_missing_values
from tacit.queries.engines import Engine, EngineFailure, check_types
from tacit.queries.expressions import exp
from tacit.queries.statements import Statement

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import SparkSession


class _Database(Engine):
    """A table in a database that computes the digests of the table's rows; the base class of both engines."""

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
