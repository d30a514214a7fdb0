"""Write a synthetic table with dpmm; a script for dpmm's own environment, which needs older libraries.

``python dpmm_table.py FOLDER`` reads ``codes.csv``, whole numbers below those of ``settings.json``, and
writes ``synthetic.csv``.  ``synthetic_tables.py`` runs it.
"""

import importlib
import json
import sys
from pathlib import Path

import pandas as pd


def main(folder: Path) -> None:
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    models = importlib.import_module("dpmm.models.mst")
    mechanism = models.MSTGM(
        epsilon=settings["epsilon"],
        delta=settings["delta"],
        n_iters=settings["iterations"],
        domain=settings["sizes"],
        n_jobs=1,
    )
    assert mechanism.generator.rho <= settings["rho"], "the table would cost more than was charged"
    mechanism.fit(pd.read_csv(folder / "codes.csv"))
    mechanism.generate(settings["rows"]).to_csv(folder / "synthetic.csv", index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
