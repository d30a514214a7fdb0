"""A run on a table that stays in its database, which sums it for a linear model."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tacit.columns import Encoder
from tacit.datasets import Dataset, TensorPair, load_table
from tacit.errors import InvalidInput
from tacit.noise.generator import Generator
from tacit.report.model_card import model_card
from tacit.report.statement import Statement, make_statement
from tacit.runs.build import check_test_records, make_charges
from tacit.runs.checks import CheckedRun, check_empty, sole_user
from tacit.runs.config import Config
from tacit.runs.learners import Network
from tacit.runs.metrics import DATA, figures_of, write_evaluation
from tacit.runs.train import write
from tacit.training.least_squares import table_session


def train_in_database(
    checked: CheckedRun,
) -> tuple[Statement, dict[str, Any], tuple[str, ...]]:
    """Train, write the folder, and return the statement, the evaluation (empty without tests) and the files.

    **Guarantee**

    * If anything fails before the release, the folder of the run stays empty; a charge stays.
    """
    from tacit.queries.engines import database_at  # imports sqlglot

    config, folder, plan, section = checked.config, checked.folder, checked.plan, checked.config.data
    data, owner = _public_facts(config), None if section.user is None else str(section.user)
    with ExitStack() as stack:
        stack.enter_context(sole_user(folder))
        check_empty(folder, checked.text)
        engine = database_at(str(section.database), section.table)
        if engine is not None:
            stack.enter_context(closing(engine))
        elif section.table is not None:
            raise InvalidInput(
                "[data] table names a table in PostgreSQL or DuckDB; a folder of Parquet files is one table. "
                "Remove it."
            )
        charges = make_charges(checked.ledger, plan, Generator.from_os(), owned_by=owner)
        if charges is not None:
            stack.enter_context(closing(charges.ledger))
            charges.check_fits()
            if section.test_table is not None:
                check_test_records(data, plan, charges)
        session = stack.enter_context(
            table_session(
                Path(str(section.database)) if engine is None else engine,
                plan,
                columns=config.read_columns(),
                target=str(section.target),
                owner=owner,
                charges=charges,
            )
        )
        model = session.solve()
        about = session.stated(model)
        notes = (*config.notes, *about.pop("notes"))
        summed: Any = session
        statement = make_statement(summed, notes=notes, owned_by=owner, **about)

        learner = Network(config, data)
        files = learner.save(model, statement, folder)
        figures: dict[str, Any] = {}
        if section.test_table is not None:
            figures = figures_of(learner.evaluate(model), config, plan, data, model, private=True)
            files += (DATA, *write_evaluation(figures, statement.data["guarantee"], folder))
        facts = replace(learner.card_facts(statement), statements=config.card)
        texts = {
            "config.toml": checked.text,
            "statement.txt": statement.to_text(),
            "statement.json": statement.to_json(),
            "README.md": model_card(statement.data, facts, figures),
        }
        for name, text in texts.items():
            write(folder / name, text)
    return statement, figures, (*files, *texts)


def _public_facts(config: Config) -> Dataset:
    """Return what is declared of the table and the test records.  Placeholders of zeros fill both parts."""
    section, columns = config.data, config.read_columns()
    encoder = Encoder(columns, section.target)
    outputs = len(encoder.target_bounds)
    targets = torch.zeros(1, outputs) if outputs else torch.zeros(1, dtype=torch.int64)
    zeros = test = TensorPair(torch.zeros(1, len(encoder.features)), targets)
    if section.test_table is not None:
        path = Path(section.test_table)
        test = load_table(path, target=str(section.target), schema=columns, test_path=path).test
    return Dataset(
        "table",
        zeros,
        test,
        encoder.classes,
        "a table in its database",
        config.privacy.unit,
        features=encoder.features,
        target_bounds=encoder.target_bounds,
        encoder=encoder,
    )
