"""What was found on a run, in a few sentences: the head of its report, and what the command line prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tacit.report.pages.remembered_page import remembered_sentence
from tacit.report.rounding import round_up

__all__ = ["epsilon_of", "percent", "summary"]

Data = Mapping[str, Any]


def summary(data: Data) -> list[tuple[str, str]]:
    """What was found, in a few sentences, each with a word for its kind: "limit", "attack", "memory",
    "audit".

    A kind ends in an exclamation mark where the promise is contradicted.
    """
    risk = data["risk"]
    found = [("limit", f"ε ≤ {epsilon_of(risk)} at δ = {risk['delta']:g}. {risk['sentences'][0]}")]
    if membership := data.get("membership"):
        found.append(_headline(membership))
    if (remembered := data.get("remembered")) and (sentence := remembered_sentence(remembered)):
        found.append(sentence)
    for planted in data.get("audits", ()):
        worst = max(planted["results"], key=lambda result: result["claim_rejected"] is True)
        kind = "audit!" if worst["claim_rejected"] else "audit"
        found.append((kind, _proven(worst)))
    return found


def percent(interval: Data) -> str:
    """A share with its interval, in percent."""
    value, low, high = (100 * interval[key] for key in ("value", "low", "high"))
    return f"{value:.3g} % ({low:.3g}–{high:.3g})"


def epsilon_of(risk: Data) -> str:
    """The epsilon of the promise, rounded up."""
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
        f"At {at} false alarms of 100, the attack ({attacker}) found of the members: {'; '.join(texts)}. "
        f"Guessing finds {at} %; no attack finds more than {100 * rate['limit']:.3g} % with DP."
    )
    if above:
        return "attack!", (
            f"{words} An attack is ABOVE THE LIMIT: either the code is wrong, or members and others differ "
            "in more than membership. Do not release before it is known which."
        )
    return "attack", words


def _proven(result: Data) -> str:
    claim = "" if result["claimed_eps"] is None else f" {result['claimed_eps']:.2f} is claimed:"
    verdict = {
        True: f"{claim} CONTRADICTED, do not release.",
        False: f"{claim} not contradicted.",
        None: "",
    }[result["claim_rejected"]]
    return (
        f"{result['canaries']:,} made-up records were planted, and looked for. That proves, with "
        f"{100 * result['confidence']:g} % confidence, that ε is at least {result['eps_lower']:.2f} "
        f"({result['method']}).{verdict} A small figure means a weak attack, not safety."
    )
