"""A state belongs to one loss: another is refused, and the next process recognises the same."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import warm
from made import a_plan, a_session, losses, one_step
from torch import Tensor, nn

from tacit.errors import PrivacyRefusal
from tacit.noise.generator import Generator
from tacit.training import Augmentation, FlipAndCrop, PrivateSession
from tacit.training import released as noise_reuse
from tacit.training.resume import Identity

KEY = bytes(range(16))
N = 60
PLAN = a_plan(noise_multiplier=2.0, records=N, batch_size=None, steps=8)


def run_code(source: str, file: str = "<own>") -> dict[str, Any]:
    """Return the names that a script with this text defines."""
    found: dict[str, Any] = {"__name__": "a_script"}
    exec(compile(textwrap.dedent(source), file, "exec"), found)
    return found


def digest(source: str, file: str = "<own>", model: nn.Module | None = None) -> str:
    return Identity(run_code(source, file)["loss"], model).under(KEY)


# --- what makes another loss -----------------------------------------------------------------------------

OTHER: dict[str, tuple[str, str, str]] = {
    "constant": ("def loss(m, x): return VALUE * m(x)", "2.0", "3.0"),
    "type of a constant": ("def loss(m, x): return m(x) / VALUE", "1", "1.0"),
    "sign of zero": ("def loss(m, x): return m(x) / VALUE", "0.0", "-0.0"),
    "operation": ("def loss(m, x): return m(x) VALUE x", "+", "-"),
    "method": ("def loss(m, x): return m(x).VALUE(1)", "sum", "mean"),
    "order of arguments": (
        "def h(VALUE): return a - b\ndef loss(m, x): return h(a=m(x), b=x)", "a, b", "b, a",
    ),
    "default": ("def loss(m, x, w=VALUE): return w * m(x)", "1.0", "2.0"),
    "default by keyword": ("def loss(m, x, *, w=VALUE): return w * m(x)", "1.0", "2.0"),
    "closure": (
        """
        def made(w):
            return lambda m, x: w * m(x)
        loss = made(VALUE)
        """,
        "0.1",
        "0.2",
    ),
    "global": ("W = VALUE\ndef loss(m, x): return W * m(x)", "0.1", "0.2"),
    "global in a nested function": (
        "W = VALUE\ndef loss(m, x):\n def inner():\n  return W\n return inner() * m(x)", "0.1", "0.2",
    ),
    "a function that it calls": ("def f(x): return VALUE * x\ndef loss(m, x): return f(m(x))", "1.0", "2.0"),
    "nested lambda": (
        "def loss(m, x): return (lambda z: (lambda u: u.VALUE(1))(z))(m(x))", "sum", "mean",
    ),
    "set": ("def loss(m, x): return m(x) if 3 in VALUE else x", '{"a", "b"}', '{"a", "c"}'),
    "dictionary": ("W = VALUE\ndef loss(m, x): return W['a'] * m(x)", "{'a': 1, 'b': 2}", "{'a': 2, 'b': 2}"),
    "handler": (
        "def loss(m, x):\n try:\n  return m(x)\n except VALUE:\n  return x", "ValueError", "RuntimeError",
    ),
    "class weights": (
        "import torch\nW = torch.tensor([1.0, VALUE])\ndef loss(m, x): return W * m(x)", "1.0", "2.0",
    ),
    "array": ("import numpy as np\nW = np.array([1, VALUE])\ndef loss(m, x): return W[1] * m(x)", "1", "2"),
    "large tensor": (
        """
        import torch
        W = torch.zeros(2**21 + 5).fill_(VALUE)
        def loss(m, x): return W[0] * m(x)
        """,
        "1",
        "2",
    ),
    "type of numbers": ("import torch\ndtype = VALUE\ndef loss(m, x): return m(x.to(dtype))", "torch.float32",
                        "torch.float16"),
    "label smoothing": (
        """
        from torch import nn
        criterion = nn.CrossEntropyLoss(label_smoothing=VALUE, reduction="none")
        def loss(m, x, y): return criterion(m(x), y)
        """,
        "0.1",
        "0.2",
    ),
    "a loss that is a module": (
        """
        from torch import nn
        class Focal(nn.Module):
            def __init__(self, gamma):
                super().__init__()
                self.gamma = gamma
                self.inner = nn.CrossEntropyLoss(reduction="none")
            def forward(self, m, x, y):
                return self.inner(m(x), y) ** self.gamma
        loss = Focal(VALUE)
        """,
        "1.0",
        "2.0",
    ),
    "weights of a teacher": (
        """
        import torch
        torch.manual_seed(VALUE)
        teacher = torch.nn.Linear(2, 2)
        def loss(m, x): return m(x) - teacher(x)
        """,
        "1",
        "2",
    ),
    "mode of a teacher": (
        """
        import torch
        teacher = torch.nn.Dropout().train(VALUE)
        def loss(m, x): return m(x) - teacher(x)
        """,
        "True",
        "False",
    ),
    "module made in the loss": (
        "from torch import nn\ndef loss(m, x): return nn.L1Loss(reduction='VALUE')(m(x), x)", "none", "sum",
    ),
    "own module made in the loss": (
        """
        class Scale:
            def __init__(self, by=VALUE): self.by = by
            def __call__(self, x): return self.by * x
        def loss(m, x): return Scale()(m(x))
        """,
        "1.0",
        "2.0",
    ),
    "attribute behind a bound method": (
        """
        class Trainer:
            def __init__(self, alpha): self.alpha = alpha
            def loss(self, m, x): return self.scaled(m(x))
            def scaled(self, x): return self.alpha * x
        loss = Trainer(VALUE).loss
        """,
        "0.1",
        "0.2",
    ),
    "attribute of a settings object": (
        """
        from argparse import Namespace
        args = Namespace(alpha=VALUE)
        def loss(m, x): return args.alpha * m(x)
        """,
        "0.1",
        "0.2",
    ),
    "attribute by its name": (
        """
        from argparse import Namespace
        args = Namespace(alpha=VALUE)
        def loss(m, x): return getattr(args, "alpha") * m(x)
        """,
        "0.1",
        "0.2",
    ),
    "all attributes": (
        """
        from argparse import Namespace
        args = Namespace(alpha=VALUE)
        def loss(m, x): return list(vars(args).values())[0] * m(x)
        """,
        "0.1",
        "0.2",
    ),
    "attribute of a class": (
        "class Settings: alpha = VALUE\ndef loss(m, x): return Settings.alpha * m(x)", "0.1", "0.2",
    ),
    "attribute in slots": (
        """
        class Settings:
            __slots__ = ("alpha",)
            def __init__(self, alpha): self.alpha = alpha
        settings = Settings(VALUE)
        def loss(m, x): return settings.alpha * m(x)
        """,
        "0.1",
        "0.2",
    ),
    "property": (
        """
        class Settings:
            @property
            def alpha(self): return VALUE
        settings = Settings()
        def loss(m, x): return settings.alpha * m(x)
        """,
        "0.1",
        "0.2",
    ),
    "method that a library calls": (
        """
        import torch
        class Loss(torch.nn.MultiheadAttention):
            def merge_masks(self, *masks): return VALUE
        torch.manual_seed(0)
        attention = Loss(2, 1)
        def loss(m, x): return attention(x, x, m(x))
        """,
        "1.0",
        "2.0",
    ),
    "inherited method": (
        """
        class Base:
            def scaled(self, x): return VALUE * x
        class Loss(Base):
            def __call__(self, m, x): return super().scaled(m(x))
        loss = Loss()
        """,
        "0.1",
        "0.2",
    ),
    "constant of a module": (
        """
        import types
        settings = types.ModuleType("settings_of_mine")
        settings.ALPHA = VALUE
        def loss(m, x): return settings.ALPHA * m(x)
        """,
        "0.1",
        "0.2",
    ),
    "enumeration": (
        """
        import enum
        class Kind(enum.Enum):
            A = 1
            B = 2
        kind = Kind.VALUE
        def loss(m, x): return m(x) if kind is Kind.A else x
        """,
        "A",
        "B",
    ),
    "partial": (
        """
        from functools import partial
        def weighted(w, m, x): return w * m(x)
        loss = partial(weighted, VALUE)
        """,
        "0.1",
        "0.2",
    ),
    "function of a library": (
        "import torch\nf = VALUE\ndef loss(m, x): return f(m(x))", "torch.relu", "torch.tanh",
    ),
    "method of a library": (
        "import torch\nf = VALUE\ndef loss(m, x): return f(m(x))", "torch.Tensor.exp", "torch.Tensor.log",
    ),
    "function of NumPy": (
        "import numpy as np\nf = VALUE\ndef loss(m, x): return f(m(x))", "np.exp", "np.log",
    ),
    "decorated by one's own": (
        """
        import functools
        def twice(f):
            @functools.wraps(f)
            def wrapper(*a): return 2 * f(*a)
            return wrapper
        @twice
        def loss(m, x): return VALUE * m(x)
        """,
        "1.0",
        "2.0",
    ),
    "decorated by a library": (
        "import torch\n@torch.autocast('cpu')\ndef loss(m, x): return VALUE * m(x)", "1.0", "2.0",
    ),
    "mapped": ("import torch\nloss = torch.vmap(lambda m, x: VALUE * m(x))", "1.0", "2.0"),
    "remembered": (
        "import functools\n@functools.lru_cache\ndef w(): return VALUE\ndef loss(m, x): return w() * m(x)",
        "1.0",
        "2.0",
    ),
    "attribute of the function": (
        "def loss(m, x): return loss.scale * m(x)\nloss.scale = VALUE", "1.0", "2.0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER)
def test_another_loss_is_another(what: str) -> None:
    source, one, two = OTHER[what]
    digests = [digest(source.replace("VALUE", value)) for value in (one, two, one)]
    assert digests[0] != digests[1]
    assert digests[0] == digests[2]


def test_the_digest_says_nothing_without_the_key() -> None:
    found = Identity(lambda model, x: model(x))
    assert found.under(KEY) != found.under(bytes(16))


# --- what is the same loss -------------------------------------------------------------------------------

STATEFUL = """
import logging
import time
import torch
from torch import nn

