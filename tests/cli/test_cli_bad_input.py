"""Bad input through the command line: one paragraph with what, why and fix; the right code; nothing lost."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from tacit import files
from tacit.cli.app import run

pytestmark = pytest.mark.usefixtures("no_pictures")
# A small table; its numbers follow from the row number, so that no file is needed.
ROWS = "".join(
    f"{20 + i % 50},{('office', 'field')[i % 2]},{('no', 'yes')[i % 50 > 25]}\n" for i in range(300)
)
TABLE = "age,work,rich\n" + ROWS
BASE = """
[data]
table = "people.csv"
target = "rich"
test_fraction = 0.2
[columns]
age = { kind = "number", lower = 0, upper = 100 }
work = { kind = "category", values = ["office", "field"] }
rich = { kind = "category", values = ["no", "yes"] }
[model]
name = "logistic"
[privacy]
epsilon = 3.0
delta = 1e-3
unit = "person"
adjacency = "add-remove"
records = 240
[optimizer]
learning_rate = 0.5
[training]
batch_size = 60
steps = 40
"""
FACTORIES = """
import torch
from torch import nn
def five_outputs(shape, outputs): return nn.Linear(4, 5)
def wrong_input(shape, outputs): return nn.Linear(99, outputs)
def batch_norm(shape, outputs): return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, outputs))
def nonsense(shape, outputs): return "a model"
def failing(shape, outputs): return shape["no"]
def no_arguments(): return nn.Linear(4, 2)
def a_tuple(shape, outputs):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
        def forward(self, x): return self.layer(x), x
    return Net()
