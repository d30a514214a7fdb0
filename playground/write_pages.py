"""Write one of each HTML page that Tacit writes, of real runs and ledgers, for the test in a browser.

``make pages-test`` runs it: half a minute of one core. All records are synthetic or come with scikit-learn.
What a good run never shows, such as a contradicted promise, is put into the data of a real page.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import string
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes

from tacit.cli.app import run
from tacit.ledger import Ledger
from tacit.report.checklist import CHOICES, STATEMENTS
from tacit.report.evaluation import evaluation_page
from tacit.report.run_page import page
from tacit.report.spending import curator_page, curator_view

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "src" / "tacit" / "runs" / "demo.toml"
OUT = ROOT / "build" / "pages"

Columns = dict[str, tuple[Any, ...]]

PATIENTS: Columns = {
    "radius": ("number", 5, 30),
    "texture": ("number", 5, 40),
    "smoothness": ("number", 0, 0.2),
    "concavity": ("number", 0, 0.5),
    "diagnosis": ("category", "malignant", "benign"),
}
DIABETES: Columns = {
    "age": ("number", 0, 120),
    "bmi": ("number", 10, 60),
    "bp": ("number", 40, 160),
    "progression": ("number", 0, 400),
}
TABLE = """
[data]
table = "{name}.csv"
{test}
target = "{target}"
{columns}
[model]
name = "{model}"

[privacy]
epsilon = 1.5
delta = 1e-4
unit = "patient"
adjacency = "add-remove"
records = 450
clipping_norm = 1.0
{privacy}
[optimizer]
learning_rate = {rate}

[training]
batch_size = "full"
steps = 40
"""
NAMES = """
[data]
text = "names.txt"
alphabet = " abcdefghijklmnopqrstuvwxyz0123456789"
longest = 12
test_fraction = 0.3

[canaries]
count = [20, 8, 4]
copies = [1, 4, 8]
length = 3

[model]
name = "window"
hidden = [32]

[privacy]
epsilon = 8.0
delta = 1e-4
unit = "name"
adjacency = "add-remove"
records = 700
loss_bound = 60.0

[optimizer]
name = "adam"
learning_rate = 1e-2

[training]
batch_size = 128
epochs = 8
"""
POLICY = """
[policy]
unit = "patient"
adjacency = "add-remove"
largest_table = 1000
note = "synthetic"

