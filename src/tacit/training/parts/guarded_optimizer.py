"""A guard of the optimizer of a private run: only the session takes its steps, with noisy gradients.

**Guarantee**

* While a :class:`GuardedOptimizer` exists, a call of ``optimizer.step()`` outside its
  :meth:`~GuardedOptimizer.step` raises an error.  So does the step of any other torch optimizer that holds
  one of the trained parameters.
* The engine clips the gradient of every parameter that the optimizer would train.
* If other code left a gradient on a parameter, the private step is refused.

**Not covered**

* Code that changes the parameters without a torch optimizer, such as ``load_state_dict``, a swap of averaged
  weights, or ``p.sub_(...)``.  Some of these changes cost no privacy, so the user is responsible for them: a
  value that is computed from the training records without noise is not private.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tacit.errors import InvalidInput, PrivacyRefusal

_STEPPING: set[int] = set()
"""The ids of the parameters that a private step is changing."""
_GUARDS: weakref.WeakSet[GuardedOptimizer] = weakref.WeakSet()
"""The guards that exist; one hook on all optimizers calls them before each step."""


@final
class GuardedOptimizer:
    """Takes the steps of ``optimizer`` on the parameters ``trained``, and refuses all other steps on them.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> guarded = GuardedOptimizer(optimizer, dict(model.named_parameters()))
    >>> before = model.weight.detach().clone()
    >>> guarded.step({"weight": torch.ones(1, 2)})
    >>> before - model.weight.detach()
    tensor([[1., 1.]])
    """

    def __init__(self, optimizer: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter]) -> None:
        self.optimizer = optimizer
        self._trained = trained
        self._ids = {id(p) for p in trained.values()}
        self._check_hooks()
        self._check_parameters()
        _GUARDS.add(self)

    def step(self, gradients: dict[str, Tensor]) -> None:
        """Take the optimizer's step with these gradients by name, and leave no gradient on the parameters.

        The method empties the dictionary.  A gradient of the parameter's type is used without a copy.
        Otherwise it is cast to that type, and the original is freed before the next cast, to save memory.
        """
        for name, parameter in self._trained.items():
            gradient = gradients.pop(name)
            same = gradient.dtype == parameter.dtype
            parameter.grad = gradient if same else gradient.to(parameter.dtype)
        try:
            with _stepping(self._ids):
                self.optimizer.step()
        finally:
            for parameter in self._trained.values():
                parameter.grad = None

    def check_no_gradients(self) -> None:
        """Refuse to continue while parameters have gradients, which the optimizer might use without noise.

        Raises:
            PrivacyRefusal: a ``loss.backward()`` ran outside the session.
        """
        stray = [name for name, p in self._trained.items() if p.grad is not None]
        if not stray and any(p.grad is not None for p in self._optimized()):
            stray = ["parameters of the optimizer that the session does not train"]
        if stray:
            raise PrivacyRefusal(
                f"gradients that are not private are on {', '.join(stray)}: a loss.backward() ran outside "
                "the session. If it was of a loss of the records, remove it from the loop: "
                "session.step(batch) computes the gradients. If another model is trained through this one, "
                "as the generator of a GAN is through a private discriminator, freeze this one for its "
                "backward pass: discriminator.requires_grad_(False) before the generator's "
                "loss.backward(), discriminator.requires_grad_(True) after it."
            )

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the optimizer's state bit for bit; torch would cast it to the type of the weights."""
        self.optimizer.load_state_dict(state)
        parameters = list(self._optimized())
        for position, entries in state["state"].items():
            parameter = parameters[position]
            for name, value in entries.items():
                if isinstance(value, Tensor):
                    device = self.optimizer.state[parameter][name].device
                    self.optimizer.state[parameter][name] = value.clone().to(device)

    def check_step_of(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse a step of ``optimizer`` that would change the trained parameters without noise.

        Raises:
            PrivacyRefusal: ``optimizer`` is the session's, or it holds trained parameters.
        """
        if optimizer is self.optimizer and not self._ids <= _STEPPING:
            raise PrivacyRefusal(
                "optimizer.step() was called outside the private session. Its gradient is neither clipped "
                "nor noised. Remove it from the loop: session.step(batch) takes the optimizer's step."
            )
        shared = (self._ids - _STEPPING).intersection(id(p) for p in _parameters(optimizer))
        if shared:
            names = [name for name, p in self._trained.items() if id(p) in shared]
            raise PrivacyRefusal(
                f"a second optimizer ({type(optimizer).__name__}) is about to change "
                f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}. A private session trains "
                "these parameters, and this gradient is neither clipped nor noised. Train them by "
                "session.step(batch) alone. Take steps on public records before the session is made, on a "
                "copy of the model, or after del session."
            )

    def _optimized(self) -> Iterator[nn.Parameter]:
        return _parameters(self.optimizer)

    def _check_hooks(self) -> None:
        """Refuse an optimizer without step hooks, such as a wrapper that does not derive from Optimizer."""
        if hasattr(self.optimizer, "_optimizer_step_pre_hooks"):
            return
        kind, attributes = type(self.optimizer).__name__, getattr(self.optimizer, "__dict__", {})
        inside = [name for name, value in attributes.items() if isinstance(value, torch.optim.Optimizer)]
        if inside:
            raise InvalidInput(
                f"{kind} wraps another optimizer and has no step hooks. The session could not refuse steps "
                f"that are taken outside it. Pass the wrapped optimizer: optimizer.{inside[0]}."
            )
        raise InvalidInput(
            f"{kind} has no step hooks of torch.optim.Optimizer. The session could not refuse steps that "
            "are taken outside it. Pass an optimizer of torch, or let its class derive from "
            "torch.optim.Optimizer and call super().__init__(params, defaults)."
        )

    def _check_parameters(self) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise InvalidInput(
                "LBFGS evaluates the loss again inside a step. A private step cannot do that. Use SGD, "
                "Adam or another first-order optimizer."
            )
        if isinstance(self.optimizer, torch.optim.SparseAdam):
            raise InvalidInput(
                "SparseAdam takes sparse gradients. A noisy gradient has noise in every entry. Use Adam."
            )
        ids = {id(p) for p in self._optimized()}
        missing = [name for name, p in self._trained.items() if id(p) not in ids]
        if missing:
            raise InvalidInput(
                f"the optimizer does not hold the trainable parameters {', '.join(missing)}: they would be "
                "clipped and noised for nothing. Pass model.parameters() to the optimizer, or freeze them."
            )
        if any(p.requires_grad and id(p) not in self._ids for p in self._optimized()):
            raise PrivacyRefusal(
                "the optimizer holds trainable parameters outside the model. No clipped gradient exists "
                "for them. Make one module of all that is trained."
            )


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


@contextmanager
def _stepping(parameters: set[int]) -> Iterator[None]:
    _STEPPING.update(parameters)
    try:
        yield
    finally:
        _STEPPING.difference_update(parameters)


def _check_step(optimizer: torch.optim.Optimizer, *arguments: object) -> None:
    """Let all guards check a step of ``optimizer``; torch calls this before each step of any optimizer."""
    del arguments
    for guard in _GUARDS:
        guard.check_step_of(optimizer)


# One hook serves all guards and is never removed.  If each guard had a hook, a guard that is deleted while
# torch calls its hooks would change their list.
register_optimizer_step_pre_hook(_check_step)
