"""Runs that are killed, interrupted or starved of disk space: what is left is whole, resuming exact."""

from __future__ import annotations

import errno
import os
import pickle
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import run_file
from safetensors.torch import load_file
from telling import Reporter, Trainer, say
from torch import nn
from undrawn import undrawn

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.runs import Run, prepare
from tacit.runs.checks import sole_user
from tacit.testing import seeded_generator
from tacit.training import run as run_module

pytestmark = pytest.mark.usefixtures("no_pictures")
STEPS = 60
KILLS = 10

# Everything that has a state of its own: momentum, averaged weights, Poisson sampling, a threshold that
# moves, dropout (in the factory below) and augmented views.
CONFIG = run_file(
    data='name = "digits"',
    model='factory = "net_for_kill_tests:dropout_net"',
    privacy='noise_multiplier = 2.0; unit = "image"; records = 1437; clipping = "adaptive"',
    optimizer='name = "sgd"; learning_rate = 0.3; momentum = 0.9',
    training=f"batch_size = 64; steps = {STEPS}; views = 2; crop_padding = 1; physical_batch_size = 48; "
    "ema_decay = 0.9",
    run="rows = 6; checkpoint_every = 1",
)
# Noise of which that of four steps is kept, on samples of parts that take turns.
IN_TIME = CONFIG.replace(
    'clipping = "adaptive"',
    'sampling = "cyclic"\ncycle = 6\ncorrelation = "banded"\nbands = 5\nreport_loss = false',
)
FACTORY = """
from torch import nn
def dropout_net(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, outputs))
"""


class Patient(Reporter):
    """Waits to be killed after the last step that it may take."""

    def __init__(self, most: int) -> None:
        self.left = most

    def on_step(self, steps: int, epsilon: float, loss: float | None) -> None:
        super().on_step(steps, epsilon, loss)
        self.left -= 1
        while self.left <= 0:
            signal.pause()


def write_files(folder: Path, config: str = CONFIG) -> None:
    (folder / "run.toml").write_text(config)
    (folder / "net_for_kill_tests.py").write_text(FACTORY)


def start_run(folder: Path, *, resume: bool) -> Run:
    os.chdir(folder)
    return prepare("run.toml", out="out", resume=resume, generator=None if resume else seeded_generator(5))


def serve() -> None:
    """A process that has imported everything forks one that trains, for each "resume write most folder"."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as warm:
        write_files(Path(warm))
        start_run(Path(warm), resume=False).start(should_stop=lambda: True)
    for line in sys.stdin:
        resume, die_in_write, most, folder = line.rstrip("\n").split(" ", 3)
        if (pid := os.fork()) == 0:
            plant_death(int(die_in_write))
            start_run(Path(folder), resume=resume == "yes").start((Patient(int(most)),))
            os._exit(0)
        say(f"pid {pid}")
        say(f"exit {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


def plant_death(count: int) -> None:
    """Let this process die in its ``count``-th write of a resume state, with half of the file written."""
    real, calls = os.fsync, [0]

    def planted(handle: Any) -> None:
        if ".resume.pt." in os.readlink(f"/proc/self/fd/{handle}"):
            calls[0] += 1
            if calls[0] == count:
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
        real(handle)

    os.fsync = planted  # type: ignore[assignment]


def start(trainer: Trainer, folder: Path, *, resume: bool, most: int = STEPS, die_in_write: int = 0) -> int:
    return trainer.start(folder, resume=resume, more=f"{die_in_write} {most} ")


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    made = Trainer(__file__)
    yield made
    made.server.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that nobody interrupted."""
    return uninterrupted(tmp_path_factory.mktemp("whole"), CONFIG)


def uninterrupted(path: Path, config: str) -> Path:
    write_files(path, config)
    before = Path.cwd()
    try:
        with undrawn():
            assert start_run(path, resume=False).start() is not None
    finally:
        os.chdir(before)
    return path / "out"


