"""``tacit predict``: the model of a run on new records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.terminal import (
    AsJson,
    Factory,
    RunFolder,
    argument,
    option,
    print_json,
    progress_bar,
    show_line,
)


def command(
    run: RunFolder,
    data: Annotated[Path, argument("New records of the kind that the model was trained on.")],
    out: Annotated[Path, typer.Option(help="The table of predictions, in CSV.")] = Path("predictions.csv"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing table.")] = False,
    factory: Factory = None,
    threshold: Annotated[
        float | None, option("Predict the second of two classes, and each label, from this probability on.")
    ] = None,
    keep: Annotated[
        list[str] | None, option("Copy this column of the table; may be repeated.", metavar="NAME")
    ] = None,
    device: Annotated[str, typer.Option(help="The device of the model, such as cuda.")] = "cpu",
    as_json: AsJson = False,
) -> int:
    """Predict for new records with the model of a run.

    The records have the form of the training records: a table (CSV, .csv.gz or Parquet) with the same
    columns, in which the target may be missing; a folder of pictures, or one picture; text with one record a
    line; for a data set of Tacit's own, an array (.npy, .npz) or a CSV of scaled numbers. Files may be larger
    than memory. The table of predictions has a line for each record, with its number or file name and the
    columns of --keep, such as an id. The class and the probability of each class follow, or for each label,
    true or false and its probability.

    If one of two classes, or a label, is rare, few records have a probability above one half:
    --threshold 0.1 finds more of them, at no cost. Choose it from public knowledge, not from private records.

    Neither the training data nor a ledger is needed, and nothing is charged. A record that cannot be read
    ends the command with an error that names its place in the file. In that case, and after a Ctrl-C, no
    table is written.

    Exit codes: 0 done, 2 bad usage or input, 130 interrupted.

    Example:  tacit predict runs/patients new_patients.csv --out predictions.csv
    """
    from tacit.runs.predict import check_out, load, write_predictions

    check_out(out, data, overwrite=overwrite)
    predictor = load(run, factory=factory, device=device)
    with progress_bar() as bar:
        task = bar.add_task("predicting", total=None)
        try:
            count = write_predictions(
                predictor,
                data,
                out,
                overwrite=overwrite,
                threshold=threshold,
                keep=keep or (),
                progress=lambda done, total: bar.update(
                    task, completed=done, total=total and max(done, total)
                ),
            )
            bar.update(task, completed=count, total=count)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Stopped immediately. {out} was not written.") from None
    if as_json:
        print_json({"run": str(run), "data": str(data), "out": str(out), "records": count})
    else:
        show_line(f"Predictions for {count:,} records: {out}")
    return 0


def export_command(
    run: RunFolder,
    to: Annotated[str, option("onnx or torch-export.", "--format")],
    out: Annotated[Path, option("The file to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    factory: Factory = None,
) -> int:
    """Write the model of a run as ONNX or a program of torch.export.

    The file holds only the network: its input "inputs" takes any number of records, encoded as in training,
    and its output "outputs" has the logits of the classes, or scaled numbers. Classes, columns, epsilon,
    delta and the unit of privacy are in its metadata, under the name tacit. The file is compared with the
    model before it is written.

    Exit codes: 0 done, 2 bad usage or input, 130 interrupted.

    Example:  tacit export runs/patients --format onnx --out patients.onnx
    """
    from tacit.runs.predict import load

    load(run, factory=factory).export(out, format=to, overwrite=overwrite)
    show_line(f"Model as {to}: {out}")
    return 0
