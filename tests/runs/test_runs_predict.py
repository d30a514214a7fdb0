"""The model of a run put to use: bit for bit that which was trained, and from its folder alone."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
import warm
from PIL import Image
from run_files import run_file
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from undrawn import undrawn

import tacit
from tacit.cli.app import run as command
from tacit.datasets import load
from tacit.errors import InvalidInput, TacitError
from tacit.ledger import Ledger, Policy, RenyiBudget
from tacit.models import PictureFeatures
from tacit.runs import predict, prepare
from tacit.runs.learners import Description, read_description
from tacit.runs.predict import Predictor, write_predictions

pytestmark = pytest.mark.usefixtures("no_pictures")
SECRET = "48151623"
ROWS = 300

COMMON = {
    "privacy": 'noise_multiplier = 1.0; delta = 1e-3; unit = "row"; records = 300',
    "optimizer": "learning_rate = 0.5",
    "training": "steps = 3",
}
TABLE = run_file(
    data='table = "people.csv"; test_table = "others.csv"; target = "{target}"',
    columns_age='kind = "integer"; lower = 0; upper = 120',
    columns_job='kind = "category"; values = ["baker", "smith"]',
    columns_income='kind = "number"; lower = 0; upper = 1000',
    columns_sick='kind = "boolean"',
    model='name = "mlp"; hidden = [4]',
    **COMMON,
)
DIGITS = run_file(data='name = "digits"', model='name = "logistic"; normalise = true', **COMMON)
OWN = run_file(data='name = "digits"', model='factory = "own_net:net"; make_private_ready = true', **COMMON)
OWN_CODE = """
from torch import nn
def net(shape, outputs):
    return nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36,
    outputs))
