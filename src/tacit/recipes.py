"""Starting settings for private training, computed from public facts alone.

The constants come from searches on public data (``experiments/searches``, ``experiments/LOG.md``).
docs/how-to/which-settings.md lists the settings in tables.

Symbols: N records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tacit.errors import InvalidInput, check_integer, check_real
from tacit.plan import Plan

__all__ = ["full_recipe", "hazard_recipe", "linear_recipe", "lora_recipe", "lora_targets"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a private run.

    Attributes:
        batch_size: the expected number of records per step; None for all records.
        steps: the number of steps.
        optimizer: the name of the optimizer, as in ``[optimizer]`` of a run file.
        learning_rate, momentum: settings of the optimizer.
        head_learning_rate: the learning rate of the head if the body is trained too; None for the same rate.
        falling: whether the learning rates decay linearly to zero over the second half of the steps.
        rank, alpha: the settings of LoRA, which scales its updates by alpha / rank; None without LoRA.
        clipping_norm: the largest norm of one record's gradient; larger ones are clipped.
        ema_decay: the decay of the moving average of the weights; None to use the last weights.

    >>> Recipe(batch_size=None, steps=60, learning_rate=4.0).clipping_norm
    1.0
    """

    batch_size: int | None
    steps: int
    optimizer: str = "sgd"
    learning_rate: float
    momentum: float = 0.0
    clipping_norm: float = 1.0
    ema_decay: float | None = None
    head_learning_rate: float | None = None
    falling: bool = False
    rank: int | None = None
    alpha: int | None = None

    def share_of_rate(self, step: int) -> float:
        """Return the factor of the learning rates in a step; the first step is 0.

        >>> [round(lora_recipe(6000, 8.0, 19_202).share_of_rate(step), 3) for step in (0, 15, 29)]
        [1.0, 1.0, 0.067]
        """
        return min(1.0, 2.0 * (1.0 - step / self.steps)) if self.falling else 1.0


def linear_recipe(records: int, epsilon: float, *, classes: int = 2, longest: float = 1.0) -> Recipe:
    """Return the settings for a linear model that starts at zero, on a table or on frozen features.

    Each step uses all records if there are at most 50,000, because smaller batches save only time. The
    learning rate grows with records times epsilon, up to a limit. On twenty datasets (tables, reviews and
    images) of 300 to 50,000 records, the best rates followed this rule, up to a factor of two.

    Args:
        records: a public estimate of the number of records.
        epsilon: the epsilon of the whole run.
        classes: the number of classes; 1 for a numeric target
            (:class:`tacit.models.additive.StandardLinear`).
        longest: an upper bound on the norm of one row of inputs, including the constant 1 for the bias. For
            features of norm 1, pass 1: there the bias hardly matters.

    >>> recipe = linear_recipe(12_500, 3.0)
    >>> recipe.steps, recipe.learning_rate
    (100, 16.0)
    >>> recipe = linear_recipe(500, 1.0, longest=5.0)
    >>> recipe.learning_rate, recipe.clipping_norm
    (0.01, 2.5)
    """
    N = check_integer("records", records, low=1)
    k = check_integer("classes", classes, low=1)
    length = check_real("longest", longest, low=0.0, open_low=True)
    signal = N * check_real("epsilon", epsilon, low=0.0, open_low=True)
    if k == 1:
        steps, rate = _STEPS_OF_NUMBERS, min(signal / _NUMBERS / _LINEAR_STEPS, _RATE_OF_NUMBERS)
        norm = min(max(1.0, math.sqrt(signal / _SHORT_TAIL)), _LONGEST_ERROR)
    else:
        most = (_RATE_OF_CENTRED if length == 1.0 else _RATE_OF_CLASS) * k
        steps, rate = _LINEAR_STEPS, min(signal / _CLASSES / _LINEAR_STEPS, most)
        norm = _NORM_OF_CLASSES
    return Recipe(
        batch_size=None if N <= _LARGEST_BATCH else _LARGEST_BATCH,
        steps=steps,
        learning_rate=float(f"{rate / length**2:.2g}"),
        momentum=0.9,
        clipping_norm=float(f"{norm * length:.3g}"),
    )


