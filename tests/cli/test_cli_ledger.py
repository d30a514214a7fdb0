"""``tacit ledger``, ``tacit certificate`` and what `tacit verify` says of a certificate, as from a shell."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from shell import Shell

from tacit.cli.app import run
from tacit.events import DiscreteGaussian, DiscreteLaplace
from tacit.ledger import Ledger, Policy, Refused, ZeroConcentratedBudget

POLICY = """
[policy]
unit = "patient"
adjacency = "add-remove"
note = "the board"
[budget]
mode = "pure"
epsilon = 1
"""
COUNT = DiscreteLaplace(scale=10.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger with a data set and three charges, of which one is still under way, in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("policy.toml").write_text(POLICY)
    assert run(["ledger", "init", "budget.db"]) == 0
    assert run(["ledger", "open", "budget.db", "--dataset", "visits", "--policy", "policy.toml"]) == 0
    ledger = Ledger.open("budget.db")
    for number, name in enumerate(["ada", "ada", "bob"]):
        charge = ledger.reserve(
            "visits", COUNT, key=f"q{number}", request={}, by=name, label="wards", lease_s=1e-3
        )
        if number < 2:
            ledger.settle(charge, 1)
    with pytest.raises(Refused):
        ledger.reserve("visits", DiscreteLaplace(scale=1.0), key="q4", request={}, by="eve")
    ledger.close()
    return tmp_path


def test_a_ledger_is_made_once(folder: Path, shell: Shell) -> None:
    assert "is not empty" in shell("ledger", "init", "budget.db", code=2)


def test_a_data_set_is_opened_once_with_one_policy(folder: Path, shell: Shell) -> None:
    again = ("ledger", "open", "budget.db", "--dataset", "visits", "--policy", "policy.toml")
    assert "visits is open" in shell(*again)
    Path("policy.toml").write_text(POLICY.replace("epsilon = 1", "epsilon = 2"))
    assert "another policy" in shell(*again, code=1)
    Path("policy.toml").write_text(POLICY.replace("note", "nota"))
    assert "did you mean 'note'" in shell(*again, code=2)


def test_data_sets_are_listed(folder: Path, shell: Shell) -> None:
    assert "visits" in shell("ledger", "datasets", "budget.db")
    (row,) = shell.data("ledger", "datasets", "budget.db")["datasets"]
    assert row["policy"]["unit"] == "patient"


def test_the_status_shows_who_spent_what(folder: Path, shell: Shell) -> None:
    text = shell("ledger", "status", "budget.db", "--html", "page.html")
    for words in ("ada", "bob", "wards", "█", "ε = 0.300 at δ = 0", "1 refused", "1 reserved, 2 settled"):
        assert words in text
    assert "visits" in Path("page.html").read_text(encoding="utf-8")
    (view,) = shell.data("ledger", "status", "budget.db", "--dataset", "visits")["datasets"]
    assert [person["by"] for person in view["spenders"]] == ["ada", "bob"]
    assert view["share"] == pytest.approx(0.3)
    shell("ledger", "status", "budget.db", "--dataset", "none", code=2)
    shell("ledger", "status", "budget.db", "--watch", "--json", code=2)


def test_a_share_that_is_not_of_epsilon_says_of_what(tmp_path: Path, shell: Shell) -> None:
    where = f"sqlite:///{tmp_path / 'rho.db'}"
    ledger = Ledger.create(where)
    budget = ZeroConcentratedBudget(6.0, 1e-6)
    ledger.open_dataset("visits", Policy(unit="patient", adjacency="add-remove", budget=budget))
    ledger.reserve("visits", DiscreteGaussian(scale=4.0), key="1", request={})
    text = shell("ledger", "status", where)
    assert "% of the budget (counted in rho). All releases together have" in text
    assert "0 refused (runs and previews that do not fit ask for no charge, and are not counted)" in text


@pytest.mark.parametrize(("name", "words"), [("c.html", "Use --html c.html"), ("c.txt", "redirect the text")])
def test_a_certificate_of_another_format_is_not_written_as_json(
    name: str, words: str, folder: Path, shell: Shell
) -> None:
    said = shell.refused("certificate", "budget.db", "--dataset", "visits", "--out", name, code=2)
    assert words in said
    assert not Path(name).exists()


def test_watching_shows_what_comes_and_ends_with_a_key(
    folder: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []

    def sleep(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    text = shell("ledger", "status", "budget.db", "--watch")
    assert "Stopped watching" in text
    assert "ada" in text


def test_the_history_is_shown_without_answers(folder: Path, shell: Shell) -> None:
    text = shell("ledger", "history", "budget.db", "--dataset", "visits", "--last", "3")
    assert "refuse" in text
    assert "4 earlier entries" in text
    entries = shell.data("ledger", "history", "budget.db", "--dataset", "visits")["entries"]
    assert [entry["kind"] for entry in entries] == [
        "open", "reserve", "settle", "reserve", "settle", "reserve", "refuse",
    ]  # fmt: skip


def test_reservations_of_the_dead_are_given_up(folder: Path, shell: Shell) -> None:
    assert shell.data("ledger", "recover", "budget.db") == {"forfeited": {"visits": ["q2"]}}
    assert "visits: 0 forfeited" in shell("ledger", "recover", "budget.db")
    (view,) = shell.data("ledger", "status", "budget.db")["datasets"]
    assert view["share"] == pytest.approx(0.3)


def test_a_whole_chain_is_told_from_one_that_is_not(folder: Path, shell: Shell) -> None:
    anchor = shell.data("ledger", "status", "budget.db")["datasets"][0]["anchor"]
    assert "whole" in shell("ledger", "verify", "budget.db")
    assert shell.data("ledger", "verify", "budget.db", "--anchor", anchor)["ok"]
    forged = f"{anchor[:-4]}0000"
    assert "DOES NOT FIT" in shell("ledger", "verify", "budget.db", "--anchor", forged, code=1)
    assert not shell.data("ledger", "verify", "budget.db", "--anchor", forged, code=1)["ok"]
    shell("ledger", "verify", "budget.db", "--anchor", "nonsense", code=2)
    both = ("--anchor", anchor, "--dataset", "other")
    assert "Leave --dataset out" in shell("ledger", "verify", "budget.db", *both, code=2)


def test_a_certificate_is_made_signed_and_verified(folder: Path, shell: Shell) -> None:
    public = shell("ledger", "key", "key.pem").split()[-1]
    Path("told.toml").write_text('trials = "none"\n')
    files = ("--out", "c.json", "--html", "c.html", "--statements", "told.toml", "--sign", "key.pem")
    text = shell("certificate", "budget.db", "--dataset", "visits", *files)
    for words in ("PRIVACY CERTIFICATE", "NOT STATED", f"public key {public}", "Written: c.json"):
        assert words in text
    assert "Privacy certificate" in Path("c.html").read_text(encoding="utf-8")
    known = ("--ledger", "budget.db", "--public-key", public)
    assert "AGREES" in shell("verify", "c.json", *known)
    assert shell.data("verify", "c.json", *known)["agrees"]
    Path("d.json").write_text(Path("c.json").read_text().replace('"trials": "none"', '"trials": "few"'))
    assert "DOES NOT AGREE" in shell("verify", "d.json", code=1)
    Path("d.json").write_text(Path("c.json").read_text().replace('"format": 2', '"format": 3'))
    assert "in format 3" in shell("verify", "d.json", code=1)
    as_json = shell.data("ledger", "certificate", "budget.db", "--dataset", "visits")
    assert as_json["guarantee"]["spent"]["epsilon"] == pytest.approx(0.3)


def test_what_is_wrong_with_a_certificates_arguments_is_said(folder: Path, shell: Shell) -> None:
    visits = ("certificate", "budget.db", "--dataset", "visits")
    assert "The runs with charges are: none" in shell(*visits, "--run", "r", code=2)
    for name, charged in (("one", '{"run": "a1"}'), ("two", '"none"')):
        Path(name).mkdir()
        whole = f'{{"statement": "tacit privacy statement", "ledger": {charged}}}'
        (Path(name) / "statement.json").write_text(whole)
    assert "run 'a1' has no charge in data set 'visits'" in shell(*visits, "--run", "one", code=2)
    assert "not charged to a ledger" in shell(*visits, "--run", "two", code=2)
    assert "cannot be read" in shell(*visits, "--statements", "none.toml", code=2)
    Path("told.toml").write_text("trials")
    assert "cannot be read" in shell(*visits, "--statements", "told.toml", code=2)
    assert "cannot be read" in shell(*visits, "--sign", "none.pem", code=2)
    Path("s.json").write_text('{"statement": "tacit privacy statement"}')
    assert "is not a certificate" in shell("verify", "s.json", "--public-key", "ab", code=2)


def test_a_cap_is_raised_with_a_reason(folder: Path, shell: Shell) -> None:
    raised = ("ledger", "raise-cap", "budget.db", "--dataset", "visits", "--by", "the board", "--epsilon")
    assert "reason must not be empty" in shell(*raised, "2", "--reason", " ", code=2)
    assert "budget must exceed" in shell(*raised, "0.5", "--reason", "a study", code=2)
    assert "delta" in shell(*raised, "2", "--reason", "a study", "--delta", "1e-6", code=2)
    assert "of ε = 2.00 at δ = 0" in shell(*raised, "2", "--reason", "a study")
    assert "'a study'" in shell("certificate", "budget.db", "--dataset", "visits")


def test_after_an_old_copy_was_put_back_what_is_left_is_burned(folder: Path, shell: Shell) -> None:
    anchor = shell.data("ledger", "status", "budget.db")["datasets"][0]["anchor"]
    back = ("ledger", "recover", "budget.db", "--from-backup")
    assert "Nothing is missing" in shell(*back, anchor, code=2)
    ledger, _, _, digest = anchor.split(":")
    newer = f"{ledger}:visits:99:{digest}"
    assert "Leave --dataset out" in shell(*back, newer, "--dataset", "other", code=2)
    assert "is burned" in shell(*back, newer)
    shown = shell("ledger", "status", "budget.db", "--html", "page.html")
    assert "70 % burned" in shown
    assert "Spent: 100 %" in shown
    assert "█" in shown
    assert "░" not in shown  # the bar shows what is spent, with what was burned
    assert 'title="burned"' in Path("page.html").read_text(encoding="utf-8")
    assert "was burned" in Path("page.html").read_text(encoding="utf-8")
    assert "put back" in shell("certificate", "budget.db", "--dataset", "visits")


COMMANDS = (
    "init",
    "open",
    "datasets",
    "status",
    "history",
    "verify",
    "recover",
    "certificate",
    "raise-cap",
    "key",
)


def test_every_command_has_help_with_an_example(shell: Shell) -> None:
    for command in COMMANDS:
        text = shell("ledger", command, "--help")
        assert "Example: tacit" in text, command
    text = shell("ledger", "--help")
    assert all(command in text for command in COMMANDS)


@pytest.mark.untraced
def test_the_list_of_verbs_and_the_status_load_neither_torch_nor_more_than_they_need(folder: Path) -> None:
    code = """
import sys
from tacit.cli.app import run
for arguments, absent in (
    (["--help"], {"torch", "sqlalchemy", "scipy"}),
    (["ledger", "status", "budget.db"], {"torch"}),
    (["certificate", "budget.db", "--dataset", "visits"], {"torch"}),
    ("plan --records 10000 --unit image --epsilon 2 --delta 1e-5 --adjacency add-remove --steps 5 "
     "--batch-size 10000".split(), {"torch"}),
):
    code = run(arguments)
    print("LOADED", sorted(absent & set(sys.modules)), code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert told == ["LOADED [] 0"] * 4
