"""``tacit ledger``: make a ledger, open data sets in it, and see who spends what."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tacit.cli.query import AcceptMissing, AcceptOutside, print_check, table_at
from tacit.cli.terminal import AsJson, InDatabase, argument, console, messages, option, print_json, say
from tacit.cli.verify import certificate_command
from tacit.errors import InvalidInput
from tacit.events import ApproximateDP, Event, Gaussian, Laplace, ZeroConcentratedDP
from tacit.ledger import Anchor, Ledger
from tacit.ledger.policy import budget_from_data, read_policy
from tacit.ledger.records import Entry
from tacit.report.spending import NO_ENTRY, curator_page, curator_view, spent_in_words
from tacit.rounding import counted, shown_epsilon

SUMMARY = "Keep one privacy budget per data set: open, watch and check it."

_BAR = 48  # characters
_COLOURS = ("blue", "dark_orange", "green")  # of the largest spenders; the others are grey

_Where = Annotated[str, argument("The ledger: a file, or postgresql+psycopg://...", metavar="LEDGER")]
_Name = Annotated[str, option("The data set.", "--dataset")]
_Names = Annotated[list[str] | None, option("Only this data set; may be repeated.", "--dataset")]


def init(ledger: _Where) -> int:
    """Create a new, empty ledger; an existing one is not changed.

    Example:  tacit ledger init budget.db
    """
    book = Ledger.create(ledger)
    say(f"Created the ledger {book.uuid}. Next: tacit init TABLE --policy --out policy.toml")
    return 0


def open_dataset(
    ledger: _Where,
    dataset: _Name,
    policy: Annotated[Path, option("The policy, a TOML file.")],
) -> int:
    """Open a data set with its policy, which is final.

    Example:  tacit ledger open budget.db --dataset visits --policy policy.toml
    """
    book = Ledger.open(ledger)
    book.open_dataset(dataset, read_policy(policy))
    view = curator_view(book, [dataset])["datasets"][0]
    say(f"{dataset} is open. {spent_in_words(view)}")
    say(f"Anchor, to store elsewhere: {view['anchor']}")
    return 0


def register(
    ledger: _Where,
    data: Annotated[str, argument("A .parquet, .csv or .tsv file, or the URL of a database.")],
    dataset: _Name,
    block: Annotated[str | None, option("The declared block of the data set in DATA.")] = None,
    accept_missing: AcceptMissing = None,
    accept_outside: AcceptOutside = None,
    table: InDatabase = None,
    as_json: AsJson = False,
) -> int:
    """Check a table against the policy of its data set; if it is clean, allow queries of it.

    This is for the data owner: the findings are confidential. Certificates list what was accepted.
    Register a changed table again; its budget stays the same.

    Exit codes: 0 registered, 1 some cells do not fit the policy, 2 bad usage or input.

    Example:  tacit ledger register budget.db visits.parquet --dataset visits
    """
    from tacit.queries.table_check import UncleanTable, register_table

    book = Ledger.open(ledger)
    policy = book.policy(dataset)
    with table_at(data, table, default=dataset) as source, messages.status("reading the table"):
        try:
            check = register_table(
                source,
                ledger=book,
                dataset=dataset,
                block=block,
                accept_missing=accept_missing or (),
                accept_outside=accept_outside or (),
            )
        except UncleanTable as problem:
            check = problem.check
    if as_json:
        print_json(check.to_data())
        return 0 if check.clean else 1
    print_check(check, policy)
    if not check.clean:
        messages.print(f"Not registered: the table cannot be queried as {dataset} yet.")
        return 1
    say(f"Registered as {dataset}: it can be queried now.")
    return 0


def datasets(ledger: _Where, as_json: AsJson = False) -> int:
    """List the data sets with their budgets.

    Example:  tacit ledger datasets budget.db
    """
    statuses = Ledger.open(ledger).datasets()
    if as_json:
        rows = [{"name": status.name, "policy": status.policy.to_data()} for status in statuses]
        print_json({"datasets": rows})
        return 0
    table = Table("data set", "unit", "neighbours", "mode", "ε", "δ", "opened")
    for status in statuses:
        policy = status.policy
        cap = (shown_epsilon(status.cap_epsilon), f"{status.cap_delta:g}", f"{status.opened:%Y-%m-%d}")
        table.add_row(status.name, policy.unit, policy.relation.value, policy.budget.mode, *cap)
    console.print(table if statuses else "No data set is open in this ledger.")
    return 0


def status(
    ledger: _Where,
    dataset: _Names = None,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it until Ctrl-C.")] = False,
    as_json: AsJson = False,
    html: Annotated[Path | None, option("Write a page with the history as a chart.")] = None,
) -> int:
    """Show each budget as a bar, with the spenders.

    Example:  tacit ledger status budget.db --watch
    """
    if watch and as_json:
        raise InvalidInput("--watch and --json exclude each other. Remove one.")
    book, names = Ledger.open(ledger), dataset or ()
    view = curator_view(book, names)
    if html is not None:
        html.write_text(curator_page(view), encoding="utf-8")
    if as_json:
        print_json(view)
    elif watch:
        _watch(lambda: curator_view(book, names))
    else:
        console.print(_shown(view))
        if html is not None:
            say(f"Page: {html}")
    return 0


def history(
    ledger: _Where,
    dataset: _Name,
    last: Annotated[int, typer.Option(min=1, help="How many entries to show.")] = 20,
    as_json: AsJson = False,
) -> int:
    """Show the entries of a data set, the newest last, without answers to queries.

    Example:  tacit ledger history budget.db --dataset visits --last 50
    """
    entries = Ledger.open(ledger).history(dataset)
    if as_json:
        print_json({"entries": [_entry_data(entry) for entry in entries[-last:]]})
        return 0
    table = Table("entry", "time (UTC)", "what", "by", "for", "key or charge")
    for entry in entries[-last:]:
        body = entry.body
        cells = (body.get("by", ""), body.get("label", ""), str(body.get("key", body.get("charge", ""))))
        table.add_row(str(entry.seq), f"{entry.time:%Y-%m-%d %H:%M:%S}", entry.kind, *map(Text, cells))
    console.print(table)
    if len(entries) > last:
        say(f"{len(entries) - last:,} earlier entries: --last {len(entries)} shows all.")
    return 0


def verify(
    ledger: _Where,
    dataset: _Names = None,
    anchor: Annotated[str | None, option("An anchor stored elsewhere.")] = None,
    as_json: AsJson = False,
) -> int:
    """Replay the chain of entries against the balances; with an anchor, also detect restored backups.

    Exit codes: 0 consistent, 1 inconsistent, 2 cannot be read.

    Example:  tacit ledger verify budget.db --anchor "$(cat anchor.txt)"
    """
    book = Ledger.open(ledger)
    expected = None if anchor is None else Anchor.parse(anchor)
    if expected is not None and dataset and dataset != [expected.dataset]:
        raise InvalidInput(
            f"the anchor belongs to data set {expected.dataset!r}, but --dataset is {', '.join(dataset)}. "
            "Leave --dataset out, or give the anchor of that data set."
        )
    names = dataset or ([each.name for each in book.datasets()] if expected is None else [expected.dataset])
    results = {name: book.verify(name, anchor=expected) for name in names}
    if as_json:
        keys = ("ok", "entries", "problems", "notes")
        rows = {name: {key: getattr(result, key) for key in keys} for name, result in results.items()}
        print_json({"ledger": book.uuid, "ok": all(r.ok for r in results.values()), "datasets": rows})
    else:
        for name, result in results.items():
            style, word = ("bold green", "whole") if result.ok else ("bold red", "DOES NOT FIT")
            console.print(
                Text.assemble(f"{name}: {counted(result.entries, 'entry', 'entries')}, ", (word, style))
            )
            for text in (*result.problems, *result.notes):
                say(f"  {text}")
        if expected is None:
            say("Without an anchor, a restored older copy cannot be detected.")
    return 0 if all(result.ok for result in results.values()) else 1


def recover(
    ledger: _Where,
    dataset: _Names = None,
    from_backup: Annotated[
        str | None,
        option(
            "An anchor that is newer than the restored copy: the rest of the budget is burned.",
            metavar="ANCHOR",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Close the reservations of crashed processes; their budget stays spent.

    Example:  tacit ledger recover budget.db
    """
    book = Ledger.open(ledger)
    if from_backup is not None:
        anchor = Anchor.parse(from_backup)
        if dataset and dataset != [anchor.dataset]:
            raise InvalidInput(f"the anchor belongs to data set {anchor.dataset!r}. Leave --dataset out.")
        dataset = [anchor.dataset]
        book.recover_from_backup(anchor.dataset, anchor)
        messages.print(
            f"The rest of the budget of {anchor.dataset} is burned. Do the same for the other data sets."
        )
    names = dataset or [each.name for each in book.datasets()]
    ended = {name: [charge.key for charge in book.recover(name)] for name in names}
    if as_json:
        print_json({"forfeited": ended})
    else:
        for name, keys in ended.items():
            say(f"{name}: {len(keys):,} forfeited{': ' + ', '.join(keys) if keys else ''}")
    return 0