"""
TEXT = run_file(
    data='text = "lines.txt"; alphabet = "abc "; longest = 6; test_text = "lines.txt"',
    model='name = "window"; hidden = [8]',
    **COMMON,
)


def pictures(features: str = "raw", model: str = "logistic") -> str:
    return run_file(
        data='images = "pictures"; size = [8, 12]; classes = ["dark", "light"]; colours = 1; '
        f'features = "{features}"',
        model=f'name = "{model}"',
        **COMMON,
    )


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def people(count: int = ROWS, seed: int = 0) -> pd.DataFrame:
    chance = np.random.default_rng(seed)
    age = chance.integers(0, 100, count)
    return pd.DataFrame(
        {
            "name": [f"P{number}" for number in range(count)],
            "age": age,
            "job": chance.choice(["baker", "smith", "actor"], count),
            "income": chance.random(count) * 1000,
            "sick": np.where(age > 50, "yes", "no"),
        }
    )


def make_pictures() -> None:
    chance = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 5)):
        for label, level in (("dark", 60), ("light", 190)):
            folder = Path("pictures") / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = chance.integers(level - 50, level + 50, (12, 10), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")


def trained(text: str, out: str = "out", **options: Any) -> tuple[torch.nn.Module, Tensor]:
    """Train, and return the model and the test records as it gets them."""
    Path("run.toml").write_text(text)
    run = prepare("run.toml", out=out, **options)
    assert run.start() is not None
    return run.session.current_model, run.data.test.inputs


def table_run(target: str = "sick", out: str = "out") -> tuple[torch.nn.Module, Tensor]:
    people().to_csv("people.csv", index=False)
    people(seed=1).to_csv("others.csv", index=False)
    return trained(TABLE.replace("{target}", target), out)


def outputs(model: torch.nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = model.eval()(inputs)
    return found


def told(problem: BaseException) -> str:
    return "".join(traceback.format_exception(problem))


# --- the same model, elsewhere ---------------------------------------------------------------------------


ELSEWHERE = """
import sys
import numpy as np
import tacit
predictor = tacit.load(sys.argv[1])
np.save("outputs.npy", predictor.outputs(sys.argv[2]).numpy())
assert predictor.statement["guarantee"]["unit"] == "row"
"""


def test_a_copied_folder_predicts_bit_for_bit_without_data_and_ledger(tmp_path: Path) -> None:
    """In another process, with nothing of the run but its released files, and no target in the new table."""
    with closing(Ledger.create("budget.db")) as ledger:
        policy = Policy(unit="row", adjacency="add-remove", budget=RenyiBudget(epsilon=20.0, delta=1e-3))
        ledger.open_dataset("people", policy)
    people().to_csv("people.csv", index=False)
    people(seed=1).to_csv("others.csv", index=False)
    text = TABLE.replace("{target}", "sick") + '[ledger]\nurl = "budget.db"\ndataset = "people"\n'
    model, inputs = trained(text)
    people(seed=1).drop(columns="sick").to_csv("new.csv", index=False)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree("out", elsewhere / "copy", ignore=shutil.ignore_patterns("private"))
    shutil.move("new.csv", elsewhere)
    for name in ("people.csv", "others.csv", "budget.db", "run.toml", "out"):
        path = Path(name)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    empty = tmp_path / "empty"
    empty.mkdir()
    done = warm.run(ELSEWHERE, str(elsewhere / "copy"), str(elsewhere / "new.csv"), cwd=empty)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(empty / "outputs.npy"), outputs(model, inputs).numpy())
    assert [path.name for path in empty.iterdir()] == ["outputs.npy"]


def make_text() -> None:
    Path("lines.txt").write_text("ab c\nca\nbbb\naccb a\n" * 50)


@pytest.mark.parametrize(
    "kind", ["digits", "averaged", "own", "text", "pictures", "scattering", "whitened", "numbers"]
)
def test_every_kind_of_run_comes_back_as_it_was(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    factory: Any = None
    match kind:
        case "digits":
            model, inputs = trained(DIGITS)
        case "averaged":
            model, inputs = trained(DIGITS + "ema_decay = 0.9\n")
        case "own":
            Path("own_net.py").write_text(OWN_CODE)
            model, inputs = trained(OWN)
            factory = "own_net:net"
        case "text":
            make_text()
            model, inputs = trained(TEXT)
        case "numbers":
            model, inputs = table_run("income")
        case _:
            make_pictures()
            network = "scattering-linear" if kind == "scattering" else "logistic"
            features = {"scattering": "scattering", "whitened": "pictures"}.get(kind, "raw")
            model, inputs = trained(pictures(features, network))
    loaded = tacit.load("out", factory=factory)
    assert not loaded.model.training
    assert type(loaded.model) is type(model)
    assert all(torch.equal(loaded.model.state_dict()[k], v) for k, v in model.state_dict().items())
    wanted = outputs(model, inputs)
    given: Any = {
        "text": "lines.txt",
        "numbers": "others.csv",
        "pictures": "pictures/test",
        "scattering": "pictures/test",
        "whitened": "pictures/test",
    }.get(kind, inputs)
    assert torch.allclose(loaded.outputs(given), wanted, rtol=0, atol=1e-4 if kind == "whitened" else 0)
    if kind == "scattering":
        with Image.open("pictures/test/dark/0.png") as picture:
            both = loaded.outputs([picture, Path("pictures/test/dark/0.png")])
        assert torch.allclose(both[0], both[1], atol=1e-6)
        assert loaded.description.input_shape == (81, 2, 3)


@pytest.mark.thorough(instead="test_every_kind_of_run_comes_back_as_it_was")
def test_digits_by_features_of_pictures_are_predicted_from_their_pixels() -> None:
    settings = DIGITS.replace('name = "digits"', 'name = "digits"\nfeatures = "pictures"')
    model, _ = trained(settings)
    loaded = tacit.load("out")
    pixels = load("digits").test.inputs
    rows = PictureFeatures(8, 8)(pixels)
    with torch.no_grad():
        assert torch.allclose(loaded.outputs(pixels), model(rows), atol=1e-4)
    assert loaded.description.preprocessing.shape == (1, 8, 8)


def test_torch_draws_the_same_with_and_without_a_loaded_model() -> None:
    trained(DIGITS)
    torch.manual_seed(1)
    tacit.load("out")
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), drawn)


# --- what is predicted -----------------------------------------------------------------------------------


def test_classes_have_names_and_probabilities() -> None:
    model, inputs = table_run()
    loaded = tacit.load("out")
    new = people(seed=1)
    wanted = outputs(model, inputs)
    chances = loaded.predict_proba(new)
    assert loaded.classes == ("false", "true")
    assert np.allclose(chances, torch.softmax(wanted.double(), 1).numpy(), rtol=0, atol=0)
    assert loaded.predict(new).tolist() == [loaded.classes[int(n)] for n in wanted.argmax(1)]
    assert list(loaded.columns) == ["age", "job", "income", "sick"]
    assert loaded.columns["age"].upper == 120
    polars, mapping = pl.from_pandas(new), {name: list(new[name]) for name in ("age", "job", "income")}
    new.to_parquet("new.parquet")
    for same in (
        polars,
        polars.to_arrow(),
        mapping,
        "new.parquet",
        Path("others.csv"),
        new[["income", "age", "job"]],
    ):
        assert np.array_equal(loaded.predict_proba(same), chances)


def test_a_threshold_is_a_probability_of_the_second_class(capsys: pytest.CaptureFixture[str]) -> None:
    table_run()
    loaded, new = tacit.load("out"), people(seed=1)
    chances = loaded.predict_proba(new)[:, 1]
    for threshold in (0.0, 0.3, float(chances[7]), 0.9, 1.0):
        found = loaded.predict(new, threshold=threshold)
        assert np.array_equal(found == "true", chances >= threshold)
    assert command(["predict", "out", "others.csv", "--threshold", "0.3", "--out", "p.csv"]) == 0
    rows = table("p.csv")
    assert all((row["prediction"] == "true") == (float(row["probability_true"]) >= 0.3) for row in rows)
    with pytest.raises(InvalidInput, match="threshold must be"):
        loaded.predict(new, threshold=1.5)
    table_run("income", out="numbers")
    assert command(["predict", "numbers", "others.csv", "--threshold", "0.3", "--out", "q.csv"]) == 2
    assert "a threshold needs two classes or labels; this model predicts numbers" in capsys.readouterr().err
    assert not Path("q.csv").exists()


def test_numbers_are_in_the_unit_of_the_target() -> None:
    model, inputs = table_run("income")
    loaded = tacit.load("out")
    scaled = outputs(model, inputs)[:, 0].double().clamp(-1, 1).numpy()
    assert loaded.predict("others.csv") == pytest.approx(500 * (scaled + 1))
    assert loaded.classes == ()
    with pytest.raises(InvalidInput, match="numbers, which have no probabilities"):
        loaded.predict_proba("others.csv")


def test_a_language_model_says_what_follows_and_how_probable_a_line_is() -> None:
    make_text()
    model, _ = trained(TEXT)
    loaded = tacit.load("out")
    lines = ["ab c", "a", "accb a"]
    after = loaded.predict_proba(lines)
    assert loaded.classes == ("", "a", "b", "c", " ")
    assert after.shape == (3, 5)
    assert after.sum(1) == pytest.approx(1.0)
    tokens = torch.tensor([[0, 1, 0, 0, 0, 0, 0]])  # the end, which begins a record, and "a"
    each = torch.log_softmax(outputs(model, tokens).double(), 2)[0]
    assert after[1] == pytest.approx(each[1].exp().numpy())
    assert loaded.log_probability(lines)[1] == pytest.approx(float(each[0, 1] + each[1, 0]))
    assert loaded.predict(lines)[1] == loaded.classes[int(each[1].argmax())]
    total = loaded.log_probability([a + b for a in "abc " for b in "abc "]).tolist()
    assert sum(np.exp(total)) < 1.0
    write_predictions(loaded, Path("lines.txt"), Path("p.csv"))
    rows = table("p.csv")
    assert list(rows[0]) == ["line", "log_probability", "bits_per_character"]
    assert float(rows[0]["bits_per_character"]) == pytest.approx(
        -float(rows[0]["log_probability"]) / np.log(2) / 5, rel=1e-6
    )
    table_run(out="other")
    with pytest.raises(InvalidInput, match="needs a language model"):
        tacit.load("other").log_probability("others.csv")


def test_a_prediction_depends_on_its_row_alone() -> None:
    table_run()
    loaded = tacit.load("out")
    new = people(seed=1)
    whole = loaded.predict_proba(new)
    assert loaded.predict_proba(new[::-1])[::-1] == pytest.approx(whole, abs=1e-6)
    assert loaded.predict_proba(new[7:8])[0] == pytest.approx(whole[7], abs=1e-6)


DIALECT = run_file(
    table='separator = ";"; decimal = ","; encoding = "latin-1"',
    data='table = "people.csv"; test_table = "others.csv"; target = "krank"',
    columns='"größe" = { kind = "number", lower = 0, upper = 250, unit = "cm", missing = "indicator" }; '
    'seit = { kind = "date", lower = 2015-01-01, upper = 2025-12-31, format = "%d.%m.%Y", '
    'parts = ["weekday", "month"] }; krank = { kind = "boolean", true = ["ja"], false = ["nein"] }',
    **COMMON,
)


def test_the_dialect_and_the_dates_of_a_table_go_home_with_the_model() -> None:
    chance = np.random.default_rng(0)
    for name in ("people.csv", "others.csv"):
        lines = ["größe;seit;krank"]
        for number in range(200):
            size = "" if number % 9 == 0 else f"{chance.integers(1000, 2000) / 10}".replace(".", ",") + " cm"
            lines.append(
                f"{size};{1 + number % 28:02d}.{1 + number % 12:02d}.2019;{('ja', 'nein')[number % 2]}"
            )
        Path(name).write_text("\n".join(lines), encoding="latin-1")
    model, inputs = trained(DIALECT)
    rows = Path("others.csv").read_text(encoding="latin-1").splitlines()
    Path("new.csv").write_text("\n".join(row.rpartition(";")[0] for row in rows), encoding="latin-1")
    loaded = tacit.load("out")
    assert loaded.classes == ("nein", "ja")
    assert inputs.shape[1] == 1 + 1 + 1 + 7 + 12
    assert torch.equal(loaded.outputs("new.csv"), outputs(model, inputs))


# --- tables of predictions -------------------------------------------------------------------------------


def table(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_writes_a_line_for_each_record(capsys: pytest.CaptureFixture[str]) -> None:
    table_run()
    assert command(["predict", "out", "others.csv"]) == 0
    assert "300 records: predictions.csv" in capsys.readouterr().out
    rows = table("predictions.csv")
    loaded = tacit.load("out")
    assert list(rows[0]) == ["row", "prediction", "probability_false", "probability_true"]
    assert [row["row"] for row in rows] == [str(number) for number in range(1, 301)]
    assert [row["prediction"] for row in rows] == loaded.predict("others.csv").tolist()
    written = [[float(row["probability_false"]), float(row["probability_true"])] for row in rows]
    assert np.array(written) == pytest.approx(loaded.predict_proba("others.csv"), abs=1e-9)
    assert command(["predict", "out", "others.csv"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert command(["predict", "out", "others.csv", "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "run": "out", "data": "others.csv", "out": "predictions.csv", "records": 300,
    }  # fmt: skip


def test_pictures_are_named_by_their_files() -> None:
    make_pictures()
    trained(pictures())
    assert command(["predict", "out", "pictures/test", "--out", "p.csv"]) == 0
    rows = table("p.csv")
    assert [row["file"] for row in rows][:2] == ["dark/0.png", "dark/1.png"]
    assert command(["predict", "out", "pictures/test/dark/1.png", "--out", "one.csv"]) == 0
    (one,) = table("one.csv")
    assert one["file"] == "1.png"
    assert one["prediction"] == rows[1]["prediction"]


def test_arrays_come_as_npy_npz_and_csv() -> None:
    _, inputs = trained(DIGITS)
    loaded = tacit.load("out")
    pixels = inputs.numpy()
    np.save("new.npy", pixels)
    np.savez("new.npz", x=pixels, y=np.zeros(3))
    np.savez("one.npz", pixels)
    names = ",".join(f"pixel {number}" for number in range(64))
    np.savetxt("new.csv", pixels.reshape(-1, 64), delimiter=",", header=names, comments="")
    wanted = loaded.predict_proba(inputs)
    for path in ("new.npy", "new.npz", "one.npz", "new.csv"):
        assert np.array_equal(loaded.predict_proba(path), wanted), path
    assert np.array_equal(loaded.predict_proba(pixels.reshape(-1, 64)), wanted)


def test_named_features_are_taken_by_name() -> None:
    text = DIGITS.replace("digits", "breast-cancer").replace("normalise = true\n", "")
    _, inputs = trained(text)
    loaded = tacit.load("out")
    names = list(loaded.description.preprocessing.to_data()["features"])
    frame = pd.DataFrame(inputs.numpy(), columns=names)
    wanted = loaded.predict_proba(inputs)
    assert np.array_equal(loaded.predict_proba(frame[names[::-1]]), wanted)
    frame[names[::-1]].to_csv("new.csv", index=False)
    assert np.array_equal(loaded.predict_proba("new.csv"), wanted)
    with pytest.raises(InvalidInput, match="mean radius"):
        loaded.predict(frame.drop(columns="mean radius"))


def test_a_file_is_read_in_pieces_that_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    table_run()
    loaded = tacit.load("out")
    people(1000, seed=2).to_csv("many.csv", index=False)
    wanted = loaded.predict("many.csv")
    monkeypatch.setattr(predict, "_CHUNK", 64)
    alive: list[weakref.ref[Tensor]] = []
    held: list[int] = []
    real = Predictor.pieces

    def watched(self: Predictor, path: Path) -> Iterator[Any]:
        for piece in real(self, path):
            held.append(sum(one() is not None for one in alive))
            alive.append(weakref.ref(piece.inputs))
            yield piece

    monkeypatch.setattr(Predictor, "pieces", watched)
    seen: list[tuple[int, int | None]] = []
    count = write_predictions(
        loaded, Path("many.csv"), Path("p.csv"), progress=lambda *told: seen.append(told)
    )
    assert count == 1000
    assert len(held) == 16
    assert max(held) <= 1, "no more than the piece before is still in memory"
    assert [row["prediction"] for row in table("p.csv")] == wanted.tolist()
    assert [done for done, _ in seen] == [*range(64, 1000, 64), 1000]
    assert all(total is not None and 900 < total < 1100 for _, total in seen)


MEMORY = """
import resource, sys
from pathlib import Path
import tacit
from tacit.runs.predict import write_predictions
predictor = tacit.load("out")
write_predictions(predictor, Path("small.csv"), Path("small_out.csv"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write_predictions(predictor, Path("large.csv"), Path("large_out.csv"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.thorough(instead="test_a_file_is_read_in_pieces_that_are_let_go")
def test_memory_does_not_grow_with_the_file() -> None:
    """Kilobytes beyond what 70,000 rows take; the large file alone has 90 MB."""
    table_run()
    lines = people(70_000, seed=3).assign(name="x" * 100).to_csv(index=False)
    head, _, body = lines.partition("\n")
    Path("small.csv").write_text(lines)
    with Path("large.csv").open("w") as file:
        file.write(head + "\n")
        for _ in range(9):
            file.write(body)
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30_000
    with Path("large_out.csv").open() as file:
        assert sum(1 for _ in file) == 630_001


def test_a_table_of_predictions_is_whole_or_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    table_run()
    loaded = tacit.load("out")
    monkeypatch.setattr(predict, "_CHUNK", 64)
    before = sorted(path.name for path in Path().iterdir())

    def stop(done: int, _: int | None) -> None:
        if done > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_predictions(loaded, Path("others.csv"), Path("p.csv"), progress=stop)
    assert sorted(path.name for path in Path().iterdir()) == before
    Path("p.csv").write_text("mine")
    with pytest.raises(KeyboardInterrupt):
        write_predictions(loaded, Path("others.csv"), Path("p.csv"), overwrite=True, progress=stop)
    assert Path("p.csv").read_text() == "mine"


def test_ctrl_c_says_that_nothing_was_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table_run()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(predict, "_table_rows", stop)
    assert command(["predict", "out", "others.csv"]) == 130
    assert "predictions.csv was not written" in capsys.readouterr().err
    assert not Path("predictions.csv").exists()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("others.csv", "is the input file"),
        ("out", "is a folder"),
        ("predictions.txt", "must end in .csv"),
        ("people.csv", "people.csv exists already"),
    ],
)
def test_a_table_that_would_lose_something_is_refused(out: str, words: str) -> None:
    table_run()
    before = {path: path.read_bytes() for path in Path().glob("*.csv")}
    overwrite = out == "others.csv"
    with pytest.raises(InvalidInput, match=words):
        write_predictions(tacit.load("out"), Path("others.csv"), Path(out), overwrite=overwrite)
    assert {path: path.read_bytes() for path in Path().glob("*.csv")} == before


# --- wrong data ------------------------------------------------------------------------------------------


def written(text: str, name: str = "wrong.csv") -> str:
    Path(name).write_text(text)
    return name


HEAD = "age,job,income\n"
WRONG_TABLES: dict[str, tuple[Callable[[], Any], str]] = {
    "no file": (lambda: "nowhere.csv", "no table at nowhere.csv"),
    "missing column": (lambda: written("age,job\n1,baker\n"), "income"),
    "renamed column": (lambda: people().rename(columns={"age": "Age"}), "age"),
    "unreadable number": (lambda: written(f"{HEAD}1,baker,2\n1,baker,x{SECRET}\n"), "row 2"),
    "missing cell": (lambda: written(f"{HEAD}{SECRET},baker,\n"), "row 1"),
    "no rows": (lambda: written(HEAD), "has no rows"),
    "nothing": (lambda: written(""), "wrong.csv"),
    "empty frame": (lambda: people()[:0], "has no rows"),
    "ragged": (lambda: written(f"{HEAD}1,baker\n1,baker,{SECRET}\n"), "row 1"),
    "binary": (lambda: written(f"{HEAD}1,\0\udcff{SECRET}".encode("utf-8",
    "surrogateescape").decode("latin-1")), "row"),
    "array": (lambda: np.full((3, 3), float(SECRET)), "columns by name"),
    "tensor": (lambda: torch.full((3, 3), float(SECRET)), "columns by name"),
    "folder": (lambda: "out", "no table at out"),
    "damaged Parquet": (lambda: written(SECRET, "wrong.parquet"), "as Parquet"),
}  # fmt: skip


def finished(factory: pytest.TempPathFactory, make: Callable[[], object]) -> Path:
    """The folder of a run that several tests read."""
    folder = factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch, undrawn():
        patch.chdir(folder)
        make()
    return folder / "out"


@pytest.fixture(scope="module")
def table_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory, table_run)


@pytest.fixture(scope="module")
def digits_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory, lambda: trained(DIGITS))


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_wrong_tables_are_refused_without_a_cell(case: str, table_folder: Path) -> None:
    make, words = WRONG_TABLES[case]
    Path("out").mkdir()
    loaded = tacit.load(table_folder)
    with pytest.raises(TacitError, match=words) as caught:
        loaded.predict(make())
    assert SECRET not in told(caught.value)