constant = 3
"""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "people.csv").write_text(TABLE)
    (tmp_path / "bad_input_nets.py").write_text(FACTORIES)
    (tmp_path / "bad_input_broken.py").write_text("def model(:\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(shell: Shell, code: int, text: str = BASE, arguments: tuple[str, ...] = ()) -> str:
    """Run a configuration; check the code and the form of what is said, and that nothing is written."""
    Path("run.toml").write_text(text)
    before = left()
    err = shell.refused("train", "run.toml", *arguments, code=code)
    assert err.count("\n") == 1, "one paragraph"
    assert err.rstrip().endswith((".", "?", "'"))
    assert left() == before
    return err


def left() -> list[Path]:
    return [path for path in sorted(Path().rglob("*")) if "__pycache__" not in path.parts]


def changed(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new)


def factory(name: str, module: str = "bad_input_nets") -> str:
    return changed('name = "logistic"', f'factory = "{module}:{name}"')


SETTINGS = [
    ("epsilon = 3.0", "epsilom = 3.0", 2, "[privacy] epsilom is not a setting; did you mean 'epsilon'?"),
    ("[optimizer]", "[optimiser]", 2, "did you mean 'optimizer'?"),
    ("[optimizer]", "[optimiser]", 2, "[optimizer] is missing"),
    ("steps = 40", 'steps = "four"', 2, "[training] steps = 'four'"),
    ("batch_size = 60", "batch_size = 1.5", 2, 'must be a whole number, "full" or "auto"; got 1.5'),
    ("delta = 1e-3\n", "", 2, "[privacy] delta is missing and has no default"),
    ('unit = "person"\n', "", 2, "[privacy] unit is missing"),
    ('unit = "person"', 'unit = " "', 2, "unit must name one record"),
    ('adjacency = "add-remove"\n', "", 2, "[privacy] adjacency is missing"),
    ('adjacency = "add-remove"', 'adjacency = "neighbours"', 2, "'add-remove', 'replace-one' or 'zero-out'"),
    ("epsilon = 3.0\n", "", 2, "needs epsilon or noise_multiplier"),
    ("epsilon = 3.0", "epsilon = 0.0", 2, "epsilon must be a real number in (0, inf"),
    ("epsilon = 3.0", "epsilon = -1", 2, "got -1"),
    ("epsilon = 3.0", "epsilon = nan", 2, "got nan"),
    ("epsilon = 3.0", "epsilon = inf", 2, "got inf"),
    ("epsilon = 3.0", "noise_multiplier = 0.0", 2, "noise_multiplier must be"),
    ("delta = 1e-3", "delta = 1.5", 2, "delta must be a real number in (0, 1)"),
    ("delta = 1e-3", "delta = 0.0", 2, "delta must be a real number in (0, 1)"),
    ("delta = 1e-3", "delta = 0.01", 1, "allow_large_delta"),
    ("batch_size = 60", "batch_size = 241", 2, "batch_size 241 is larger than the data (240 records)"),
    ("batch_size = 60", "batch_size = 0", 2, "batch_size must be an integer >= 1"),
    ("steps = 40", "steps = 40\nepochs = 2", 2, "exactly one of epochs and steps; got both"),
    ("steps = 40", "", 2, "exactly one of epochs and steps; got neither"),
    ("steps = 40", "steps = 0", 2, "steps must be an integer >= 1"),
    ("epsilon = 3.0", 'epsilon = 3.0\nsampling = "shuffled"', 1, "Use Poisson sampling"),
    ("steps = 40", "steps = 40\nphysical_batch_size = 0", 2, "greater than or equal to 1"),
    ("steps = 40", 'steps = 40\nphysical_batch_size = "all"', 2, "input should be 'auto'"),
    ("steps = 40", "steps = 40\nviews = 2", 2, "is only for images"),
    ("steps = 40", "steps = 40\nema_decay = 1.0", 2, "[training] ema_decay = 1.0: input should be less"),
    ("steps = 40", "steps = 40\n[run]\nrows = 0", 2, "[run] rows = 0"),
    ("steps = 40", "steps = 40\n[run]\ncheckpoint_every = 0", 2, "[run] checkpoint_every = 0"),
    ("steps = 40", 'steps = 40\n[run]\ndevice = "cuda:99"', 2, 'Set device = "cpu"'),
    ("steps = 40", 'steps = 40\n[run]\ndevice = "abacus"', 2, '[run] device = "abacus" cannot be used'),
    ("learning_rate = 0.5", "learning_rate = nan", 2, "[optimizer] learning_rate = nan"),
    ("learning_rate = 0.5", "learning_rate = 0.0", 2, "greater than 0"),
    ("learning_rate = 0.5", 'learning_rate = 0.5\nname = "adam"\nmomentum = 0.9', 2, "adam has no momentum"),
    ('name = "logistic"', 'name = "resnet"', 2, "[model] name must be one of linear"),
    ('name = "logistic"', "", 2, "[model] needs exactly one of name, factory, huggingface, encoder"),
    ('name = "logistic"', 'name = "logistic"\nhidden = [3]', 2, "has no option 'hidden'"),
    ('table = "people.csv"', 'table = "nobody.csv"', 2, "there is no table at nobody.csv"),
    ('table = "people.csv"', 'table = "people.csv"\nname = "digits"', 2, "exactly one of name, table"),
    ('table = "people.csv"', 'name = "digits"', 2, "[table] describe a table"),
    ('target = "rich"\n', "", 2, "[data] target is missing"),
    ('target = "rich"', 'target = "sick"', 2, "target, time and event must be declared columns"),
    ("age = {", "height = {", 2, "'height'"),
    ("lower = 0, upper = 100", 'lower = "min", upper = "max"', 1, "not ones from the data"),
    ('{ kind = "number", lower = 0, upper = 100 }', '"auto"', 1, "[columns.age]: a column must have"),
    ('{ kind = "number", lower = 0, upper = 100 }', "{}", 2, "[columns.age] needs a kind"),
    ("lower = 0", "low = 0", 2, "[columns.age]: unknown setting 'low'; did you mean 'lower'"),
    ("[columns]", "[table]\ndelimiter = \";\"\n[columns]", 2, "[table]: unknown setting 'delimiter'"),
    ('["no", "yes"]', '["no", "maybe"]', 2, "are not among the declared classes (no, maybe): rows "),
    ("test_fraction = 0.2", "", 2, "test_fraction"),
    ("test_fraction = 0.2", 'images = "pictures"', 2, "exactly one of name, table, images, text"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code", "words"), SETTINGS)
def test_settings(old: str, new: str, code: int, words: str, shell: Shell) -> None:
    assert words in complaint(shell, code, changed(old, new))


def test_columns_are_checked_before_the_table_is_looked_for(shell: Shell) -> None:
    text = changed("people.csv", "nobody.csv").replace("lower = 0", "lower = 200")
    assert "run.toml: [columns.age]: lower must be below upper" in complaint(shell, 2, text)


FACTORY_CASES = [
    ("batch_norm", 1, "make_private_ready"),
    ("five_outputs", 2, "shape (2, 2) for 2 records, for 2 classes to be predicted; got shape (2, 5)"),
    ("a_tuple", 2, "got tuple"),
    ("wrong_input", 2, "does not work on records of shape (4,)"),
    ("nonsense", 2, "must return a torch module; it returned str 'a model'"),
    ("failing", 2, "not str (bad_input_nets.py, line 8)"),
    ("no_arguments", 2, "must take these two arguments"),
    ("constant", 2, "is not a function"),
    ("not_there", 2, "cannot be imported"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "code", "words"), FACTORY_CASES)
def test_factories(name: str, code: int, words: str, shell: Shell) -> None:
    assert words in complaint(shell, code, factory(name))


@pytest.mark.parametrize(
    ("module", "words"), [("no_such_module_here", "No module named"), ("bad_input_broken", "SyntaxError")]
)
def test_factory_modules(module: str, words: str, shell: Shell) -> None:
    err = complaint(shell, 2, factory("model", module))
    assert words in err
    assert '"module:function"' in err


def test_options_of_built_in_models_do_not_vanish_into_a_factory(shell: Shell) -> None:
    text = changed('name = "logistic"', 'factory = "bad_input_nets:five_outputs"\nhidden = [3]')
    assert "hidden cannot be set for the factory" in complaint(shell, 2, text)


def test_batch_norm_is_mended_by_the_setting_that_the_error_names() -> None:
    text = changed('name = "logistic"', 'factory = "bad_input_nets:batch_norm"\nmake_private_ready = true')
    Path("run.toml").write_text(text)
    assert run(["train", "run.toml", "--json"]) == 0


def test_too_many_steps_for_the_budget(shell: Shell) -> None:
    """Refused before it starts, with the number that fits; and that number does fit, one more does not."""
    text = changed("epsilon = 3.0", "epsilon = 3.0\nnoise_multiplier = 1.5")
    err = complaint(shell, 1, text.replace("steps = 40", "steps = 5000"))
    assert "the budget is 3." in err
    fits = int(err.partition("At most ")[2].partition(" ")[0])
    assert " steps fit. " in complaint(shell, 1, text.replace("steps = 40", f"steps = {fits + 1}"))
    Path("run.toml").write_text(text.replace("steps = 40", f"steps = {fits}"))
    assert run(["train", "run.toml"]) == 0


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (",office,no\n", "1 of 301 rows lack a value, column 'age' of people.csv"),
        ("nan,office,no\n", "1 of 301 rows lack a value, column 'age' of people.csv"),
        (
            "30,office,perhaps\n",
            "1 labels in column 'rich' of people.csv are not among the declared classes (no, yes): row 301.",
        ),
        ("30,office,\n", "lack the target"),
        ("old,office,no\n", "are not numbers"),
        ("30,no\n", "do not have 3 cells"),
        ('30,"office,no\n', "people.csv cannot be read to its end: after line 302"),
        ("30,\0,no\n\xff", "people.csv"),
    ],
)
def test_rows(rows: str, words: str, shell: Shell) -> None:
    Path("people.csv").write_bytes((TABLE + rows).encode("latin-1"))
    assert words in complaint(shell, 2)


def test_missing_column(shell: Shell) -> None:
    Path("people.csv").write_text(TABLE.replace("age", "years", 1))
    assert "age" in complaint(shell, 2)


def test_configurations_that_cannot_be_read(capsys: pytest.CaptureFixture[str], shell: Shell) -> None:
    assert "not valid TOML" in complaint(shell, 2, "[data\n")
    assert "[run] must be a section" in complaint(shell, 2, "run = 3\n" + BASE)
    assert run(["train", "nothing.toml"]) == 2
    assert capsys.readouterr().err == "error: there is no run file at nothing.toml. Check the path.\n"
    assert "cannot read the run file" in shell.err("train", ".", code=2)


def test_a_folder_that_is_not_empty(shell: Shell) -> None:
    Path("full").mkdir()
    Path("full/thesis.txt").write_text("mine")
    assert "contains thesis.txt" in complaint(shell, 2, arguments=("--out", "full"))
    assert "is a file" in complaint(shell, 2, arguments=("--out", "people.csv"))
    assert "is a file" in complaint(shell, 2, arguments=("--out", "people.csv/out"))
    assert Path("full/thesis.txt").read_text() == "mine"


def test_somebody_elses_configuration_in_the_folder_is_not_overwritten(shell: Shell) -> None:
    Path("full").mkdir()
    Path("full/config.toml").write_text("# another one")
    assert "contains config.toml" in complaint(shell, 2, arguments=("--out", "full"))


def test_resume_without_a_run(shell: Shell) -> None:
    err = complaint(shell, 2, arguments=("--resume",))
    assert "there is no run to resume in runs/run" in err
    assert "Start it without --resume" in err


def test_resume_with_a_changed_configuration(shell: Shell) -> None:
    Path("run.toml").write_text(BASE)
    assert run(["train", "run.toml", "--out", "out"]) == 0
    text = changed("learning_rate = 0.5", "learning_rate = 0.4")
    err = complaint(shell, 1, text, ("--out", "out", "--resume"))
    assert "optimizer.learning_rate was 0.5 and is 0.4" in err
    assert "has no noise" in err


def test_resume_with_changed_records(shell: Shell) -> None:
    Path("run.toml").write_text(BASE)
    assert run(["train", "run.toml", "--out", "out"]) == 0
    Path("people.csv").write_text(TABLE.replace("office", "field", 3))
    assert "Different: the records (compared by a keyed digest" in complaint(
        shell, 1, arguments=("--out", "out", "--resume")
    )


def test_resume_with_a_damaged_state_or_without_a_configuration(shell: Shell) -> None:
    Path("run.toml").write_text(BASE)
    assert run(["train", "run.toml", "--out", "out"]) == 0
    Path("out/private/resume.pt").write_bytes(b"PK half")
    assert "cannot be read as a resume state" in complaint(shell, 2, arguments=("--out", "out", "--resume"))
    Path("out/config.toml").unlink()
    assert "config.toml is missing" in complaint(shell, 2, arguments=("--out", "out", "--resume"))


@contextmanager
def bound_by_modes() -> Iterator[None]:
    """Modes of files do not bind root, so root gives up what frees him of them for a while."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None)
    version_and_process, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(version_and_process, sets) == 0
    effective = sets[0]
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(version_and_process, sets) == 0
    try:
        yield
    finally:
        sets[0] = effective
        assert libc.capset(version_and_process, sets) == 0


