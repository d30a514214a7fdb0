"""What are records of which all batches were drawn before the run? They come with the key that drew them."""

from __future__ import annotations

from abc import abstractmethod

from tacit.noise.generator import Generator
from tacit.plan import Plan
from tacit.training.data.records import Records


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
    def check_free(self, run: str) -> None:
        """Refuse batches that another run than ``run`` has taken.

        Raises:
            PrivacyRefusal: another run has them.
        """

    @abstractmethod
    def claim(self, run: str) -> None:
        """Take the batches for ``run``, a random name that its resume state holds; errors as before."""