def assert_same_run(out: Path, whole: Path) -> None:
    """Weights, state and every released file, bit for bit."""
    left, right = load_file(out / "model.safetensors"), load_file(whole / "model.safetensors")
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    for name in ("metrics.csv", "statement.txt", "statement.json", "config.toml"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    one, two = (torch.load(path / "private" / "resume.pt", weights_only=True) for path in (out, whole))
    assert one["thresholds"] == two["thresholds"]
    assert one["done"] == two["done"] == STEPS
    for name, weight in one["model"].items():
        assert torch.equal(weight, two["model"][name])


def assert_whole_files(out: Path, config: str = CONFIG) -> None:
    """Whatever carries a name of its own can be read; temporary files are hidden."""
    for path in out.rglob("*"):
        if path.name == "resume.pt":
            assert torch.load(path, weights_only=True)["format"] == 7
        elif path.name == "metrics.csv":
            lines = path.read_text().splitlines()
            assert len({line.count(",") for line in lines}) == 1
        elif path.name == "config.toml":
            assert path.read_text() == config
        elif path.is_file():
            assert path.name == "lock" or path.name.startswith(".") or (out / "metrics.csv").exists()


@pytest.mark.thorough(instead="test_stop_and_resume_is_exact")
def test_ten_kills_change_no_bit(trainer: Trainer, folder: Path, whole: Path) -> None:
    assert_kills_change_no_bit(trainer, folder, whole, CONFIG)


@pytest.mark.thorough(instead="training/test_training_correlated.py::test_a_resumed_run_goes_on_bit_for_bit")
def test_ten_kills_change_no_bit_of_noise_in_time(trainer: Trainer, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = uninterrupted(tmp_path / "whole", IN_TIME)
    write_files(folder, IN_TIME)
    assert_kills_change_no_bit(trainer, folder, whole, IN_TIME)


def assert_kills_change_no_bit(trainer: Trainer, folder: Path, whole: Path, config: str) -> None:
    chance = random.Random(20260101)
    state = folder / "out" / "private" / "resume.pt"
    for _ in range(KILLS):
        steps = chance.randint(1, 4)
        process = start(trainer, folder, resume=state.exists(), most=steps + 1)
        for _ in range(steps):
            trainer.next("step")
        time.sleep(chance.uniform(0, 0.02))
        os.kill(process, signal.SIGKILL)
        assert trainer.next("exit") == "-9"
        assert_whole_files(folder / "out", config)
    assert 0 < torch.load(state, weights_only=True)["done"] < STEPS
    assert start_run(folder, resume=True).start() is not None
    assert_same_run(folder / "out", whole)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("write", [1, 2, 7])
def test_death_in_the_middle_of_writing_the_state(
    write: int, trainer: Trainer, folder: Path, whole: Path
) -> None:
    """Half a temporary file is left; the state before it is whole, and the leftover goes away."""
    start(trainer, folder, resume=False, die_in_write=write)
    assert trainer.next("exit") == "-9"
    private = folder / "out" / "private"
    assert len(list(private.glob(".resume.pt.*"))) == 1
    resume = write > 1  # death in the very first write leaves a folder that a new run may take
    assert (private / "resume.pt").exists() == resume
    if resume:
        assert torch.load(private / "resume.pt", weights_only=True)["done"] == write - 2
    assert start_run(folder, resume=resume).start() is not None
    assert sorted(path.name for path in private.iterdir()) == ["lock", "resume.pt"]
    assert_same_run(folder / "out", whole)


def test_planted_bug_a_state_that_is_not_written_whole(folder: Path) -> None:
    """The check of files above finds a state that was cut short."""
    private = folder / "out" / "private"
    private.mkdir(parents=True)
    (private / "resume.pt").write_bytes(b"PK half")
    with pytest.raises(pickle.UnpicklingError):
        assert_whole_files(folder / "out")


def test_resuming_a_finished_run_writes_the_folder_and_takes_no_step(
    folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_run(folder, resume=False).start()
    for name in ("model.safetensors", "metrics.csv", "statement.txt", "statement.json"):
        (folder / "out" / name).unlink()

    def no_step(*_: object, **__: object) -> None:
        raise AssertionError("a step was taken")

    monkeypatch.setattr(run_module, "noisy_step", no_step)
    outcome = start_run(folder, resume=True).start()
    assert outcome is not None
    assert outcome.rows[-1].steps == STEPS
    assert_same_run(folder / "out", whole)


def test_stop_and_resume_is_exact(folder: Path, whole: Path) -> None:
    asked = iter([False] * 6 + [True])
    run = start_run(folder, resume=False)
    assert run.start(should_stop=lambda: next(asked)) is None
    assert run.session.steps_done == 7
    assert not (folder / "out" / "model.safetensors").exists()
    start_run(folder, resume=True).start()
    assert_same_run(folder / "out", whole)


def test_random_parts_of_a_factory_that_are_in_no_state_come_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run makes its model from its own key, not from a new one."""
    (folder / "net_with_random_part.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, outputs):\n"
        "        super().__init__()\n"
        "        self.fixed = [torch.randn(64, 8)]\n"
        "        self.last = nn.Linear(8, outputs)\n"
        "    def forward(self, x):\n"
        "        return self.last(torch.tanh(x.flatten(1) @ self.fixed[0]))\n"
        "def net(shape, outputs):\n    return Net(outputs)\n"
    )
    text = CONFIG.replace("net_for_kill_tests:dropout_net", "net_with_random_part:net")
    (folder / "run.toml").write_text(text)
    run = prepare("run.toml", out="out")
    run.start(should_stop=lambda: True)
    again = prepare("run.toml", out="out", resume=True)
    assert torch.equal(fixed_part(run), fixed_part(again))
    assert not torch.equal(fixed_part(run), fixed_part(prepare("run.toml", out="new")))


def fixed_part(run: Run) -> torch.Tensor:
    model: Any = run.session.model
    part: torch.Tensor = model.fixed[0]
    return part


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("learning_rate = 0.3", "learning_rate = 0.2", "learning_rate was 0.3 and is 0.2"),
        ("momentum = 0.9", "momentum = 0.8", r"momentum was 0\.9"),
        (f"steps = {STEPS}", f"steps = {STEPS + 1}", "training.steps"),
        ("noise_multiplier = 2.0", "noise_multiplier = 3.0", "privacy.noise_multiplier"),
        ("ema_decay = 0.9", "", "ema_decay was 0.9 and is None"),
        ("dropout_net", "other_net", "factory"),
    ],
)
def test_resume_with_other_settings_is_refused(old: str, new: str, words: str, folder: Path) -> None:
    start_run(folder, resume=False).start(should_stop=lambda: True)
    before = (folder / "out" / "private" / "resume.pt").read_bytes()
    (folder / "run.toml").write_text(CONFIG.replace(old, new))
    with pytest.raises(PrivacyRefusal, match=words) as caught:
        start_run(folder, resume=True)
    assert "has no noise" in str(caught.value)
    assert (folder / "out" / "private" / "resume.pt").read_bytes() == before


def test_resume_with_another_model_under_the_same_settings_is_refused(folder: Path) -> None:
    start_run(folder, resume=False).start(should_stop=lambda: True)
    state = folder / "out" / "private" / "resume.pt"
    run = start_run(folder, resume=True)
    same_shapes = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 10))
    run.session._run.model = same_shapes
    with pytest.raises(PrivacyRefusal, match="Different: the model"):
        run.session.load(state)


def test_what_changes_no_result_may_change_on_resume(folder: Path) -> None:
    start_run(folder, resume=False).start(should_stop=lambda: True)
    (folder / "run.toml").write_text(CONFIG.replace("rows = 6", "rows = 3") + "tensorboard = false\n")
    outcome = start_run(folder, resume=True).start()
    assert outcome is not None
    assert [row.steps for row in outcome.rows] == [20, 40, 60]


def test_two_processes_do_not_share_a_folder(trainer: Trainer, folder: Path) -> None:
    process = start(trainer, folder, resume=False, most=1)
    trainer.next("step")
    try:
        with pytest.raises(InvalidInput, match="another process"):
            start_run(folder, resume=True).start()
    finally:
        os.kill(process, signal.SIGKILL)
    assert trainer.next("exit") == "-9"
    assert start_run(folder, resume=True).start(should_stop=lambda: True) is None


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sole_user(tmp_path), pytest.raises(InvalidInput, match="another process"), sole_user(tmp_path):
        raise AssertionError("both hold it")
    with sole_user(tmp_path):
        pass  # it was given back

    def no_locks(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("tacit.runs.checks.FileLock.acquire", no_locks)
    with (
        pytest.raises(InvalidInput, match=r"cannot be locked: .*No locks available.*--out"),
        sole_user(tmp_path),
    ):
        raise AssertionError("nobody holds it")


def test_a_run_that_was_started_meanwhile_is_not_overwritten(folder: Path) -> None:
    late = start_run(folder, resume=False)
    start_run(folder, resume=False).start(should_stop=lambda: True)
    before = (folder / "out" / "private" / "resume.pt").read_bytes()
    with pytest.raises(InvalidInput, match="already contains a run"):
        late.start()
    assert (folder / "out" / "private" / "resume.pt").read_bytes() == before


def test_a_full_disk_stops_the_run_and_loses_nothing(
    folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.fsync, [0]

    def full(handle: int) -> None:
        calls[0] += 1
        if calls[0] > 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            start_run(folder, resume=False).start()
    assert_whole_files(folder / "out")
    assert not list((folder / "out").rglob("*.tmp"))
    assert 5 < torch.load(folder / "out" / "private" / "resume.pt", weights_only=True)["done"] < STEPS
    start_run(folder, resume=True).start()
    assert_same_run(folder / "out", whole)


if __name__ == "__main__":
    serve()
