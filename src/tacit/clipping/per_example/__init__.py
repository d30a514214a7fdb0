"""Rules that compute norms and weighted sums of per-record gradients, one file per family of layers."""
