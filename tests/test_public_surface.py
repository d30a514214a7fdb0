"""The public surface: listed names exist, are documented and take no blind keywords; imports are light."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tacit
from tacit.errors import TacitError

ROOT = Path(tacit.__file__).parent
PACKAGES = {"tacit", *(f"tacit.{part.name}" for part in ROOT.iterdir() if (part / "__init__.py").exists())}
# Faces, from which users or other parts import: the folders, the modules beside them, those for a library.
LIBRARIES = {"sklearn", "transformers", "lightning", "dp_accounting", "flower"}
# Beside the faces, for the house:
OURS = ("files", "notebook", "rounding", "serial", "__main__")
INTERNAL = {f"tacit.{name}" for name in OURS}
JIT = "tacit.native.jit"  # hands on what Triton has, where it is installed
FACES = {
    *(".".join(path.parent.relative_to(ROOT.parent).parts) for path in ROOT.rglob("__init__.py")),
    *(f"tacit.{path.stem}" for path in ROOT.glob("*.py") if path.stem != "__init__"),
    *(f"tacit.integrations.{name}" for name in LIBRARIES),
    JIT,
} - INTERNAL
# Handlers inside the fast engine: each takes the arguments of the torch function that it stands for.
INSIDE = "tacit.clipping.per_example."
# Names that are free by nature, not settings.
FREE_NAMES = {
    ("tacit.clipping.per_example.use", "derive"),  # an operation and what it is called with
    ("tacit.integrations.transformers", "on_train_begin"),  # callbacks, which get more with each version
    ("tacit.integrations.transformers", "on_save"),
    ("tacit.integrations.transformers", "hyperparameter_search"),  # refuses whatever it is given
    ("tacit.cli.terminal", "option"),  # Typer and rich refuse what they do not know, templates what they lack
    ("tacit.cli.terminal", "argument"),
    ("tacit.cli.terminal", "words"),
    ("tacit.cli.terminal", "plain_table"),
    ("tacit.report.document", "page"),
    ("tacit.report.document", "render"),
    ("tacit.queries.statements", "sql"),  # the names in a fixed text of SQL
    ("tacit.plan.plan", "facts_of"),  # others are a plan's fields: its constructor refuses unknown ones
    ("tacit.integrations.transformers", "training_arguments"),  # which refuse others
}
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


# Flower excludes versions of other packages that we use: `make test-flower` has an environment of its own.
ABSENT = {"tacit.integrations.flower"} if importlib.util.find_spec("flwr") is None else set()


def all_modules() -> list[str]:
    files = (path.relative_to(ROOT.parent).with_suffix("") for path in ROOT.rglob("*.py"))
    return sorted({".".join(path.parts).removesuffix(".__init__") for path in files} - ABSENT)


MODULES = all_modules()
API = [name for name in MODULES if not name.startswith(INSIDE)]


@functools.cache
def tree_of(module: ModuleType) -> ast.Module:
    return ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))


def defines_something(tree: ast.Module) -> bool:
    return any(not isinstance(node, ast.Expr) for node in tree.body)


def test_all_modules_are_found() -> None:
    found = {part.name for part in pkgutil.iter_modules([str(ROOT)], "tacit.")}
    assert found | {"tacit", "tacit.accounting.pld", "tacit.integrations.sklearn"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_all_is_what_can_be_imported(name: str) -> None:
    """A face lists what it offers; in another file underscores say what is for itself."""
    module = importlib.import_module(name)
    if name not in FACES:
        assert not hasattr(module, "__all__"), "only what users import from lists its names"
        return
    if not defines_something(tree_of(module)):
        return
    listed = module.__all__
    assert len(set(listed)) == len(listed), "a name is listed twice"
    got: dict[str, Any] = {}
    exec(f"from {name} import *", got)
    assert set(got) - {"__builtins__"} == set(listed)
    if name in ("tacit", "tacit.pretrained", "tacit.runs"):  # which load their names when they are asked for
        return
    if name in PACKAGES:
        offered = {
            key
            for key, value in vars(module).items()
            if not key.startswith("_")
            and not inspect.ismodule(value)
            and key not in ("annotations", "TYPE_CHECKING")
        }
        assert offered == set(listed), "a package offers exactly what it lists"
    elsewhere = {
        key
        for key in listed
        if inspect.isclass(value := getattr(module, key)) and not value.__module__.startswith("tacit")
    }
    assert not elsewhere, "what is listed is Tacit's own"


@pytest.mark.parametrize("name", API)
def test_what_is_public_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    tree = tree_of(module)
    if tree.body:
        assert module.__doc__, "the module says nothing of itself"
    for key in getattr(module, "__all__", ()):
        value = getattr(module, key)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        assert own_docstring(value), f"{name}.{key} has no docstring"
        if not inspect.isclass(value):
            continue
        for method, found in vars(value).items():
            own = getattr(found, "__qualname__", "").startswith(f"{value.__qualname__}.")
            is_code = (inspect.isfunction(found) and own) or isinstance(
                found, property | classmethod | staticmethod
            )
            if is_code and not method.startswith("_"):
                assert inspect.getdoc(getattr(value, method)), f"{name}.{key}.{method} has no docstring"


def own_docstring(value: Any) -> str | None:
    """Not the one that ``dataclass`` makes from the fields."""
    text: str | None = value.__doc__
    return None if text is None or text.startswith(f"{value.__name__}(") else text


def public_functions(tree: ast.Module) -> Iterator[FunctionNode]:
    for node in tree.body:
        if isinstance(node, FunctionNode) and not node.name.startswith("_"):
            yield node
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, FunctionNode) and (
                    not inner.name.startswith("_") or inner.name == "__init__"
                ):
                    yield inner


def blind(function: FunctionNode) -> bool:
    """Whether it takes keywords that are neither listed nor typed one by one."""
    taken = function.args.kwarg
    return taken is not None and "Unpack[" not in ast.unparse(taken)


@pytest.mark.parametrize("name", API)
def test_no_public_signature_takes_blind_keywords(name: str) -> None:
    tree = tree_of(importlib.import_module(name))
    found = [f.name for f in public_functions(tree) if blind(f) and (name, f.name) not in FREE_NAMES]
    assert not found, f"{name}: **kwargs in {found}: a misspelt privacy setting would be ignored in silence"


def test_the_check_for_blind_keywords_sees_them() -> None:
    source = "class A:\n def __init__(self, **kw): ...\ndef f(*, a, **b): ...\ndef g(a, **c: Unpack[C]): ..."
    found = [function.name for function in public_functions(ast.parse(source)) if blind(function)]
    assert found == ["__init__", "f"]


# --- the few names a user starts with --------------------------------------------------------------------


def test_lazy_names_are_the_objects_themselves_and_are_typed_as_such() -> None:
    tree = tree_of(tacit)
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: statement.module
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert set(typed) == set(tacit.__all__) - {"__version__"}
    for name, home in typed.items():
        assert getattr(tacit, name) is getattr(importlib.import_module(str(home)), name)
    assert set(tacit.__all__) <= set(dir(tacit))
    assert tacit.TacitError is TacitError
    with pytest.raises(AttributeError, match="no attribute 'PrivacyEngine'"):
        _ = tacit.PrivacyEngine  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="PrivacyEngine"):
        exec("from tacit import PrivacyEngine")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_tacit_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'scipy', 'sklearn'}"
    code = f"import sys, tacit; dir(tacit); print(sorted({heavy} & set(sys.modules)))"
    assert run(code).strip() == "[]"


def test_planning_and_accounting_import_no_torch() -> None:
    names = (
        "errors", "events", "columns", "accounting", "sampling", "noise", "native", "plan", "clipping",
        "ledger", "queries", "audits",
    )  # fmt: skip
    code = f"""
import importlib, sys
for name in {names}:
    importlib.import_module("tacit." + name)
    assert "torch" not in sys.modules, name
print("none")
"""
    assert run(code).strip() == "none"


def test_columns_import_no_frame_and_no_engine() -> None:
    heavy = ["pandas", "polars", "pyarrow", "duckdb", "torch", "scipy"]
    code = f"import sys, tacit.columns; print([name for name in {heavy} if name in sys.modules])"
    assert run(code).strip() == "[]"


def test_a_run_is_planned_and_priced_where_torch_is_not_installed() -> None:
    code = """
import sys
sys.modules["torch"] = None
import tacit
plan = tacit.Plan.calibrate(
    epsilon=2.0, delta=1e-5, records=10_000, batch_size=100, epochs=1, clipping=tacit.FlatClipping(1.0),
    adjacency="add-remove", unit="row",
)
print(plan.epsilon <= 2.0)
try:
    tacit.PrivateSession
except ImportError as problem:
    print(problem.name)
"""
    assert run(code).split() == ["True", "torch"]
