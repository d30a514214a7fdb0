"""The result of an audit, as data and as sentences that also say what the result does not mean."""

from __future__ import annotations

from dataclasses import dataclass

AUDIT_LEVEL = 1e-3
"""The largest probability that any test of one audit contradicts a promise that is kept."""


@dataclass(frozen=True)
class AuditResult:
    """A lower bound on what a run reveals.

    ``eps_lower`` is a lower bound on epsilon at ``delta`` with probability ``confidence``.  If ``family`` is
    not None, this bound assumes a mechanism *of that family*, and ``eps_lower_any`` is the bound for any
    mechanism.  The run is not mu-GDP for any mu below ``mu_lower``.  It behaves as if its noise multiplier
    were at most ``noise_at_most``.  ``canaries`` is the number of planted records, or of runs or released
    numbers that were compared.  ``claimed_eps`` and ``claim_rejected`` are None if no claim was tested.

    **Guarantee**

    * ``claim_rejected`` is True for a true claim with probability at most 1 - ``confidence``.
    * All bounds of one result hold together with probability ``confidence``, if the mechanism is of the
      family that a bound assumes.
    """

    method: str
    canaries: int
    confidence: float
    delta: float
    eps_lower: float
    eps_lower_any: float
    family: str | None = None
    mu_lower: float | None = None
    noise_at_most: float | None = None
    claimed_eps: float | None = None
    claim_rejected: bool | None = None
    suspected: bool | None = None
    """Whether the first stage of an audit in two stages rejected the claim, at ``confidence``.  In such an
    audit, ``claim_rejected`` is the verdict of both stages, and the probability that any test of the audit
    errs is at most :data:`AUDIT_LEVEL`."""

    def sentence(self) -> str:
        """Write the result in sentences: the verdict on the claim, if one was tested, and then the bound.

        >>> print(AuditResult("claim test", 1000, 0.95, 1e-5, 5.07, 3.1, "Gaussian noise", claimed_eps=6.33,
        ...                   claim_rejected=False).sentence())
        1,000 trials, claim test: the claim of 6.33 is not contradicted. With 95% confidence epsilon is at
        least 5.07 at delta 1e-05, given Gaussian noise (at least 3.10 for any mechanism). A small bound means
        a weak attack, not safety.
        """
        assumption = (
            ""
            if self.family is None
            else f", given {self.family} (at least {self.eps_lower_any:.2f} for any mechanism)"
        )
        verdict = ""
        if self.claim_rejected is not None:
            claim = "the claim" if self.claimed_eps is None else f"the claim of {self.claimed_eps:.2f}"
            verdict = f"{claim} is {self.judgement()} "
        by = "By the first test alone, with" if self.unconfirmed else "With" if verdict else "with"
        words = (
            f"{self.canaries:,} trials, {self.method}: {verdict}{by} {100 * self.confidence:g}% confidence "
            f"epsilon is at least {self.eps_lower:.2f} at delta {self.delta:g}{assumption}."
        )
        if self.noise_at_most is not None:
            words += f" The run behaves as if its noise multiplier were at most {self.noise_at_most:.3g}."
        return f"{words} A small bound means a weak attack, not safety."

    @property
    def unconfirmed(self) -> bool:
        """Whether the first stage rejected the claim, and the second did not confirm this."""
        return bool(self.suspected) and not self.claim_rejected

    def judgement(self) -> str:
        """Write whether the audit contradicts the claim, and how often a test does so by chance.

        >>> result = AuditResult("claim test", 9, 0.95, 1e-5, 5.0, 3.1, claim_rejected=False, suspected=True)
        >>> print(result.judgement())
        not contradicted: a second test did not confirm the first, which was above the claim, as one test in
        20 is by chance.
        """
        once, both = round(1 / (1 - self.confidence)), f"{round(1 / AUDIT_LEVEL):,}"
        if self.unconfirmed:
            return (
                "not contradicted: a second test did not confirm the first, which was above the claim, as "
                f"one test in {once} is by chance."
            )
        if not self.claim_rejected:
            return "not contradicted."
        if self.suspected is None:
            return (
                f"CONTRADICTED, do not release. At most one test in {once} says this by chance of a promise "
                "that holds."
            )
        return (
            f"CONTRADICTED in both stages of the audit, do not release. At most one audit in {both} says "
            "this by chance of a promise that holds; of n audits one does n times as often."
        )
