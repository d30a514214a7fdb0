"""``tacit batches``: write the batches of a whole run beforehand."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.show import Preparations, console
from tacit.cli.train import print_json


def command(
    config: Annotated[Path, typer.Argument(help="The configuration, a TOML file.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The folder of the batches.", show_default=False)],
    master: Annotated[
        str | None,
        typer.Option(
            help="Where Spark runs, such as local[8]; else as it is configured.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Write the batches of a whole run on a corpus in Parquet, which `tacit train --batches` reads in order.

    For a corpus that the machine of the training cannot read at random places. Spark cuts the documents
    into records, and sorts the records of each step together; they are those that the run would draw itself,
    to the last bit. The price is that of the run, which is charged when it trains.

    The folder holds records, who takes part in which step, and the key of the noise: it is as secret as the
    corpus. One run uses it, and can be resumed; another run needs batches of its own.

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
            written = write_batches(read_config(config), out, engine, progress=progress)
        finally:
            for session in spark:
                session.stop()
    if as_json:
        print_json({"folder": str(out), "shards": written.shards, "bytes": written.bytes})
        return 0
    console.print(
        f"{out}: the batches of {written.plan.steps} steps, in {written.shards} files of together "
        f"{written.bytes / 1e6:,.1f} MB. They are as secret as the corpus. Train with:\n"
        f"  tacit train {shlex.quote(str(config))} --batches {shlex.quote(str(out))}",
        soft_wrap=True,
    )
    return 0
