"""Where the rows are: an engine runs statements over them and hands back integers."""

from tacit.queries.engines.base import Engine, EngineFailure

__all__ = ["Engine", "EngineFailure"]
