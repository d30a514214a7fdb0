"""What did an audit find, and what does it not mean? A result, also as a sentence."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AuditResult"]


@dataclass(frozen=True)
class AuditResult:
    """A lower bound on what a run reveals.

    ``eps_lower`` is proven at ``delta`` with probability ``confidence``; if ``family`` is named, it is the
    epsilon of the most private mechanism *of that family* that the experiment does not contradict, and
    ``eps_lower_any`` holds of any mechanism.  ``mu_lower``: the run is mu-GDP for no smaller mu.
    ``noise_at_most``: it behaves as if its noise multiplier were at most that.  ``canaries`` is how many
    records were planted (or runs made, or steps watched).  ``claimed_eps`` and ``claim_rejected`` are None
    where no claim was tested.

    Guarantee
    ---------
    * If the claim is true, ``claim_rejected`` with probability at most 1 - ``confidence``.
    * All the bounds of one result hold together with probability ``confidence``, each in its family.
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

    def sentence(self) -> str:
        """The result for people.

        >>> print(AuditResult("claim test", 1000, 0.95, 1e-5, 5.07, 3.1, "Gaussian noise", claimed_eps=6.33,
        ...                   claim_rejected=False).sentence())
        1000 trials, claim test: with 95% confidence epsilon is at least 5.07 at delta 1e-05, given Gaussian
        noise (at least 3.10 given nothing). 6.33 is claimed: not contradicted. A small bound means a weak
        attack, not safety.
        """
        given = (
            ""
            if self.family is None
            else f", given {self.family} (at least {self.eps_lower_any:.2f} given nothing)"
        )
        words = (
            f"{self.canaries} trials, {self.method}: with {100 * self.confidence:g}% confidence epsilon is "
            f"at least {self.eps_lower:.2f} at delta {self.delta:g}{given}."
        )
        if self.noise_at_most is not None:
            words += f" The run behaves as if its noise multiplier were at most {self.noise_at_most:.3g}."
        if self.claim_rejected is not None:
            claim = "" if self.claimed_eps is None else f" {self.claimed_eps:.2f} is claimed:"
            words += (
                f"{claim} CONTRADICTED, do not release. At most one test in "
                f"{round(1 / (1 - self.confidence))} says so of a kept promise, by chance: audit "
                "once more."
                if self.claim_rejected
                else f"{claim} not contradicted."
            )
        return f"{words} A small bound means a weak attack, not safety."
