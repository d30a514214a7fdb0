"""A check on made-up records, before any data are read: features must not depend on other records.

Later a gradient with respect to features is clipped. If the features depended on other records, a record's
influence would have no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tacit.clipping.isolation.made_up import made_up
from tacit.errors import InvalidInput, UnsupportedModel
from tacit.pretrained.base import Pretrained

Encoder = Callable[[Tensor], Tensor]
_ROUNDING = 1e-3  # rounding of sums in another order; mixing of records gives far larger differences
_OWN = (
    "so another record has a say in it, and no private step bounds that. Look for batch norm in training "
    "mode (call eval() first), for x - x.mean(0), and for padding that no mask hides."
)


def check_isolated(encoder: Encoder, example_inputs: Tensor) -> None:
    """Refuse an encoder whose features depend on other records, or that returns none.

    Made-up records go through it alone, beside others and in another order. A module is left as it was.

    Args:
        encoder: maps (n, ...) inputs to (n, d) features.
        example_inputs: (n, ...); only their shape and type are read.

    Raises:
        InvalidInput: if it fails, or does not return (n, d) finite floats.
        UnsupportedModel: if features depend on other records, or on chance.

    >>> import torch
    >>> check_isolated(lambda x: x - x.mean(0), torch.zeros(4, 3))
    Traceback (most recent call last):
    ...
    tacit.errors.UnsupportedModel: the encoder gives a record other features alone than beside others, so ...
    """
    with torch.no_grad(), torch.random.fork_rng(), _as_it_was(encoder):
        rows, found = _tried(encoder, example_inputs)
        if not _alike(found, _features(encoder, rows)):
            raise UnsupportedModel(
                "the encoder gives the same records other features each time, so features that are computed "
                "once would not be its own. Look for dropout in training mode (call eval() first) and for "
                "torch.rand; make it deterministic."
            )
        alone = torch.cat([_features(encoder, row) for row in torch.split(rows, 1)])
        if not _alike(found, alone):
            raise UnsupportedModel(
                f"the encoder gives a record other features alone than beside others, {_OWN}"
            )
        if not _alike(found, _features(encoder, rows.flip(0)).flip(0)):
            raise UnsupportedModel(f"the encoder gives a record other features in another order, {_OWN}")


def _tried(encoder: Encoder, example: Tensor) -> tuple[Tensor, Tensor]:
    """Return made-up records that the encoder accepts, and their features."""
    if isinstance(encoder, Pretrained):
        rows = encoder.made_up(example)
        return rows, _features(encoder, rows)
    normal, whole = made_up((example,), 1)[0], made_up((example.long(),), 1)[0].to(example)
    try:
        return normal, _features(encoder, normal)
    except InvalidInput:  # it may accept only tokens, or numbers of a list
        return whole, _features(encoder, whole)


def _features(encoder: Callable[[Tensor], object], rows: Tensor) -> Tensor:
    try:
        found = encoder(rows)
    except Exception as problem:  # noqa: BLE001  # an encoder raises anything; the records are made up
        reason = " ".join(str(problem).split())[:300].rstrip(".")
        raise InvalidInput(
            f"the encoder fails on made-up records of shape {tuple(rows.shape)}: {type(problem).__name__}: "
            f"{reason}. Let it take inputs (n, ...) for any n."
        ) from None
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != len(rows):
        given = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InvalidInput(
            f"the encoder must give features (n, d) of n records, here n = {len(rows)}; it gave {given}. "
            "Take what it gives before its head, and flatten(1) it."
        )
    if not found.is_floating_point() or not bool(found.isfinite().all()):
        raise InvalidInput(
            f"the encoder must give finite floats; it gave {found.dtype}"
            + (", with NaN or infinity among them" if found.is_floating_point() else "")
            + ". Look at its weights, and at the range of the inputs that it takes."
        )
    return found.detach().clone()


def _alike(first: Tensor, second: Tensor) -> bool:
    """Return whether features are equal up to rounding, by the norm of the difference for each record."""
    first, second = first.double(), second.double()
    most = _ROUNDING * first.norm(dim=1).clamp(min=1e-12)
    return first.shape == second.shape and bool(((first - second).norm(dim=1) <= most).all())


@contextmanager
def _as_it_was(encoder: Encoder) -> Iterator[None]:
    """Restore the buffers of a module, which batch norm in training mode changes."""
    kept = {}
    if isinstance(encoder, nn.Module):
        kept = {buffer: buffer.detach().clone() for buffer in encoder.buffers()}
    try:
        yield
    finally:
        for buffer, before in kept.items():
            buffer.copy_(before)
