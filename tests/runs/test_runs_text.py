"""A run on text from its configuration to the attack on it: canaries, resumption, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
import stat
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from known_models import ALPHABET, CANARY, SPACE, knows
from run_files import changed, run_file
from safetensors.torch import load_file
from torch import nn

from tacit.cli.app import run as tacit
from tacit.datasets.text import END, PADDING, Alphabet
from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.ledger import Conflict, Ledger, Policy, RenyiBudget
from tacit.models import WindowModel
from tacit.runs import attack as attacking
from tacit.runs import prepare, read_config
from tacit.runs.attack import next_token, ranked_secret
from tacit.runs.build import make_session
from tacit.runs.canaries import draw_canaries, read_canaries, with_canaries
from tacit.runs.checks import canary_file
from tacit.runs.sections import LedgerSection
from tacit.testing import seeded_generator

pytestmark = pytest.mark.usefixtures("no_pictures")
CONFIG = run_file(
    data='text = "{folder}/lines.txt"; alphabet = " abcdefghijklmnopqrstuvwxyz0123456789"; '
    "longest = 12; test_fraction = 0.4",
    model='name = "window"; hidden = [16]',
    privacy='epsilon = 8.0; unit = "name"; records = 120; loss_bound = 50.0',
    optimizer='name = "adam"; learning_rate = 0.01',
    training="steps = 6",
    canaries='count = [6, 3]; copies = [1, 4]; prefix = "pin {{name}} "; length = 2',
)


def lines(count: int = 200) -> list[str]:
    rng = np.random.default_rng(0)
    letters = rng.integers(26, size=(count, 6))
    return ["".join(chr(97 + int(c)) for c in row[: 3 + row[0] % 4]) for row in letters]


def configured(folder: Path, changes: dict[str, str] | None = None) -> Path:
    (folder / "lines.txt").write_text("\n".join(lines()) + "\n")
    path = folder / "text.toml"
    path.write_text(changed(CONFIG.format(folder=folder), changes or {}))
    return path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacking, "_MOST_RANKED", 1000)
    monkeypatch.setattr(attacking, "_SAMPLE", 300)


def test_a_run_and_the_attack_on_it_from_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert tacit(["train", str(configured(tmp_path)), "--out", str(run)]) == 0
    out = capsys.readouterr().out
    assert "per character" in out
    assert "9 synthetic lines with random secrets were planted" in " ".join(
        (run / "statement.txt").read_text().split()
    )
    canaries = json.loads(canary_file(run).read_text())
    assert [one["copies"] for one in canaries] == [1] * 6 + [4] * 3
    assert stat.S_IMODE(canary_file(run).stat().st_mode) == 0o600
    released = b"".join(path.read_bytes() for path in run.iterdir() if path.is_file())
    assert not any(one["prefix"].encode() in released for one in canaries), "secrets are not released"

    assert tacit(["attack", str(run), "--shadows", "4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    attacks = [attack["attack"] for attack in data["membership"]["models"][0]["attacks"]]
    assert attacks == ["loss threshold", "BaVarIA-t"]
    loss = data["membership"]["models"][0]["attacks"][0]
    assert loss["members"] + loss["non_members"] == len(lines()), "canaries are no members to be found"
    found = data["remembered"]
    assert [model["model"] for model in found["models"]] == ["with DP", "without DP"]
    for model in found["models"]:
        counts = [group["count"] for group in model["planted"]]
        assert sum(counts) + model["not_planted"]["count"] == 9
        assert sum(counts) == sum(one["included"] for one in canaries)
        exposures = [value for group in model["planted"] for value in group["exposures"]]
        assert all(0 <= value <= np.log2(100) for value in exposures)
    folder = run / "private" / "attack"
    assert "has memorised" in (folder / "report.html").read_text()
    assert {"exposure-with-dp.svg", "exposure-without-dp.svg"} <= {path.name for path in folder.iterdir()}


def test_a_resumed_run_has_the_same_canaries_and_weights(tmp_path: Path) -> None:
    config = configured(tmp_path)
    whole = prepare(config, out=tmp_path / "whole", generator=seeded_generator(3))
    assert whole.start() is not None
    stopped = prepare(config, out=tmp_path / "stopped", generator=seeded_generator(3))
    assert stopped.start(should_stop=lambda: stopped.session.steps_done == 3) is None
    assert not canary_file(tmp_path / "stopped").exists(), "coins stay sealed until the end"
    assert prepare(config, out=tmp_path / "stopped", resume=True).start() is not None
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    texts = [canary_file(tmp_path / name).read_text() for name in ("whole", "stopped")]
    assert texts[0] == texts[1]
    other = config.read_text().replace("length = 2", "length = 1")
    config.write_text(other)
    with pytest.raises(PrivacyRefusal, match=r"canaries\.length was 2 and is 1"):
        prepare(config, out=tmp_path / "stopped", resume=True)


def test_canaries_are_drawn_from_the_key_and_trained_on_as_often_as_they_say(tmp_path: Path) -> None:
    config = read_config(configured(tmp_path))
    mine = draw_canaries(config, seeded_generator(1))
    assert mine == draw_canaries(config, seeded_generator(1))
    assert mine != draw_canaries(config, seeded_generator(2))
    assert len({canary.prefix for canary in mine}) == 9
    coins = [c.included for seed in range(40) for c in draw_canaries(config, seeded_generator(seed))]
    assert 120 < sum(coins) < 240  # of 360 fair ones
    data, session = make_session(config, generator=seeded_generator(1))
    planted = sum(canary.copies for canary in mine if canary.included)
    assert planted > 0
    assert len(session._run.records) == len(data.train.inputs) + planted
    again = with_canaries(data, mine)
    alphabet = Alphabet(data.alphabet)
    decoded = [alphabet.decode(row[(row != PADDING) & (row != END)].tolist()) for row in again.train.targets]
    for canary in mine:
        expected = canary.copies * canary.included
        assert decoded.count(canary.prefix + canary.secret) == expected


def test_a_ledger_knows_records_again_whatever_is_planted_among_them(tmp_path: Path) -> None:
    budget = RenyiBudget(epsilon=20.0, delta=1e-3)
    with closing(Ledger.create(tmp_path / "budget.db")) as ledger:
        for name in ("names", "again"):
            ledger.open_dataset(name, Policy(unit="name", adjacency="add-remove", budget=budget))
    config = configured(tmp_path, {"[optimizer]": "test_noise = 3.0\n[optimizer]"})

    def start(name: str, key: int) -> None:
        section = LedgerSection(url=str(tmp_path / "budget.db"), dataset=name)
        prepare(config, out=tmp_path / f"{name}{key}", ledger=section, generator=seeded_generator(key))

    start("names", 1)
    start("names", 2)  # other canaries, the same records
    with pytest.raises(Conflict, match="already open as 'names'"):
        start("again", 3)


REFUSED: dict[str, tuple[dict[str, str], type[Exception], str]] = {
    "no alphabet": (
        {"alphabet =": "#", "[canaries]": "[run]", "count": "#", "copies": "#", "prefix": "#", "length": "#"},
        InvalidInput,
        "needs alphabet",
    ),
    "canaries without alphabet": ({"alphabet =": "#"}, InvalidInput, "text needs alphabet"),
    "not text": (
        {"text =": 'name = "digits" #', "alphabet =": "#", "longest": "#", "test_fraction": "#"},
        InvalidInput,
        r"\[canaries\] need lines of text",
    ),
    "no name": ({"{name}": "x"}, InvalidInput, r"must contain \{name\} exactly once"),
    "other characters": ({"pin {": "PIN {"}, InvalidInput, "'P', which is not in the alphabet"),
    "too long": ({"length = 2": "length = 9"}, InvalidInput, "16 characters"),
    "too many": ({"[6, 3]": "[6, 30]"}, InvalidInput, "At most 20 %"),
    "no count": ({"count = [6, 3]": ""}, InvalidInput, "count is missing or empty"),
    "empty count": ({"[6, 3]": "[]"}, InvalidInput, "count is missing or empty"),
    "other copies": ({"[1, 4]": "[1, 4, 16]"}, InvalidInput, "one count for each value of copies"),
    "twice the same": ({"[1, 4]": "[4, 4]"}, InvalidInput, "repeat no value"),
    "too many possible secrets": (
        {"longest = 12": "longest = 60", "length = 2": "length = 40"},
        InvalidInput,
        "more secrets than Tacit can count",
    ),
    "public number": ({"add-remove": "replace-one"}, PrivacyRefusal, "fixes the number of records"),
    "no text model": (
        {'"window"': '"logistic"', "hidden = [16]": ""},
        InvalidInput,
        "does not work on records of shape",
    ),
    "one letter": ({"alphabet = ": 'alphabet = " a" #'}, InvalidInput, "besides the space"),
    "empty line": ({"lines.txt": "empty.txt"}, InvalidInput, "line 2 .* is empty"),
    "two sources": ({"[data]": '[data]\nname = "names"'}, InvalidInput, "exactly one of"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_planted_or_read_is_refused_before_training(what: str, tmp_path: Path) -> None:
    change, error, words = REFUSED[what]
    (tmp_path / "empty.txt").write_text("ab\n\nc\n")
    with pytest.raises(error, match=words):
        prepare(configured(tmp_path, change), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_canaries_that_are_lost_or_of_another_run_are_refused(tmp_path: Path) -> None:
    config, path = read_config(configured(tmp_path)), tmp_path / "canaries.json"
    with pytest.raises(InvalidInput, match="with the planted canaries, is missing"):
        read_canaries(path, config)
    one = {"prefix": "pin ab ", "secret": "12", "copies": 1, "included": True}
    for text, words in (
        ("{", "cannot be read"),
        (json.dumps([one | {"secret": "123"}]), "cannot be read"),
        (json.dumps([one | {"other": 1}]), "cannot be read"),
        (json.dumps([one]), "other canaries than"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidInput, match=words):
            read_canaries(path, config)


# --- the attacks on known models --------------------------------------------------------------------------


def test_a_model_that_knows_the_secret_exposes_it_and_one_that_does_not_nothing() -> None:
    rng = np.random.default_rng(0)
    exposure, own, others = ranked_secret(knows(["pin ab 407"]), CANARY, SPACE, ALPHABET, rng)
    assert (exposure, others.size) == (np.log2(1000), 999)
    assert own > others.max()
    assert ranked_secret(knows([]), CANARY, SPACE, ALPHABET, rng)[0] == 0.0


def test_of_many_candidates_a_sample_is_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacking, "_MOST_RANKED", 10)
    monkeypatch.setattr(attacking, "_SAMPLE", 255)
    found = ranked_secret(knows(["pin ab 407"]), CANARY, SPACE, ALPHABET, np.random.default_rng(0))
    assert 7 <= found[0] <= 8  # of 256; by chance the secret itself was drawn too


def test_any_causal_model_is_asked_as_the_window_model_is() -> None:
    class Wrapped(nn.Module):
        """The same, as a user's own: of fixed length, with a mode."""

        def __init__(self, model: WindowModel) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            assert tokens.shape[1] == 13
            assert not self.training
            found: torch.Tensor = self.model(tokens)
            return found

    model = WindowModel(ALPHABET.tokens, context=5)
    wrapped = Wrapped(model)
    rng = np.random.default_rng(0)
    for length in (0, 1, 4, 5, 12):
        contexts = rng.integers(1, ALPHABET.tokens, size=(3, length))
        assert np.allclose(next_token(model, 12)(contexts), next_token(wrapped, 12)(contexts), atol=1e-5)
    long = rng.integers(1, ALPHABET.tokens, size=(3, 30))
    assert np.allclose(next_token(model, 12)(long), next_token(wrapped, 12)(long), atol=1e-5)
    assert wrapped.training


# --- the page ---------------------------------------------------------------------------------------------


def test_the_how_to_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration on fewer lines and steps, and its commands."""
    page = Path(__file__).parents[2] / "docs" / "tutorials" / "attack-and-audit.md"
    text = page.read_text(encoding="utf-8")
    part = text.split("\n## What a language model memorised", 1)[1].split("\n## ", 1)[0]
    (config,) = re.findall(r"^```toml\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL)
    (console,) = re.findall(r"^```console\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL)
    for there, here in (
        ("6000", "250"),
        ("[60, 20, 10]", "[6, 3, 1]"),
        ("epochs = 20", "steps = 2"),
        ("batch_size = 256", 'batch_size = "full"'),
    ):
        assert there in config
        config = config.replace(there, here)
    monkeypatch.chdir(tmp_path)
    Path("names.toml").write_text(config)
    Path("names.txt").write_text("\n".join(lines(300)))
    for line in console.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "tacit"
        assert tacit(arguments) == 0
    found = json.loads(Path("runs/names/private/attack/report.json").read_text())["remembered"]
    assert found["candidates"] == 100_000
    assert found["canaries"] == 10