log = logging.getLogger("tacit.of.a.test")
unread = time.perf_counter()
device = torch.device("cpu")
generator = torch.Generator()
history, calls = [], 0
teacher = nn.Linear(2, 2).requires_grad_(False)
nn.init.ones_(teacher.weight), nn.init.zeros_(teacher.bias)


class Trainer:
    def __init__(self):
        self.started, self.folder, self.alpha = time.perf_counter(), f"runs/{time.perf_counter()}", 0.5
        self.model = nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def __repr__(self):
        return f"{self.started} {self.folder}"

    def fit(self):
        return self.started

    def loss(self, m, x):
        global calls
        calls += 1
        history.append(calls)
        log.info("loss", self.optimizer)
        kinds = {"sum", "mean", "none", "other"}
        return self.alpha * (self.model(x) - teacher(x)).sum(1).to(device) if "sum" in kinds else x


trainer = Trainer()
loss = trainer.loss
"""


def test_the_same_loss_of_another_start_is_the_same() -> None:
    """Times, addresses and initial weights differ, but the loss reads none of them outside the model."""
    found = [run_code(STATEFUL) for _ in range(2)]
    one, two = (Identity(each["loss"], each["trainer"].model).under(KEY) for each in found)
    assert one == two


@pytest.mark.parametrize("same", ["moved", "commented", "documented", "elsewhere"])
def test_where_it_stands_and_what_is_said_of_it_make_no_other(same: str) -> None:
    source = '''def loss(m, x):
    """Says something."""
    def inner(z):
        return z.sum(1)
    return inner(m(x))
'''
    other = {
        "moved": "\n\nX = 3\n\n" + source,
        "commented": source.replace("def inner", "# as it were\n    def inner"),
        "documented": source.replace("something", "something else"),
        "elsewhere": source,
    }[same]
    assert digest(source) == digest(other, "/elsewhere/loss.py")


def test_a_loss_that_has_run_is_the_same() -> None:
    """Python may rewrite the code of a function that it runs often."""
    found = run_code(OTHER["closure"][0].replace("VALUE", "0.5"))["loss"]
    before = Identity(found).under(KEY)
    for _ in range(1000):
        found(abs, -1.0)
    assert Identity(found).under(KEY) == before


COUNTING = {
    "global": "calls, W = 0, VALUE\ndef loss(m, x):\n global calls\n calls += 1\n return W * m(x)",
    "closure": """
        def made(w, calls=0):
            def loss(m, x):
                nonlocal calls
                calls += 1
                return w * m(x)
            return loss
        loss = made(VALUE)
        """,
    "in a nested function": (
        "calls, W = 0, VALUE\ndef loss(m, x):\n def count():\n  global calls\n  calls += 1\n"
        " count()\n return W * m(x)"
    ),
}


@pytest.mark.parametrize("where", COUNTING)
def test_what_a_loss_writes_itself_is_no_constant(where: str) -> None:
    """A new session in the same process, such as a notebook, recognises a loss that counts its calls."""
    loss = run_code(COUNTING[where].replace("VALUE", "2.0"))["loss"]
    before = Identity(loss).under(KEY)
    loss(lambda x: x, torch.ones(1))
    assert Identity(loss).under(KEY) == before
    assert digest(COUNTING[where].replace("VALUE", "3.0")) != before


def test_a_name_that_is_written_elsewhere_is_a_constant_here() -> None:
    source = "W = VALUE\ndef loss(m, x):\n def f():\n  W = x\n  return lambda: W\n return W * f()()"
    assert digest(source.replace("VALUE", "1.0")) != digest(source.replace("VALUE", "2.0"))


def test_what_reads_itself_has_an_end() -> None:
    source = """
    def loss(m, x, deep=3):
        return m(x) if deep == 0 else other(m, x, deep - 1)
    def other(m, x, deep):
        return loss(m, VALUE * x, deep)
    table = [loss]
    table.append(table)
    loss.table = table
    """
    assert digest(source.replace("VALUE", "1.0")) != digest(source.replace("VALUE", "2.0"))


def test_a_table_that_a_model_makes_in_its_first_pass_is_no_other_model() -> None:
    """Another session of the same process may be given the same model."""
    made, other = Scaled(1.0), Scaled(1.0)
    made.table = torch.arange(3)
    assert Identity(made, made).under(KEY) == Identity(other, other).under(KEY)
    other.scale = 2.0
    assert Identity(made, made).under(KEY) != Identity(other, other).under(KEY)


def test_a_model_and_a_loss_that_are_compiled_are_known_again() -> None:
    """Torch numbers what it compiles."""
    source = "import torch\nloss = torch.compile(lambda m, x: VALUE * m(x), backend='eager')"
    one, again, other = (digest(source.replace("VALUE", value)) for value in ("1.0", "1.0", "2.0"))
    assert one == again != other
    models: list[Any] = [torch.compile(Scaled(scale), backend="eager") for scale in (1.0, 1.0, 2.0)]
    one, again, other = (Identity(each, each).under(KEY) for each in models)
    assert one == again != other


@pytest.mark.parametrize(
    "value",
    [
        "torch.zeros(0)", "torch.zeros(2, dtype=torch.bfloat16)", "torch.zeros(2, dtype=torch.cfloat).conj()",
        "torch.zeros(2, device='meta')", "torch.eye(2).to_sparse()", "numpy.array([object()])",
        "numpy.float32(1)", "weakref.proxy(made)", "weakref.ref(made)", "threading.Lock()", "iter([1])",
    ],
)  # fmt: skip
def test_unusual_values_have_a_digest(value: str) -> None:
    source = f"""
    import numpy, threading, torch, weakref
    class Made: pass
    made = Made()
    value = {value}
    def loss(m, x): return m(x) * value
    """
    assert digest(source) == digest(source)


def test_names_of_libraries_come_with_their_versions() -> None:
    found = Identity(run_code("import torch\ndef loss(m, x): return torch.relu(m(x))")["loss"])
    assert found.versions["torch"] == torch.__version__
    assert found.versions["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"


# --- states ----------------------------------------------------------------------------------------------


def smoother(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none", label_smoothing=0.1)


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(N, 1, 2, 3), torch.arange(N) % 3


def network(scale: float = 1.0) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), Scaled(scale), nn.Linear(6, 3))


class Scaled(nn.Module):
    """Has an attribute that ``repr`` does not show."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def session(
    loss: Callable[..., Tensor] = losses, *, kind: Any = torch.optim.SGD, net: nn.Module | None = None,
    **changes: Any,
) -> PrivateSession:  # fmt: skip
    net = network() if net is None else net
    settings: dict[str, Any] = {"plan": PLAN, "data": data(), "generator": None, **changes}
    return a_session(net, loss=loss, optimizer=kind(net.parameters(), lr=0.1), **settings)


