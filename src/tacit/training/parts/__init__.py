"""Parts that act in the steps of a session: charges, canaries, averages, checks, correlated noise."""
