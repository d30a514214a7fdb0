"""The report on what a run reveals, as one self-contained HTML page with its data and charts.

The data come from :mod:`tacit.report.findings`. The page has no section for data that are missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_FLOOR
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.files import write_atomically
from tacit.report import document
from tacit.report.canvas import BLUE, ORANGE, PALE, line_style, new_chart, to_svg
from tacit.report.document import percent
from tacit.rounding import counted, finite, shown_epsilon

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Data = Mapping[str, Any]

_PARTS = ("membership", "remembered", "audits")


def page(data: Data) -> str:
    """Write the whole page as HTML."""
    return _page(data, charts_of(data))


def write_report(data: Data, folder: Path) -> Path:
    """Write ``report.html``, ``report.json`` and one SVG for each chart, and return the path of the page.

    Only the owner of the files can read them, as findings on membership are as confidential as the records.
    """
    charts = charts_of(data)
    return write_files(folder, data, _page(data, charts), charts)


def write_files(folder: Path, data: Data, text: str, charts: Mapping[str, Axes]) -> Path:
    """Write a page with its data and charts, and return its path."""
    files = {f"{name}.svg": to_svg(chart, alone=True) for name, chart in charts.items()}
    files["report.html"] = text
    files["report.json"] = json.dumps(finite(data), indent=1, allow_nan=False)
    for name, content in files.items():
        encoded = content.encode()
        write_atomically(folder / name, lambda file, encoded=encoded: file.write(encoded), mode=0o600)  # type: ignore[misc]
    return folder / "report.html"


def _page(data: Data, charts: Mapping[str, Axes]) -> str:
    return document.page("run.html", f"What {data['run']['name']} reveals", **facts_of(data, charts))


def facts_of(data: Data, charts: Mapping[str, Axes]) -> dict[str, Any]:
    """Return what the template of the page needs."""
    contradicted, words = verdict(data)
    return dict(
        **{**dict.fromkeys(_PARTS), **data},
        charts={name: to_svg(chart) for name, chart in charts.items()},
        summary=summary(data),
        strongest=strongest(data),
        figures=figures(data),
        verdict=words,
        contradicted=contradicted,
        epsilon=epsilon_of(data["risk"]),
    )


# --- the charts, drawn from plain data alone

_DASHED: dict[str, Any] = {"color": PALE, "linestyle": (0, (4, 3)), "linewidth": 1.4}


def charts_of(data: Data) -> dict[str, Axes]:
    """Draw the charts, and return them by name. Each can also be a separate file."""
    risk = data["risk"]
    worlds = new_chart("strength of the best evidence", "times in 100", title="Two worlds")
    draw_worlds(worlds, risk["two_worlds"], risk["unit"])
    charts = {"two-worlds": worlds}
    if membership := data.get("membership"):
        charts["attacks"] = _roc(membership, risk)
    if (remembered := data.get("remembered")) and remembered["canaries"]:
        for model in remembered["models"]:
            charts[f"exposure-{model['model'].replace(' ', '-').lower()}"] = _exposures(remembered, model)
    return charts


def draw_worlds(axes: Axes, worlds: Data, unit: str) -> None:
    """Draw histograms of the strength of the best evidence, without one unit and with it."""
    for kind, colour in (("without", BLUE), ("with", ORANGE)):
        heights = 100.0 * np.asarray(worlds[kind])
        axes.stairs(
            heights, worlds["evidence"], fill=True, alpha=0.3, color=colour, label=f"{kind} this {unit}"
        )
        axes.stairs(heights, worlds["evidence"], color=colour)
    axes.set(xlim=(-4.0, 8.0), ylim=(0.0, None))


def _roc(membership: Data, risk: Data) -> Axes:
    fewest = max(attack["non_members"] for model in membership["models"] for attack in model["attacks"])
    least = max(1e-5, 10.0 ** -(len(str(fewest)) - 1)) / 1.0001
    axes = new_chart(
        "false alarms (share of others)",
        "members found (share)",
        title="Members found against false alarms",
        shares="xy",
    )
    limit = risk["limit"]
    shut: dict[str, Any] = {"color": PALE, "alpha": 0.22, "linewidth": 0}
    axes.fill_between(limit["false_alarms"], limit["found"], 1.0, label="no attack gets here with DP", **shut)
    axes.plot(limit["false_alarms"], limit["found"], color=PALE)
    for model in membership["models"]:
        style = line_style(0 if model["private"] else 1)
        roc = next(one for one in model["attacks"] if one["attack"] == membership["headline"])["roc"]
        band = (roc["false_alarms"], roc["low"], roc["high"])
        axes.fill_between(*band, color=style["color"], alpha=0.22, linewidth=0)
        axes.plot(roc["false_alarms"], roc["found"], **style, label=model["model"])
    axes.plot([least, 1.0], [least, 1.0], **_DASHED, label="guessing")
    axes.set(xlim=(least, 1.0), ylim=(least, 1.0))
    return axes


def _exposures(remembered: Data, model: Data) -> Axes:
    """Draw the share of secrets with at least x bits of exposure, and the largest share that is allowed."""
    fewest = max([1, *(group["count"] for group in model["planted"])])
    low, end = min(0.01, 0.5 / fewest), remembered["most_bits"] + 0.4
    axes = new_chart(
        "exposure, bits",
        "share with at least this exposure (logarithmic)",
        title=f"Exposure of secrets, {model['model']}",
        shares="y",
    )
    if model["private"]:
        first = remembered["bounds"][0]
        copies = "one copy" if first["copies"] == 1 else f"{first['copies']} copies"
        bits, most = [*first["bits"], end], [*first["most"], first["most"][-1]]
        axes.fill_between(
            bits, most, 1.0, color=PALE, alpha=0.22, linewidth=0, label=f"ruled out for {copies}"
        )
        axes.plot(first["bits"], first["most"], color=PALE)
    axes.plot([0.0, -math.log2(low)], [1.0, low], **_DASHED, label="never seen")
    for group, number in zip(model["planted"], (0, 2, 1), strict=False):
        if count := group["count"]:
            shares = [1.0, *(1.0 - np.arange(1, count) / count), low]  # of secrets above each number of bits
            style = line_style(number) | {"drawstyle": "steps-post", "label": planted(group["copies"])}
            axes.plot([0.0, *group["exposures"]], shares, **style)
    axes.set(xlim=(0.0, end), ylim=(low, 1.0))
    return axes


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
        experiments.append(counted(planted, "planted record"))
    if secrets := data.get("remembered", {}).get("canaries", 0):
        experiments.append(counted(secrets, "planted secret"))
    if membership := data.get("membership"):
        attacks = max(len(model["attacks"]) for model in membership["models"])
        experiments.append(f"{counted(attacks, 'attack')} on membership")
    return " and ".join(experiments)


def figures(data: Data) -> dict[str, str]:
    """Return one short result for each kind of finding in :func:`summary`."""
    by_kind = {"limit": f"ε ≤ {epsilon_of(data['risk'])}"}
    if membership := data.get("membership"):
        model = next(one for one in membership["models"] if one["private"])
        attack = next(one for one in model["attacks"] if one["attack"] == membership["headline"])
        by_kind["attack"] = f"{percent(attack['points'][0]['true_positive_rate'])} found"
    models = data.get("remembered", {}).get("models", ())
    secrets = next((model["planted"] for model in models if model["private"]), ())
    if groups := [group for group in secrets if group["count"]]:
        out, count = (sum(group[key] for group in groups) for key in ("completed", "count"))
        by_kind["memory"] = f"{out} of {count} came out"
    for planted in data.get("audits", ()):
        result = _reported(planted)
        least = shown_epsilon(result["eps_lower"], ROUND_FLOOR)
        by_kind["audit"] = "not contradicted" if _unconfirmed(result) else f"ε ≥ {least}"
    return by_kind


def epsilon_of(risk: Data) -> str:
    """Write the epsilon of the promise, rounded up."""
    return "∞" if risk["epsilon"] is None else shown_epsilon(risk["epsilon"])


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
    claim = (
        "The claim"
        if result["claimed_eps"] is None
        else f"The claim of ε ≤ {shown_epsilon(result['claimed_eps'])}"
    )
    verdict = "" if result["claim_rejected"] is None else f"{claim} is {result['judgement']} "
    planted = f"{verdict}{counted(result['canaries'], 'synthetic record')} were planted"
    if _unconfirmed(result):
        return f"{planted}, then fresh ones in the larger test."
    return (
        f"{planted}, and their traces were measured: with {100 * result['confidence']:g} % confidence ε is "
        f"at least {shown_epsilon(result['eps_lower'], ROUND_FLOOR)} ({result['method']}). A small figure "
        "means a weak attack, not safety."
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
        counts = []
        for model in remembered["models"]:
            own = next(one for one in model["planted"] if one["copies"] == group["copies"])
            counts.append(f"{own['completed']} {model['model']} (median exposure {own['median']:.1f} bits)")
        parts.append(f"of {group['count']} {planted(group['copies'])}, {', '.join(counts)}")
    chance = remembered["by_chance"]
    words = (
        f"Synthetic lines, each with a secret drawn from {remembered['candidates']:,}, were added to the "
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


def planted(copies: int) -> str:
    return "planted once" if copies == 1 else f"planted {copies} times"


def strongest(data: Data) -> list[dict[str, Any]]:
    """Return comparisons of the best evidence with guessing and with the limit for this epsilon.

    Each has a ``sentence``, and ``rows`` for bars: words, share of the width, figure and colour.
    """
    found = []
    limit = f"limit for ε ≤ {epsilon_of(data['risk'])}"
    if membership := data.get("membership"):
        found.append(_members_compared(membership, limit))
    if (remembered := data.get("remembered")) and remembered_sentence(remembered):
        found.append(_secrets_compared(remembered, limit))
    reported = [_reported(one) for one in data.get("audits", ())]
    return found + [_audit_compared(one, data["risk"]) for one in reported if not _unconfirmed(one)]


def _members_compared(membership: Data, limit: str) -> dict[str, Any]:
    rate, name = membership["rates"][0], membership["headline"]
    shares = {"guessing": rate["rate"]}
    for model in _private_first(membership["models"]):
        attack = next(one for one in model["attacks"] if one["attack"] == name)
        shares[model["model"]] = attack["points"][0]["true_positive_rate"]["value"]
    sentence = f"Training records that the attack “{name}” finds at {100 * rate['rate']:g} % false alarms:"
    return {"sentence": sentence, "rows": _shares(shares | {limit: rate["limit"]})}


def _secrets_compared(remembered: Data, limit: str) -> dict[str, Any]:
    """Compare the secrets with the fewest copies, which have the lowest limit."""
    chance = remembered["by_chance"]
    shares, copies = {"by chance": chance["share"]}, 1
    for model in _private_first(remembered["models"]):
        group = next(one for one in model["planted"] if one["count"])
        shares[model["model"]] = group["at_least_by_chance_bits"] / group["count"]
        copies = group["copies"]
    bound = next(one["most_by_chance_bits"] for one in remembered["bounds"] if one["copies"] == copies)
    sentence = f"Secrets {planted(copies)} that have an exposure of at least {chance['bits']:g} bits:"
    return {"sentence": sentence, "rows": _shares(shares | {limit: bound})}


def _audit_compared(result: Data, risk: Data) -> dict[str, Any]:
    most = math.inf if risk["epsilon"] is None else risk["epsilon"]
    reached = result["eps_lower"]
    top = max(reached, most if math.isfinite(most) else 0.0) or 1.0
    rows = [
        ("guessing", 0.0, "ε ≥ 0", "shut"),
        ("this experiment", reached / top, f"ε ≥ {shown_epsilon(reached, ROUND_FLOOR)}", "one"),
        ("stated by Tacit", most / top, f"ε ≤ {epsilon_of(risk)}", "three"),
    ]
    sentence = f"The smallest ε that agrees with the traces of {result['canaries']:,} planted records:"
    return {"sentence": sentence, "rows": rows}


def _private_first(models: Sequence[Data]) -> list[Data]:
    return sorted(models, key=lambda model: not model["private"])


def _shares(shares: Mapping[str, float]) -> list[tuple[str, float, str, str]]:
    """Return bars for guessing, the model with DP, the one without if there is one, and the limit."""
    top = max(shares.values())
    colours = ("shut", "one", *("two",) * (len(shares) - 3), "three")
    return [
        (words, share / top, f"{100 * share:.3g} %", colour)
        for (words, share), colour in zip(shares.items(), colours, strict=True)
    ]
