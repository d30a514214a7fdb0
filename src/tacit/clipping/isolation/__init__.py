"""Isolation of records: the pass under vmap, and the checks of what models do in it."""
