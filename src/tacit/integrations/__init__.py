"""Tacit inside other libraries: :mod:`tacit.integrations.sklearn`."""

__all__: list[str] = []