def hazard_recipe(records: int, epsilon: float, *, longest: float) -> Recipe:
    """Return the settings for a linear survival model (:class:`tacit.models.survival.LinearHazard`).

    They are those of a classifier (:func:`linear_recipe`), but with twice the clipping norm. On four tables
    of 1,700 to 7,300 records, this norm gave better survival curves, and ranked the records equally well.

    Args:
        records: a public estimate of the number of records.
        epsilon: the epsilon of the whole run.
        longest: an upper bound on the norm of one row of inputs, including the constant 1 for the bias.

    >>> hazard_recipe(6_000, 1.0, longest=4.0).clipping_norm
    4.0
    """
    recipe = linear_recipe(records, epsilon, longest=longest)
    return replace(recipe, clipping_norm=2 * recipe.clipping_norm)


BINS = 10
"""The number of bins per numeric column of a table, in addition to the number itself."""
_LINEAR_STEPS = 100  # more did not help
_STEPS_OF_NUMBERS = 110  # the first eleventh of the steps learns the target's mean and spread
_LARGEST_BATCH = 50_000  # beyond it the noise of a run hardly falls, and steps take longer
_CLASSES, _NUMBERS = 20, 80  # records times epsilon, divided by the sum of the learning rates
_NORM_OF_CLASSES = 0.5  # clipping norm, for inputs of length 1
_SHORT_TAIL, _LONGEST_ERROR = 10_000, 2.5  # clipping of errors, in spreads: with less noise, it is wider
_RATE_OF_CLASS, _RATE_OF_NUMBERS = 4.0, 2.0  # above them, steps with momentum 0.9 overshoot
_RATE_OF_CENTRED = 8.0  # the same for features of unit length and mean 0


def additive_pays(records: int, epsilon: float, numbers: int) -> bool:
    """Return whether binning the numeric columns is likely to help a linear model.

    Where effects are linear, bins hurt, because ten times as many weights learn noise.  On 21 shapes they
    lowered the AUC by about (2.3 + 3 / epsilon) columns / records there.  The answer is True if that is at
    most 0.01 (``experiments/which_model.py``).

    Args:
        records: a public estimate of the number of records.
        epsilon: the epsilon of the whole run.
        numbers: the number of numeric columns.

    >>> additive_pays(6_000, 1.0, 5), additive_pays(6_000, 1.0, 50)
    (True, False)
    """
    N = check_integer("records", records, low=1)
    per_column = _ROWS_PER_COLUMN + _NOISE_PER_COLUMN / check_real("epsilon", epsilon, low=0.0, open_low=True)
    return per_column * check_integer("numbers", numbers, low=0) <= N


_ROWS_PER_COLUMN, _NOISE_PER_COLUMN = (
    230,
    300,
)  # records, and records times epsilon, that bins of a column need


def lora_targets(model_type: str) -> tuple[str, ...]:
    """Return the names of the layers that LoRA should change: the query and value layers.

    Hu et al. (2106.09685, section 7.1) found these two layers best for a given number of weights. GPT-2 and
    similar models compute query, key and value in one layer, which is returned for them. The names are
    without the path to the layer.

    Args:
        model_type: the ``model_type`` in a model's config.json.

    Raises:
        InvalidInput: if Tacit does not know the names of these layers for this type.

    >>> lora_targets("bert"), lora_targets("gpt2")
    (('query', 'value'), ('c_attn',))
    """
    for names, types in _TARGETS.items():
        if model_type in types:
            return names
    raise InvalidInput(
        f"model_type {model_type!r} has no known LoRA targets. Name its query and value layers in [lora] "
        'targets, such as ["q_proj", "v_proj"]; print(model) shows the names.'
    )