[budget]
mode = "renyi"
epsilon = 4.0
delta = 1e-4
{columns}"""
QUESTIONS = (
    ("0.2", "SELECT count(*) FROM patients"),
    ("0.4", "SELECT diagnosis, count(*) FROM patients GROUP BY diagnosis"),
    ("0.5", "SELECT avg(radius) FROM patients WHERE diagnosis = 'malignant'"),
    ("9", "SELECT avg(radius) FROM patients"),  # refused
)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.html"):
        old.unlink()
    with tempfile.TemporaryDirectory() as made, contextlib.chdir(made):  # tables are found from here
        folder = Path(made)
        write_digits(folder, out)
        write_tables(folder, out)
        write_names(folder, out)
        write_budget(folder, out)
    sys.stdout.write(f"{len(list(out.glob('*.html')))} pages are in {out}\n")


def write_digits(folder: Path, out: Path) -> None:
    """Ten classes, images, shadow models and canaries; then the same with a contradicted promise."""
    digits = folder / "digits"
    tacit("train", DEMO, "--out", digits)
    keep(digits / "evaluation.html", out / "evaluation-classes.html")
    tacit("audit", digits)
    keep(digits / "private" / "audit" / "report.html", out / "audit.html")
    data = read(digits / "private" / "audit" / "report.json")
    for result in data["audits"][0]["results"]:
        result["claim_rejected"] = True
    for model in data["membership"]["models"]:
        if model["private"]:
            model["attacks"][0]["above_the_limit"] = True
    data["run"]["private"] = False
    write(out / "audit-contradicted.html", page(data))


def write_tables(folder: Path, out: Path) -> None:
    """Two classes, numbers, and a useless model."""
    cancer = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)
    cancer.columns = [name.removeprefix("mean ") for name in cancer.columns]
    cancer["diagnosis"] = cancer["target"].map({0: "malignant", 1: "benign"})
    split(cancer[[*PATIENTS]], folder, "patients")
    sick = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
    split(sick[[*DIABETES]].sample(frac=1, random_state=0), folder, "sick")
    for page_name, name, target, columns, more in (
        ("two-classes", "patients", "diagnosis", PATIENTS, {}),
        ("numbers", "sick", "progression", DIABETES, {"rate": 0.05}),
    ):
        path = folder / f"{page_name}.toml"
        more = {"test": f'test_table = "{name}_test.csv"', **more}
        path.write_text(table_run(name, target, columns, **more), encoding="utf-8")
        tacit("train", path, "--out", folder / page_name)
        keep(folder / page_name / "evaluation.html", out / f"evaluation-{page_name}.html")
    data = read(folder / "two-classes" / "evaluation.json")
    useless = {"useless": True, "private": False, "verdict": "The model is useless."}
    write(out / "evaluation-useless.html", evaluation_page(data | useless, title="of a test key"))


def write_names(folder: Path, out: Path) -> None:
    """A language model with planted secrets, and what came out of it."""
    drawn = random.Random(0)
    lines = ["".join(drawn.choices(string.ascii_lowercase, k=drawn.randint(3, 8))) for _ in range(1000)]
    (folder / "names.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "names.toml").write_text(NAMES, encoding="utf-8")
    tacit("train", folder / "names.toml", "--out", folder / "names")
    tacit("attack", folder / "names", "--shadows", "0")
    keep(folder / "names" / "private" / "attack" / "report.html", out / "attack-names.html")


def write_budget(folder: Path, out: Path) -> None:
    """A ledger with a run, answers and a refusal, one unused data set; certificates with gaps and without."""
    ledger, policy, table = folder / "budget.db", folder / "policy.toml", folder / "patients.csv"
    policy.write_text(POLICY.format(columns=in_toml(PATIENTS)), encoding="utf-8")
    tacit("ledger", "init", ledger)
    for name in ("patients", "untouched"):
        tacit("ledger", "open", ledger, "--dataset", name, "--policy", policy)
    tacit("ledger", "register", ledger, table, "--dataset", "patients")
    noisy = {"test": "test_fraction = 0.2", "privacy": "test_noise = 5.0\n"}
    run_file = folder / "charged.toml"
    run_file.write_text(table_run("patients", "diagnosis", PATIENTS, **noisy), encoding="utf-8")
    charged = folder / "charged"
    tacit("train", run_file, "--out", charged, "--ledger", ledger, "--dataset", "patients")
    keep(charged / "evaluation.html", out / "evaluation-noisy.html")
    for epsilon, question in QUESTIONS:
        words = ("query", table, "--ledger", ledger, "--dataset", "patients", "--epsilon", epsilon, question)
        tacit(*words, code=1 if epsilon == "9" else 0)
    tacit("ledger", "status", ledger, "--html", out / "ledger.html")
    view: dict[str, Any] = json.loads(json.dumps(curator_view(Ledger.open(str(ledger)))))
    mine = view["datasets"][0]
    mine["burned_share"] = 0.1
    mine["spenders"] = [one | {"by": f"{one['by']} {k}"} for k in range(5) for one in mine["spenders"]]
    write(out / "ledger-burned.html", curator_page(view))
    tacit("certificate", ledger, "--dataset", "patients", "--html", out / "certificate-gaps.html")
    told = {name: CHOICES.get(name, ("stated by the curator",))[0] for name in STATEMENTS}
    told |= {"published": "2026-11-30"}
    (folder / "told.toml").write_text(
        "".join(f'{name} = "{text}"\n' for name, text in told.items()), encoding="utf-8"
    )
    tacit("ledger", "key", folder / "key")
    words = ("--statements", folder / "told.toml", "--sign", folder / "key")
    tacit("certificate", ledger, "--dataset", "patients", *words, "--html", out / "certificate.html")


# --- the steps ---------------------------------------------------------------------------------------------


def tacit(*words: object, code: int = 0) -> None:
    """Run a command as in a terminal; another exit code than ``code`` ends everything, but for an audit's 1.

    Of a hundred honest audits up to five find a contradiction.
    """
    found = run([str(word) for word in words])
    if found != code and (words[0], found) not in {("audit", 1), ("attack", 1)}:
        raise SystemExit(f"tacit {words[0]} ended with {found}, not {code}")


def table_run(name: str, target: str, columns: Columns, **more: Any) -> str:
    filled = {"model": "logistic", "privacy": "", "rate": 0.5} | more
    return TABLE.format(name=name, target=target, columns=in_toml(columns), **filled)


def in_toml(columns: Columns) -> str:
    lines = []
    for name, (kind, *rest) in columns.items():
        public = (
            f"values = {json.dumps(rest)}" if kind == "category" else f"lower = {rest[0]}\nupper = {rest[1]}"
        )
        lines.append(f'\n[columns.{name}]\nkind = "{kind}"\n{public}\n')
    return "".join(lines)


def split(table: pd.DataFrame, folder: Path, name: str) -> None:
    """Two tables: most rows for training, a hundred for testing."""
    table[:-100].to_csv(folder / f"{name}.csv", index=False)
    table[-100:].to_csv(folder / f"{name}_test.csv", index=False)


def keep(page_of_run: Path, path: Path) -> None:
    shutil.copyfile(page_of_run, path)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else OUT)
