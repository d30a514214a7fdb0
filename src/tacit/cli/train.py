"""``tacit train``: train a model with differential privacy, from a configuration file."""

from __future__ import annotations

import contextlib
import itertools
import math
import shlex
import webbrowser
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli.terminal import (
    INTERRUPTED,
    AsJson,
    NoInput,
    Preparations,
    RunFile,
    TrainingBar,
    can_ask,
    catching_interrupt,
    console,
    messages,
    note,
    one_voice,
    option,
    print_json,
    refused_data,
    say,
    show_line,
    torchrun,
    words,
)
from tacit.errors import InvalidInput, check_integer

if TYPE_CHECKING:
    from tacit.ledger import DatasetStatus
    from tacit.report.statement import Statement
    from tacit.runs import Outcome, Run
    from tacit.runs.checks import CheckedRun
    from tacit.runs.sections import LedgerSection
    from tacit.training.ranks import Ranks


def command(
    context: typer.Context,
    config: RunFile,
    out: Annotated[
        Path | None, option("Folder of the run; default: the run file's, or runs/NAME.", metavar="DIR")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in that folder.")] = False,
    ledger: Annotated[str | None, option("Ledger to charge: a file or a database URL.")] = None,
    dataset: Annotated[str | None, option("Name of the data set in the ledger.")] = None,
    chunk: Annotated[int | None, option("Steps in one charge; default: a twentieth of all.")] = None,
    batches: Annotated[Path | None, option("The folder that `tacit batches` wrote.", metavar="DIR")] = None,
    no_input: NoInput = False,
    as_json: AsJson = False,
) -> int:
    """Train a model with differential privacy.

    Writes the model, the privacy statement, an evaluation against the majority class or the mean, metrics and
    figures to the run's folder. Ctrl-C stops after the current step and saves. The same command with --resume
    continues exactly where it stopped, also after a crash.

    With --ledger and --dataset, or [ledger] in the run file, each chunk of steps is charged to the data set's
    budget before it runs. A plan above the budget is refused at the start. If others use up the budget during
    the run, it ends with the model so far, and exit code 1.

    A run by date ([privacy] sampling = "dates") ends with the last complete day. With --resume and a later
    [data] until, it trains on the next days, under the same statement.

    If declared columns do not fit the table, or the unit may have several rows (such as a repeated
    patient_id), you are asked whether to continue. With --no-input, or without a terminal, the run stops if a
    column fits no cell, or if the unit may have several rows.

    Exit codes: 0 done, 1 refused by a privacy rule or the budget, 2 bad usage or input, 130 interrupted.

    torchrun --nproc-per-node 2 -m tacit train FILE trains in two processes: one run,
    one charge, one statement.

    Example:  tacit train digits.toml --out runs/first --ledger budget.db --dataset digits
    """
    with one_voice() as join:
        from tacit.runs.checks import check_run

        checked = check_run(
            config,
            out=out,
            resume=resume,
            ledger=_charged(ledger, dataset, chunk),
            batches=batches,
        )
        again = words(context, out=checked.folder, resume=True)
        asks = can_ask(no_input=no_input, as_json=as_json)
        ranks = join(checked.config.run.device, checked.config.data.own_records)
        if checked.config.data.database is not None:
            return _train_in_database(checked, ranks, as_json=as_json)
        return _train(checked, ranks, again, config.stem, asks=asks, as_json=as_json)


def _charged(url: str | None, dataset: str | None, chunk: int | None) -> LedgerSection | None:
    """Return the ledger section from the command line; None leaves it to the configuration."""
    from tacit.runs.sections import LedgerSection

    if (url, dataset, chunk) == (None, None, None):
        return None
    if chunk is not None:
        check_integer("chunk", chunk, low=1)
    return LedgerSection(url=url, dataset=dataset, chunk=chunk)


def _train(
    checked: CheckedRun,
    ranks: Ranks | None,
    again: Sequence[str],
    title: str,
    *,
    asks: bool,
    as_json: bool,
) -> int:
    """Train in this process, together with ``ranks``, and return the exit code."""
    from tacit.runs.train import prepare_checked  # imports torch, so it comes after the checks

    with Preparations() as progress:
        confirm = progress.confirm if asks else None
        run = prepare_checked(checked, ranks=ranks, progress=progress, confirm=confirm)
    if not as_json:
        _announce(run)
    outcome = run_to_end(run, again, title)
    first = run.session.ranks.first
    if not run.ended:
        if as_json and first:
            done, steps = run.session.steps_done, run.plan.steps
            print_json({"folder": str(run.folder), "finished": False, "steps_done": done, "steps": steps})
        return INTERRUPTED
    if outcome is not None and as_json:
        refused = refused_data(run.session.refusal)
        print_json(as_data(outcome) | {"refused": refused, "balance": _balance(run)})
    elif outcome is not None:
        show_outcome(outcome)
        _show_balance(run, "After")
    return 0 if run.session.stopped is None else 1


def _train_in_database(checked: CheckedRun, ranks: Ranks | None, *, as_json: bool) -> int:
    """Train on a table that stays in its database, and return the exit code."""
    from tacit.runs.database import train_in_database  # imports torch

    if ranks is not None:
        raise InvalidInput("[data] database needs a single process. Start `tacit train` without torchrun.")
    with messages.status("the database sums the table"):
        statement, figures, files = train_in_database(checked)
    if as_json:
        folder = str(checked.folder)
        print_json(
            {
                "folder": folder,
                "finished": True,
                "files": [str(checked.folder / name) for name in files],
                "evaluation": figures,
                "statement": statement.data,
            }
        )
        return 0
    use = shlex.join(["tacit", "predict", str(checked.folder), "DATA", "--out", "predictions.csv"])
    _show_end(checked.folder, figures, statement, [use])
    return 0


def _status(run: Run) -> DatasetStatus | None:
    """Return the budget of the data set that a run is charged to; None for a run without a ledger."""
    charges = run.session.charges
    return None if charges is None else charges.ledger.status(charges.dataset)


def _balance(run: Run) -> dict[str, object] | None:
    """Return the budget of the data set that a run is charged to as plain data; None without a ledger."""
    if (status := _status(run)) is None:
        return None
    return {
        "dataset": status.name,
        "epsilon_spent": status.spent_epsilon,
        "epsilon_cap": status.cap_epsilon,
        "delta": status.cap_delta,
        "epsilon_left_for_a_query": status.remaining_epsilon,
    }


def _show_balance(run: Run, when: str) -> None:
    from tacit.rounding import pair, shown_epsilon

    if (status := _status(run)) is not None:
        cap = pair({"epsilon": status.cap_epsilon, "delta": status.cap_delta})
        spent = shown_epsilon(status.spent_epsilon)
        console.print(f"{when} the run, data set {status.name}: ε = {spent} spent, of {cap}.")


def run_to_end(run: Run, again: Sequence[str], title: str) -> Outcome | None:
    """Train with a progress bar; after a Ctrl-C, print how to resume and return None.

    ``again`` holds the arguments of ``tacit train`` that resume the run.
    """
    done = run.session.steps_done
    bar = TrainingBar(title, run.plan, done, private=run.session.private)
    with bar, catching_interrupt() as stop:
        outcome = run.start((bar,), stop)
    if not run.ended:
        command = shlex.join([*torchrun(), "train", *again])
        messages.print(
            f"Stopped after step {run.session.steps_done} of {run.plan.steps}; the state is saved in "
            f"{run.folder}. To resume:\n  {command}",
            soft_wrap=True,
        )
    return outcome


def _announce(run: Run) -> None:
    from tacit.plan.signal import Verdict
    from tacit.rounding import counted, pair
    from tacit.runs.config import reasons
    from tacit.runs.plan import trained_weights

    plan, done = run.plan, run.session.steps_done
    cost = {"epsilon": plan.epsilon, "delta": plan.delta}
    console.print(
        f"{run.data.name}: {counted(plan.steps, 'step')}, {plan.sampling.describe()}, noise multiplier "
        f"{plan.noise_multiplier:.4g}; the whole run costs {pair(cost)} for one {plan.unit} "
        f"({plan.adjacency})."
    )
    weights = trained_weights(run.config)
    signal = None if weights is None else plan.signal(weights)
    if signal is not None and signal.verdict is Verdict.LITTLE:  # a session warns if it cannot learn
        note(signal.in_words())
    chosen = [line.partition("] ")[2].partition(": ")[0] for line in reasons(run.config_text)]
    if chosen:
        console.print(f"Chosen from public facts: {', '.join(chosen)} (reasons: tacit plan FILE)")
    if plan.score_report is not None:
        console.print(
            f"The test records get one score, at the end, with noise of {plan.score_report.noise:g} records "
            "(standard deviation); that epsilon includes its cost."
        )
    if run.resumed:
        console.print(f"Resuming after step {done} of {plan.steps}.")
    _show_balance(run, "Before")


def show_outcome(outcome: Outcome) -> None:
    """Print in at most ten lines how good and how private the model is, and what to do next."""
    done = outcome.statement.data["mechanism"]["steps"]
    remarks = list(outcome.remarks)
    if remark_on_loss := outcome.figures.get("training_loss"):
        remarks.append(remark_on_loss)
    if outcome.evaluation.interval is not None and outcome.evaluation.steps != done:
        remarks.append(f"the run's one noisy score is that after {outcome.evaluation.steps} steps.")
    own = [] if outcome.factory is None else ["--factory", outcome.factory]
    use = shlex.join(["tacit", "predict", str(outcome.folder), "DATA", "--out", "predictions.csv", *own])
    then = [outcome.used_by or use]
    if outcome.stopped is None and not outcome.days_left:
        then.append(outcome.how_to_test)
    _show_end(outcome.folder, outcome.figures, outcome.statement, then)
    if outcome.stopped is not None:
        show_line(f"The ledger ended the run early: {outcome.stopped}", "yellow")
    if outcome.days_left:
        show_line(f"{outcome.days_left} To continue, set [data] until, and use --resume.")
    for remark in remarks:
        note(remark)


def _show_end(folder: Path, figures: Mapping[str, Any], statement: Statement, then: Sequence[str]) -> None:
    from tacit.report.evaluation import missed_classes, score_line
    from tacit.rounding import pair
    from tacit.runs.checks import declarations_file

    promise = statement.data["guarantee"]
    if figures and (figures["useless"] or figures["score"] is None or math.isnan(figures["score"])):
        say(figures["verdict"], "bold red")
    elif figures:
        score = score_line(figures)
        say(score[0].upper() + score[1:], "bold green")
        missed = missed_classes(figures, shlex.quote(str(folder)))
        # One line for all groups, as the end of a run has at most ten.
        worse = " ".join(figures.get("served_worse", ()))
        for warning in filter(None, (missed, worse)):
            say(f"Warning: {warning}", "yellow")

    if statement.data["private"]:
        show_line(f"Private: {pair(promise)} for one {promise['unit']} ({promise['adjacency']})", "bold")
    else:
        show_line("NOT PRIVATE: the noise came from a fixed test key", "bold red")
    exact = "" if not figures or figures["interval"] is not None else "exact test scores, "
    show_line(f"Not covered: {exact}tuning on results, other uses of these records")
    pages = [name for name in ("statement.txt", "evaluation.html") if (folder / name).exists()]
    declared = declarations_file(folder)
    curator = f" ({declared.name}: how the columns fit)" if declared.exists() else ""
    show_line(f"In {folder}: {', '.join(pages)}; never release private/{curator}")
    show_line("Next:")
    for command in then:
        show_line(f"  {command}")


def as_data(outcome: Outcome) -> dict[str, object]:
    """Return the outcome as plain data, for JSON."""
    return {
        "folder": str(outcome.folder),
        "finished": outcome.stopped is None and not outcome.days_left,
        "days_left": outcome.days_left,
        "stopped": outcome.stopped,
        "files": [str(outcome.folder / name) for name in outcome.files],
        "test_score": outcome.evaluation.score,
        "test_interval": outcome.evaluation.interval,
        "test_noise": outcome.evaluation.noise,
        "test_steps": outcome.evaluation.steps,
        "test_loss": outcome.evaluation.loss,
        "per_class": list(outcome.evaluation.per_class),
        "evaluation": outcome.figures,
        "rows": [vars(row) for row in outcome.rows],
        "statement": outcome.statement.data,
    }


def batches_command(
    config: RunFile,
    out: Annotated[Path, option("The folder of the batches.", metavar="DIR")],
    master: Annotated[
        str | None, option("The address of Spark, such as local[8]; default: as configured.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Write the batches of a whole run on a corpus in Parquet, which `tacit train --batches` reads in order.

    Use it for a corpus that the training machine cannot read in random order. Spark cuts the documents into
    records, and collects the records of each step, exactly as the run would draw them. The cost is the run's,
    charged when it trains.

    The folder contains the records and the noise key, so it is as secret as the corpus. Only one run (also
    resumed) can use it.

    Exit codes: 0 done, 1 refused by a privacy rule, 2 bad usage or input, 130 interrupted.

    Example:  tacit batches corpus.toml --out batches --master "local[8]"
              tacit train corpus.toml --batches batches
    """
    from tacit.runs.batches import Spark, write_batches
    from tacit.runs.config import read_config

    with Preparations() as progress:
        spark: list[Spark] = []

        def engine() -> Spark:
            spark.append(Spark(master, progress))
            return spark[0]

        try:
            result = write_batches(read_config(config), out, engine, progress=progress)
        finally:
            for session in spark:
                session.stop()
    if as_json:
        print_json({"folder": str(out), "shards": result.shards, "bytes": result.bytes})
        return 0
    show_line(
        f"{out}: the batches of {result.plan.steps} steps, in {result.shards} files of "
        f"{result.bytes / 1e6:,.1f} MB in total. They are as secret as the corpus. To train:\n  tacit train "
        f"{shlex.quote(str(config))} --batches {shlex.quote(str(out))}"
    )
    return 0


_CONFIG = Path(__file__).parent.parent / "runs" / "demo.toml"


def demo_command(
    out: Annotated[
        Path | None, option("Folder of the run; default: the next free one in runs/.", metavar="DIR")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Train a private model on scikit-learn's digits, and show its accuracy and its guarantee.

    Example:  tacit demo --out runs/digits
    """
    from tacit.runs import prepare

    folder = out or next(
        path for n in itertools.count(1) if not (path := Path("runs") / f"demo-{n}").exists()
    )
    run = prepare(_CONFIG, out=folder)
    outcome = run_to_end(run, [str(_CONFIG), "--out", str(folder), "--resume"], "digits")
    if outcome is None:
        return INTERRUPTED
    if as_json:
        print_json(as_data(outcome))
    else:
        show_outcome(outcome)
    return 0


PAGE = Path(__file__).parent / "playground.html"
"""The built page: one file that needs no network."""
_HOST = "127.0.0.1"
_POLICY = "; ".join(  # lets the scripts in the page run, and forbids loading anything else
    (
        "default-src 'none'",
        "script-src 'unsafe-inline' blob:",
        "worker-src blob:",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


def playground_command(
    port: Annotated[int, typer.Option(help="The port on this machine; 0 for any free port.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address, and do not open a browser.")
    ] = False,
) -> int:
    """Open the playground: watch a small network train with and without differential privacy.

    The page is served only to this machine, until Ctrl-C, and sends nothing. It is only an illustration: its
    random numbers are not secret. For proven costs, use `tacit account`.

    Exit codes: 0 done, 2 bad usage or a port in use.

    Example:  tacit playground
    """
    number = check_integer("port", port, low=0, high=65535)
    with serve(number) as server:
        address = f"http://{_HOST}:{server.server_address[1]}/"
        show_line(f"The playground is at {address}. Ctrl-C ends it.")
        if not no_browser:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def serve(port: int) -> ThreadingHTTPServer:
    """Make a server of the page on this machine's loopback address, without starting it."""
    page = PAGE.read_bytes()
    try:
        return ThreadingHTTPServer((_HOST, port), partial(_Handler, page))
    except OSError as problem:
        raise InvalidInput(
            f"port {port} of {_HOST} cannot be used ({problem.strerror}). Remove --port to use a free one."
        ) from None


class _Handler(BaseHTTPRequestHandler):
    """A handler that answers requests for the page's address with the page, and all others with 404."""

    def __init__(self, page: bytes, *connection: object) -> None:
        self._page = page
        super().__init__(*connection)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Send the headers and the page."""
        self._answer(send_page=True)

    def do_HEAD(self) -> None:
        """Send the headers without the page."""
        self._answer(send_page=False)

    def _answer(self, *, send_page: bool) -> None:
        is_page = self.path.partition("?")[0] in ("/", "/index.html") and self._is_ours()
        body = self._page if is_page else b"There is only one page here: /\n"
        self.send_response(HTTPStatus.OK if is_page else HTTPStatus.NOT_FOUND)
        self.send_header(
            "Content-Type", "text/html; charset=utf-8" if is_page else "text/plain; charset=utf-8"
        )
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.end_headers()
        if send_page:
            self.wfile.write(body)

    def _is_ours(self) -> bool:
        """Return whether the browser used the address or "localhost", not another name of this machine."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        return host in (_HOST, "localhost")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name of the base
        """Do nothing, so that requests are not printed."""
