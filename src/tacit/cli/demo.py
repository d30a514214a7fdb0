"""``tacit demo``: private trainings with their guarantee, on data that comes with scikit-learn."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
import webbrowser
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tacit.cli.terminal import INTERRUPTED, AsJson, console, option, print_json, progress_bar, show_line
from tacit.cli.train import as_data, run_to_end, show_outcome
from tacit.errors import InvalidInput, check_integer

if TYPE_CHECKING:
    from tacit.datasets import Dataset
    from tacit.runs.config import Config


_CONFIG = Path(__file__).parent.parent / "runs" / "demo.toml"
_EPSILONS = (1.0, 3.0)


def command(
    out: Annotated[Path | None, option("Folder of the run; default: the next free one in runs/.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs per epsilon in the table of means.")] = 5,
    as_json: AsJson = False,
) -> int:
    """Train a private model on scikit-learn's digits, and show the guarantee and what it costs.

    It takes about ten seconds.

    Example:  tacit demo --seeds 2
    """
    from tacit.runs import prepare

    check_integer("seeds", seeds, low=1)
    folder = out or next(
        path for n in itertools.count(1) if not (path := Path("runs") / f"demo-{n}").exists()
    )
    start = time.perf_counter()
    outcome = run_to_end(
        prepare(_CONFIG, out=folder), [str(_CONFIG), "--out", str(folder), "--resume"], "digits"
    )
    if outcome is None:
        return INTERRUPTED
    if not as_json:
        show_outcome(outcome)
    scores = _repeat(seeds)
    if as_json:
        print_json(as_data(outcome) | {"repeats": [{"epsilon": e, "scores": s} for e, s in scores.items()]})
        return 0
    console.print()
    console.print(_table(scores))
    console.print(
        "Each line of the table repeats the run to show the spread. Train your own model once: every run on "
        "the same records spends their budget again."
    )
    console.print(f"Done in {time.perf_counter() - start:.1f} s.")
    return 0


def _repeat(seeds: int) -> dict[float, list[float]]:
    from tacit.runs import read_config
    from tacit.runs.kinds import prepared_data

    scores: dict[float, list[float]] = {epsilon: [] for epsilon in _EPSILONS}
    config = read_config(_CONFIG)
    data = prepared_data(config)
    with progress_bar() as bar:
        task = bar.add_task("repeats for the table", total=len(_EPSILONS) * seeds)
        for epsilon, values in scores.items():
            for _ in range(seeds):
                values.append(_score(config, data, epsilon))
                bar.advance(task)
    return scores


def _table(scores: dict[float, list[float]]) -> Table:
    table = Table("ε", "mean test accuracy", "std", "runs", title="Digits, δ = 1e-4, one image is the unit")
    for epsilon, values in scores.items():
        spread = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "–"
        table.add_row(f"{epsilon:g}", f"{statistics.mean(values):.4f}", spread, str(len(values)))
    return table


def _score(config: Config, data: Dataset, epsilon: float) -> float:
    from tacit.runs.build import session_on
    from tacit.runs.plan import make_plan
    from tacit.training import evaluate, train

    privacy = config.privacy.model_copy(update={"epsilon": epsilon})
    config = config.model_copy(update={"privacy": privacy})
    session = session_on(config, data, make_plan(config))
    train(session, progress=False)  # the table has a separate bar
    return evaluate(session.current_model, *data.test).score


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

    The page is served only to this machine, until Ctrl-C, and sends nothing. It is an illustration: its
    random numbers are not secret, and `tacit account` proves what it shows.

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
    """Make a server of the page on this machine's loopback address, without starting it.

    Args:
        port: the port; 0 for any free port.

    Raises:
        InvalidInput: the port is in use, or the process may not use it.
    """
    page = PAGE.read_bytes()
    try:
        return ThreadingHTTPServer((_HOST, port), partial(_Handler, page))
    except OSError as problem:
        raise InvalidInput(
            f"port {port} of {_HOST} cannot be used ({problem.strerror}). Leave --port out to get a free one."
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
