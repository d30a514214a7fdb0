"""Write docs/results.md, its charts and its tables from the JSON of measurements: ``make results``.

With ``--check`` nothing is written, and the exit code is 1 if a page does not match the JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import appendix
from appendix import OURS, PUBLISHED, ROOT, TITLES, load, measured, trained

from tacit.rounding import counted

PAGE = ROOT / "docs" / "results.md"
FOLDER = ROOT / "docs" / "results"
OTHERS = ("step_library", "step_common")


def main() -> int:
    """Write or check the pages."""
    tables = appendix.pages()
    pages = {FOLDER / f"{name}.md": text for name, text in tables.items()}
    pages[PAGE] = "\n".join(results(tables))
    if "--check" in sys.argv[1:]:
        found = {path: path.read_text(encoding="utf-8") for path in [PAGE, *FOLDER.glob("*.md")]}
        return int(found != pages)
    import figures  # a module in this folder; --check needs no figures

    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.md"):
        path.unlink()
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    figures.write()
    return 0


# --- the page --------------------------------------------------------------------------------------------


def results(appendices: Iterable[str]) -> Iterator[str]:
    """Yield the lines of the page, whose last ones name its appendices."""
    yield INTRODUCTION
    yield from papers()
    yield from tables()
    yield from public_models()
    yield from one_step()
    yield from accountants()
    yield from others()
    yield "```{toctree}\n:hidden:\n:maxdepth: 1\n"
    yield from (f"results/{name}" for name in appendices)
    yield "```\n"


def chart(name: str, words: str) -> str:
    """Return an image and the words under it."""
    return f"![{ALT[name]}](pictures/results-{name}.svg)\n\n{words}\n"


def papers() -> Iterator[str]:
    yield "## Accuracy beside the papers\n"
    ours = [row for name in OURS for row in trained(name)]
    published = [row for row in load(PUBLISHED) if "disputed" not in row]
    said = []
    for data, epsilon in (("mnist", 1), ("mnist", 3), ("cifar10", 1), ("cifar10", 3)):
        mine = 100 * max(row["accuracy_mean"] for row in ours if _at(row, "dataset", data, epsilon))
        theirs = max(row["accuracy"] for row in published if _at(row, "data", data, epsilon))
        said.append(f"{mine:.1f} % and {theirs:.1f} % on {NAMES[data]} at ε = {epsilon}")
    yield chart(
        "papers",
        f"Tacit and the best published result without public images: {', '.join(said)}. Our CIFAR-10 is a "
        "copy that is compressed as JPEG; the papers have the original. [All results, with samplers, "
        "accountants and sources](results/published.md).",
    )


def _at(row: dict[str, Any], key: str, data: str, epsilon: float) -> bool:
    """Return whether a row is of a dataset and of at most this epsilon, rounded."""
    return row[key] == data and row["epsilon"] is not None and round(row["epsilon"], 1) <= epsilon


def tables() -> Iterator[str]:
    yield "## Tables\n"
    won = [f"{wins(epsilon)} at ε = {epsilon:g}" for epsilon in (0.5, 1.0, 3.0)]
    yield chart(
        "tables",
        "Twenty public tables at ε = 1. With default settings, Tacit scores higher than InterpretML's DP "
        f"boosting on {', '.join(won[:-1])} and {won[-1]}; the table `jobs` has too many classes for it. "
        "Scores below 0 are drawn at 0. [All scores](results/tables.md).",
    )


def wins(epsilon: float) -> str:
    """Return on how many of the tables that DP-EBM fits Tacit's mean score is above that of DP-EBM."""
    by = {
        (row["dataset"], row["model"]): row["accuracy_mean"]
        for row in trained("tables")
        if row["epsilon"] == epsilon
    }
    theirs = {name: mean for (name, model), mean in by.items() if model == "InterpretML, DP-EBM"}
    return f"{sum(by[name, 'Tacit, default'] > mean for name, mean in theirs.items())} of {len(theirs)}"