def claim(
    ledger: _Where,
    dataset: _Name,
    release: Annotated[str, option("Name of the release, which is charged only once.")],
    tool: Annotated[str, option("The tool, its version and mechanism, which certificates show.")],
    unit: Annotated[str, option("The unit of privacy; must equal the policy's.")],
    adjacency: Annotated[str, option("Its adjacency; must equal the policy's.")],
    epsilon: Annotated[float | None, option("The guarantee: epsilon, with --delta if it is not 0.")] = None,
    rho: Annotated[float | None, option("Or: rho of zero-concentrated DP.")] = None,
    gaussian: Annotated[float | None, option("Or: the noise multiplier of Gaussian noise.")] = None,
    laplace: Annotated[float | None, option("Or: the noise multiplier of Laplace noise.")] = None,
    delta: Annotated[
        float | None, option("Delta of the guarantee; without --epsilon, the one to charge it at.")
    ] = None,
    by: Annotated[str, option("Who claims it; default: the system's user.")] = "",
) -> int:
    """Charge a release of another tool, before running the tool.

    A noise multiplier is the noise scale divided by the sensitivity. Tacit cannot check the claim, and
    certificates say so. A claim above the remaining budget is refused, and nothing is charged.

    Exit codes: 0 charged, or charged before; 1 refused; 2 bad usage or input.

    Example:  tacit ledger claim budget.db --dataset visits --release synthetic --tool "dpmm 0.1.9, MST"
    --unit patient --adjacency add-remove --rho 0.05
    """
    makers = ((rho, ZeroConcentratedDP), (gaussian, Gaussian), (laplace, Laplace))
    events: list[Event] = [maker(value) for value, maker in makers if value is not None]
    if epsilon is not None:
        events.append(ApproximateDP(epsilon, delta or 0.0))
        delta = None
    if len(events) != 1:
        raise InvalidInput("give the cost of the claim: one of --epsilon, --rho, --gaussian and --laplace.")
    book = Ledger.open(ledger)
    before = sum(book.status(dataset).charges.values())
    book.claim(
        dataset, events[0], release=release, tool=tool, unit=unit, adjacency=adjacency, delta=delta, by=by
    )
    new = sum(book.status(dataset).charges.values()) > before
    done = f"Charged {release} as claimed." if new else f"{release} was claimed before: nothing was charged."
    say(f"{done} {spent_in_words(curator_view(book, [dataset])['datasets'][0])}")
    return 0


