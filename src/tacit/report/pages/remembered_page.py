"""What does a language model remember? The section of the report, with its charts and its sentence.

The data are those of :mod:`tacit.report.remembered`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from tacit.report.pages.chart import Axis, Chart

Data = Mapping[str, Any]

_COLOURS = ("one", "three", "two")
_EXPOSED = (
    "{model}: how many of the secrets have at least so much exposure. The dashed line is that of secrets "
    "which the model never saw.{limit}"
)
_LIMIT = (
    " No training that keeps its promise gets secrets in {least} into the shaded region, but by chance; "
    "those in more may get there."
)


def remembered_charts(found: Data) -> dict[str, Chart]:
    """A chart of exposures for each model; none if no secrets were planted."""
    if not found["canaries"]:
        return {}
    return {f"exposure-{_slug(model['model'])}": _chart(found, model) for model in found["models"]}


def remembered_sentence(found: Data) -> tuple[str, str] | None:
    """What was found of the planted secrets, with the word "memory"; None if there were none.

    The word ends in an exclamation mark where an exposure is above its limit.
    """
    private = next(model for model in found["models"] if model["private"])
    groups = [group for group in private["planted"] if group["count"]]
    if not groups:
        return None
    parts = []
    for group in {g["copies"]: g for g in (groups[0], groups[-1])}.values():
        came = [
            f"{own['completed']} {model['model']} (exposure {own['median']:.1f} bits in the middle)"
            for model in found["models"]
            if (own := _same(model, group))
        ]
        parts.append(f"of {group['count']} that were {_planted(group['copies'])}, {', '.join(came)}")
    words = (
        f"Made-up lines with secrets, each one of {found['candidates']:,}, were put among the records. Given "
        f"how such a line begins, the secret came out: {'; '.join(parts)}. {found['most_bits']:.1f} bits are "
        f"the most; {found['by_chance']['bits']:g} are reached by chance once in "
        f"{1 / found['by_chance']['share']:g}."
    )
    if any(group["above_bound"] for group in private["planted"]):
        return "memory!", (
            f"{words} The exposures are ABOVE THEIR LIMIT: the model remembers more than its guarantee "
            "allows. Do not release it."
        )
    return "memory", words


def remembered_section(found: Data, charts: Mapping[str, str], unit: str) -> str:
    """The section as HTML; ``charts`` as SVG, by their names."""
    return (
        "<h2>What the model has learnt by heart</h2>"
        f"{_secrets(found, charts) if found['canaries'] else _NO_SECRETS}"
        f"{_records(found, unit)}{_probe(found)}"
    )


_NO_SECRETS = (
    "<p>No secrets were planted, so there is nothing to hold against the limit. Put, for example, "
    "<code>[canaries] count = [60, 20, 10]</code> into the configuration and train again: 60 made-up lines "
    "with a random number, 20 in 4 copies and 10 in 16, each put in by a secret coin.</p>"
)


def _secrets(found: Data, charts: Mapping[str, str]) -> str:
    chance = found["by_chance"]
    figures = []
    for model in found["models"]:
        least = found["bounds"][0]["copies"]
        limit = _LIMIT.format(least=_copies(least)) if model["private"] else ""
        name = model["model"][0].upper() + model["model"][1:]
        caption = _EXPOSED.format(model=name, limit=limit)
        svg = charts[f"exposure-{_slug(model['model'])}"]
        figures.append(f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>")
    return (
        f"<p>Before the training {found['canaries']} lines were made up, “{escape(found['prefix'])}” and "
        f"then a secret, drawn from {found['candidates']:,}; a coin, kept secret as well, decided of each "
        "whether it was put among the records. An attacker who knows how a line begins asks which of all "
        "secrets the model finds likeliest to follow. <b>Exposure</b> says in bits how far ahead of the "
        "others the true one stands: each bit halves the field, and with "
        f"{found['most_bits']:.1f} it is the very first.</p>"
        f"<p>A secret that the model never saw has {chance['bits']:g} bits or more with probability "
        f"1/{1 / chance['share']:g}, by chance alone: of many secrets a few always stand out. A line is the "
        "unit of the promise; of a secret in several lines much less is promised.</p>"
        f"{''.join(figures)}{''.join(_table(found, model) for model in found['models'])}{_columns(found)}"
        f"{_examples(found)}"
    )


def _table(found: Data, model: Data) -> str:
    bits = found["by_chance"]["bits"]
    limits = {bound["copies"]: bound["most_by_chance_bits"] for bound in found["bounds"]}
    rows = []
    for group in (*model["planted"], model["not_planted"] | {"copies": 0}):
        if not group["count"]:
            continue
        above = ' <span class="bad">above the limit</span>' if group.get("above_bound") else ""
        share = 100 * group["at_least_by_chance_bits"] / group["count"]
        cells = [
            f"{_copies(group['copies'])}{above}",
            f"{group['count']}",
            f"{group['median']:.1f} ({group['least']:.1f}–{group['largest']:.1f})",
            f"{share:.0f} %",
        ]
        if model["private"]:
            most = limits.get(group["copies"], found["by_chance"]["share"])
            cells.append(f"{100 * most:.3g} %")
        cells += [f"{group['completed']}", _times(group["median_queries"])]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = ["secrets", "number", "exposure, bits", f"{bits:g} bits or more"]
    head += ["at most"] * model["private"]
    head += ["came out", "answers"]
    return (
        f"<h3>Secrets, {escape(model['model'])}</h3>"
        f'<div class="wide" tabindex="0"><table><tr>{"".join(f"<th>{words}</th>" for words in head)}</tr>'
        f"{''.join(rows)}</table></div>{_extrapolated(model)}"
    )


def _columns(found: Data) -> str:
    return (
        '<p class="soft">Exposure: the middle, and from the least to the largest. “At most”: how many '
        f"secrets with {found['by_chance']['bits']:g} bits or more may be expected if the promise is kept. "
        "“Came out”: how many are what the model takes for likeliest, character by character. “Answers”: how "
        "many random answers hold the secret with probability 0.9, in the middle.</p>"
    )


def _extrapolated(model: Data) -> str:
    """Exposure from a distribution fitted to the scores, for those whose scores have one."""
    parts = [
        f"{_copies(group['copies'])}: median {group['extrapolated']['median']:.1f}, largest "
        f"{group['extrapolated']['largest']:.1f} ({group['extrapolated']['count']} of {group['count']})"
        for group in model["planted"]
        if group["extrapolated"]["count"]
    ]
    if not parts:
        return ""
    return (
        '<p class="soft">Extrapolated exposure, bits, from a skew normal law fitted to the scores of the '
        "other candidates, which can exceed that of a rank; of the secrets whose scores follow one: "
        f"{'; '.join(parts)}.</p>"
    )


def _examples(found: Data) -> str:
    names = [model["model"] for model in found["models"]]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = []
    for one in found["examples"]:
        typed = [one["prefix"], one["secret"], *(answer["completion"] for answer in one["models"])]
        right = [False, False, *(answer["completed"] for answer in one["models"])]
        cells = [_typed(text, bold=bold) for text, bold in zip(typed, right, strict=True)]
        cells.insert(2, f"<td>{_copies(one['copies'])}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return (
        "<h3>Asked for the rest</h3>"
        "<p>The first of each kind, in the order in which they were drawn: what was typed, the truth, and "
        "what each model takes for likeliest. What is right is bold; ⏎ is the end of a line.</p>"
        '<div class="wide" tabindex="0"><table><tr><th>typed</th><th>secret</th><th>copies</th>'
        f"{head}</tr>{''.join(rows)}</table></div>"
    )


def _typed(text: str, *, bold: bool) -> str:
    words = f"<b>{escape(text)}</b>" if bold else escape(text)
    return f'<td class="typed">{words}</td>'


def _records(found: Data, unit: str) -> str:
    parts = []
    for model in found["models"]:
        mine, others = model["records"]["members"], model["records"]["others"]
        parts.append(
            f"{model['model']}, {mine['completed']} of {mine['tried']} training records, and "
            f"{others['completed']} of {others['tried']} that it was not trained on"
        )
    return (
        f"<h3>Half of a real {escape(unit)}</h3><p>Given the first half, the rest came out of: "
        f"{escape('; '.join(parts))}. What comes out of records that the model never saw is what can be "
        "guessed; only the difference is memory.</p>"
    )


def _probe(found: Data) -> str:
    probe = found["models"][0]["probe"]
    rows = "".join(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>".format(
            escape(model["model"]),
            *(
                "–" if (share := model["probe"][key]) is None or math.isnan(share) else f"{100 * share:.2g} %"
                for key in (
                    "after_repeating",
                    "after_repeating_unseen",
                    "asked_plainly",
                    "asked_plainly_unseen",
                )
            ),
        )
        for model in found["models"]
    )
    return (
        "<h3>Made to repeat itself</h3>"
        "<p>Large models that were made to repeat a word have recited what they were trained on once they "
        f"stopped. Here each letter was typed {probe['repeats']} times, and what came after the repetition "
        f"was looked up, in pieces of {probe['piece']} characters; then the same after the letter alone. In "
        "a model as small as this it shows the method and no more.</p>"
        '<div class="wide" tabindex="0"><table><tr><th>share of what came that is in</th>'
        "<th>training records, after repeating</th><th>others, after repeating</th>"
        "<th>training records, after one letter</th><th>others, after one letter</th>"
        f"</tr>{rows}</table></div>"
    )


# --- words and charts -------------------------------------------------------------------------------------


def _same(model: Data, group: Data) -> Data:
    found: Data = next(one for one in model["planted"] if one["copies"] == group["copies"])
    return found


def _copies(copies: int) -> str:
    match copies:
        case 0:
            return "not planted"
        case 1:
            return "one copy"
    return f"{copies} copies"


def _planted(copies: int) -> str:
    return "planted once" if copies == 1 else f"planted {copies} times"


def _times(queries: float | None) -> str:
    if queries is None or not math.isfinite(queries):
        return "never"
    return f"{queries:,.0f}" if queries < 1e6 else "over a million"


def _slug(name: str) -> str:
    return name.replace(" ", "-").lower()


def _chart(found: Data, model: Data) -> Chart:
    """How many secrets have at least so much exposure, beside the most that the guarantee allows."""
    fewest = max([1, *(group["count"] for group in model["planted"])])
    low = min(0.01, 0.5 / fewest)
    chart = Chart(
        f"Exposure of secrets, {model['model']}",
        Axis("exposure, bits", 0.0, found["most_bits"] + 0.4),
        Axis("share with at least that (logarithmic)", low, 1.0, log=True),
    )
    first = found["bounds"][0]
    if model["private"]:
        limit = list(zip(first["bits"], first["most"], strict=True))
        end = found["most_bits"] + 0.4
        chart.area(
            [*limit, (end, limit[-1][1]), (end, 1.0)], "shut", f"ruled out for {_copies(first['copies'])}"
        )
        chart.line(limit, "shut")
    chart.line([(0.0, 1.0), (-math.log2(low), low)], "shut", "never seen", dashed=True)
    for group, colour in zip(model["planted"], _COLOURS, strict=False):
        if group["count"]:
            chart.line(_steps(group["exposures"], low), colour, _planted(group["copies"]))
    return chart


def _steps(exposures: Sequence[float], low: float) -> Iterator[tuple[float, float]]:
    """The share of sorted exposures at or above each number of bits."""
    count = len(exposures)
    yield (0.0, 1.0)
    for place, value in enumerate(exposures):
        yield (value, 1.0 - place / count)
        yield (value, 1.0 - (place + 1) / count if place + 1 < count else low)
