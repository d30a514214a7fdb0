"""The files that one opens to follow a job: their number may not grow by more than a tenth."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {"step": 22, "train": 94, "query": 28, "price": 9, "verify": 15}
"""The files that each job entered when this was written last; lower a figure when files were merged."""


@pytest.fixture(scope="module")
def walks() -> dict[str, list[str]]:
    program = Path(__file__).with_name("walks.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("job", FILES)
def test_a_job_enters_few_files(job: str, walks: dict[str, list[str]]) -> None:
    assert 0 < len(walks[job]) <= 1.1 * FILES[job], walks[job]
