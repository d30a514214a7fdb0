"""The findings on a run in a few sentences, for the head of its report and the command line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tacit.report.pages.document import percent
from tacit.rounding import round_up

Data = Mapping[str, Any]

_TESTS = {
    "attack": "an attack that is above its limit",
    "memory": "secrets whose exposure is above its limit",
    "audit": "the planted experiment",
}


def summary(data: Data) -> list[tuple[str, str]]:
    """Return pairs (kind, sentences) for the findings. The kinds are "limit", "attack", "memory" and "audit".

    The kind of a finding that contradicts the promise has an exclamation mark at its end.
    """
    risk = data["risk"]
    findings = [("limit", f"ε ≤ {epsilon_of(risk)} at δ = {risk['delta']:g}. {risk['sentences'][0]}")]
    if membership := data.get("membership"):
        findings.append(_headline(membership))
    if (remembered := data.get("remembered")) and (sentence := remembered_sentence(remembered)):
        findings.append(sentence)
    for planted in data.get("audits", ()):
        worst = _reported(planted)
        kind = "audit!" if worst["claim_rejected"] else "audit"
        findings.append((kind, _proven(worst)))
    return findings


def verdict(data: Data) -> tuple[bool, str]:
    """Return whether an experiment contradicts the promise, and a text that explains it.

    The text names the promise, the experiments that tested it, and the best result of an attacker.
    """
    run, risk = data["run"], data["risk"]
    promise = f"ε ≤ {epsilon_of(risk)} at δ = {risk['delta']:g} for one {risk['unit']}"
    most = math.ceil(min(100.0, 100.0 * risk["chances"][0]["at_most"] - 1e-9))
    reach = (
        f"any attacker who guesses whether one {risk['unit']} took part is right at most {most} times in "
        "100; a blind guess is right 50 times."
    )
    against = [_TESTS[kind.rstrip("!")] for kind, _ in summary(data) if kind.endswith("!")]
    if against:
        by = " and by ".join(against)
        return True, (
            f"DO NOT RELEASE: the promise of {promise} is contradicted by {by}. If the promise held, {reach}"
        )
    if not run.get("private", True):
        return False, (
            "NOT PRIVATE: the run used a fixed test key. Anyone who knows the key can subtract the noise. "
            f"Only the same run with a secret key would promise {promise}."
        )
    tested = _tested(data)
    begin = (
        f"No experiment here contradicts the promise of {promise}. It was tested with {tested}."
        if tested
        else f"The promise is {promise}. No experiment has tested it."
    )
    return False, f"{begin} {reach[0].upper()}{reach[1:]}"


def _tested(data: Data) -> str:
    """Count the experiments that tested the promise, in words."""
    experiments = []
    if planted := sum(one["results"][0]["canaries"] for one in data.get("audits", ())):
        experiments.append("one planted record" if planted == 1 else f"{planted:,} planted records")
    if secrets := data.get("remembered", {}).get("canaries", 0):
        experiments.append("one made-up secret" if secrets == 1 else f"{secrets:,} made-up secrets")
    if membership := data.get("membership"):
        attacks = max(len(model["attacks"]) for model in membership["models"])
        experiments.append(f"{attacks} attacks on membership" if attacks > 1 else "one attack on membership")
    return " and ".join(experiments)


def figures(data: Data) -> dict[str, str]:
    """Return one short result for each kind of finding in :func:`summary`."""
    by_kind = {"limit": f"ε ≤ {epsilon_of(data['risk'])}"}
    if membership := data.get("membership"):
        model = next(one for one in membership["models"] if one["private"])
        attack = next(one for one in model["attacks"] if one["attack"] == membership["headline"])
        by_kind["attack"] = f"{percent(attack['points'][0]['true_positive_rate'])} found"
    if groups := [group for group in _planted_secrets(data) if group["count"]]:
        out, count = (sum(group[key] for group in groups) for key in ("completed", "count"))
        by_kind["memory"] = f"{out} of {count} came out"
    for planted in data.get("audits", ()):
        result = _reported(planted)
        by_kind["audit"] = f"ε ≥ {result['eps_lower']:.2f}"
        if _unconfirmed(result):
            once = round(1 / (1 - result["confidence"]))
            by_kind["audit"] = (
                f"not confirmed: once in {once} a first test says ε ≥ {result['eps_lower']:.2f}"
            )
    return by_kind


def _planted_secrets(data: Data) -> list[Data]:
    models = data.get("remembered", {}).get("models", ())
    return next((list(model["planted"]) for model in models if model["private"]), [])


def epsilon_of(risk: Data) -> str:
    """Write the epsilon of the promise, rounded up."""
    return "∞" if risk["epsilon"] is None else round_up(risk["epsilon"], 3)


def _headline(membership: Data) -> tuple[str, str]:
    name, rate = membership["headline"], membership["rates"][0]
    at, texts, above = f"{100 * rate['rate']:g}", [], False
    for model in sorted(membership["models"], key=lambda model: not model["private"]):
        attack = next(one for one in model["attacks"] if one["attack"] == name)
        above = above or any(one.get("above_the_limit", False) for one in model["attacks"])
        texts.append(f"{percent(attack['points'][0]['true_positive_rate'])} {model['model']}")
    attacker = f"{name}, with {membership['shadows']} shadow models" if membership["shadows"] else name
    words = (
        f"At a false-alarm rate of {at} %, the attack ({attacker}) found these shares of the members: "
        f"{'; '.join(texts)}. Guessing finds {at} %; with DP no attack finds more than "
        f"{100 * rate['limit']:.3g} % on average. These shares are estimates with intervals, and may lie "
        "above that limit by chance."
    )
    if above:
        return "attack!", (
            f"{words} An attack is ABOVE THE LIMIT: either the code is wrong, or members and others differ "
            "in more than membership. Do not release the model before you know which."
        )
    return "attack", words


def _reported(experiment: Data) -> Data:
    """Choose the result to report: one that contradicts the claim, or else the first, not the largest."""
    results: list[Data] = experiment["results"]
    return max(results, key=lambda one: (one["claim_rejected"] is True, one.get("suspected") is True))


def _proven(result: Data) -> str:
    """Write the verdict on the claim, if one was tested, and then what it comes from."""
    claim = "The claim" if result["claimed_eps"] is None else f"The claim of ε ≤ {result['claimed_eps']:.2f}"
    verdict = "" if result["claim_rejected"] is None else f"{claim} is {result['judgement']} "
    by = "The first test alone says" if _unconfirmed(result) else "They say"
    return (
        f"{verdict}{result['canaries']:,} made-up records were planted, and their traces were measured. "
        f"{by}, with {100 * result['confidence']:g} % confidence, that ε is at least "
        f"{result['eps_lower']:.2f} ({result['method']}). A small figure means a weak attack, not safety."
    )


def _unconfirmed(result: Data) -> bool:
    return bool(result.get("suspected")) and not result["claim_rejected"]


def remembered_sentence(remembered: Data) -> tuple[str, str] | None:
    """Return the kind "memory" and sentences on the planted secrets, or None if there were no secrets.

    The kind is "memory!" if an exposure is above its limit.
    """
    private = next(model for model in remembered["models"] if model["private"])
    groups = [group for group in private["planted"] if group["count"]]
    if not groups:
        return None
    parts = []
    for group in {g["copies"]: g for g in (groups[0], groups[-1])}.values():
        counts = [
            f"{own['completed']} {model['model']} (median exposure {own['median']:.1f} bits)"
            for model in remembered["models"]
            if (own := _with_copies_of(model, group))
        ]
        parts.append(f"of {group['count']} {planted(group['copies'])}, {', '.join(counts)}")
    chance = remembered["by_chance"]
    words = (
        f"Made-up lines, each with a secret drawn from {remembered['candidates']:,}, were added to the "
        f"records. After the beginning of such a line, the models wrote out the secret: {'; '.join(parts)}. "
        f"The largest possible exposure is {remembered['most_bits']:.1f} bits; chance alone gives "
        f"{chance['bits']:g} bits or more to 1 in {1 / chance['share']:g} secrets."
    )
    if any(group["above_bound"] for group in private["planted"]):
        return "memory!", (
            f"{words} The exposures are ABOVE THEIR LIMIT: the model remembers more than its guarantee "
            "allows. Do not release it."
        )
    return "memory", words


def _with_copies_of(model: Data, group: Data) -> Data:
    match: Data = next(one for one in model["planted"] if one["copies"] == group["copies"])
    return match


def planted(copies: int) -> str:
    return "planted once" if copies == 1 else f"planted {copies} times"
