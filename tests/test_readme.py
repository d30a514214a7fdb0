"""The README and the pages are true: code runs, figures and tables are right."""

from __future__ import annotations

import contextlib
import copy
import io
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from made import a_plan, a_session, finish, losses
from pages import blocks_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tacit import (
    FlatClipping,
    Gaussian,
    Plan,
    PoissonSampled,
    PrivateSession,
    ShuffledBatches,
    account,
    evaluate,
)
from tacit.accounting import METHODS
from tacit.cli.app import run as run_command
from tacit.correlation import Tree
from tacit.datasets import load
from tacit.errors import TacitError
from tacit.integrations.sklearn import PrivateClassifier
from tacit.ledger import Column, Ledger, Policy, PureBudget, RenyiBudget
from tacit.queries import PrivateTable
from tacit.runs import prepare, read_config
from tacit.sampling import ByDate, PoissonSampling
from tacit.training import Augmentation, DatedRecords, PrivateAggregation, StepTicket, UserRecords

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
LONGEST = 100  # lines of the README


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    torch.manual_seed(0)


def table(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading of a page, without its head."""
    text = page.read_text(encoding="utf-8").split(f"# {heading}\n", 1)[1]
    lines = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


# --- the loop --------------------------------------------------------------------------------------------


def test_the_engine_page_runs_and_prints_what_it_says() -> None:
    (program,), (told,) = (
        blocks_of(ROOT / "docs" / "explanation" / "engine.md", kind) for kind in ("python", "text")
    )
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, "engine.md", "exec"), {})
    assert printed.getvalue() == told


@pytest.mark.parametrize(("sign", "least"), [("-", 0.9), ("+", 0.8)], ids=["plain", "private"])
def test_both_sides_of_the_diff_train_a_model(sign: str, least: float) -> None:
    (diff,) = blocks_of(ROOT / "README.md", "diff")
    program = "\n".join(line[1:] for line in diff.splitlines() if line[0] in (" ", sign))
    data = load("digits")
    model = nn.Sequential(nn.Flatten(), nn.LayerNorm(64, elementwise_affine=False), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    train_set = TensorDataset(*data.train)
    names: dict[str, Any] = {"F": F, "model": model, "optimizer": optimizer, "train_set": train_set}
    exec(compile(program, "README.md", "exec"), names)
    assert evaluate(model, *data.test).score > least
    assert ("session" in names) == (sign == "+")
    if sign == "+":
        assert 2.9 < names["session"].epsilon <= 3


# --- the shell -------------------------------------------------------------------------------------------


def without_numbers(output: str) -> list[str]:
    return re.sub(r"0\.\d+", "#", output).split()


def test_the_demo_prints_what_the_readme_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["demo"]) == 0
    (told,) = blocks_of(ROOT / "README.md", "text")
    assert without_numbers(capsys.readouterr().out) == without_numbers(told)


def test_commands_of_the_readme_have_the_options_that_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks_of(ROOT / "README.md", "console") for line in block.splitlines()]
    assert lines
    for line in lines:
        program, *words = shlex.split(line.removeprefix("$ "), comments=True)
        assert program == "tacit"
        verb = words[:2] if words[0] == "ledger" else words[:1]
        assert run_command([*verb, "--help"]) == 0
        told = capsys.readouterr().out
        assert all(f"{word} " in told for word in words if word.startswith("--")), line


def test_the_cost_of_a_mechanism_in_the_shell_is_printed_and_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (console,) = blocks_of(DOCS / "how-to" / "plan-and-account.md", "console")
    program, *arguments = shlex.split(console.removeprefix("$ ").replace("\\\n", " "))
    assert program == "tacit"
    assert run_command(arguments) == 0
    assert "Figure: cost.png" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["cost.png"]


# --- what is refused -------------------------------------------------------------------------------------

N, D = 40, 3


def plan(**changes: Any) -> Plan:
    return a_plan(**{"records": N, "batch_size": None, "steps": 2, "clipping": 1.0, **changes})


def mixing(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return losses(model, x - x.mean(0), y)


def rows() -> tuple[Tensor, Tensor]:
    return torch.linspace(-1, 1, N * D).reshape(N, D), torch.arange(N) % 2


def session(**changes: Any) -> PrivateSession:
    model = changes.pop("model", None) or nn.Linear(D, 2)
    optimizer = changes.pop("optimizer", torch.optim.SGD)
    extra = changes.pop("extra", [])
    settings: dict[str, Any] = {"data": rows(), "plan": plan(), "generator": None, **changes}
    return a_session(model, optimizer=optimizer([*model.parameters(), *extra], lr=0.1), **settings)


def run(**changes: Any) -> PrivateSession:
    return finish(session(**changes))


def comes_too_often() -> object:
    people = UserRecords(rows(), [*range(N // 2)] * 2, rows_per_user=1)  # each on two days
    dates = ["2026-01-01"] * (N // 2) + ["2026-01-02"] * (N // 2)
    data = DatedRecords(people, dates, first="2026-01-01", until="2026-01-03")
    return run(data=data, plan=plan(sampling=ByDate(), batch_size=20, unit="patient"))


def repeated_unit() -> object:
    Path("visits.csv").write_text("patient,age,sick\n" + "p1,30,yes\np2,40,no\n" * 20)
    Path("run.toml").write_text(
        '[data]\ntable = "visits.csv"\ntest_table = "visits.csv"\ntarget = "sick"\n'
        '[columns.age]\nkind = "number"\nlower = 0.0\nupper = 120.0\n[columns.sick]\nkind = "boolean"\n'
        '[model]\nname = "logistic"\n[privacy]\nepsilon = 2.0\ndelta = 1e-3\nunit = "patient"\n'
        'adjacency = "add-remove"\nrecords = 40\n[optimizer]\nlearning_rate = 0.1\n'
        '[training]\nbatch_size = "full"\nsteps = 2\n'
    )
    return prepare("run.toml")


class Keeping(nn.Linear):
    """A layer that notes the mean of what it sees."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.detach().mean(0)
        return super().forward(x)


class Running:
    """Losses over those of the batch before."""

    before: Tensor | None = None

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        found = losses(model, x, y)
        before, self.before = self.before, found.detach().mean()
        return found if before is None else found / before


class MixUp(Augmentation):
    """Each view half of the neighbour."""

    @property
    def draws(self) -> int:
        return 1

    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        return (inputs + inputs.roll(1, 0)).repeat_interleave(uniforms.shape[1], 0)


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another, which was never made one itself."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def under_torchrun() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        patch.setenv("RANK", "0")
        session()


class Mosaic(Dataset[Any]):
    """Each item half of one that is drawn."""

    def __init__(self, rows: tuple[Tensor, Tensor]) -> None:
        self.x, self.y = rows

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i] + self.x[torch.randint(N, ())], self.y[i]


