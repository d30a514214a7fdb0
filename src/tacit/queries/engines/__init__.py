"""Where are the rows? In an engine, which runs statements over them and returns integers.

* ``base``: the interface of engines.
* ``duckdb``: tables in memory and in files.
* ``reading``: data frames, Arrow tables and CSV files in the types of the policy.
"""

from tacit.queries.engines.base import Engine, EngineFailure

__all__ = ["Engine", "EngineFailure"]
