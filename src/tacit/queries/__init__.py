"""Private queries over tables: counts, sums, means, quantiles, groups, in Python and in SQL."""

__all__: list[str] = []