def raise_cap(
    ledger: _Where,
    dataset: _Name,
    epsilon: Annotated[float, option("Epsilon of the new cap.")],
    reason: Annotated[str, option("Reason, shown in certificates.")],
    by: Annotated[str, option("Who decided it, shown in certificates.")],
    delta: Annotated[float | None, option("Delta of the new cap; default: unchanged.")] = None,
) -> int:
    """Raise a cap. Certificates show it, since it breaks the earlier promise to the people in the data.

    Example:  tacit ledger raise-cap budget.db --dataset visits --epsilon 4 --reason "..." --by "the board"
    """
    book = Ledger.open(ledger)
    budget = book.policy(dataset).budget
    data = {**budget.to_data(), "epsilon": epsilon} | ({} if delta is None else {"delta": delta})
    book.raise_cap(dataset, budget_from_data(data), reason=reason, by=by)
    say(spent_in_words(curator_view(book, [dataset])["datasets"][0]))
    return 0


def key(
    file: Annotated[Path, argument("The file for the private key.")],
) -> int:
    """Make a key for signing certificates, and print the public key.

    Example:  tacit ledger key curator.pem
    """
    from tacit.report.certificate import make_key

    public = make_key(file)
    say(f"Private key (secret): {file}. Public key, to distribute:")
    typer.echo(public)
    return 0


