"""``tacit risk``: the meaning of a guarantee for one person."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.table import Table

from tacit.accounting import PrivacyCurve, account
from tacit.cli.account import percent, read_event_file
from tacit.cli.options import AsJson, Figure, argument, option
from tacit.cli.show import console, messages, print_json, say, show_line
from tacit.errors import InvalidInput, check_real
from tacit.events import Adjacency, ApproximateDP
from tacit.report.pages.canvas import figure_path
from tacit.report.risk import RiskSheet, risk_sheet
from tacit.report.verification import check_fields, read_event, read_statement
from tacit.rounding import round_up


def command(
    run: Annotated[Path | None, argument("The folder of a run, or its statement.json.")] = None,
    epsilon: Annotated[
        float | None, option("Instead of a run: a stated epsilon, if nothing else is known.")
    ] = None,
    event: Annotated[Path | None, option("Instead of a run: a mechanism as JSON.")] = None,
    delta: Annotated[float | None, option("Delta, with --epsilon or --event.")] = None,
    adjacency: Annotated[str | None, option("Neighbouring data sets, with --epsilon or --event.")] = None,
    unit: Annotated[str, option("What one record is, with --epsilon or --event.")] = "record",
    figure: Figure = None,
    as_json: AsJson = False,
) -> int:
    """Say what a guarantee means for one person: the most that any attack can reach, in frequencies.

    The figures come from the trade-off curve of the run's mechanism, which promises far more than its epsilon
    and delta; the last column shows what epsilon and delta alone would allow.

    Exit codes: 0 done, 1 no proven bound, 2 bad usage or input.

    Example:  tacit risk runs/first --figure risk.png
    """
    if figure is not None:
        figure_path(figure)
    with messages.status("pricing the event"):
        sheet = _sheet(run, epsilon, event, delta, adjacency, unit)
        if figure is not None:
            from tacit.report.pages.guarantee_figures import draw_risk

            draw_risk(sheet, figure)
    if as_json:
        print_json(sheet.to_data())
        return 0
    _show(sheet)
    if figure is not None:
        show_line(f"Figure: {figure}")
    return 0


def _sheet(
    run: Path | None,
    epsilon: float | None,
    event: Path | None,
    delta: float | None,
    adjacency: str | None,
    unit: str,
) -> RiskSheet:
    sources = {"RUN": run, "--epsilon": epsilon, "--event": event}
    names = [name for name, value in sources.items() if value is not None]
    if len(names) != 1:
        raise InvalidInput(
            f"give one of a run, --epsilon and --event; got {' and '.join(names) or 'none'}. A run gives "
            "the tightest figures: tacit risk runs/first"
        )
    if run is not None:
        if delta is not None or adjacency is not None:
            raise InvalidInput("a run states its own delta and adjacency; leave --delta and --adjacency out.")
        data = read_statement(run / "statement.json" if run.is_dir() else run)
        check_fields(data)
        promise = data["guarantee"]
        relation = Adjacency.parse(promise["adjacency"])
        curve = account(read_event(data["event"]), adjacency=relation)
        return risk_sheet(curve, delta=promise["delta"], unit=promise["unit"])
    if delta is None or adjacency is None:
        raise InvalidInput(
            "--delta and --adjacency are required without a run: epsilon means nothing without them."
        )
    check_real("delta", delta, low=0.0, high=1.0, open_low=True, open_high=True)
    return risk_sheet(_curve(epsilon, event, delta, adjacency), delta=delta, unit=unit, epsilon=epsilon)


def _curve(epsilon: float | None, event: Path | None, delta: float, adjacency: str) -> PrivacyCurve:
    if event is None:
        return account(ApproximateDP(check_real("epsilon", epsilon, low=0.0), delta), adjacency=adjacency)
    return account(read_event_file(event), adjacency=adjacency)


def _show(sheet: RiskSheet) -> None:
    for sentence in sheet.sentences():
        say(sentence)
        console.print()
    table = Table(
        "at most", "without the release", "with it", f"if only ε = {round_up(sheet.epsilon, 3)} were known"
    )
    for chance in sheet.chances:
        most = (percent(chance.at_most, 3), percent(chance.pair_alone, 3))
        table.add_row(chance.question, f"{100 * chance.before:.4g} %", *most)
    console.print(table)
    show_line(
        f"From the trade-off curve ({sheet.curve.method}), adjacency {sheet.curve.adjacency}, "
        f"delta {sheet.delta:g}."
    )
