"""``tacit playground``: a page that trains a small network with and without privacy, in the browser."""

from __future__ import annotations

import contextlib
import webbrowser
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.show import show_line
from tacit.errors import InvalidInput, check_integer

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


def command(
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
