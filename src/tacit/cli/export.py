"""``tacit export``: the model of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.show import console


def command(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a copy of it.", show_default=False)],
    to: Annotated[
        str, typer.Option("--format", help="onnx, torchscript or torch-export.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The file to write.", show_default=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    factory: Annotated[
        str | None,
        typer.Option(help='For a model of your own: "module:function" that makes it.', show_default=False),
    ] = None,
) -> int:
    """Write the model of a run as ONNX, TorchScript or a program of torch.export.

    The file holds the network alone: its input "inputs" takes any number of records, encoded as in training,
    and its output "outputs" has the logits of the classes, or scaled numbers. Classes, columns, epsilon,
    delta and the unit of privacy are in its metadata, under the name tacit. The file is compared with the
    model before it is written.

    Exit codes: 0 done, 2 bad usage or input, 130 interrupted.

    Example:  tacit export runs/patients --format onnx --out patients.onnx
    """
    from tacit.runs.predict import load

    load(run, factory=factory).export(out, format=to, overwrite=overwrite)
    console.print(f"Model as {to}: {out}", soft_wrap=True)
    return 0