def step_of(run: PrivateSession) -> Tensor:
    """Take a step; return the noisy sum that moved the weights."""
    before = torch.nn.utils.parameters_to_vector(run.model.parameters()).detach().clone()
    one_step(run)
    after = torch.nn.utils.parameters_to_vector(run.model.parameters()).detach()
    return (before - after) / 0.1 * N


DIFFERING: dict[str, tuple[Callable[[], PrivateSession], str]] = {
    "loss": (lambda: session(smoother), r"Different: the loss \(its code, or a value that it reads\)\."),
    "model": (lambda: session(net=network(2.0)), r"Different: the code or the settings of the model\."),
}


@pytest.mark.parametrize("what", DIFFERING)
def test_what_differs_is_said(what: str, tmp_path: Path) -> None:
    first = session()
    step_of(first)
    first.save(tmp_path / "state")
    other, told = DIFFERING[what]
    with pytest.raises(PrivacyRefusal, match=told) as refusal:
        other().load(tmp_path / "state")
    assert "has no noise" in str(refusal.value)
    session().load(tmp_path / "state")


def test_planted_bug_without_the_loss_in_the_state_the_noise_cancels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subtract the releases of two processes: the difference has far less than the noise of two."""
    monkeypatch.setattr(Identity, "under", lambda self, key: "the same")
    session().save(tmp_path / "state")
    released = []
    for loss in (losses, smoother):
        monkeypatch.setattr(noise_reuse, "_TRACES", {})  # as in another process, which knows of no other
        run = session(loss)
        run.load(tmp_path / "state")
        released.append(step_of(run))
    noise = PLAN.noise_multiplier * 0.5
    assert float(released[0].std()) > noise / 2
    assert float((released[0] - released[1]).std()) < 0.3 * noise * 2**0.5


class Shifted(Augmentation):
    """Makes views that are the record plus a constant; its ``repr`` is an address."""

    def __init__(self, by: float) -> None:
        self.by = by

    @property
    def draws(self) -> int:
        return 1

    def views(self, inputs: Tensor, uniforms: Tensor) -> Tensor:
        return inputs.repeat_interleave(uniforms.shape[1], 0) + self.by


@pytest.mark.parametrize(
    ("same", "other"), [(lambda: FlipAndCrop(1), FlipAndCrop(0)), (lambda: Shifted(1.0), Shifted(2.0))]
)
def test_an_augmentation_is_known_by_what_it_does(
    same: Callable[[], Augmentation], other: Augmentation, tmp_path: Path
) -> None:
    session(augmentation=same()).save(tmp_path / "state")
    session(augmentation=same()).load(tmp_path / "state")
    with pytest.raises(PrivacyRefusal, match=r"Different: the augmentation\."):
        session(augmentation=other).load(tmp_path / "state")


SCRIPT = (
    STATEFUL
    + """
