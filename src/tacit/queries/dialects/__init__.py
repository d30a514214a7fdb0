"""Tables past one machine: the same trees in the SQL of PostgreSQL and Spark; only integers come back.

* ``postgres``: a table in PostgreSQL.
* ``spark``: a table that Spark reads.
"""

from tacit.queries.dialects.postgres import PostgresEngine
from tacit.queries.dialects.spark import SparkEngine

__all__ = ["PostgresEngine", "SparkEngine"]