def npz(**arrays: Any) -> str:
    np.savez("wrong.npz", **arrays)
    return "wrong.npz"


def npy(values: Any) -> str:
    np.save("wrong.npy", values)
    return "wrong.npy"


WRONG_ARRAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "number of features": (lambda: np.zeros((3, 63)), r"or \(n, 64\)"),
    "one record": (lambda: np.zeros((1, 8, 8))[0], "the model takes arrays of shape"),
    "other order of axes": (lambda: np.zeros((3, 8, 8, 1)), "the model takes arrays of shape"),
    "another scale": (lambda: np.full((3, 64), 16.0), r"192 of 192 values are outside \[0, 1\]"),
    "integers of another scale": (lambda: np.full((3, 64), 16, dtype=np.uint8), r"\[0, 1\]"),
    "not a number": (lambda: np.full((1, 64), np.nan), "64 of 64 values"),
    "texts": (lambda: np.array([[SECRET] * 64]), "array of numbers"),
    "objects": (lambda: [[SECRET, None] * 32], "array of numbers"),
    "of several lengths": (lambda: [[0.5], [0.5, 0.5]], "array of numbers"),
    "nothing": (lambda: np.zeros((0, 64)), "at least one record"),
    "a frame of texts": (lambda: pd.DataFrame({str(n): [SECRET] for n in range(64)}), "array of numbers"),
    "an empty file": (lambda: npy(np.zeros((0, 64))), "has no rows"),
    "a file of objects": (
        lambda: npy(np.array([SECRET, None])),
        "arrays of Python objects are not supported",
    ),
    "a file of one number": (lambda: npy(np.array(1.0)), "single number"),
    "several arrays": (lambda: npz(a=np.zeros(1), b=np.zeros(1)), "none is named x"),
    "another file": (lambda: written(SECRET, "wrong.txt"), "not a .npy"),
    "a damaged file": (lambda: written(SECRET, "wrong.npy"), "cannot read wrong.npy"),
    "no file": (lambda: "nowhere.npy", "no file at nowhere.npy"),
    "columns": (lambda: written(f"a,b\n{SECRET},1\n"), "2 columns"),
    "cells": (
        lambda: written(",".join(f"c{n}" for n in range(64)) + f"\nx{SECRET}" + ",1" * 63 + "\n"),
        r"column 'c0' of wrong.csv must contain numbers; non-numeric cells: 1 \(row 1\)",
    ),
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_wrong_arrays_are_refused(case: str, digits_folder: Path) -> None:
    make, words = WRONG_ARRAYS[case]
    loaded = tacit.load(digits_folder)
    with pytest.raises(TacitError, match=words) as caught:
        loaded.predict(make())
    assert SECRET not in told(caught.value)


