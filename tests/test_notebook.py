"""In a notebook and in a terminal: small tables in the page's own colours, and a bar; nothing in a pipe."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from made import a_plan, a_session
from ran import make_statement
from torch import nn

from tacit import LossReport, Plan, PrivateSession, ScoreReport, train
from tacit.errors import InvalidInput
from tacit.queries import Answer
from tacit.queries.private_table import AnswerRow, Estimate
from tacit.testing import seeded_generator
from tacit.training.loop import History, MetricsRow
from tacit.training.progress import _is_watched

MARK = "<b>&row</b>"
SECRET = 7654.321


def plan(**changes: Any) -> Plan:
    return a_plan(**{"steps": 7, "unit": MARK, "loss_report": LossReport(), **changes})


def session() -> PrivateSession:
    x = torch.zeros(60, 3)
    x[:, 1] = SECRET
    data = (x, torch.zeros(60, dtype=torch.int64))
    return a_session(nn.Linear(3, 2), data, plan(), lr=0.0, generator=seeded_generator(1))


def statement() -> Any:
    return make_statement(
        plan(batch_size=60), steps_done=3, randomness="a key", private=True, data_source=MARK
    )


def answer() -> Answer:
    row = AnswerRow((MARK,), (Estimate(12, 8, 16),))
    return Answer(("ward",), ("count",), (row,), (), ((),), "key", 0.5, 0.0, 0.5, repeated=False)


SHOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "plan": (plan, "Noise multiplier"),
    "plan with a score": (
        lambda: plan(score_report=ScoreReport(9.0), loss_report=None),
        "noise of 9 records",
    ),
    "session": (session, "0 of 7"),
    "statement": (statement, "PRIVACY STATEMENT"),
    "history": (lambda: History([MetricsRow(3, 0.51234, 1.5, None, None)]), "0.5124"),
    "answer": (answer, "12 (8 to 16)"),
}


class Balanced(HTMLParser):
    """Keeps the open tags and the text; fails where a tag closes that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("what", SHOWN)
def test_html_is_whole_escaped_and_without_colours(what: str) -> None:
    make, words = SHOWN[what]
    html = make()._repr_html_()
    page = Balanced()
    page.feed(html)
    assert page.open == []
    assert words in page.text
    assert MARK not in html
    assert MARK in page.text or what == "history"
    assert not re.search(r"color|background|<style|<script|#[0-9a-f]{3}", html)
    assert str(SECRET) not in html
    assert len(html) < 12_000


def test_a_bar_shows_public_figures_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    run = session()
    for ticket in run.epoch():
        run.step(ticket)
    assert "epoch 1 of 3, then ε = " in terminal.getvalue()
    train(run)
    assert "private training" in terminal.getvalue()
    assert re.search(r"noisy loss -?[\d.]+ ± [\d.]+\b", terminal.getvalue())
    assert run.steps_done == 7


def test_one_bar_stays_of_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch left a separate bar in a notebook."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    run = session()
    for _ in range(3):
        for ticket in run.epoch():
            run.step(ticket)
    assert run.steps_done == 7
    assert terminal.getvalue().count("\n") == 1
    assert "1/1" in terminal.getvalue().rpartition("epoch 3 of 3")[2]


class NotebookBar:
    """A bar of tqdm in a notebook: each that is made is one more display below its cell."""

    made: ClassVar[list[NotebookBar]] = []

    def __init__(self, *, total: int, desc: str, leave: bool, **rest: object) -> None:
        self.container, self.total, self.leave, self.n, self.closed = object(), total, leave, 0, False
        self.titles = [desc]
        self.made.append(self)

    def __enter__(self) -> NotebookBar:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def reset(self, total: int) -> None:
        self.total, self.n = total, 0

    def set_description(self, title: str) -> None:
        self.titles.append(title)

    def set_postfix_str(self, words: str, refresh: bool) -> None:
        pass

    def update(self) -> None:
        self.n += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Its shell, with the number of the cell that runs."""
    shell, module = SimpleNamespace(kernel=object(), execution_count=1), ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setattr(module, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setattr("tqdm.auto.tqdm", NotebookBar)
    monkeypatch.setattr(NotebookBar, "made", [])
    return shell


def test_a_notebook_displays_one_bar_for_all_epochs(in_a_notebook: SimpleNamespace) -> None:
    run = session()
    for _ in range(3):
        for ticket in run.epoch():
            run.step(ticket)
    (bar,) = NotebookBar.made
    assert [title.partition(",")[0] for title in bar.titles] == [f"epoch {n} of 3" for n in (1, 2, 3)]
    assert (bar.n, bar.total, bar.closed, bar.leave) == (1, 1, True, True)


def test_another_cell_has_its_own_bar_and_so_has_an_epoch_after_a_break(
    in_a_notebook: SimpleNamespace,
) -> None:
    run = session()
    for ticket in run.epoch():
        run.step(ticket)
    in_a_notebook.execution_count = 2
    for ticket in run.epoch():
        run.step(ticket)
        break
    for ticket in run.epoch():
        run.step(ticket)
    assert [bar.n for bar in NotebookBar.made] == [3, 1, 3]
    assert [bar.leave for bar in NotebookBar.made] == [True] * 3


def test_nothing_is_shown_in_a_pipe_or_on_request(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = session()
    for ticket in run.epoch():
        run.step(ticket)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for ticket in run.epoch(progress=False):
        run.step(ticket)
    for ticket in run.batches():
        run.step(ticket)
    assert capfd.readouterr() == ("", "")


def test_a_bar_that_is_asked_for_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    run = session()
    for ticket in run.batches(progress=True):
        run.step(ticket)
    assert "7/7" in capfd.readouterr().err


def test_a_kernel_of_a_notebook_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", module)
    shells = {"kernel": SimpleNamespace(kernel=object()), "shell": SimpleNamespace(), "none": None}
    for name, shell in shells.items():
        monkeypatch.setattr(module, "get_ipython", lambda shell=shell: shell, raising=False)
        assert _is_watched() == (name == "kernel")


def test_a_ticket_taken_for_a_batch_says_what_it_is() -> None:
    with pytest.raises(InvalidInput, match="a step ticket is not a batch"):
        for _x, _y in session().batches():  # type: ignore[var-annotated]
            pass
    with pytest.raises(InvalidInput, match=r"session\.step\(step\)"):
        next(session().epoch())[0]
