"""The verdict on a model, compared with a baseline, and advice on how to improve the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.rounding import finite
from tacit.training.evaluation import Evaluation, auc_deviation, auc_spread

_BOTH_SIDES = 1.96  # standard deviations; a 95 % interval has them on each side
_CHANCE = 1.645  # standard deviations; one in twenty useless models gains more than this by chance
_FEWEST_RARE = 30  # with fewer records of the rare class, no verdict says how well they are ranked
_RANKS = 0.6  # from this AUC on, another threshold is worth a try
_LEAST_LOSS = 0.05  # a useful text model reduces a constant distribution's loss by at least this share
_MOST_NATS = 50.0  # beyond that a perplexity says nothing
_NAMED = 3  # the most classes that a sentence names
RARE = 1.5
"""With k classes, they are imbalanced if the commonest has a share of more than 1.5 / k."""


@dataclass(frozen=True)
class Verdict:
    """The verdict in words, with the advice, and whether the model hardly beats the baseline."""

    useless: bool
    sentence: str
    advice: tuple[str, ...] = ()


def verdict(
    evaluation: Evaluation, names: Sequence[str], predictor: str, settings: Mapping[str, str] | None = None
) -> Verdict:
    """Compare a model with the baseline.

    A useful classifier passes two tests, either in accuracy or in balanced accuracy. First, its gain over the
    baseline is larger than the gain that a useless model has by chance once in twenty times. Second, the gain
    is at least a twentieth of the constant predictor's error rate, or half of its accuracy if that is less.
    If one of two classes is rare, the AUC may show a gain instead, because even a good model then gives most
    records of the rare class a probability below one half. Labels are judged by their mean AUC. A useful text
    model has a loss that is lower than that of the best constant distribution by at least a twentieth.
    Preferences must beat chance, too.
    """
    settings = settings or {}
    if evaluation.interval is not None:
        return _noisy(evaluation, predictor, settings)
    if evaluation.not_finite or not math.isfinite(evaluation.score):
        return _diverged(evaluation, settings)
    if evaluation.labels:
        return _labels(evaluation, names, settings)
    if evaluation.records:
        return _classes(evaluation, names, settings)
    return _plain(evaluation, predictor, settings)


def _diverged(evaluation: Evaluation, settings: Mapping[str, str]) -> Verdict:
    if not evaluation.not_finite and evaluation.survival is not None:
        return Verdict(
            False,
            "No two test records are comparable, since no event is followed by a longer time. All may be "
            "censored, or upper may be below the event times.",
        )
    if not evaluation.not_finite:
        return Verdict(False, f"The test {evaluation.measure} is undefined: all test targets are equal.")
    advice = (_now("a smaller learning rate", settings, "learning_rate"),)
    return _with_advice(
        True,
        f"USELESS: the outputs of the model are NaN or infinite for {evaluation.not_finite:,} test records: "
        "the training diverged.",
        advice,
    )


def _classes(evaluation: Evaluation, names: Sequence[str], settings: Mapping[str, str]) -> Verdict:
    answered = [number for number, count in enumerate(evaluation.predicted) if count]
    gain, balanced_gain = _accuracy_gain(evaluation), _balanced_gain(evaluation)
    better = gain.counts or balanced_gain.counts
    if not better and _is_imbalanced(evaluation) and (ranking := _auc_gain(evaluation)) and ranking.counts:
        return _with_advice(False, _by_ranking(evaluation, names), _advice(evaluation, settings))
    score, baseline = f"{evaluation.score:.4f}", f"{evaluation.baseline:.4f}"
    constant = f'the majority class "{names[evaluation.constant or 0]}"'
    present = sum(count > 0 for count in evaluation.records)
    if present == 1:
        return Verdict(
            False, f"Test accuracy {score}. All test records have one class, so there is nothing to compare."
        )
    if len(answered) == 1:
        return _with_advice(True, _one_answer(evaluation, names, answered[0]), _advice(evaluation, settings))
    balanced = f"balanced accuracy {evaluation.balanced:.4f} against {1 / present:.4f}"
    never = _never(evaluation, names)
    if not better:
        beyond = gain.value > gain.chance or balanced_gain.value > balanced_gain.chance
        sentence = (
            f"USELESS: the model is {'hardly' if beyond else 'no'} better than {constant}: accuracy {score} "
            f"against {baseline}, {balanced}.{never}{_ranks(evaluation)}"
        )
        return _with_advice(True, sentence, _advice(evaluation, settings))
    if not gain.counts:
        sentence = (
            f"Test accuracy {score} is {'hardly above' if gain.value > 0 else 'not above'} the {baseline} "
            f"of {constant}, but {balanced}: the model does distinguish the classes."
        )
    else:
        sentence = f"Test accuracy {score}, against {baseline} for {constant}; {balanced}."
    if not never:
        return Verdict(False, sentence)
    return _with_advice(False, f"{never.strip()} {sentence}", _advice(evaluation, settings))


def _one_answer(evaluation: Evaluation, names: Sequence[str], answer: int) -> str:
    below = f", and {evaluation.baseline:.4f} for the majority class" if answer != evaluation.constant else ""
    return (
        f'USELESS: the model predicts "{names[answer]}" for every test record. Its accuracy is '
        f"{evaluation.score:.4f}{below}.{_never(evaluation, names)}{_ranks(evaluation)}"
    )


@dataclass(frozen=True)
class _Gain:
    """A gain over the baseline.

    A useless model has a gain above ``chance`` once in twenty times. A useful model has at least ``least``.
    """

    value: float
    chance: float
    least: float

    @property
    def counts(self) -> bool:
        return self.value > self.chance and self.value >= self.least


def _auc_gain(evaluation: Evaluation) -> _Gain | None:
    """Return the gain of the AUC over one half, which is the AUC of guessing."""
    if evaluation.auc is None or len(evaluation.records) != 2 or not all(evaluation.records):
        return None
    negatives, positives = evaluation.records
    return _Gain(evaluation.auc - 0.5, _CHANCE * auc_deviation(negatives, positives), _RANKS - 0.5)


def _by_ranking(evaluation: Evaluation, names: Sequence[str]) -> str:
    """Describe a model that ranks records but rarely gives a rare class a probability above one half."""
    share = evaluation.records[1] / sum(evaluation.records)
    has_precision = evaluation.average_precision is not None
    precision = (
        f", average precision {evaluation.average_precision:.3f} against {share:.3f}" if has_precision else ""
    )
    fewer = int(evaluation.records[1] < evaluation.records[0])
    rare, count = names[fewer], evaluation.records[fewer]
    spread = auc_spread(evaluation.auc or 0.5, *evaluation.records)
    surely = count >= _FEWEST_RARE and (evaluation.auc or 0.5) - _BOTH_SIDES * spread >= _RANKS
    quality = f'better than chance, but {count} test records of "{rare}" do not show how well'
    if surely:
        quality = "well"
    return (
        f"The model ranks the records {quality}: AUC {evaluation.auc:.3f} against 0.5{precision} by "
        f'guessing. Its accuracy is {evaluation.score:.4f} against {evaluation.baseline:.4f}, as "{rare}" '
        "is rare and seldom has a probability above 0.5."
    )


def _labels(evaluation: Evaluation, names: Sequence[str], settings: Mapping[str, str]) -> Verdict:
    """Judge labels by their mean AUC.

    The labels of a record may depend on each other, so averaging over labels may not reduce the deviation by
    chance. The deviation of the mean is therefore taken to be the mean of the labels' deviations.
    """
    ranked = [one for one in evaluation.labels if one.auc is not None]
    chance = sum(auc_deviation(one.negatives, one.positives) for one in ranked) / len(ranked)
    gain = _Gain(evaluation.score - 0.5, _CHANCE * chance, _RANKS - 0.5)
    left_out = len(evaluation.labels) - len(ranked)
    without = f", without {left_out} that all or no test records have," * bool(left_out)
    figures = f"{evaluation.measure}{without} {evaluation.score:.4f}, against 0.5 by guessing"
    never = [f'"{n}"' for n, one in zip(names, evaluation.labels, strict=True) if one.recall == 0.0]
    remark = ""
    if never:
        more = f" and {len(never) - _NAMED} more labels" * (len(never) > _NAMED)
        remark = (
            f" No record that has {', '.join(never[:_NAMED])}{more} gets a probability of one half or more."
        )
    threshold = ("a lower threshold, at no cost (tacit predict --threshold 0.1)",) * bool(never)
    advice = (*threshold, *_advice(evaluation, settings))
    if not gain.counts:
        amount = "hardly" if gain.value > gain.chance else "no"
        sentence = f"USELESS: the model is {amount} better than guessing: {figures}.{remark}"
        return _with_advice(True, sentence, advice)
    if never:
        return _with_advice(False, f"Test {figures}.{remark}", advice)
    return Verdict(False, f"Test {figures}.")


def _is_imbalanced(evaluation: Evaluation) -> bool:
    return bool(evaluation.records) and (evaluation.baseline or 0.0) > RARE / len(evaluation.records)


def _least(baseline: float) -> float:
    return min((1.0 - baseline) / 20.0, baseline / 2.0)


def _accuracy_gain(evaluation: Evaluation) -> _Gain:
    """Return the gain of accuracy over that of the constant predictor.

    The gain's deviation by chance comes from the records that only one of the two predictors gets right.
    """
    n, most = sum(evaluation.records), evaluation.constant or 0
    baseline = evaluation.records[most] / n
    right = [recall * count for recall, count in zip(evaluation.per_class, evaluation.records, strict=True)]
    wins, losses = sum(right) - right[most], evaluation.records[most] - right[most]
    return _Gain((wins - losses) / n, _CHANCE * math.sqrt(wins + losses) / n, _least(baseline))


def _balanced_gain(evaluation: Evaluation) -> _Gain:
    """Return the gain of balanced accuracy over that of the majority class.

    For the deviation by chance, a recall is estimated as (right + 1) / (records + 2).
    """
    present = [(r, n) for r, n in zip(evaluation.per_class, evaluation.records, strict=True) if n]
    baseline = 1.0 / len(present)
    shares = [((r * n + 1.0) / (n + 2.0), n) for r, n in present]
    variance = sum(p * (1.0 - p) / n for p, n in shares) / len(present) ** 2
    value = sum(r for r, _ in present) / len(present) - baseline
    return _Gain(value, _CHANCE * math.sqrt(variance), _least(baseline))


def _never(evaluation: Evaluation, names: Sequence[str]) -> str:
    """Name the classes that have test records and are never predicted."""
    lacking = [i for i, n in enumerate(evaluation.records) if n and not evaluation.predicted[i]]
    if not lacking:
        return ""
    examples = ", ".join(f'"{names[i]}"' for i in lacking[:_NAMED])
    more = f" and {len(lacking) - _NAMED} more classes" if len(lacking) > _NAMED else ""
    count = sum(evaluation.records[i] for i in lacking)
    return (
        f" The model never predicts {examples}{more} ({count:,} of {sum(evaluation.records):,} test records)."
    )


def _ranks(evaluation: Evaluation) -> str:
    if evaluation.auc is None or evaluation.auc < _RANKS:
        return ""
    return f" It does rank the records (AUC {evaluation.auc:.2f}), so another threshold may find them."


def _plain(evaluation: Evaluation, predictor: str, settings: Mapping[str, str]) -> Verdict:
    """Judge numbers by their score, and text by its loss, which uses the probabilities of all characters."""
    baseline, loss, constant = evaluation.baseline or 0.0, evaluation.loss, evaluation.constant_loss
    if loss is not None and constant is not None:
        figures = (
            f"loss {evaluation.measure.removeprefix('accuracy ')} {loss:.4f} nats (perplexity "
            f"{_perplexity(loss)}), against {constant:.4f} ({_perplexity(constant)}) for the best constant "
            "distribution"
        )
        gain, least = constant - loss, _LEAST_LOSS * constant
        good = (
            f"Test {figures}; {evaluation.measure} {evaluation.score:.4f}, against {evaluation.baseline:.4f}."
        )
    else:
        figures = f"{evaluation.measure} {evaluation.score:.4f}, against {baseline:.4f} for {predictor}"
        gain, least = evaluation.score - baseline, 0.05 if evaluation.errors else _least(baseline)
        if evaluation.pairs is not None:
            least = max(least, _CHANCE * 0.5 / math.sqrt(evaluation.pairs.count))
        if evaluation.survival is not None:
            # a useless model deviates by at most 1 / (3 sqrt(events))
            least = max(least, _CHANCE / (3 * math.sqrt(max(1, evaluation.survival.events))))
            figures += (
                f"; integrated Brier score {evaluation.survival.brier:.4f}, against "
                f"{evaluation.survival.constant_brier:.4f}"
            )
        good = f"Test {figures}."
    survival = evaluation.survival
    if survival is not None and survival.brier > survival.constant_brier:
        sentence = f"USELESS: one Kaplan-Meier curve for all has a smaller error: {figures}."
        return _with_advice(True, sentence, _advice(evaluation, settings))
    if gain >= least:
        return Verdict(False, good)
    amount = "hardly" if gain > 0 else "no"
    sentence = f"USELESS: the model is {amount} better than the baseline: {figures}."
    return _with_advice(True, sentence, _advice(evaluation, settings))


def _perplexity(loss: float) -> str:
    return f"{math.exp(loss):.4g}" if loss <= _MOST_NATS else f"over e^{_MOST_NATS:g}"


def _noisy(evaluation: Evaluation, predictor: str, settings: Mapping[str, str]) -> Verdict:
    """Judge a model only from the noisy score and public numbers."""
    low, high = evaluation.interval or (0.0, 0.0)
    figures = f"{evaluation.measure} {evaluation.score:.3f} ({low:.3f} to {high:.3f})"
    if evaluation.baseline is None:
        return Verdict(False, f"Test {figures}.")
    against = f"{evaluation.baseline:.3f} for {predictor}"
    smaller = evaluation.measure.startswith("mean squared error")
    worse = low >= evaluation.baseline if smaller else high <= evaluation.baseline
    better = high < evaluation.baseline if smaller else low > evaluation.baseline
    if worse:
        sentence = (
            f"USELESS: the model is no better than {predictor}: {figures}, against {evaluation.baseline:.3f}."
        )
        return _with_advice(True, sentence, _advice(evaluation, settings))
    if better:
        return Verdict(False, f"Test {figures}, against {against}.")
    return Verdict(
        False,
        f"It is uncertain whether the model is better than the baseline: {figures}, against {against}. "
        "More test records or less test_noise make the interval narrower.",
    )


def against_reference(
    evaluation: Evaluation, interval: Sequence[float] | None, reference: float
) -> tuple[str, dict[str, Any]]:
    """Compare a model with the declared score of the same model without DP on public records.

    ``interval`` is the 95 % interval of the evaluation's score, if known.

    >>> against_reference(Evaluation(0.75, 0.6, ()), (0.73, 0.77), 0.82)[0].rpartition(":")[2]
    ' this one is worse by 0.070 (0.050 to 0.090).'
    """
    sign = -1.0 if evaluation.measure.startswith("mean squared error") else 1.0
    worse = sign * (reference - evaluation.score)
    data: dict[str, Any] = {"score": reference, "worse_by": finite(worse), "interval": None}
    words = f"The same model without DP reaches the declared {reference:.3f} on similar public data:"
    if not math.isfinite(worse):
        return f"{words} no comparison is possible.", data
    if interval is None:
        return f"{words} this one is worse by {worse:.3f}.", data
    low, high = sorted(sign * (reference - end) for end in interval)
    data["interval"] = [low, high]
    if low <= 0.0 <= high:
        return f"{words} no difference is certain ({-low:.3f} better to {high:.3f} worse).", data
    if high < 0.0:
        return f"{words} this one is better by {-worse:.3f} ({-high:.3f} to {-low:.3f}).", data
    return f"{words} this one is worse by {worse:.3f} ({low:.3f} to {high:.3f}).", data


def _advice(evaluation: Evaluation, settings: Mapping[str, str]) -> tuple[str, ...]:
    advice = []
    if _is_imbalanced(evaluation):
        if len(evaluation.records) == 2:
            lower = 0.1 if evaluation.constant == 0 else 0.9  # of the second class
            advice.append(f"another threshold, at no cost (tacit predict --threshold {lower})")
        advice.append("a weight far below 1 for the majority class ([training] class_weights)")
    advice += [
        _now(words, settings, key)
        for words, key in (
            ("more epsilon", "epsilon"),
            ("more steps", "steps"),
            ("a larger batch", "batch_size"),
            ("another learning rate", "learning_rate"),
        )
        if key in settings or not settings
    ]
    return tuple(advice)


def _now(words: str, settings: Mapping[str, str], key: str) -> str:
    return f"{words} (now {settings[key]})" if key in settings else words


def _with_advice(useless: bool, sentence: str, advice: Sequence[str]) -> Verdict:
    if not advice:
        return Verdict(useless, sentence)
    *first, last = advice
    choices = f"{', '.join(first)} or {last}" if first else last
    return Verdict(useless, f"{sentence} Try {choices}. Each further run costs epsilon again.", tuple(advice))