import sys
from tacit import Plan, PrivateSession
from tacit.errors import PrivacyRefusal

alpha = {"a": 0.5, "b": 1.5}


class Loss:
    def __init__(self, kinds):
        self.kinds, self.made = kinds, time.perf_counter()
        self.inner = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), reduction="none")

    def __call__(self, m, x, y):
        global calls
        calls += 1
        assert "sum" in {"sum", "mean", "none", "other"} and "a" in self.kinds
        return alpha["a"] * self.inner(m(x), y)


def session(loss):
    torch.manual_seed(0)
    x, y = torch.randn(40, 2), torch.arange(40) % 2
    model = nn.Linear(2, 2)
    plan = Plan.with_noise(
        noise_multiplier=2.0, delta=1e-3, records=40, steps=5, clipping=0.5, unit="row",
        adjacency="add-remove",
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivateSession(model, optimizer, (x, y), plan, loss=loss)


def take(run):
    for batch in run.batches():
        run.step(batch)
        print(run.steps_done, run.model.weight.detach().flatten().tolist())
        if run.steps_done == 3:
            break


def same():
    return Loss(frozenset({"a", "b", "c", "d"}))


if sys.argv[1] == "first":
    run = session(same())
    run.step(next(run.batches()))
    run.save(sys.argv[2])
    take(run)
else:
    other = same()
    other.inner.weight[1] = 3.0
    try:
        session(other).load(sys.argv[2])
    except PrivacyRefusal as refusal:
        print(refusal, file=sys.stderr)
    run = session(same())
    run.load(sys.argv[2])
    take(run)
"""
)


@pytest.mark.untraced
def test_the_next_process_knows_the_loss_again_and_refuses_another(tmp_path: Path) -> None:
    """The strings have other hashes, and the script has another name and irrelevant edits."""
    first = warm.run(SCRIPT, "first", str(tmp_path / "state"))
    assert first.returncode == 0, first.stderr
    (tmp_path / "second.py").write_text("# Moved.\n\n" + SCRIPT.replace("calls += 1", "calls += 1  # so"))
    other_hashes = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    second = subprocess.run(
        [sys.executable, "second.py", "second", "state"],
        env={**os.environ, "PYTHONHASHSEED": other_hashes},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Different: the loss" in second.stderr
    assert "3.0" not in second.stderr
    assert first.stdout == second.stdout  # the same steps, with the same noise


def test_keys_for_states_are_those_of_their_runs(tmp_path: Path) -> None:
    """The digest in a state is keyed, as that of the records is."""
    runs = [session(generator=Generator.from_os()) for _ in range(2)]
    one, two = (run._run.identity(run._run.generator.secret_state()[0])["loss"] for run in runs)
    assert one != two
