"""A check on made-up records, before data are read, that features do not depend on other records.

Training clips the gradient that each record's features give. If the features also depended on other records,
clipping would not bound a record's influence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tacit.clipping.isolation.synthetic import made_up
from tacit.errors import InvalidInput, UnsupportedModel
from tacit.pretrained.base import Pretrained

Encoder = Callable[[Tensor], Tensor]
_ROUNDING = 1e-3  # relative; rounding differs far less, and features that mix records differ far more
_CAUSES = (
    "Its features depend on other records, and no private step bounds that. Look for batch norm in training "
    "mode (call eval() first), for x - x.mean(0), and for padding without a mask."
)


def check_isolated(encoder: Encoder, example_inputs: Tensor) -> None:
    """Refuse an encoder whose features depend on other records, or that does not return features.

    The encoder gets made-up records alone, in a batch and in another order. If it is a module, its buffers
    are restored.

    Args:
        encoder: maps (n, ...) inputs to (n, d) features.
        example_inputs: (n, ...); only their shape and type are read.

    Raises:
        InvalidInput: if the encoder fails, or does not return (n, d) finite floats.
        UnsupportedModel: if features depend on other records, or are random.

    >>> import torch
    >>> check_isolated(lambda x: x - x.mean(0), torch.zeros(4, 3))
    Traceback (most recent call last):
    ...
    tacit.errors.UnsupportedModel: the encoder gives a record different features alone and in a batch. Its ...
    """
    with torch.no_grad(), torch.random.fork_rng(), _restored_buffers(encoder):
        rows, features = _accepted_records(encoder, example_inputs)
        if not _alike(features, _features(encoder, rows)):
            raise UnsupportedModel(
                "the encoder is not deterministic: the same records get different features each time. Look "
                "for dropout in training mode (call eval() first) and for torch.rand."
            )
        alone = torch.cat([_features(encoder, row) for row in torch.split(rows, 1)])
        if not _alike(features, alone):
            raise UnsupportedModel(
                f"the encoder gives a record different features alone and in a batch. {_CAUSES}"
            )
        if not _alike(features, _features(encoder, rows.flip(0)).flip(0)):
            raise UnsupportedModel(f"the encoder's features depend on the order of records. {_CAUSES}")


def _accepted_records(encoder: Encoder, example: Tensor) -> tuple[Tensor, Tensor]:
    """Return made-up records that the encoder accepts, and their features."""
    if isinstance(encoder, Pretrained):
        rows = encoder.made_up(example)
        return rows, _features(encoder, rows)
    normal, whole = made_up((example,), 1)[0], made_up((example.long(),), 1)[0].to(example)
    try:
        return normal, _features(encoder, normal)
    except InvalidInput:  # it may accept only integers, such as tokens or indices
        return whole, _features(encoder, whole)


def _features(encoder: Callable[[Tensor], object], rows: Tensor) -> Tensor:
    try:
        features = encoder(rows)
    except Exception as problem:  # noqa: BLE001  # an encoder raises anything; the records are made up
        reason = " ".join(str(problem).split())[:300].rstrip(".")
        raise InvalidInput(
            f"the encoder fails on made-up records of shape {tuple(rows.shape)}: {type(problem).__name__}: "
            f"{reason}. Make it accept inputs (n, ...) for any n."
        ) from None
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != len(rows):
        output = f"shape {tuple(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        raise InvalidInput(
            f"the encoder must return features (n, d); for n = {len(rows)} records it returned {output}. "
            "Take its output before the head, and call flatten(1) on it."
        )
    if not features.is_floating_point() or not bool(features.isfinite().all()):
        raise InvalidInput(
            f"the encoder must return finite floats; it returned {features.dtype}"
            + (", with NaN or infinity among them" if features.is_floating_point() else "")
            + ". Check its weights, and the range of inputs that it expects."
        )
    return features.detach().clone()


def _alike(first: Tensor, second: Tensor) -> bool:
    """Return whether features are equal up to rounding: for each record, the difference has a small norm."""
    first, second = first.double(), second.double()
    most = _ROUNDING * first.norm(dim=1).clamp(min=1e-12)
    return first.shape == second.shape and bool(((first - second).norm(dim=1) <= most).all())


@contextmanager
def _restored_buffers(encoder: Encoder) -> Iterator[None]:
    """Restore a module's buffers at the end, as batch norm in training mode changes them."""
    copies = {}
    if isinstance(encoder, nn.Module):
        copies = {buffer: buffer.detach().clone() for buffer in encoder.buffers()}
    try:
        yield
    finally:
        for buffer, before in copies.items():
            buffer.copy_(before)
