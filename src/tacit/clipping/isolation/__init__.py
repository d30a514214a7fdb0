"""Isolation of records: the pass under vmap, and what models may do in it."""
