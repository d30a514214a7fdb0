"""Write docs/reference/couplings.md from benchmarks/results/coupling_table.json: ``make results``.

With ``--check`` nothing is written, and the exit code is 1 if the page does not match the JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA = ROOT / "benchmarks" / "results" / "coupling_table.json"
PAGE = ROOT / "docs" / "reference" / "couplings.md"

INTRODUCTION = """\
# Couplings

A coupling is a model or a loss in which one record can change the gradients of other records. Clipping each
record's gradient then bounds nothing. This page shows how the engine handles every known coupling, and how
far one record can still move the result. `make coupling-table` measures the figures, and
`tests/clipping/test_clipping_couplings.py` checks each entry on all record sets.

* *Verdict*: `isolated` (one pass under vmap, which computes each record as if it were alone), or `refused`
  (the engine raises an error that says what to do).
  The table shows the most frequent verdict over several record sets, and any other verdict in brackets.
* *Sensitivity*: the largest ‖Σ(D) − Σ(D minus one record)‖ / C over {sets} record sets that are made to show
  the coupling. Σ is the clipped sum before noise, in float32, and C is the clipping norm. Clipping promises
  at most 1; up to 1.0001 is floating-point error. A refused model releases nothing, so it has no
  sensitivity. If a model draws random numbers, two sums cannot be compared, and only the verdict counts.
* *Unguarded*: the larger sensitivity of two computations without any check. The first computes the gradient
  of each record's loss in the batch by autograd. The second computes per-record gradients by hooks on linear
  layers, from one backward pass. A figure of about 1 means that neither of the two shows the coupling.
"""
TITLES = {
    "forward": "In the values of the forward pass",
    "layout": "In the order of records or positions",
    "backward": "In the backward pass",
    "control flow": "In data-dependent control flow",
    "place": "By a record's place in the batch",
    "count": "By the number of records",
    "random numbers": "By random numbers that records share",
    "state": "By state that outlives a batch",
    "large batches": "In large batches only",
    "norm": "By the form in which a norm is computed",
    "none": "No coupling: models that must stay fast",
}


def main() -> int:
    """Write or check the page."""
    page = "\n".join(_lines(json.loads(DATA.read_text(encoding="utf-8"))))
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page else 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


def _lines(data: dict[str, Any]) -> Iterator[str]:
    rows = data["rows"]
    yield INTRODUCTION.format(sets=len(data["settings"]["record sets"]))
    yield f"Measured on {data['date']} with PyTorch {data['versions']['torch']}.\n"
    yield "## In short\n"
    yield "| coupling | entries | refused | isolated | largest sensitivity | largest unguarded |"
    yield "|---|---|---|---|---|---|"
    for kind, title in TITLES.items():
        yield _summary(title, [row for row in rows if row["kind"] == kind])
    for kind, title in TITLES.items():
        yield f"\n## {title}\n"
        yield "| coupling | unguarded | sensitivity | verdict |"
        yield "|---|---|---|---|"
        for row in rows:
            if row["kind"] == kind:
                yield _entry(row)
    yield ""


def _summary(title: str, rows: list[dict[str, Any]]) -> str:
    counts = [sum(row["verdict"] == verdict for row in rows) for verdict in ("refused", "isolated")]
    moved = [row["sensitivity"] for row in rows if row["sensitivity"] is not None]
    free = [row["unguarded"] for row in rows if row["unguarded"] is not None]
    figures = [_number(max(found, default=None)) for found in (moved, free)]
    return f"| {title} | {len(rows)} | {' | '.join(map(str, [*counts, *figures]))} |"


def _entry(row: dict[str, Any]) -> str:
    others = [name for name in row["verdicts"] if name != row["verdict"]]
    verdict = row["verdict"] + (f" ({', '.join(sorted(others))})" if others else "")
    moved = "refused" if row["verdicts"].keys() == {"refused"} else _number(row["sensitivity"])
    return f"| {row['name']} | {_number(row['unguarded'])} | {moved} | {verdict} |"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if value <= 1.01 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
