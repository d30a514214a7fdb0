"""The example certificate and its chart are what the code says today, and it verifies."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tacit.report.certificate import check_certificate

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_certificate", ROOT / "docs" / "build_certificate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_and_its_chart_are_current(builder: ModuleType) -> None:
    assert builder.PAGE.read_text(encoding="utf-8") == builder.page()
    assert builder.CHART.read_text(encoding="utf-8") == builder.chart()


def test_the_example_verifies_and_a_smaller_cost_in_it_does_not(builder: ModuleType) -> None:
    data = builder.certificate().data
    assert check_certificate(data).agrees
    data["mechanisms"][0]["cost"][0] -= 10**8
    assert not check_certificate(data).agrees
