"""What does a run reveal? The report: one HTML page that needs no network, made of plain data alone.

The data are those of :mod:`tacit.report.findings`; parts that are missing are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tacit.report.pages.document import document
from tacit.report.pages.remembered_page import remembered_section
from tacit.report.pages.run_charts import charts_of
from tacit.report.pages.run_evidence import bar, stands_out, strays, strongest_evidence, tenths
from tacit.report.pages.run_summary import epsilon_of, figures, percent, summary, verdict
from tacit.rounding import round_up

Data = Mapping[str, Any]

_WORDS = {
    "ε (epsilon), δ (delta)": "The size of the promise. The smaller ε is, the less anything that is "
    "computed from the model can depend on one {unit}; at ε = 0 it does not at all. δ is a small allowance.",
    "member": "One {unit} that the model was trained on.",
    "false alarm": "A record that the model was not trained on, and that the attacker calls a member.",
    "interval": "Where the true figure lies, in {confidence} of 100 such experiments.",
    "shadow model": "A model that an attacker trains, on records of which it is known which are in.",
    "exposed": "Said of a record: how far training on it moves its score, in standard deviations of chance.",
    "exposure": "Said of a planted secret: how far ahead of all that it might have been it stands, in bits.",
    "canary": "A made-up record, planted by a coin toss, to see whether its traces can be found.",
}
_WORLDS = (
    "How strong an attacker’s evidence is at best, had one {unit} taken part or not. Where the two overlap, "
    "the attacker cannot tell which it is."
)
_ATTACKS = (
    "The attack {attack}, chosen beforehand, with {percent} % bands; both axes are logarithmic. The left "
    "edge matters most: members found with hardly a false alarm. Where the promise is kept, no attack gets "
    "into the shaded region, but by chance."
)
_EXPOSED = (
    "All records, those exposed most on the left. Half of the shadow models ranked them, the other half gave "
    "the figures, so that chance does not pick the winners."
)
_TITLES = {
    "limit": "What is promised",
    "attack": "What attacks found",
    "memory": "What it has learnt by heart",
    "audit": "What the planted experiment proves",
}
_DRAWN = {"mean": "mean of its records", "without_dp": "without DP", "with_dp": "with DP"}


def page(data: Data) -> str:
    """The whole page, as HTML.

    :param data: with ``run``, ``risk`` and any of ``membership``, ``exposed``, ``remembered``, ``inversion``,
        ``audits``.
    """
    charts = {name: chart.to_svg() for name, chart in charts_of(data).items()}
    body = [
        _head(data),
        strongest_evidence(data),
        _exposed(data, charts),
        _membership(data, charts),
        _remembered(data, charts),
        _risk(data["risk"], charts),
        _inversion(data),
        _audits(data),
        _closing(data),
    ]
    return document(f"What {data['run']['name']} gives away", "".join(body))


# --- the parts of the page --------------------------------------------------------------------------------


def _head(data: Data) -> str:
    run, items, short = data["run"], [], figures(data)
    for kind, sentence in summary(data):
        name, style = kind.rstrip("!"), ' class="bad"' if kind.endswith("!") else ""
        items.append(
            f"<li><div><b{style}>{_TITLES[name]}</b><span>{escape(short[name])}</span></div>"
            f"<p>{escape(sentence)}</p></li>"
        )
    contradicted, words = verdict(data)
    return (
        f"<h1>What “{escape(run['name'])}” gives away about one {escape(run['unit'])}</h1>"
        f'<p class="verdict{" bad" if contradicted else ""}">{escape(words)}</p>'
        f'<ol class="short">{"".join(items)}</ol>'
        '<p class="secret">Confidential: this page was computed from the training records without any noise. '
        "Keep it where the records are kept; the privacy statement is what may be shown to others.</p>"
        f'<p class="soft">{escape(run["model"])}; data: {escape(run["data"])}.</p>'
    )


def _risk(risk: Data, charts: Mapping[str, str]) -> str:
    rows = "".join(
        f"<tr><td>{escape(c['question'])}</td><td>{100 * c['without_the_release']:.4g} %</td>"
        f"<td>{round_up(100 * c['at_most'], 3)} %</td></tr>"
        for c in risk["chances"]
    )
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in risk["sentences"][1:])
    return (
        "<h2>What no attack can exceed</h2>"
        f"<p>The run promises ε ≤ {epsilon_of(risk)} at δ = {risk['delta']:g} for one {escape(risk['unit'])} "
        f"({escape(risk['adjacency'])}). These limits follow from what was really done, "
        "not from ε alone.</p>"
        f"{sentences}"
        f"{_figure(charts['two-worlds'], _WORLDS.format(unit=risk['unit']))}"
        '<div class="wide" tabindex="0"><table><tr><th>at most</th><th>without the model</th>'
        f"<th>with it</th></tr>{rows}</table></div>"
    )


def _membership(data: Data, charts: Mapping[str, str]) -> str:
    found = data.get("membership")
    if not found:
        return ""
    percent = f"{100 * found['confidence']:g}"
    tables = "".join(_attack_table(model, found["rates"]) for model in found["models"])
    who = (
        f"{found['shadows']} shadow models" if found["shadows"] else "no shadow models (the quick look): weak"
    )
    return (
        "<h2>What attacks reach</h2><p>Each attack gives every record a score, and calls it a member if "
        "its score is high. An attack that finds no more members than it raises false alarms is guessing. "
        f"These had {who}.</p>"
        f"{_figure(charts['attacks'], _ATTACKS.format(attack=found['headline'], percent=percent))}"
        f"<details><summary>Every attack, in figures</summary>{tables}"
        f'<p class="soft">In brackets: {percent} % intervals, over records like these and '
        "other shadow models, for this one model; that the threshold was set by these records is in them. "
        f"{escape(found['about'])}</p></details>"
        '<p class="soft">Members are the training records, others the test records. Where the two differ in '
        "kind, an attack can also tell them apart by that, which is no leak.</p>"
    )


def _attack_table(model: Data, rates: Sequence[Data]) -> str:
    head = "".join(f"<th>found at {100 * rate['rate']:g} % false alarms</th>" for rate in rates)
    limits = "".join(f"<td>{100 * rate['limit']:.3g} %</td>" for rate in rates)
    rows = []
    for attack in model["attacks"]:
        cells = "".join(f"<td>{percent(point['true_positive_rate'])}</td>" for point in attack["points"])
        above = ' <span class="bad">above the limit</span>' if attack.get("above_the_limit") else ""
        auc = attack["auc"]
        rows.append(
            f"<tr><td>{escape(attack['attack'])}{above}</td>"
            f"<td>{auc['value']:.3f} ({auc['low']:.3f}–{auc['high']:.3f})</td>{cells}</tr>"
        )
    if model["private"]:
        rows.append(f"<tr><td><i>limit for any attack, of the rate itself</i></td><td></td>{limits}</tr>")
    first = model["attacks"][0]
    return (
        f"<h3>{escape(model['model'])}</h3>"
        f'<p class="soft">{first["members"]:,} members, {first["non_members"]:,} others; score on the former '
        f"{model['train_score']:.3f}, on the latter {model['test_score']:.3f}. AUC: how often a member "
        "scores higher than another record; 0.5 is guessing.</p>"
        f'<div class="wide" tabindex="0"><table><tr><th>attack</th><th>AUC</th>{head}</tr>'
        f"{''.join(rows)}</table></div>"
    )


def _exposed(data: Data, charts: Mapping[str, str]) -> str:
    found = data.get("exposed")
    if not found:
        return ""
    unit = escape(data["run"]["unit"])
    most, least = (
        f'<div class="gallery">{"".join(map(_card, found[which]))}</div>' for which in ("most", "least")
    )
    anybody = any(stands_out(found["most"][0], kind) for kind in ("without_dp", "with_dp"))
    first, last = (f"Exposed {which} without DP" for which in ("most", "least"))
    if not anybody:
        first, last = (f"Ranked {which} without DP: none stands out" for which in ("first", "last"))
    return (
        "<h2>Who is exposed most</h2><p>Training on a record moves the score of that very record. How far it "
        f"is moved, in standard deviations of what chance does, is by how much this {unit} is exposed: by 0 "
        "nobody can tell that it took part, by 3 almost anyone can. Averages hide this: odd and mislabelled "
        f"records are exposed first.{strays(data)}</p>"
        f"{_figure(charts['exposed'], _EXPOSED)}"
        f"<h3>{first}</h3>{most}<details><summary>{last}</summary>{least}</details>"
    )


def _card(record: Data) -> str:
    picture = f'<img alt="record {record["record"]}" src="{record["picture"]}">' if record["picture"] else ""
    with_dp = "" if record["with_dp"] is None else f"<br>with DP {tenths(record['with_dp'])}"
    return (
        f"<figure>{picture}<figcaption><b>{escape(record['label'])}</b>"
        f"<br>without DP {tenths(record['without_dp'])}{with_dp}</figcaption></figure>"
    )


def _remembered(data: Data, charts: Mapping[str, str]) -> str:
    found = data.get("remembered")
    return remembered_section(found, charts, data["run"]["unit"]) if found else ""


def _inversion(data: Data) -> str:
    found = data.get("inversion")
    if not found:
        return ""
    head = "".join(f"<th>{words}</th>" for words in _DRAWN.values())
    rows = "".join(
        f"<tr><td>{escape(one['name'])}</td>"
        + "".join(
            f'<td><img alt="{escape(one["name"])}, {words}" src="{one[key]}"></td>'
            for key, words in _DRAWN.items()
        )
        + "</tr>"
        for one in found["classes"]
    )
    return (
        "<h2>What can be drawn from the model</h2><p>An attacker who has the model searches for the "
        "input that it is surest of, class by class. What comes out shows what the class looks "
        "like. If a class is many people, that is what the model is meant to learn; if a class is one "
        "person, it is that person’s picture, and a promise about single records does not cover it: make "
        "the person the unit.</p>"
        f'<div class="wide" tabindex="0"><table class="drawn"><tr><th>class</th>{head}</tr>'
        f"{rows}</table></div>"
    )


def _audits(data: Data) -> str:
    parts = []
    for planted in data.get("audits", ()):
        results = planted["results"]
        claimed = next((r["claimed_eps"] for r in results if r["claimed_eps"] is not None), None)
        top = max([claimed or 0.0, *(r["eps_lower"] for r in results)]) or 1.0
        bars = [] if claimed is None else [bar("ε claimed", claimed, top, "one")]
        bars += [bar(f"ε proven by {r['method']}", r["eps_lower"], top, "two") for r in results]
        sentences = "".join(f"<li{_style(r)}>{escape(r['sentence'])}</li>" for r in results)
        parts.append(
            f"<p>{escape(planted['where'])}</p>{''.join(bars)}"
            '<p class="soft">From the end of the lower bars to that of the first: what this experiment could '
            "not show, for it is one experiment. A low bar means a weak attack, not safety.</p>"
            f"<ul>{sentences}</ul>"
        )
    if not parts:
        return ""
    return (
        "<h2>Does the promise hold?</h2><p>The limits above are mathematics; an experiment checks whether "
        "the program keeps to it. Made-up records, canaries, are put in by the toss of a secret coin; then "
        "the traces of each in what the training released are held against what the promise allows. Too many "
        "right guesses would disprove it.</p>" + "".join(parts)
    )


def _closing(data: Data) -> str:
    confidence = f"{100 * data.get('membership', {}).get('confidence', 0.95):g}"
    words = "".join(
        f"<dt>{word}</dt><dd>{escape(text.format(unit=data['run']['unit'], confidence=confidence))}</dd>"
        for word, text in _WORDS.items()
    )
    return (
        "<h2>What this does not say</h2><p>That attacks found little does not mean that there is little: "
        "tomorrow’s may be better. Only the limits hold for all of them. They are about one "
        f"{escape(data['run']['unit'])}; what is true of many alike can be learnt and is meant to be. And "
        "they cover the training records, not what else is known or published of them.</p>"
        f"<h2>Words</h2><dl>{words}</dl>"
    )


# --- words and pictures -----------------------------------------------------------------------------------


def _style(result: Data) -> str:
    return ' class="bad"' if result["claim_rejected"] else ""


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
