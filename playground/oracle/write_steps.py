"""What must three private steps of the page do?  Writes tests/expected/steps.json by the reference engine.

Run it with ``make playground-expected``.  Everything is drawn from a fixed key, which makes it NOT PRIVATE
and the same each time.  Per model: the start, the records, and of each step the draws, the norms, the
clipped sum, the noise and the parameters after it.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import FlatClipping
from tacit.models.networks import build
from tacit.noise.gaussian import gaussian
from tacit.noise.generator import Generator, Purpose
from tacit.sampling import PoissonSampling

OUT = Path(__file__).parent.parent / "tests" / "expected" / "steps.json"
KEY = bytes(range(16))
RECORDS, RATE, NORM, SIGMA, STEPS = 24, 0.3, 0.8, 1.1, 3
TEMPER = [1.58, 3.0, 0.71]
CASES = [
    ([], "tanh", "sgd"),
    ([5], "tanh", "sgd"),
    ([4, 3], "relu", "adam"),
    ([6], "tempered-sigmoid", "adam"),
]


def flat(tensors: list[Tensor]) -> list[float]:
    return [float(f"{value:.12g}") for tensor in tensors for value in tensor.flatten().tolist()]


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def case(hidden: list[int], activation: str, optimizer: str) -> dict[str, object]:
    """One model, trained for three steps."""
    torch.manual_seed(len(hidden) + len(activation))
    temper = TEMPER if activation == "tempered-sigmoid" else None
    if hidden:
        model = build("mlp", input_shape=(2,), classes=2, hidden=hidden, activation=activation, temper=temper)
    else:
        model = build("logistic", input_shape=(2,), classes=2)
    model = model.double()
    x = torch.rand(RECORDS, 2, dtype=torch.float64) * 2 - 1
    y = torch.randint(2, (RECORDS,))
    engine = ReferenceEngine(model, losses, FlatClipping(NORM))
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    moves = make(model.parameters(), lr=0.1)
    generator, sampling = Generator(KEY, secure=False), PoissonSampling(RATE)
    start = flat(list(model.parameters()))
    steps = []
    for step in range(STEPS):
        drawn = sampling.indices(generator, step, RECORDS)
        total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        batch = (x[torch.from_numpy(drawn)], y[torch.from_numpy(drawn)])
        raw = engine.add_clipped_sum(total, batch, None, torch.tensor([NORM], dtype=torch.float64))
        noise = {
            name: gaussian(
                generator, tuple(p.shape), std=SIGMA * NORM, step=step, index=i, purpose=Purpose.NOISE,
                dtype=torch.float64,
            )
            for i, (name, p) in enumerate(model.named_parameters())
        }  # fmt: skip
        for name, parameter in model.named_parameters():
            parameter.grad = (total[name] + noise[name]) / (RATE * RECORDS)
        moves.step()
        moves.zero_grad(set_to_none=True)
        steps.append(
            {
                "sampled": drawn.tolist(),
                "norms": flat([raw.raw_norms]),
                "clippedSum": flat(list(total.values())),
                "noise": flat(list(noise.values())),
                "after": flat(list(model.parameters())),
            }
        )
    shape = {"hidden": hidden, "activation": activation}
    points = [{"x": a, "y": b, "label": c} for (a, b), c in zip(x.tolist(), y.tolist(), strict=True)]
    return {"shape": shape, "optimizer": optimizer, "points": points, "start": start, "steps": steps}


def noise_law() -> list[float]:
    """Quantiles of Tacit's noise of scale sigma C, of a million draws."""
    draws = gaussian(
        Generator(KEY, secure=False), (1_000_000,), std=SIGMA * NORM, step=99, dtype=torch.float64
    )
    at = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    return flat([torch.quantile(draws, at)])


def main() -> None:
    cases = [case(*each) for each in CASES]
    facts = {"samplingRate": RATE, "clippingNorm": NORM, "noiseMultiplier": SIGMA, "learningRate": 0.1}
    OUT.write_text(
        json.dumps({**facts, "cases": cases, "noiseQuantiles": noise_law()}) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