def test_wrong_texts_are_refused() -> None:
    make_text()
    trained(TEXT)
    loaded = tacit.load("out")
    for given, words in (
        (written("ab\n\nab\n", "wrong.txt"), "line 2 of wrong.txt is empty"),
        (written("ab\nax\n", "more.txt"), "character 2 of line 2"),
        (written("a" * 7 + "\n", "long.txt"), "longest = 6"),
        (written("", "none.txt"), "is empty"),
        ("nowhere.txt", "cannot read nowhere.txt"),
        ([], "an empty one"),
        ([1, 2], "must be a list of strings"),
        (["x" + SECRET], "not in the alphabet"),
        (np.zeros((2, 7)), "must be a list of strings"),
    ):
        with pytest.raises(InvalidInput, match=words) as caught:
            loaded.predict(given)
        assert SECRET not in told(caught.value)


def test_wrong_pictures_are_refused() -> None:
    make_pictures()
    trained(pictures())
    loaded = tacit.load("out")
    Path("none").mkdir()
    Path("bad").mkdir()
    Path(f"bad/{SECRET}.png").write_bytes(b"no picture")
    for given, words in (
        ("nowhere", "there are no images"),
        ("none", "there are no images"),
        ("bad", "image 1 of bad, sorted by path"),
        ([], "is empty"),
        ([Path("pictures/test/dark/0.png"), 5], "image 2 is a int"),
        (np.zeros((2, 12, 8, 1), dtype=np.uint8), "uint8 of shape"),
        (np.full((2, 1, 8, 12), 255.0), r"\[0, 1\]"),
        (np.zeros((2, 8, 12)), "uint8 of shape"),
        ("run.toml", "image 1 of run.toml"),
    ):
        with pytest.raises(InvalidInput, match=words) as caught:
            loaded.predict(given)
        assert SECRET not in told(caught.value)
    bright = np.full((2, 8, 12, 1), 255, dtype=np.uint8)
    assert np.array_equal(loaded.outputs(bright), loaded.outputs(np.ones((2, 1, 8, 12), dtype=np.float32)))


