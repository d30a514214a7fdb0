"""How each record is kept apart from the others: the pass under vmap, and what models may do in it."""
