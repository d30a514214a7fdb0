"""Which activations are there? By name, with tempered sigmoids: bounded outputs keep gradients small."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tacit.errors import check_in, check_real

ACTIVATIONS = ("relu", "tanh", "tempered-sigmoid")


class TemperedSigmoid(nn.Module):
    """``scale * sigmoid(inverse_temperature * x) - offset``, elementwise (Papernot et al., 2007.14191).

    Bounded activations keep per-example gradients small, so that clipping removes less of them.
    scale 2, inverse temperature 2 and offset 1 make tanh.  Shapes: any to the same.

    Errors: :class:`~tacit.errors.InvalidInput` unless scale and inverse temperature are positive.

    >>> TemperedSigmoid(scale=1.0, inverse_temperature=1.0, offset=0.0)(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    def __init__(self, *, scale: float, inverse_temperature: float, offset: float) -> None:
        super().__init__()
        self.scale = check_real("scale", scale, low=0.0, open_low=True)
        self.inverse_temperature = check_real(
            "inverse_temperature", inverse_temperature, low=0.0, open_low=True
        )
        self.offset = check_real("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to every element."""
        return self.scale * torch.sigmoid(self.inverse_temperature * x) - self.offset

    def extra_repr(self) -> str:
        """The three constants."""
        return f"scale={self.scale}, inverse_temperature={self.inverse_temperature}, offset={self.offset}"


def activation_layer(name: str, *, temper: tuple[float, float, float] = (2.0, 2.0, 1.0)) -> nn.Module:
    """A new activation layer: "relu", "tanh" or "tempered-sigmoid".

    ``temper`` is (scale, inverse temperature, offset), used by tempered-sigmoid alone.

    Errors: :class:`~tacit.errors.InvalidInput` for another name.

    >>> activation_layer("tanh")
    Tanh()
    """
    match check_in("activation", name, ACTIVATIONS):
        case "relu":
            return nn.ReLU()
        case "tanh":
            return nn.Tanh()
        case _:
            scale, inverse_temperature, offset = temper
            return TemperedSigmoid(scale=scale, inverse_temperature=inverse_temperature, offset=offset)