def public_models() -> Iterator[str]:
    yield "## Public models\n"
    rows = trained("public-models")
    found = {
        (row["dataset"], row["epsilon"] and round(row["epsilon"])): 100 * row["accuracy_mean"] for row in rows
    }
    yield chart(
        "public-models",
        f"A private linear head on frozen features: {found['imdb', 3]:.1f} % of IMDB reviews at ε = 3, "
        f"{found['imdb', None]:.1f} % without privacy; {found['cifar10', 3]:.1f} % of CIFAR-10 images, "
        f"{found['cifar10', None]:.1f} % without. The public model's own training data aren't covered. "
        "[Settings and runs](results/public-models.md).",
    )


def one_step() -> Iterator[str]:
    yield "## One training step\n"
    ours, theirs = speeds("step")
    ours_of_others, theirs_of_others = speeds(*OTHERS)
    others = len({row["workload"] for name in OTHERS for row in measured(name)["timings"]})
    jobs = _range([row["jobs"][0]["ratio"] for row in measured("jobs")["rows"]])
    yield chart(
        "step",
        f"A private step of Tacit takes {ours} times as long as a plain PyTorch step on five models, and "
        f"{ours_of_others} times on {others} models of transformers, peft and torch. The fastest of Opacus, "
        f"Opake and torch.func at its best takes {theirs} and {theirs_of_others} times as long as Tacit. "
        f"{_where('step', *OTHERS)} "
        f"[Whole jobs](results/jobs.md) of 100 steps take {jobs} times as long as plain ones. "
        "With memory and first steps: [five models](results/step.md), "
        "[transformers](results/step-library.md), [recurrent and convolutional models]"
        "(results/step-common.md).",
    )


def speeds(*names: str) -> tuple[str, str]:
    """Return the range of our ratios to the plain step, and of the fastest peer's ratio to ours."""
    ours, theirs = [], []
    for name in names:
        rows = [row for row in measured(name)["timings"] if row["ratio"] is not None]
        for workload in dict.fromkeys(row["workload"] for row in rows):
            mine = {row["engine"]: row["ratio"] for row in rows if row["workload"] == workload}
            ours.append(mine["Tacit"])
            theirs.append(min(ratio for engine, ratio in mine.items() if engine.startswith(PEERS)) / ours[-1])
    return _range(ours), _range(theirs)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def _where(*names: str) -> str:
    files = [measured(name) for name in names]
    days = sorted({data["date"] for data in files})
    machines = dict.fromkeys(
        f"{data['machine']['processor']} with {counted(data['machine']['torch_threads'], 'thread')}"
        for data in files
    )
    return f"Measured on {' and '.join(days)} on {' and on '.join(machines)}."


def accountants() -> Iterator[str]:
    yield "## Accountants\n"
    rows = {(row["task"], row["contestant"]): row for row in measured("accounting")["timings"]}
    time, error = (rows["epsilon, sigma = 1", "Tacit"][key] for key in ("milliseconds", "error"))
    peers = [row for (task, who), row in rows.items() if task == "epsilon, sigma = 1" and who != "Tacit"]
    fastest = min(peers, key=lambda row: row["milliseconds"])
    nearest = min(peers, key=lambda row: abs(row["error"]))
    yield chart(
        "accountants",
        f"The ε of 10,000 steps takes {time:.1f} ms of CPU time and is {error:.0e} above the truth. The "
        f"fastest other accountant is {fastest['contestant']} ({fastest['milliseconds']:.0f} ms, "
        f"{100 * fastest['error']:.1f} % above), the most accurate {nearest['contestant']} "
        f"({nearest['milliseconds']:.0f} ms, {nearest['error']:.0e}). [All answers and errors]"
        "(results/accounting.md).",
    )


