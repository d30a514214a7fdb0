"""A table in PostgreSQL: the server aggregates, and integers come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

from tacit.errors import InvalidInput, MissingExtra
from tacit.ledger.policy import Policy
from tacit.queries.engines.base import Engine, EngineFailure
from tacit.queries.engines.duckdb import check_types
from tacit.queries.engines.reading import refuse_missing_values
from tacit.queries.expressions import syntax
from tacit.queries.statements import Statement

if TYPE_CHECKING:
    from psycopg import Connection

# Settings that change the meaning of a statement, fixed whatever the server's defaults are.
_SESSION = (
    "SET search_path = pg_catalog",  # no function or operator but the server's own
    "SET standard_conforming_strings = on",  # a backslash in a literal is a backslash
    "SET client_encoding = 'UTF8'",
    "SET DateStyle = 'ISO, YMD'",
)
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL), coalesce(c.collisdeterministic, true)
FROM pg_attribute AS a LEFT JOIN pg_collation AS c ON c.oid = a.attcollation
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TYPES = {"double precision": "DOUBLE", "real": "FLOAT", "numeric": "DECIMAL"}


@final
class PostgresEngine(Engine):
    """A table or view in PostgreSQL, read in one read-only transaction.

    All statements of one engine read one state of the table, that of the first statement.  Open another
    engine to see later rows; close this one, for it keeps the server from cleaning up behind it.

    Args:
        url: of the database, as ``postgresql://user@host/database``.
        table: the name of the table, exactly: case counts, and no character has a special meaning.
        schema: the schema that it is in.

    Raises:
        InvalidInput: no connection, or no such table.
        MissingExtra: psycopg is not installed.
    """

    def __init__(self, url: str, table: str, *, schema: str = "public") -> None:
        try:
            import psycopg
        except ImportError:
            raise MissingExtra("psycopg", "postgres", "Asking a table in PostgreSQL") from None
        self._error: type[Exception] = psycopg.Error
        exp = syntax()
        names = {"this": table, "db": schema}
        parts = {part: exp.to_identifier(name, quoted=True) for part, name in names.items()}
        self._table = exp.Table(**parts)
        self._written = str(self._table.sql(dialect="postgres"))
        try:
            self._connection: Connection[Any] = psycopg.connect(url.replace("+psycopg:", ":", 1))
        except psycopg.Error as problem:
            raise InvalidInput(f"PostgreSQL cannot be reached: {str(problem).strip()}.") from None
        self._connection.read_only = True
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        try:
            for setting in _SESSION:
                self._connection.execute(setting)
            self._connection.commit()  # or a failure later would undo the settings
            self._columns = self._connection.execute(_COLUMNS, [self._written]).fetchall()
        except psycopg.Error:
            self.close()
            raise InvalidInput(
                f"there is no table {table!r} in the schema {schema!r}, or no right to it."
            ) from None

    @property
    def name(self) -> str:
        """PostgreSQL and its version."""
        version = self._connection.info.server_version
        return f"PostgreSQL {version // 10_000}.{version % 10_000}, one read-only snapshot"

    def check(self, policy: Policy) -> None:
        """See :meth:`Engine.check`."""
        refuse_missing_values(policy)
        check_types({name: _TYPES.get(kind, kind) for name, kind, _ in self._columns}, policy)
        wanted = {*policy.columns, policy.unit_column}
        for name, _, deterministic in self._columns:
            if name in wanted and not deterministic:
                raise InvalidInput(
                    f"column {name!r} has a collation under which different texts are equal. Use a view that "
                    f'has it as "{name}" COLLATE "C".'
                )

    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        """See :meth:`Engine.rows`."""
        return self._fetch(statement.sql("postgres", self._table))

    def content(self) -> Iterator[bytes]:
        """Columns, number of rows and the sum of the digests of all rows, independent of their order."""
        yield repr(self._columns).encode()
        halves = ", ".join(f"sum(('x' || substr(digest, {start}, 15))::bit(60)::bigint)" for start in (1, 16))
        digests = f"SELECT md5(t::text) AS digest FROM {self._written} AS t"
        yield repr(self._fetch(f"SELECT count(*), {halves} FROM ({digests}) AS d")).encode()

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        """Run without parameters, so that a percent sign in a literal is one.

        Each statement is a savepoint: after one that fails, the next reads the same state.
        """
        try:
            with self._connection.transaction():
                return list(self._connection.execute(text).fetchall())
        except self._error:
            raise EngineFailure from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
