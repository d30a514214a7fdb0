"""The experiments that ``python -m experiments`` can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiments import (
    abadi_cifar10,
    abadi_composition,
    abadi_mnist,
    attribute_inversion,
    clipping,
    correlated_noise,
    membership,
    model_inversion,
    names_memorisation,
    pictures_memorisation,
    public_models,
    scattering,
    shokri,
    stored_rows,
    tables,
    tempered_sigmoids,
)
from experiments.base import Request, Row
from tacit.errors import check_in


@dataclass(frozen=True)
class Experiment:
    """An experiment: a function from a request to rows, and a one-line description."""

    run: Callable[[Request], list[Row]]
    summary: str


EXPERIMENTS: dict[str, Experiment] = {
    "abadi-composition": Experiment(
        abadi_composition.run, "one run priced by five accountants, 2010 to today; needs no data"
    ),
    "abadi-mnist": Experiment(abadi_mnist.run, "DP-PCA and one hidden layer of 1,000 (Abadi et al., 2016)"),
    "abadi-cifar10": Experiment(
        abadi_cifar10.run, "features from public pictures, the rest trained privately (Abadi et al., 2016)"
    ),
    "tempered-sigmoids": Experiment(
        tempered_sigmoids.run, "bounded activations against ReLU (Papernot et al., 2020)"
    ),
    "scattering": Experiment(scattering.run, "scattering features (Tramèr and Boneh, 2021)"),
    "clipping": Experiment(
        clipping.run, "clipping norms too small, too large, and adaptive (Andrew et al., 2019)"
    ),
    "correlated-noise": Experiment(
        correlated_noise.run, "one pass over a stream, with noise correlated in time (Kairouz et al., 2021)"
    ),
    "membership": Experiment(
        membership.run, "attacks on membership with shadow models, without DP and with it, under their bound"
    ),
    "shokri": Experiment(
        shokri.run, "more classes and more overfitting, more leak, on Adult and MNIST (Shokri et al., 2017)"
    ),
    "names-memorisation": Experiment(
        names_memorisation.run, "planted secrets in a language model of names (Carlini et al., 2019)"
    ),
    "pictures-memorisation": Experiment(
        pictures_memorisation.run,
        "training pictures that a generative model gives back (Carlini et al., 2023)",
    ),
    "public-models": Experiment(
        public_models.run, "a private head on frozen features of MiniLM and of MobileNetV2"
    ),
    "model-inversion": Experiment(
        model_inversion.run, "faces out of a classifier, with and without privacy (Fredrikson et al., 2015)"
    ),
    "attribute-inversion": Experiment(
        attribute_inversion.run,
        "who is married, by a tree of income, and without it (Fredrikson et al., 2015)",
    ),
    "tables": Experiment(
        tables.run, "income of Adult by linear models, a network and least squares, next to diffprivlib"
    ),
    "stored-rows": Experiment(
        stored_rows.run, "training records that lie in a kernel machine, and a private one that has none"
    ),
}


def reproduce(name: str, request: Request) -> list[Row]:
    """Run an experiment, which writes a figure and a JSON file to ``request.folder``."""
    return EXPERIMENTS[check_in("experiment", name, tuple(EXPERIMENTS))].run(request)