def lora_recipe(records: int, epsilon: float, weights: int) -> Recipe:
    """Return the settings of LoRA on query and value with a new head (Yu et al., 2110.06500).

    LoRA trains few weights, so a step needs few of the records. One run of MiniLM on 6,000 reviews was 3
    points more accurate at epsilon 8 than a private head alone. At epsilon 3, it was 1 point more, which may
    be chance.

    Args:
        records: a public estimate of the number of records.
        epsilon: the epsilon of the whole run.
        weights: the number of trained weights, in LoRA (at the recipe's ``rank``) and in the head.

    >>> recipe = lora_recipe(12_500, 8.0, 37_634)
    >>> recipe.rank, recipe.batch_size, recipe.steps, recipe.learning_rate, recipe.head_learning_rate
    (4, 250, 30, 0.002, 0.1)
    """
    return _of_a_body(records, epsilon, weights, rate=_LORA_RATE, rank=LORA_RANK)


def full_recipe(records: int, epsilon: float, weights: int) -> Recipe:
    """Return starting settings for training all weights and a new head (Li et al., 2110.05679).

    The batch is large enough that the noise is small; a batch size of None means all records. The learning
    rates were not tested in private runs.

    Args:
        records: a public estimate of the number of records.
        epsilon: the epsilon of the whole run.
        weights: the number of trained weights.

    >>> full_recipe(12_500, 8.0, 10_647_554).batch_size is None
    True
    """
    return _of_a_body(records, epsilon, weights, rate=_FULL_RATE, rank=None)


def _of_a_body(records: int, epsilon: float, weights: int, *, rate: float, rank: int | None) -> Recipe:
    check_integer("records", records, low=1)
    check_integer("weights", weights, low=1)
    check_real("epsilon", epsilon, low=0.0, open_low=True)
    return Recipe(
        batch_size=_batch_size(records, epsilon, weights),
        steps=_BODY_STEPS,
        optimizer="adam",
        learning_rate=rate,
        head_learning_rate=_HEAD_RATE,
        falling=True,
        rank=rank,
        alpha=None if rank is None else 4 * rank,
    )


def _batch_size(records: int, epsilon: float, weights: int) -> int | None:
    """Return the smallest batch size for which the noise of the run is small; None for all records."""
    # It ignores the plan's delta and adjacency, because it is a starting point and no promise.
    for parts in _PARTS:
        if (batch_size := round(records / parts)) >= _SMALLEST_BATCH:
            plan = Plan.calibrate(
                epsilon=epsilon,
                delta=min(1e-5, 0.1 / records),
                records=records,
                batch_size=batch_size,
                steps=_BODY_STEPS,
                clipping=1.0,
                adjacency="add-remove",
                unit="record",
            )
            if plan.noise_multiplier * math.sqrt(weights / _BODY_STEPS) / batch_size <= _SMALL_NOISE:
                return batch_size
    return None


_TARGETS = {
    ("query", "value"): ("albert", "bert", "camembert", "electra", "roberta", "xlm-roberta"),
    ("q_lin", "v_lin"): ("distilbert",),
    ("q", "v"): ("mpnet",),
    ("query_proj", "value_proj"): ("deberta-v2",),
    ("q_proj", "v_proj"): (
        *("beit", "deit", "dinov2", "gemma", "gemma2", "llama", "mistral", "opt", "qwen2", "qwen3", "vit"),
    ),
    ("c_attn",): ("gpt2",),
    ("query_key_value",): ("gpt_neox",),
    ("Wqkv",): ("modernbert",),
}
LORA_RANK = 4
"""The rank of a LoRA correction."""
_LORA_RATE, _FULL_RATE, _HEAD_RATE = 2e-3, 2e-4, 0.1  # learning rates of Adam
_BODY_STEPS = 30
_PARTS = (100, 50, 20, 10, 4)  # candidates p: the batch size is N / p
_SMALLEST_BATCH = 250  # below it, sampling of records disturbs a mean gradient more than noise does
_SMALL_NOISE = 0.12
"""The noise of a run's mean gradient, as a norm in units of C, at which a tenth of the gain is lost."""
