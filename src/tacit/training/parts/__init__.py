"""Parts that act in the steps of a session: charges, canaries, averaged weights, checks, correlated noise."""
