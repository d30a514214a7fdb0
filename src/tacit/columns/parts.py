"""Which parts of a date are features by themselves? Weekday, month and hour, by the calendar alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PART_NAMES: dict[str, tuple[str, ...]] = {
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "month": (
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
        "November", "December",
    ),
    "hour": tuple(f"{hour:02}" for hour in range(24)),
}  # fmt: skip
"""The values of each part, in the order of their numbers."""


def codes_of_part(part: str, kind: str, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The number of the part of each moment; 0 where it is missing.

    >>> codes_of_part("weekday", "date", np.array([0.0, 1.0])).tolist()  # Thursday, 1 January 1970
    [3, 4]
    """
    unit = "D" if kind == "date" else "s"
    moments = np.floor(np.nan_to_num(values)).astype(np.int64).astype(f"datetime64[{unit}]")
    days = moments.astype("datetime64[D]")
    match part:
        case "weekday":
            return (days.astype(np.int64) + 3) % 7
        case "month":
            return days.astype("datetime64[M]").astype(np.int64) % 12
        case _:
            return moments.astype("datetime64[h]").astype(np.int64) % 24