def under_autocast() -> None:
    with torch.autocast("cpu"):
        run()


def backward_beside() -> None:
    made = session()
    for batch in made.batches():
        losses(made.model, *rows()).mean().backward()  # type: ignore[no-untyped-call]
        made.step(batch)


def second_optimizer() -> None:
    made = session()
    second = torch.optim.SGD(made.model.parameters(), lr=0.1)
    for batch in made.batches():
        made.step(batch)
        losses(made.model, *rows()).mean().backward()  # type: ignore[no-untyped-call]
        second.step()


def client_not_drawn() -> None:
    weights = [np.zeros(D)]
    federation = PrivateAggregation(plan(batch_size=N // 2), weights)
    others = {*range(federation.plan.records)} - {*federation.begin()}
    federation.finish({others.pop(): weights})


def step_past() -> None:
    made = run()
    made.step(StepTicket(made.steps_done))


def resume_with_others() -> None:
    finish(session(), 1).save("resume.pt")
    inputs, targets = rows()
    with pytest.raises(TacitError, match="Different: the loss"):
        session(loss=lambda model, x, y: 2 * losses(model, x, y)).load("resume.pt")
    session(data=(inputs.flip(0), targets)).load("resume.pt")


def scores_of_held_out_records() -> object:
    """A run on a table of which a part is held out, charged to the ledger of the table."""
    Path("rows.csv").write_text("a,b\n" + "0.5,yes\n0.25,no\n-0.5,no\n" * 10)
    Path("run.toml").write_text(
        """
        [data]
        table = "rows.csv"
        test_fraction = 0.5
        target = "b"
        [columns.a]
        kind = "number"
        lower = -1
        upper = 1
        [columns.b]
        kind = "category"
        values = ["no", "yes"]
        [model]
        name = "logistic"
        [privacy]
        epsilon = 1.0
        delta = 1e-3
        unit = "row"
        adjacency = "add-remove"
        records = 20
        [optimizer]
        learning_rate = 0.1
        [training]
        batch_size = "full"
        steps = 2
        [ledger]
        url = "budget.db"
        dataset = "rows"
        """
    )
    with contextlib.closing(Ledger.create("budget.db")) as ledger:
        budget = RenyiBudget(epsilon=3.0, delta=1e-3)
        ledger.open_dataset("rows", Policy(unit="row", adjacency="add-remove", budget=budget))
    return prepare("run.toml", out="out")


def misspelt() -> None:
    text = blocks_of(DOCS / "tutorials" / "public-text.md", "toml")[0].replace("adjacency =", "adjacancy =")
    Path("digits.toml").write_text(text, encoding="utf-8")
    read_config("digits.toml")


def not_finite() -> PrivateSession:
    inputs, targets = rows()
    inputs[1, 1] = torch.nan
    return session(data=(inputs, targets))


def undeclared() -> None:
    inputs, targets = (part.numpy() for part in rows())
    PrivateClassifier(epsilon=1.0, delta=1e-3, unit="row", adjacency="replace-one").fit(inputs, targets)


def unregistered_table() -> None:
    """A table of which nobody has looked at the cells."""
    visits = pd.DataFrame({"age": [34.0, 71.0]})
    with contextlib.closing(Ledger.create("sqlite://")) as ledger:
        columns = {"age": Column(kind="number", lower=0, upper=120)}
        budget = PureBudget(1.0)
        ledger.open_dataset(
            "visits", Policy(unit="visit", adjacency="add-remove", budget=budget, columns=columns)
        )
        PrivateTable(visits, ledger=ledger, dataset="visits")


# first words of the row of the table: what is done, and words of the way out that the error must name
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "BatchNorm": (
        lambda: session(model=nn.Sequential(nn.BatchNorm1d(D), nn.Linear(D, 2))),
        "make_private_ready",
    ),
    "a model or loss that mixes": (lambda: run(loss=mixing), "mixes records"),
    "a model that stores": (lambda: run(model=Keeping(D, 2)), "public records"),
    "a loss that reads what it kept": (lambda: run(loss=Running()), "Compute stored values before training"),
    "an augmentation that mixes": (
        lambda: run(plan=plan(views=2), augmentation=MixUp()),
        "Make each view from its own record",
    ),
    "a `Dataset` whose items": (lambda: run(data=Mosaic(rows())), "Make each item from its own record"),
    "`torch.autocast` around": (under_autocast, "Use it only inside the loss function"),
    "a `DataLoader`": (
        lambda: session(data=DataLoader(TensorDataset(*rows()))),
        r"data=loader\.dataset",
    ),
    "`loss.backward()`": (backward_beside, r"session\.step\(step\) computes the gradients"),
    "a second optimizer": (second_optimizer, r"Train them only by session\.step\(step\)"),
    "an optimizer that holds": (
        lambda: session(extra=[nn.Parameter(torch.zeros(1))]),
        "into one module",
    ),
    "an optimizer that wraps": (
        lambda: session(optimizer=lambda *settings, **named: Wrapper(torch.optim.SGD(*settings, **named))),
        r"optimizer\.optimizer",
    ),
    "several processes": (under_torchrun, r"ranks=tacit\.training\.ProcessRanks"),
    "the update of a client": (client_not_drawn, "Ask only the clients that begin returns"),
    "LBFGS": (lambda: session(optimizer=torch.optim.LBFGS), "first-order optimizer"),
    "messages and other": (
        lambda: run(
            data=UserRecords(rows(), [["a", "b"], ["c"]] * (N // 2), rows_per_user=1),
            plan=plan(rows_per_user=1),
        ),
        'adjacency="zero-out" or "replace-one"',
    ),
    "rows of people": (
        lambda: UserRecords(rows(), [None, *range(N - 1)], rows_per_user=1),
        "Remove these rows",
    ),
    "a `unit` such as": (repeated_unit, r"\[data\] user"),
    "people in a stream": (comes_too_often, 'set too_often="skip"'),
    "noise that is correlated": (
        lambda: plan(correlation=Tree(), sampling=PoissonSampling(0.1), batch_size=4),
        "CyclicPoissonSampling",
    ),
    "delta": (lambda: plan(delta=1 / N), "allow_large_delta=True"),
    "a plan above": (
        lambda: plan(epsilon_budget=3.0, noise_multiplier=2.0, steps=50),
        "At most [0-9]+ steps fit",
    ),
    "a step past": (step_past, "more steps"),
    "shuffled batches": (lambda: plan(sampling=ShuffledBatches(N, N)), "Poisson sampling"),
    '`sampling="epochs"` with': (lambda: plan(sampling="epochs", batch_size=N // 2, steps=3), "2 or 4 steps"),
    '`sampling="epochs"` under': (
        lambda: plan(sampling="epochs", batch_size=N // 2, adjacency="replace-one"),
        "Use Poisson sampling",
    ),
    "copying, pickling": (lambda: copy.deepcopy(session()), "Make a new session for each run"),
    "resuming": (resume_with_others, "[Ss]tart a new run"),
    "NaN": (not_finite, "fixed rule"),
    "a question to a table": (unregistered_table, "tacit ledger register"),
    "exact scores": (scores_of_held_out_records, r"test_noise = \d"),
    "bounds or classes": (undeclared, r"classes=range\(10\)"),
    "an event": (
        lambda: account(PoissonSampled(0.1, Gaussian(1.0)), adjacency="add-remove", method="gaussian"),
        "method 'pld'",
    ),
    "a noise multiplier below": (
        lambda: account(PoissonSampled(0.1, Gaussian(0.01)), adjacency="add-remove"),
        "Use more noise",
    ),
    "a misspelt": (misspelt, "adjacency"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_table_says_is_refused_is_refused_with_a_way_out(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    attempt, way_out = REFUSED[what]
    with pytest.raises(TacitError, match=way_out):
        attempt()


def test_every_row_of_the_table_is_tried_and_without_the_mistake_nothing_is_refused() -> None:
    told = [row[0] for row in table(DOCS / "how-to" / "troubleshooting.md", "What is refused")]
    assert len(told) == len(REFUSED)
    for words in REFUSED:
        assert sum(row.startswith(words) for row in told) == 1
    assert run(plan=plan(clipping=FlatClipping(2.0))).steps_done == 2


# --- the rest --------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_its_links_lead_to_pages() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    named = {(ROOT / target).resolve() for target in re.findall(r"\]\((docs/[^)#]+\.md)", text)}
    assert named <= {*pages_of_the_site()}
    assert 5 <= len(named) <= 15


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    told = {
        name
        for row in table(DOCS / "how-to" / "install.md", "Install")
        for name in re.findall(r"`([^`]+)`", row[0])
    }
    assert told == set(project["optional-dependencies"]) - {"dev", "docs", "bench", "bench-gpu", "release"}


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
        assert named <= targets, page.name


def pages_of_the_site() -> list[Path]:
    """All pages but those that are made from the code when the site is built."""
    return [path for path in (ROOT / "docs").rglob("*.md") if "generated" not in path.parts]


def test_links_lead_somewhere_and_no_page_names_a_machine() -> None:
    for page in (*PAGES, ROOT / "DESIGN.md", ROOT / "SECURITY.md", *pages_of_the_site()):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert target.startswith("https://") or (page.parent / target).exists(), (page.name, target)
        assert not re.search(r"/(work|home|tmp|root)/", text)


def test_the_design_names_the_accountants_and_files_that_there_are() -> None:
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    text = text.split("## Inside accounting\n", 1)[1].split("\n## ", 1)[0]
    named = set(re.findall(r"`([a-z_]+)`", text))
    folder = ROOT / "src" / "tacit" / "accounting"
    files = {path.stem for path in folder.rglob("*")}
    assert set(METHODS) <= named
    assert named <= files | set(METHODS)