def others() -> Iterator[str]:
    """Yield a line or two on each other measurement."""
    yield "## More measurements\n"
    gpu = measured("step_gpu")
    of_gpu = {row["workload"]: row["ratio"] for row in gpu["timings"] if row["engine"] == "Tacit"}
    fuzz, tests = measured("accounting_fuzz"), measured("noise")["tests"]
    found = {
        "One training step on a GPU": (
            f"{gpu['date']}, {gpu['machine']['gpu']}, Tacit {gpu['versions']['tacit']}: "
            f"{of_gpu['GPT-2 small']:.2f} of a plain step for GPT-2 small and {of_gpu['ResNet-50']:.2f} for "
            f"ResNet-50; up to {max(of_gpu.values()):.1f} with few records in a batch. "
            "[All engines](results/step-gpu.md)."
        ),
        "Tuning a small Llama on prompts with completions": (
            "LoRA on texts of one and of several lengths, beside Opacus and Opake. "
            "[Seconds of a step](results/tuning.md), [several lengths](results/lengths.md)."
        ),
        "Random events": (
            f"In {fuzz['events']:,} random mechanisms no accountant contradicted another. "
            "[What was tried](results/accounting-fuzz.md)."
        ),
        "Noise": (
            f"{sum(row['planted'] is None for row in tests)} tests on up to "
            f"{max(row['draws'] for row in tests):,} draws, and planted bugs that they find. "
            "[P-values](results/noise.md)."
        ),
        "Noise that is correlated in time": (
            "Accuracy on a stream, beside independent noise. [Runs](results/correlated-noise.md)."
        ),
        "Audit slots": (
            f"Bounds on ε proven from {measured('slots')['setting']['canaries']:,} slots of a run, and how "
            "often too little noise is found. [Bounds](results/slots.md)."
        ),
        "Attacks and audits of other tools": (
            "Our membership attacks beside those of ART. [AUC and false alarms](results/attacks.md)."
        ),
        "Private queries": (
            "Coverage of the stated intervals, audits of low bits, and errors beside OpenDP and diffprivlib. "
            "[Tables](results/queries.md)."
        ),
        "The ledger": (
            "Crashes, power loss and full disks; no charge is lost and no cap overspent. "
            "[What was tried](results/torture.md)."
        ),
    }
    for title, words in found.items():
        yield f"### {title}\n"
        yield f"{words}\n"
    yield "### Attacks and memorisation\n"
    listed = (f"[{TITLES[name]}](results/{name}.md)" for name in ATTACKS)
    yield "The papers on attacks, run again with and without privacy: " + "; ".join(listed) + ".\n"
    yield "### Training\n"
    listed = (f"[{TITLES[name]}](results/{name}.md)" for name in TITLES if name not in ATTACKS)
    yield "Settings, runs and remarks of each experiment: " + "; ".join(listed) + ".\n"


INTRODUCTION = """\
# Results

How accurate and how fast Tacit is, beside published results and other libraries. Each chart links to its
table, with settings, machine, versions and date. `make results` draws this page from the JSON in
`experiments/results` and `benchmarks/results`. Timings are of the present version, unless a section names
another one.

* An accuracy is the mean of independent runs on test records.
* ε is at δ = 1e-5 under add-remove adjacency, for one record, and covers every step that reads the data. It
  doesn't cover the runs that chose the settings; each table names the records of those runs.
"""
ALT = {
    "papers": "Test errors on MNIST and CIFAR-10 by ε: Tacit and published results",
    "tables": "Scores of four methods on twenty tables at ε = 1",
    "public-models": "Test accuracies of private heads on public models by ε, and without privacy",
    "step": "Time of a private step of four libraries, over a plain step, by model",
    "accountants": "Time of an answer of eight accountants on three tasks",
}
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
PEERS = ("Opacus", "Opake", "torch.func")
ATTACKS = (
    "membership", "shokri", "attribute-inversion", "model-inversion", "names-memorisation",
    "pictures-memorisation", "stored-rows",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