@pytest.mark.skipif(os.geteuid() == 0 and sys.platform != "linux", reason="modes do not bind root here")
def test_read_only_folder(shell: Shell) -> None:
    Path("run.toml").write_text(BASE)
    Path("shut").mkdir(mode=0o555)
    with bound_by_modes():
        assert "read-only. Choose another folder with --out" in shell.err(
            "train", "run.toml", "--out", "shut/deep/out", code=2
        )


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "Free some space, then resume with --resume"),
        (errno.EIO, "was saved before is unchanged"),
    ],
)
def test_a_disk_that_fails(number: int, words: str, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.toml").write_text(BASE)
    real, calls = os.fsync, [0]

    def failing(handle: Any) -> None:
        calls[0] += 1
        if calls[0] > 12:
            raise OSError(number, os.strerror(number))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", failing)  # type: ignore[attr-defined]
        err = shell.err("train", "run.toml", "--out", "out", code=2)
    assert words in err
    assert "Traceback" not in err
    assert run(["train", "run.toml", "--out", "out", "--resume", "--json"]) == 0


def test_lack_of_memory_is_told_from_bugs(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(problem: Exception) -> Any:
        def step(*_: object, **__: object) -> None:
            raise problem

        return step

    Path("run.toml").write_text(BASE)
    monkeypatch.setattr("tacit.training.run.noisy_step", raising(RuntimeError("CUDA out of memory. Tried")))
    assert "Lower [training] physical_batch_size" in shell.err("train", "run.toml", "--out", "a", code=2)
    monkeypatch.setattr("tacit.training.run.noisy_step", raising(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        run(["train", "run.toml", "--out", "b"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "run.toml", "--seed", "3"], "No such option"),
        (["trian"], "No such command 'trian'"),
    ],
)
def test_usage(arguments: list[str], words: str, shell: Shell) -> None:
    err = shell.err(*arguments, code=2)
    assert words in err
    assert "Traceback" not in err


def test_the_base_of_all_these_is_good() -> None:
    assert tomllib.loads(BASE)["training"]["steps"] == 40
    Path("run.toml").write_text(BASE)
    assert run(["train", "run.toml", "--json"]) == 0
