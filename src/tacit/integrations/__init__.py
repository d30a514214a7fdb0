"""Tacit inside other libraries."""

__all__: list[str] = []
