"""Checks that all ranks perform the same run with the same model.

Each rank takes the optimizer's step with the same noisy sum, so the weights stay the same if every rank has
the same optimizer.  If a learning rate differs, or only one rank follows a schedule, the copies of the model
become different models.

Privacy requires that the copies are the same.  The rank that reads a record depends on the records that are
drawn before it.  So if the copies differ, one record changes the contributions of others to the sum, and this
change can exceed what the noise hides.

**Guarantee**

* Before each step the ranks compare the settings of their optimizers, the mode of the model (train or eval),
  and a checksum of the bits of the trained weights, and refuse the step if they differ.  So no released sum
  was computed with different copies.
* They compare the same, and also the frozen weights, when a state is saved and after the last step.

For a sharded model the ranks compare only settings and mode.  Each rank stores separate rows of the model,
and all ranks compute with the gathered weights.

**Not covered**

* Buffers and frozen weights that the loop of one rank changes between two saved states.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from tacit.errors import PrivacyRefusal
from tacit.sampling.base import Indices
from tacit.training.part import Part
from tacit.training.ranks.layout import Layout
from tacit.training.ranks.processes import Ranks
from tacit.training.resume.state import differences

_NAMED = 3  # the most differences that an error names
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@final
class Together(Part):
    """The checks that all ranks perform the same run with the same model.  All ranks call them together.

    Args:
        trained: the parameters that the optimizer trains.
        run: a weak reference to a method that returns the facts of the run, which must be the same at all
            ranks.
        steps: the number of steps of the plan.

    Attributes:
        agreed: whether the ranks have compared these facts and found no difference.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        ranks: Ranks,
        run: weakref.WeakMethod[Callable[[], dict[str, Any]]],
        steps: int,
    ) -> None:
        self._model, self._trained, self._optimizer = model, trained, optimizer
        self._sharded, self._ranks, self._run, self._steps = layout.sharded, ranks, run, steps
        self.agreed = False

    def before(self, step: int, indices: Indices) -> None:
        if self._ranks.ranks > 1 and not self.agreed:
            self._agree()
        self.check_model(self._trained)

    def after(self, step: int, loss: float | None) -> None:
        if step + 1 == self._steps:
            self.check_model()

    def _agree(self) -> None:
        """Refuse to continue if the ranks do not belong to one run."""
        facts = self._run()
        assert facts is not None  # the session is alive, because it takes a step
        mine = self._ranks.each(facts)
        first = self._ranks.from_first(lambda: mine)

        def check() -> None:
            if differing := differences(first, mine):
                raise PrivacyRefusal(
                    f"process {self._ranks.rank} of this run differs from process 0 in: "
                    f"{', '.join(differing)}. All add to one sum, and must do the same run. Give each "
                    "process the same script, records, plan and settings."
                )

        self._ranks.each(check)
        self.agreed = True

    def check_model(self, weights: Mapping[str, Tensor] | None = None) -> None:
        """Compare the optimizer's settings, the model's mode and ``weights`` with those of rank 0.

        By default ``weights`` are all weights of the model.

        Raises:
            PrivacyRefusal: settings, mode or weights differ; the message says which, and what to do.
        """
        ranks = self._ranks
        if ranks.ranks == 1:
            return
        whole = dict(self._model.named_parameters()) if weights is None else weights
        if self._sharded:
            whole = {}
        mine = ranks.each(lambda: _copy(self._model, whole, self._optimizer))
        first = ranks.from_first(lambda: mine)

        def check() -> None:
            if how := _difference(first, mine):
                raise PrivacyRefusal(
                    f"the model of process {ranks.rank} differs from that of process 0: {how}. All "
                    "processes add to one sum, and which of them reads a record depends on other records. "
                    "If their models differ, one record may change the sum by more than the noise hides. "
                    "The session takes no step with such models and saves no state of them; earlier "
                    "releases are covered. Give each process the optimizer, the settings, the schedule of "
                    "the learning rate and the loop of process 0, on processors of one kind, and go on "
                    "from the last saved state."
                )

        ranks.each(check)


@dataclass(frozen=True)
class _Copy:
    """The facts that ranks compare: the optimizer's settings, each module's mode, checksums of weights."""

    settings: dict[str, str]
    training: tuple[bool, ...]
    weights: dict[str, int]


def _copy(model: nn.Module, weights: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> _Copy:
    sums = [_checksum(tensor) for tensor in weights.values()]
    numbers = torch.stack(sums).tolist() if sums else []  # one wait for the device
    training = tuple(module.training for module in model.modules())
    return _Copy(_settings(optimizer), training, dict(zip(weights, numbers, strict=True)))


def _difference(first: _Copy, mine: _Copy) -> str:
    """Describe how the copy of this rank differs from that of rank 0; empty if it does not."""
    if first.settings != mine.settings:
        names = [name for name in {**first.settings, **mine.settings}
                 if first.settings.get(name) != mine.settings.get(name)]  # fmt: skip
        lines = [
            f"{name} is {mine.settings.get(name, 'missing')}, not {first.settings.get(name, 'missing')}"
            for name in names
        ]
        return f"in its optimizer {_listed(lines)}"
    if first.training != mine.training:
        return "it is in another mode (model.train(), model.eval())"
    differing = [name for name in mine.weights if first.weights.get(name) != mine.weights[name]]
    return (
        f"its weights differ in {_listed(differing)}, with the same optimizer settings" if differing else ""
    )


def _settings(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return the class of the optimizer and the settings of each group of parameters, as texts.

    >>> _settings(torch.optim.SGD([torch.ones(2)], lr=0.5))["lr"]
    '0.5'
    """
    groups, texts = optimizer.param_groups, {"the class": type(optimizer).__name__}
    for number, group in enumerate(groups):
        of = f" of group {number}" if len(groups) > 1 else ""
        texts[f"the number of parameters{of}"] = str(len(group["params"]))
        texts.update({f"{name}{of}": _text_of(group[name]) for name in group if name != "params"})
    return texts


def _text_of(setting: Any) -> str:
    plain = setting.tolist() if isinstance(setting, Tensor) else setting
    return re.sub(r" at 0x[0-9a-f]+", "", repr(plain))


def _checksum(tensor: Tensor) -> Tensor:
    """Sum the bits of a tensor, read as integers, on the tensor's device.

    >>> one = torch.ones(2)
    >>> bool(_checksum(one) == _checksum(torch.ones(2)))
    True
    >>> bool(_checksum(one) == _checksum(one.nextafter(2 * one)))
    False
    """
    plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return plain.view(_WORDS[plain.element_size()]).sum(dtype=torch.int64)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
