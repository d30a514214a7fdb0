"""What a model consists of, from one walk over its modules: cheap enough for every step."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

__all__ = ["Survey"]


@final
class Survey:
    """The modules of a model, their flags, parameters and buffers, as they are now.

    Two surveys are equal if nothing was added, replaced, frozen, or switched between training and
    evaluation.  A survey holds what it saw, so that nothing else can come to have the same ``id``.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules = _modules(model)
        self.flags = tuple(module.training for module in self.modules)
        self.parameters: list[nn.Parameter] = []
        self.buffers: list[tuple[nn.Module, str, Tensor]] = []
        for module in self.modules:
            self.parameters += [p for p in module._parameters.values() if p is not None]
            self.buffers += [(module, name, b) for name, b in module._buffers.items() if b is not None]
        self._signature = (
            self.flags,
            tuple(map(id, self.modules)),
            tuple(map(id, self.parameters)),
            tuple(p.requires_grad for p in self.parameters),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Survey) and self._signature == other._signature

    def __hash__(self) -> int:
        return hash(self._signature)


def _modules(model: nn.Module) -> list[nn.Module]:
    """Return each module once, a module before those in it."""
    found: dict[int, nn.Module] = {}
    left = [model]
    while left:
        module = left.pop()
        if id(module) not in found:
            found[id(module)] = module
            left += [child for child in reversed(module._modules.values()) if child is not None]
    return list(found.values())
