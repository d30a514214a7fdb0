"""The optimizer of a private run: noisy gradients move it, and nothing else.

**Guarantee**

* As long as the mover lives, ``optimizer.step()`` outside :meth:`Mover.move` raises.
* Every parameter that the optimizer would train is one whose gradients are clipped.
* A gradient that lies on a parameter before the private step is found.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from tacit.errors import InvalidInput, PrivacyRefusal

__all__ = ["Mover"]

_MOVING: set[int] = set()
"""The ids of optimizers that a mover moves at this moment."""


@final
class Mover:
    """Moves the parameters ``trained`` by ``optimizer``, which nothing else may move meanwhile.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> mover, before = Mover(optimizer, dict(model.named_parameters())), model.weight.detach().clone()
    >>> mover.move({"weight": torch.ones(1, 2)})
    >>> before - model.weight.detach()
    tensor([[1., 1.]])
    """

    def __init__(self, optimizer: torch.optim.Optimizer, trained: Mapping[str, nn.Parameter]) -> None:
        self.optimizer = optimizer
        self._trained = trained
        self._check_hooks()
        self._check_parameters()
        weakref.finalize(self, optimizer.register_step_pre_hook(_refuse_unless_moving).remove)

    def move(self, gradients: Mapping[str, Tensor]) -> None:
        """Take the optimizer's step with these gradients, one per name, and leave none on the parameters."""
        for name, parameter in self._trained.items():
            gradient = gradients[name]
            same = gradient.dtype == parameter.dtype
            parameter.grad = gradient if same else gradient.to(parameter.dtype)
        try:
            with _moving(self.optimizer):
                self.optimizer.step()
        finally:
            for parameter in self._trained.values():
                parameter.grad = None

    def check_no_gradients(self) -> None:
        """Refuse to go on while gradients lie on parameters: the next step would add to them."""
        stray = [name for name, p in self._trained.items() if p.grad is not None]
        if not stray and any(p.grad is not None for p in self._owned()):
            stray = ["parameters of the optimizer that the session does not train"]
        if stray:
            raise PrivacyRefusal(
                f"gradients lie on {', '.join(stray)} that are not private: a loss.backward() ran outside "
                "the session. Take it out of the loop; session.step(batch) computes the gradients."
            )

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state bit for bit: torch alone would cast all of it to the type of the weights."""
        self.optimizer.load_state_dict(state)
        parameters = list(self._owned())
        for position, saved in state["state"].items():
            parameter = parameters[position]
            for name, value in saved.items():
                if isinstance(value, Tensor):
                    device = self.optimizer.state[parameter][name].device
                    self.optimizer.state[parameter][name] = value.clone().to(device)

    def _owned(self) -> Iterator[nn.Parameter]:
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def _check_hooks(self) -> None:
        """Refuse an optimizer whose steps could not be watched, such as a wrapper that never became one."""
        if hasattr(self.optimizer, "_optimizer_step_pre_hooks"):
            return
        kind, attributes = type(self.optimizer).__name__, getattr(self.optimizer, "__dict__", {})
        inside = [name for name, value in attributes.items() if isinstance(value, torch.optim.Optimizer)]
        if inside:
            raise InvalidInput(
                f"{kind} wraps another optimizer and has no hooks of its own, so that steps beside the "
                f"session could not be refused. Pass the optimizer inside it: optimizer.{inside[0]}."
            )
        raise InvalidInput(
            f"{kind} has none of the hooks of torch.optim.Optimizer, so that steps beside the session could "
            "not be refused. Pass an optimizer of torch, or let its class derive from torch.optim.Optimizer "
            "and call super().__init__(params, defaults)."
        )

    def _check_parameters(self) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise InvalidInput(
                "LBFGS evaluates the loss again inside a step, which a private step cannot do. "
                "Use SGD, Adam or another first-order optimizer."
            )
        owned = {id(p) for p in self._owned()}
        missing = [name for name, p in self._trained.items() if id(p) not in owned]
        if missing:
            raise InvalidInput(
                f"the optimizer does not hold the trainable parameters {', '.join(missing)}: they would be "
                "clipped and noised for nothing. Pass model.parameters(), or freeze them."
            )
        trained = {id(p) for p in self._trained.values()}
        if any(p.requires_grad and id(p) not in trained for p in self._owned()):
            raise PrivacyRefusal(
                "the optimizer holds trainable parameters that are not the model's, so no clipped gradient "
                "exists for them. Make one module of all that is trained."
            )


@contextmanager
def _moving(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    _MOVING.add(id(optimizer))
    try:
        yield
    finally:
        _MOVING.discard(id(optimizer))


def _refuse_unless_moving(optimizer: torch.optim.Optimizer, *arguments: object) -> None:
    """The hook that runs before each step of the optimizer."""
    del arguments
    if id(optimizer) not in _MOVING:
        raise PrivacyRefusal(
            "optimizer.step() was called outside the private session, with a gradient that is neither "
            "clipped nor noised. Take it out of the loop: session.step(batch) moves the weights by itself."
        )
