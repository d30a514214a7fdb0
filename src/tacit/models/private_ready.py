"""Preparation of a model for private training: replace the layers that mix records.

Letters: C channels; G groups of channels.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.errors import InvalidInput


def make_private_ready(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` without layers that mix records; the original does not change.

    BatchNorm of any kind becomes GroupNorm, as is usual for private networks (De et al., 2204.13650,
    section 3.1).  G is the largest divisor of C up to 32 that leaves at least four channels to a group.
    Scale and bias are kept, and running statistics are dropped.  InstanceNorm loses its running statistics.
    Shared layers stay shared.  :func:`replacements` lists beforehand what will change.

    **Guarantee**

    * The normalisation layers of the returned model pass ``isolation.model_checks.check_model``.
    * The original is not changed, and shares no tensor with the copy.

    >>> make_private_ready(nn.BatchNorm2d(48)).num_groups
    12
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    ready = copy.deepcopy(model)
    if (new := _replacement(ready)) is not None:
        return new
    layers: dict[int, nn.Module] = {}
    for parent in list(ready.modules()):
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            new = layers.get(id(child)) or _replacement(child)
            if new is not None:
                layers[id(child)] = new
                setattr(parent, name, new)
    return ready


def replacements(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield (module name, class of the new layer) for each layer that :func:`make_private_ready` replaces.

    >>> list(replacements(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))))
    [('1', 'GroupNorm')]
    """
    for name, module in model.named_modules():
        new = _replacement(copy.deepcopy(module))
        if new is not None:
            yield name, type(new).__name__


def _replacement(module: nn.Module) -> nn.Module | None:
    """Return the layer that replaces ``module``, or None if it may stay."""
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        new: nn.Module = type(module)(
            module.num_features, eps=module.eps, affine=module.affine, track_running_stats=False
        )
    elif isinstance(module, _BatchNorm):
        new = nn.GroupNorm(_groups(module.num_features), module.num_features, module.eps, module.affine)
    else:
        return None
    new._parameters.update(module._parameters)
    return new.train(module.training)


def _groups(C: int) -> int:
    """Return the largest divisor of C up to 32 that leaves at least four channels to a group, else 1.

    >>> [_groups(C) for C in (1, 4, 32, 64, 67, 256)]
    [1, 1, 8, 16, 1, 32]
    """
    return max(g for g in range(1, 33) if C % g == 0 and (g == 1 or C // g >= 4))
