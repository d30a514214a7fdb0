"""What are records of which all batches were drawn before the run? They come with the key that drew them."""

from __future__ import annotations

from abc import abstractmethod

from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.training.records import Records

__all__ = ["DrawnRecords"]


class DrawnRecords(Records):
    """Records of which the batches of a run were drawn before it began, by the run's key.

    This process prefetches them: no worker processes read them.
    """

    @abstractmethod
    def generator_for(self, plan: Plan) -> Generator:
        """The generator by which the batches of ``plan`` were drawn.

        Raises:
            PrivacyRefusal: they were drawn for another plan.
        """

    @abstractmethod
    def claim(self, *, again: bool = False) -> None:
        """Take the batches for one run; ``again`` for a run that goes on from its resume state.

        Raises:
            PrivacyRefusal: another run has them.
        """
