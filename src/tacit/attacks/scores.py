"""The scores of a membership attack.  A higher score always means that a record is more likely a member.

The result of every attack is a :class:`Scores`, and every metric is computed from one.  A wrong sign anywhere
therefore shows as an AUC below one half, and is refused.

Letters: n members, m non-members, u distinct scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

from tacit.errors import InvalidInput, check_real

Array: TypeAlias = NDArray[np.float64]

_FEWEST_FALSE_POSITIVES = 5  # a rate is meaningful only with this many expected false positives
_SWAPPED = 1e-6  # level of the test for swapped files, which must not reject an attack that is only useless


def check_enough(
    false_positive_rate: float, non_members: int, *, fewest: int = _FEWEST_FALSE_POSITIVES
) -> None:
    """Refuse a false-positive rate that needs more than this number of non-members."""
    check_real("false_positive_rate", false_positive_rate, low=0.0, high=1.0, open_low=True)
    if non_members < fewest / false_positive_rate * (1.0 - 1e-12):
        raise InvalidInput(
            f"a false-positive rate of {false_positive_rate:g} needs {fewest}/{false_positive_rate:g} = "
            f"{int(np.ceil(fewest / false_positive_rate))} non-members; there are {non_members}. Give more "
            "non-members, or choose a larger rate."
        )


@dataclass(frozen=True, eq=False)
class Roc:
    """The rates of every threshold.  A record is called a member if its score is at least ``thresholds[i]``.

    The arrays are of shape (u + 1,).  The first threshold calls no record a member, and the last is the
    lowest score.  Records with equal scores get the same answer, so no threshold splits a tie.

    >>> roc = Scores(members=[2.0, 3.0], non_members=[1.0, 2.0]).roc()
    >>> roc.true_positive_rates.tolist(), roc.false_positive_rates.tolist()
    ([0.0, 0.5, 1.0, 1.0], [0.0, 0.0, 0.5, 1.0])
    """

    thresholds: Array
    false_positive_rates: Array
    true_positive_rates: Array


@final
@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of n records that were in the training set and of m records that were not.

    Raises:
        InvalidInput: if a class is empty, or a score is NaN or infinite.

    >>> scores = Scores(members=[2.0, 3.0, 3.0], non_members=[1.0, 2.0])
    >>> round(scores.auc(), 6)
    0.916667
    >>> scores.true_positive_rate(0.5, fewest=1)
    1.0
    """

    members: Array
    non_members: Array

    def __init__(self, members: ArrayLike, non_members: ArrayLike) -> None:
        object.__setattr__(self, "members", _checked("members", members))
        object.__setattr__(self, "non_members", _checked("non-members", non_members))

    @staticmethod
    def of(values: ArrayLike, is_member: ArrayLike) -> Scores:
        """Make scores from the values of n + m records, with one boolean for each record.

        Raises:
            InvalidInput: if the lengths differ, or ``is_member`` is not boolean.

        >>> Scores.of([0.1, 0.9], [False, True]).members.tolist()
        [0.9]
        """
        score, member = np.asarray(values, dtype=np.float64), np.asarray(is_member)
        if member.dtype != np.bool_ or score.shape != member.shape:
            raise InvalidInput(
                "is_member must hold one boolean per score; got "
                f"{member.dtype} of shape {member.shape} for scores of shape {score.shape}."
            )
        return Scores(score[member], score[~member])

    @property
    def constant(self) -> bool:
        """Whether all records have the same score, so that the attack cannot distinguish any."""
        first = self.members[0]
        return bool((self.members == first).all() and (self.non_members == first).all())

    def roc(self) -> Roc:
        """Compute the rates at every threshold.  :meth:`auc` is the area below lines between the points."""
        values = np.unique(np.concatenate([self.members, self.non_members]))[::-1]
        return Roc(
            np.concatenate([[np.inf], values]),
            np.concatenate([[0.0], _share_at_least(self.non_members, values)]),
            np.concatenate([[0.0], _share_at_least(self.members, values)]),
        )

    def auc(self) -> float:
        """Compute the probability that a random member scores higher than a random non-member.

        Ties count half, so that the AUC of constant scores is one half.
        """
        ordered = np.sort(self.non_members)
        below = np.searchsorted(ordered, self.members, side="left")
        not_above = np.searchsorted(ordered, self.members, side="right")
        return float((below.mean() + not_above.mean()) / 2.0 / ordered.size)

    def threshold(self, false_positive_rate: float) -> float:
        """Return the lowest threshold with at most this false positive rate.

        The false positive rate is the share of non-members that score at least the threshold.

        If no score is such a threshold, the result is infinite, and no record is called a member.
        """
        check_real("false_positive_rate", false_positive_rate, low=0.0, high=1.0)
        roc = self.roc()
        return float(roc.thresholds[roc.false_positive_rates <= false_positive_rate][-1])

    def true_positive_rate(
        self, false_positive_rate: float, *, fewest: int = _FEWEST_FALSE_POSITIVES
    ) -> float:
        """Return the largest share of members found by a threshold with at most this false-positive rate.

        It is a point of the ROC, without interpolation.  The threshold is chosen on these same scores.  For
        an interval see :func:`tacit.attacks.operating_point`.

        Args:
            fewest: the smallest number of expected false positives at which the rate is meaningful.

        Raises:
            InvalidInput: if there are too few non-members, or all scores are equal.
        """
        self.check_enough(false_positive_rate, fewest=fewest)
        self.check_not_constant()
        roc = self.roc()
        return float(roc.true_positive_rates[roc.false_positive_rates <= false_positive_rate][-1])

    def split(self, rng: np.random.Generator) -> tuple[Scores, Scores]:
        """Split into two random halves, each with half of the members and half of the non-members.

        Raises:
            InvalidInput: if a class has fewer than two records.
        """
        if min(self.members.size, self.non_members.size) < 2:
            raise InvalidInput(
                f"a split needs 2 members and 2 non-members; got {self.members.size} and "
                f"{self.non_members.size}."
            )
        n, m = rng.permutation(self.members), rng.permutation(self.non_members)
        a, b = n.size // 2, m.size // 2
        return Scores(n[:a], m[:b]), Scores(n[a:], m[b:])

    # --- refusals -----------------------------------------------------------------------------------------

    def check_enough(self, false_positive_rate: float, *, fewest: int = _FEWEST_FALSE_POSITIVES) -> None:
        """Refuse a false-positive rate that needs more non-members than there are."""
        check_enough(false_positive_rate, self.non_members.size, fewest=fewest)

    def check_not_constant(self) -> None:
        """Refuse scores that are all equal."""
        if self.constant:
            raise InvalidInput(
                f"all {self.members.size + self.non_members.size} scores equal {self.members[0]:g}: the "
                "attack distinguishes no records, so no threshold means anything. Is a constant column "
                "read as the score?"
            )

    def check_direction(self) -> None:
        """Refuse scores that are significantly *lower* for members, as with swapped files or a wrong sign.

        The test is the Mann-Whitney test (1947), with the null variance corrected for ties, at level 1e-6.

        >>> Scores(range(100), range(50, 150)).check_direction()
        Traceback (most recent call last):
            ...
        tacit.errors.InvalidInput: members score lower than non-members: AUC 0.125, ...
        """
        n, m = self.members.size, self.non_members.size
        _, ties = np.unique(np.concatenate([self.members, self.non_members]), return_counts=True)
        total = n + m
        tied = float((ties.astype(np.float64) ** 3 - ties).sum()) / (total * (total - 1.0))
        variance = n * m / 12.0 * (total + 1.0 - tied)
        if variance <= 0.0:
            return
        z = (self.auc() - 0.5) * n * m / np.sqrt(variance)
        if float(ndtr(z)) < _SWAPPED:
            raise InvalidInput(
                f"members score lower than non-members: AUC {self.auc():.3f}, {-z:.1f} standard deviations "
                "below one half. Are the member and non-member files swapped, or does a lower score mean "
                "member? A higher score must mean: more likely a member."
            )


def _checked(name: str, values: ArrayLike) -> Array:
    scores = np.array(values, dtype=np.float64)
    if scores.ndim != 1:
        raise InvalidInput(f"the scores of {name} must be one row of numbers; got shape {scores.shape}.")
    if scores.size == 0:
        raise InvalidInput(f"there are no scores of {name}: an attack needs records of both kinds.")
    wrong = np.flatnonzero(~np.isfinite(scores))
    if wrong.size:
        raise InvalidInput(
            f"{wrong.size} of {scores.size} scores of {name} are not finite; the first is "
            f"{scores[wrong[0]]}, at position {wrong[0]}. Does the model's loss overflow on these records?"
        )
    scores.setflags(write=False)
    return scores


def _share_at_least(scores: Array, thresholds: Array) -> Array:
    """Return the share of ``scores`` that is at least each threshold, in the shape of ``thresholds``."""
    return (scores.size - np.searchsorted(np.sort(scores), thresholds, side="left")) / scores.size