# --- the file of a model ---------------------------------------------------------------------------------


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a run whose description is another."""
    copy = Path("changed")
    shutil.copytree(folder, copy)
    path = copy / "model.safetensors"
    with safe_open(path, "pt") as file:
        data = json.loads(file.metadata()["tacit"])
    change(data)
    save_file(load_file(path), path, {"tacit": json.dumps(data)})
    return copy


def test_the_description_of_neighbouring_data_is_the_same() -> None:
    """One person more or less, with the largest age and another job: only public facts are in the file."""
    found: list[Description] = []
    for extra in (0, 1):
        person = pd.DataFrame(
            {"name": ["y"], "age": [119], "job": [SECRET], "income": [999.5], "sick": ["yes"]}
        )
        pd.concat([people(), person])[: ROWS + extra].to_csv("people.csv", index=False)
        people(seed=1).to_csv("others.csv", index=False)
        trained(TABLE.replace("{target}", "sick"), out=f"run{extra}")
        found.append(read_description(Path(f"run{extra}/model.safetensors")))
        assert SECRET.encode() not in Path(f"run{extra}/model.safetensors").read_bytes()
    assert found[0] == found[1]


def test_the_description_goes_through_json_and_comes_back(table_folder: Path) -> None:
    found = read_description(table_folder / "model.safetensors")
    assert Description.from_data(json.loads(json.dumps(found.to_data()))) == found
    assert found.version == tacit.__version__
    assert found.task == "classes"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.update(format=3, version="9.1"), "Tacit 9.1 in format 3.*reads format 2"),
        (lambda data: data.update(format=1, version="0.2.0"), "Tacit 0.2.0 in format 1"),
        (lambda data: data.pop("labels"), "description of the model"),
        (lambda data: data.pop("format"), "description of the model"),
        (lambda data: data.pop("outputs"), "description of the model"),
        (lambda data: data.update(task="guess"), "description of the model"),
        (lambda data: data["model"].update(hidden="x"), "description of the model"),
        (lambda data: data["model"].update(extra=1), "description of the model"),
        (lambda data: data["preprocessing"].update(kind="magic"), "description of the model"),
        (
            lambda data: data["model"].update(hidden=[5]),
            r"other shapes: 1.weight \(4, 5\) instead of \(5, 5\)",
        ),
        (lambda data: data["model"].update(hidden=[4, 4]), "the file lacks 5.weight, 5.bias"),
    ],
)
def test_a_description_that_was_changed_is_refused(
    change: Callable[[dict[str, Any]], object], words: str, table_folder: Path
) -> None:
    with pytest.raises(InvalidInput, match=words):
        tacit.load(changed(table_folder, change))


def test_weights_without_a_description_say_how_to_mend(table_folder: Path) -> None:
    shutil.copytree(table_folder, "old")
    save_file(load_file("old/model.safetensors"), "old/model.safetensors")
    with pytest.raises(InvalidInput, match=r"tacit train old/config.toml --out old --resume"):
        tacit.load("old")


def test_resume_of_a_finished_run_mends_its_folder() -> None:
    table_run()
    whole = Path("out/model.safetensors").read_bytes()
    save_file(load_file("out/model.safetensors"), "out/model.safetensors")
    Path("out/README.md").unlink()
    assert command(["train", "out/config.toml", "--out", "out", "--resume"]) == 0
    assert Path("out/model.safetensors").read_bytes() == whole
    assert Path("out/README.md").exists()


def test_weights_that_are_missing_or_renamed_are_named(table_folder: Path) -> None:
    shutil.copytree(table_folder, "other")
    path = Path("other/model.safetensors")
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    weights = load_file(path)
    weights["layer.weight"] = weights.pop("1.weight")
    save_file(weights, path, metadata)
    with pytest.raises(InvalidInput, match=r"the file lacks 1\.weight; the model lacks layer.weight"):
        tacit.load("other")
    weights["1.weight"] = weights.pop("layer.weight") * float("nan")
    save_file(weights, path, metadata)
    with pytest.raises(InvalidInput, match=r"in 1\.weight: training diverged"):
        tacit.load("other")


def test_other_files_and_folders_are_refused(table_folder: Path) -> None:
    Path("empty").mkdir()
    Path("model.safetensors").write_bytes(b"no model")
    for path, words in (
        ("nowhere", "no finished run at nowhere"),
        ("empty", "model.safetensors is missing"),
        ("model.safetensors", "cannot be read as a model"),
    ):
        with pytest.raises(InvalidInput, match=words):
            tacit.load(path)
    with pytest.raises(InvalidInput, match="cannot be used"):
        tacit.load(table_folder, device="abacus")


def test_the_statement_must_be_that_of_the_model(table_folder: Path) -> None:
    shutil.copytree(table_folder, "other")
    path = Path("other/statement.json")
    path.write_text(path.read_text().replace('"steps": 3', '"steps": 2'))
    with pytest.raises(InvalidInput, match="does not belong to the model next to it"):
        tacit.load("other")
    path.unlink()
    assert tacit.load("other").statement is None
    assert tacit.load("other/model.safetensors").statement is None
    found = tacit.load(table_folder).statement
    assert found is not None
    assert found["mechanism"]["steps"] == 3


def test_the_card_of_a_run_is_that_of_its_statement_and_its_score(table_folder: Path) -> None:
    yaml: Any = pytest.importorskip("yaml")
    card = (table_folder / "README.md").read_text()
    stated = json.loads((table_folder / "statement.json").read_text())
    head = yaml.safe_load(card.split("---\n", 2)[1])
    for name in ("epsilon", "delta", "unit", "adjacency"):
        assert head["differential_privacy"][name] == stated["guarantee"][name]
    assert head["pipeline_tag"] == "tabular-classification"
    scores = (table_folder / "metrics.csv").read_text().splitlines()[-1].split(",")
    assert f"Test accuracy {float(scores[3]):.4f} (majority class: " in card
    assert "* `age`: integer; 0 to 120\n" in card
    assert "* `job`: category; one of baker, smith\n" in card
    assert "* `sick`" not in card, "it is predicted"


# --- a model of the user's own ---------------------------------------------------------------------------


def test_no_code_is_run_because_a_file_names_it(
    table_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: a module that leaves a mark when it is imported."""
    Path("planted.py").write_text("from pathlib import Path\nPath('mark').touch()\nnet = None\n")
    copy = changed(table_folder, lambda data: data.update(model={"factory": "planted:net"}))
    with pytest.raises(
        InvalidInput, match=r'tacit.load\(..., factory="planted:net"\), or --factory planted:net'
    ):
        tacit.load(copy)
    assert command(["predict", str(copy), "new.csv"]) == 2
    capsys.readouterr()
    assert not Path("mark").exists()
    with pytest.raises(InvalidInput, match="is not a function"):
        tacit.load(copy, factory="planted:net")
    assert Path("mark").exists(), "the plant works, once the user names it"


