"""``tacit reproduce``: say where the experiments of papers are."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from tacit.errors import InvalidInput


def command(
    arguments: Annotated[list[str] | None, typer.Argument(help="What the experiments take.")] = None,
) -> int:
    """Say how to run the experiments of papers, from a checkout.

    In the folder of a checkout:  python -m experiments NAME --epsilon 3 --seeds 3
    """
    words = shlex.join(arguments or ["--help"])
    raise InvalidInput(
        "the experiments of papers are not in the package: they are in the folder experiments of a checkout "
        "(git clone https://github.com/tacit-dp/tacit). There, after make install, run: .venv/bin/python -m "
        f"experiments {words}"
    )
