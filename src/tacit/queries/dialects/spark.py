"""A table that Spark reads: the cluster aggregates, and integers come back."""

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
    from pyspark.sql import SparkSession

# Settings that change the meaning of a statement.
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",  # a sum that is too large fails; it does not wrap round
    "spark.sql.parser.escapedStringLiterals": "false",  # a backslash in a literal is written twice
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
}
_TYPES = {"string": "VARCHAR", "int": "INTEGER"}


@final
class SparkEngine(Engine):
    """A table, or a view of a data frame, in a Spark session.

    Spark reads the table anew for every statement; it must not change while it is asked.

    Args:
        session: the Spark session.
        table: the name of the table, with the schema before it if need be: ``clinic.visits``.

    Raises:
        InvalidInput: no such table, or settings of the session under which a statement means something else.
        MissingExtra: pyspark is not installed.
    """

    def __init__(self, session: SparkSession, table: str) -> None:
        try:
            from pyspark.errors import PySparkException
        except ImportError:
            raise MissingExtra("pyspark", "spark", "Asking a table in Spark") from None
        self._error: type[Exception] = PySparkException
        self._session = session
        for setting, value in _SETTINGS.items():
            found = session.conf.get(setting)
            if found != value:
                raise InvalidInput(
                    f"the Spark session has {setting} = {found}; it must be {value}, or statements mean "
                    f'something else. Set it with session.conf.set("{setting}", "{value}").'
                )
        exp = syntax()
        names = [exp.to_identifier(part, quoted=True) for part in reversed(table.split("."))]
        self._table = exp.Table(**dict(zip(("this", "db", "catalog"), names, strict=False)))
        self._written = str(self._table.sql(dialect="spark"))
        try:
            self._columns: dict[str, str] = dict(session.table(self._written).dtypes)
        except PySparkException:
            raise InvalidInput(f"Spark has no table {table!r}.") from None

    @property
    def name(self) -> str:
        """Spark and its version."""
        return f"Spark {self._session.version}"

    def check(self, policy: Policy) -> None:
        """See :meth:`Engine.check`."""
        refuse_missing_values(policy)
        check_types({name: _TYPES.get(kind, kind) for name, kind in self._columns.items()}, policy)
        wanted = [name for name in (policy.unit_column, *policy.columns) if name is not None]
        for name in wanted:
            if " collate " in self._columns[name]:
                raise InvalidInput(
                    f"column {name!r} has a collation under which different texts may be equal. Cast it to a "
                    "plain string first."
                )
            if sum(found.lower() == name.lower() for found in self._columns) > 1:
                raise InvalidInput(
                    f"the table has another column that is called {name!r} but for the case of its letters, "
                    "and Spark cannot tell them apart. Rename one."
                )

    def rows(self, statement: Statement) -> list[tuple[Any, ...]]:
        """See :meth:`Engine.rows`."""
        return self._fetch(statement.sql("spark", self._table))

    def content(self) -> Iterator[bytes]:
        """Columns, number of rows and the sum of the digests of all rows, independent of their order."""
        yield repr(self._columns).encode()
        halves = ", ".join(
            f"sum(CAST(conv(substr(digest, {start}, 15), 16, 10) AS DECIMAL(20, 0)))" for start in (1, 16)
        )
        digests = f"SELECT md5(to_json(struct(*))) AS digest FROM {self._written}"
        yield repr(self._fetch(f"SELECT count(*), {halves} FROM ({digests})")).encode()

    def _fetch(self, text: str) -> list[tuple[Any, ...]]:
        from py4j.protocol import Py4JError

        try:
            return [tuple(row) for row in self._session.sql(text).collect()]
        except (self._error, Py4JError):
            raise EngineFailure from None

    def close(self) -> None:
        """Nothing is held; the session belongs to whoever made it."""