def test_a_factory_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_net.py").write_text(OWN_CODE)
    _, inputs = trained(OWN)
    np.save("new.npy", inputs.numpy())
    assert command(["predict", "out", "new.npy", "--factory", "own_net:net"]) == 0
    Path("own_net.py").rename("renamed_net.py")
    sys.modules.pop("own_net")
    with pytest.raises(InvalidInput, match="No module named 'own_net'"):
        tacit.load("out", factory="own_net:net")
    names: dict[str, Any] = {}
    exec(OWN_CODE, names)
    assert np.array_equal(
        tacit.load("out", factory=names["net"]).predict(inputs),
        tacit.load("out", factory="renamed_net:net").predict(inputs),
    )
    with pytest.raises(InvalidInput, match=r"the model lacks 0\.bias, 0\.weight"):
        tacit.load("out", factory=lambda shape, outputs: torch.nn.Sequential(torch.nn.ReLU()))
    with pytest.raises(InvalidInput, match="must return a torch module"):
        tacit.load("out", factory=lambda shape, outputs: None)  # type: ignore[arg-type, return-value]


def test_a_factory_for_a_network_of_tacit_is_refused(table_folder: Path) -> None:
    with pytest.raises(InvalidInput, match="contains Tacit's network 'mlp'"):
        tacit.load(table_folder, factory="own_net:net")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_are_carried_over(ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    table_run()
    new = people(seed=1)
    new["id"] = [f"00{number}" if number % 3 else "NA" for number in range(len(new))]
    new["a, b"] = "x"
    if ending == "csv":
        new.to_csv("new.csv", index=False)
    else:
        new.to_parquet("new.parquet")
    kept = ["predict", "out", f"new.{ending}", "--keep", "id", "--keep", "a, b", "--out", "p.csv"]
    assert command(kept) == 0
    found = table("p.csv")
    assert list(found[0])[:4] == ["row", "id", "a, b", "prediction"]
    assert [row["id"] for row in found] == new["id"].tolist()
    assert command(["predict", "out", f"new.{ending}", "--out", "q.csv"]) == 0
    assert [row["prediction"] for row in table("q.csv")] == [row["prediction"] for row in found]
    capsys.readouterr()
    for name, reason in (("nobody", "has no column 'nobody'"), ("prediction", "two columns of this name")):
        assert command(["predict", "out", f"new.{ending}", "--keep", name, "--out", "r.csv"]) == 2
        assert reason in capsys.readouterr().err.replace("\n", " ")
        assert not Path("r.csv").exists()


def test_a_whole_number_is_carried_over_without_a_point() -> None:
    table_run()
    new = people(seed=1)
    new["visit"] = pd.array([None, *range(7, 6 + len(new))], dtype="Int64")
    new.to_parquet("visits.parquet")
    write_predictions(tacit.load("out"), Path("visits.parquet"), Path("v.csv"), keep=["visit"])
    assert [row["visit"] for row in table("v.csv")[:3]] == ["", "7", "8"]
