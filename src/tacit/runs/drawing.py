"""What can be drawn from an image classifier? A picture of each class, by MI-Face."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tacit.attacks.inversion import Inversion, mi_face
from tacit.datasets import Dataset
from tacit.report.pages.canvas import grey_picture

_CLASSES = 10  # at most, the first ones
_STEPS = 1000


def is_picture(record: Tensor) -> bool:
    """Whether a record (channels, h, w) can be shown as a picture."""
    return record.ndim == 3 and record.shape[0] in (1, 3)


def drawn_classes(
    models: Mapping[str, nn.Module],
    data: Dataset,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """For each class its name, the mean of its training pictures as ``mean``, and as data URLs the picture
    drawn from each model, under the model's name.

    The attacker starts from the mean of the test pictures: the attack assumes knowledge of what such pictures
    look like, and none of those that the model was trained on.
    """
    count = min(_CLASSES, len(data.classes))
    others, (inputs, labels) = data.test.inputs, data.train
    start = others.mean(dim=0, keepdim=True).expand(count, *others.shape[1:]).contiguous()
    settings = Inversion(steps=_STEPS, low=float(others.min()), high=float(others.max()))
    found: list[dict[str, Any]] = [{"name": name} for name in data.classes[:count]]
    for number, one in enumerate(found):
        own = inputs[labels == number]
        one["mean"] = grey_picture((own if len(own) else start[:1]).mean(dim=0).numpy())
    for done, (name, model) in enumerate(models.items(), 1):
        device = next(model.parameters()).device
        pictures = mi_face(model, torch.arange(count, device=device), start.to(device), settings=settings)
        for number, one in enumerate(found):
            one[name] = grey_picture(pictures.pictures[number].cpu().numpy())
        if progress is not None:
            progress(done, len(models))
    return found
