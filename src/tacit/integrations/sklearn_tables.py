"""A least-squares fit on a table in a database or in files, which compute the sums in place."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.columns import Column, Encoder
from tacit.columns.column import parse_columns
from tacit.errors import InvalidInput
from tacit.integrations.sklearn_fit import (
    PrivateEstimator,
    charged,
    check_one_release,
    make_plan,
    note_of_fit,
)
from tacit.integrations.sklearn_records import is_additive
from tacit.noise.generator import Generator
from tacit.report.statement import make_statement
from tacit.training.least_squares import table_session


def is_table(X: object) -> bool:
    """Return whether X is the path of a file or folder, or an engine of :mod:`tacit.queries.engines`."""
    engines = sys.modules.get("tacit.queries.engines")  # whoever has an engine has imported it
    return isinstance(X, str | os.PathLike) or (engines is not None and isinstance(X, engines.Engine))


def fit_table(
    settings: PrivateEstimator, X: Any, y: object, owners: object, target: Column, given: Sequence[str]
) -> None:
    """Train on the table ``X``, whose column ``y`` is the target; set the estimator's attributes.

    ``given``: further arguments of fit, which are refused for tables.
    """
    _check(settings, y, owners, given)
    columns = parse_columns(settings.columns)
    everything = {**columns, str(y): target}
    owner = None if owners is None else str(owners)
    plan, generator = make_plan(settings, 0, 1.0), Generator.from_os()
    with (
        charged(settings, plan, generator, owned_by=owner) as charges,
        table_session(X, plan, columns=everything, target=str(y), owner=owner, charges=charges) as table,
    ):
        session: Any = table
        model = table.solve()
        about = table.stated(model)
        notes = (*about.pop("notes"), note_of_fit(settings.ledger, plan))
        statement = make_statement(session, notes=notes, owned_by=owner, **about)
    settings.additive_, settings.encoder_ = False, Encoder(columns)
    names = settings.encoder_.inputs_of
    settings.feature_names_in_ = np.array(names, dtype=object)
    settings.n_features_in_ = len(names)
    settings.model_, settings.plan_ = model, plan
    settings.statement_, settings.epsilon_ = statement, statement.epsilon


def _check(settings: PrivateEstimator, y: object, owners: object, given: Sequence[str]) -> None:
    if settings.head != "least-squares":
        raise InvalidInput(
            f'for a table, head must be "least-squares"; got {settings.head!r}. Set head="least-squares", or '
            "read the table into a data frame."
        )
    check_one_release(settings)
    is_additive(settings, 0, 0)  # refuses model="additive"
    unused = {
        "bounds": settings.bounds is not None,
        "features": settings.features is not None,
        "normalise": settings.normalise,
        "rows_per_user": settings.rows_per_user is not None,
        **dict.fromkeys(given, True),
    }
    if wrong := [name for name, is_set in unused.items() if is_set]:
        raise InvalidInput(
            f"{wrong[0]} does not apply to a table: fit reads it by columns, and averages the rows of each "
            f"owner. Remove {wrong[0]}."
        )
    if settings.columns is None:
        raise InvalidInput(
            "columns must be declared for a table. Give a Column, with its public facts, for each column "
            "that the model reads."
        )
    if settings.records is None:
        raise InvalidInput(
            "records must be declared for a table. Give a rough public number of its rows; with owners, of "
            "its owners."
        )
    for name, value in (("y", y), ("owners", owners)):
        if not isinstance(value, str) and not (name == "owners" and value is None):
            raise InvalidInput(
                f"{name} must be the name of a column of the table; got {type(value).__name__}. For example, "
                f'{name}="cost".'
            )
        if value in settings.columns:
            raise InvalidInput(f"{name}={value!r} is also an input in columns. Remove it from columns.")


def column_of_classes(classes: NDArray[Any]) -> Column:
    """Return the column of a target with these classes: strings, integers or booleans."""
    kinds = {bool: "boolean", int: "integer", str: "category"}
    labels = classes.tolist()
    kind = kinds.get(type(labels[0]))
    if kind is None:
        raise InvalidInput(f"classes of a table must be strings, integers or booleans; got {labels!r}.")
    return Column(kind=kind) if kind == "boolean" else Column(kind=kind, values=labels)