COMMANDS: Mapping[str, Callable[..., int]] = {
    "init": init,
    "open": open_dataset,
    "register": register,
    "datasets": datasets,
    "status": status,
    "history": history,
    "verify": verify,
    "recover": recover,
    "claim": claim,
    "raise-cap": raise_cap,
    "certificate": certificate_command,
    "key": key,
}
"""The commands of ``tacit ledger`` by name."""


def _watch(view: Callable[[], Mapping[str, Any]]) -> None:
    """Show the view again every two seconds, until Ctrl-C, which is the usual end."""
    try:
        with Live(_shown(view()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(2.0)
                live.update(_shown(view()), refresh=True)
    except KeyboardInterrupt:
        messages.print("Stopped watching.")


def _shown(view: Mapping[str, Any]) -> Group:
    parts: list[Text] = []
    for dataset in view["datasets"]:
        colours = [*_COLOURS, *["bright_black"] * len(dataset["spenders"])]
        people = list(zip(dataset["spenders"], colours, strict=False))
        filled = [(person["share"], colour) for person, colour in people]
        parts += [Text(dataset["name"], "bold"), _bar([*filled, (dataset["burned_share"], "red")])]
        parts.append(Text(spent_in_words(dataset)))
        for person, colour in people:
            labels = ", ".join(sorted(person["labels"], key=lambda label: -person["labels"][label])[:4])
            figures = f"{100.0 * person['share']:6.3g} %  {counted(person['charges'], 'charge')}  {labels}"
            parts.append(Text.assemble(("  ■ ", colour), f"{person['by']:<20} {figures}"))
        if dataset["burned_share"]:
            burned = f"{100.0 * dataset['burned_share']:.3g} % burned after an old copy had been restored"
            parts.append(Text(f"  {burned}", "bold red"))
        counts = ", ".join(f"{number:,} {state.lower()}" for state, number in dataset["charges"].items())
        parts += [Text(f"  {counts}; {len(dataset['refusals']):,} refused{NO_ENTRY}", "dim"), Text("")]
    return Group(*(parts or [Text("No data set is open in this ledger.")]))


def _bar(parts: list[tuple[float, str]]) -> Text:
    """Draw shares of the cap as one bar; each share gets at least one character if there is room."""
    bar, used = Text(), 0
    for share, colour in parts:
        width = min(_BAR - used, max(1, round(_BAR * share)) if share else 0)
        bar.append("█" * width, colour)
        used += width
    return bar.append("░" * (_BAR - used), "dim")


def _entry_data(entry: Entry) -> dict[str, Any]:
    fields = {name: getattr(entry, name) for name in ("seq", "kind", "time", "body", "prev_hash", "hash")}
    return fields | {"time": entry.time.isoformat(), "body": dict(entry.body)}
