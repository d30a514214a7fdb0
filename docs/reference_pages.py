"""Write the site's reference from the code: API, command line, keys of a run file, and errors."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tacit

__all__ = ["homes", "write_pages"]

ROOT = Path(tacit.__file__).parent
PARTS = Path(__file__).parent / "reference" / "python.md"
INTERNAL = {"cli", "files", "launched", "moved", "native", "notebook", "rounding", "serial", "strength"}
INTEGRATIONS = ("sklearn", "transformers", "lightning", "dp_accounting")
CLI_HEAD = """\
# Command line

`tacit VERB --help` prints the same. Exit codes: 0 done, 1 refused by a privacy rule or a budget, 2 bad
usage or bad input, 130 interrupted. `tacit --version` prints the version.
"""
KEYS_HEAD = """\
# Keys of a run file

`tacit train`, `tacit plan`, `tacit batches` and `tacit attack` read a run file in TOML. A key that is not
listed here is an error that names the nearest one; nothing is ignored. *required* keys have no default,
because each changes what the promise means or what is trained.
"""
ERRORS_HEAD = """\
# Errors and their causes

Every error that a user can cause derives from `tacit.TacitError`. Its message says what happened, why it is
refused, and the fix. The command line prints the message and ends with the exit code of its class.
[What is refused](../../how-to/troubleshooting.md#what-is-refused) has those that people meet, with reasons.

| class | exit code | cause |
|---|---|---|"""


def write_pages(folder: Path) -> None:
    """Write all pages into ``folder``, except unchanged ones, so that Sphinx skips them."""
    pages = {**api_pages(), "cli.md": cli_page(), "run-file.md": toml_page(), "errors.md": errors_page()}
    folder.mkdir(parents=True, exist_ok=True)
    for stale in {path for path in folder.iterdir() if path.is_file()} - {folder / name for name in pages}:
        stale.unlink()
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


# --- the API ---------------------------------------------------------------------------------------------


def public_modules() -> list[str]:
    """Return the modules that a user may import from, integrations included."""
    parts = sorted(part.name for part in pkgutil.iter_modules([str(ROOT)]) if not part.name.startswith("_"))
    found = [f"tacit.{part}" for part in parts if part not in {*INTERNAL, "integrations"}]
    return ["tacit", *found, *(f"tacit.integrations.{name}" for name in INTEGRATIONS)]


def homes() -> dict[str, dict[str, str]]:
    """Return the page of each public name, by module: that of the first module that exports the object."""
    described: dict[int, str] = {}
    table: dict[str, dict[str, str]] = {}
    for module_name in sorted(public_modules(), key=lambda name: name == "tacit"):
        module = importlib.import_module(module_name)
        table[module_name] = {}
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                table[module_name][name] = described.setdefault(id(value), f"{module_name}.{name}")
            else:
                table[module_name][name] = f"{module_name}.{name}"
    return table


def api_pages() -> dict[str, str]:
    """Return a page for each public class and function, and one for each module, which lists its names."""
    pages = {"modules.txt": modules_list()}
    for module_name, names in homes().items():
        pages[f"{module_name}.rst"] = _module_page(module_name, names)
        for name, home in names.items():
            value = getattr(importlib.import_module(module_name), name)
            if home != f"{module_name}.{name}":
                continue
            if inspect.isclass(value) or inspect.isfunction(value):
                directive = "autoclass" if inspect.isclass(value) else "autofunction"
                pages[f"{home}.rst"] = "\n".join([*_title(name), f".. {directive}:: {home}", ""])
    return pages


def modules_list() -> str:
    """Return the list of modules that reference/python.md includes: each with its first sentence."""
    summaries = {name: _summary(importlib.import_module(name)) for name in _parts()}
    return "".join(f"* [`{name}`](generated/{name}.rst): {told}\n" for name, told in summaries.items())


def _module_page(module_name: str, names: dict[str, str]) -> str:
    module = importlib.import_module(module_name)
    lines = [*_title(module_name), f".. module:: {module_name}", ""]
    lines += [*inspect.cleandoc(module.__doc__ or "").splitlines(), ""]
    # In the order in which a user meets them: that of the parts in reference/python.md.
    parts = _parts()
    by_use = sorted(names.items(), key=lambda item: parts.index(_part_of(item[1])))
    objects, data, own_pages = [], [], []
    for name, home in by_use:
        value = getattr(module, name)
        if name.startswith("__"):
            continue
        if inspect.ismodule(value):
            objects.append(f"* :py:mod:`{name} <{value.__name__}>`: {_summary(value)}")
        elif inspect.isclass(value) or inspect.isfunction(value):
            role = "class" if inspect.isclass(value) else "func"
            objects.append(f"* :py:{role}:`{name} <{home}>`: {_summary(value)}")
            own_pages += [f"   {home}"] if home == f"{module_name}.{name}" else []
        elif type(value).__module__.partition(".")[0] in ("types", "typing"):
            data += [f".. py:data:: {home}", "", f"   A type: ``{_short(value)}``.", ""]
        else:
            data += [f".. py:data:: {home}", "", f"   {_data(value)}", ""]
    lines += [*objects, "", *data]
    if own_pages:
        lines += [".. toctree::", "   :hidden:", "", *own_pages]
    return "\n".join(lines) + "\n"


def _parts() -> list[str]:
    return re.findall(r"^generated/(\S+)$", PARTS.read_text(encoding="utf-8"), re.MULTILINE)


def _part_of(home: str) -> str:
    part = home.rpartition(".")[0]
    return home if part == "tacit" and home.removeprefix("tacit.") in ("collate", "losses") else part


def _title(name: str) -> list[str]:
    return [name, "=" * len(name), ""]


def _summary(value: object) -> str:
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")


def _data(value: object) -> str:
    if isinstance(value, tuple | frozenset | Mapping):
        return "Of: " + ", ".join(f"``{getattr(one, '__name__', one)}``" for one in value) + "."
    return f"An instance of :py:class:`{type(value).__name__}`: ``{value}``"


def _short(value: object) -> str:
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(value))


# --- the command line ------------------------------------------------------------------------------------


def cli_page() -> str:
    """Return the page of all commands, with their arguments and options as in ``--help``."""
    import typer

    from tacit.cli.app import make_app

    verbs = typer.main.get_command(make_app([])).commands  # type: ignore[attr-defined]
    lines = [CLI_HEAD]
    for verb in verbs:
        command = typer.main.get_command(make_app([verb])).commands[verb]  # type: ignore[attr-defined]
        lines += _command(f"tacit {verb}", command)
        for name, inner in getattr(command, "commands", {}).items():
            lines += _command(f"tacit {verb} {name}", inner, level=3)
    return "\n".join(lines) + "\n"


def _command(title: str, command: Any, level: int = 2) -> list[str]:
    lines = [f"{'#' * level} `{title}`", "", _prose(command.help or ""), ""]
    rows = [row for parameter in command.params if (row := _parameter(parameter))]
    if rows:
        lines += ["| | meaning | default |", "|---|---|---|", *rows, ""]
    return lines


def _parameter(parameter: Any) -> str:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return ""
    names = [*parameter.opts, *parameter.secondary_opts]
    shown = ", ".join(f"`{name}`" for name in names)
    if parameter.param_type_name == "argument":
        shown = f"`{parameter.metavar or parameter.name.upper()}`"
    help_text = _cell(parameter.help or "")
    default = parameter.default
    told = "required" if parameter.required else _default(getattr(default, "value", default))
    return f"| {shown} | {help_text} | {told} |"


def _default(value: object) -> str:
    if value is None or value is False or value == [] or value == () or callable(value):
        return ""
    return f"`{value}`"


def _prose(text: str) -> str:
    """Convert a docstring or ``--help`` text to Markdown; ``\\b`` keeps the line breaks after it."""
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        if part.startswith("\b"):
            parts.append("```text\n" + part.lstrip("\b\n") + "\n```")
        elif part.startswith("Example:"):
            parts.append("```sh\n" + re.sub(r"\s+", " ", part.removeprefix("Example:")).strip() + "\n```")
        else:
            parts.append(_escape(part))
    return "\n\n".join(parts)


def _escape(text: str) -> str:
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text.replace("``", "`"))
    text = re.sub(r"(?<![\w`-])--[a-z][a-z-]*", r"`\g<0>`", text)  # options
    code = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\[\]<>*_$])", r"\\\1", part) for part in code)


def _cell(text: str) -> str:
    return _escape(text).replace("\n", " ").replace("|", "\\|")


# --- the keys of a run file ------------------------------------------------------------------------------


def toml_page() -> str:
    """Return the page of a run file's sections and keys, from the classes that read them."""
    from tacit.columns import Column, Dialect
    from tacit.runs.config import Config

    lines = [KEYS_HEAD]
    for name, field in Config.model_fields.items():
        section = field.annotation
        if inspect.isclass(section) and hasattr(section, "model_fields"):
            lines += [f"## `[{name}]`", "", _prose(section.__doc__ or ""), ""]
            lines += ["| key | value | default |", "|---|---|---|"]
            for key, inner in section.model_fields.items():
                default = (
                    "required" if inner.is_required() else _toml(inner.get_default(call_default_factory=True))
                )
                lines.append(f"| `{key}` | {_kind(inner.annotation)} | {default} |")
            lines.append("")
    for title, kind, words in (
        (
            "[columns.NAME]",
            Column,
            "A column ([describe a table](../../how-to/prepare-data.md#describe-a-table)).",
        ),
        ("[table]", Dialect, "How the file of a table is written."),
    ):
        lines += [f"## `{title}`", "", words, "", "| key | value | default |", "|---|---|---|"]
        types_of = typing.get_type_hints(kind)
        for key in dataclasses.fields(kind):
            default = "" if key.default is dataclasses.MISSING else _toml(key.default)
            if key.default is key.default_factory is dataclasses.MISSING:
                default = "required"
            lines.append(f"| `{key.name}` | {_kind(types_of[key.name])} | {default} |")
        lines.append("")
    lines += [
        "## `[card]`",
        "",
        "What the model card says of its publisher"
        " ([using a model](../../how-to/reading-a-run.md#what-the-files-say)).",
        "",
    ]
    lines += ["## `notes`", "", "A list of sentences for the statement, before the first section.", ""]
    return "\n".join(lines) + "\n"


def _kind(annotation: Any) -> str:
    """Return a type's name in TOML's terms."""
    words = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    if annotation in words:
        return words[annotation]
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _kind(inside[0])
    if origin is typing.Literal:
        return ", ".join(f'`"{value}"`' for value in inside)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(part) for part in inside if part is not type(None))
    if origin in (list, tuple):
        return f"list of {_kind(inside[0])}s" if inside and inside[0] in words else "list"
    if origin is dict:
        return "table"
    return "table" if annotation is dict else _cell(getattr(annotation, "__name__", str(annotation)))


def _toml(value: object) -> str:
    if value is None or value in ((), [], {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


# --- errors ----------------------------------------------------------------------------------------------


def errors_page() -> str:
    """Return the page of error classes, with the text of each error that the code can raise."""
    from tacit import errors

    lines = [ERRORS_HEAD]
    for name in errors.__all__:
        kind = getattr(errors, name)
        if inspect.isclass(kind):
            code = getattr(kind, "exit_code", None)
            lines.append(f"| `{name}` | {'a warning' if code is None else code} | {_cell(_first(kind))} |")
    lines += [
        "",
        "## Messages",
        "",
        "Search this page for the words of a message. `…` stands for what differs from case to case.",
        "",
    ]
    for name, by_part in sorted(_messages().items()):
        lines += [f"### {name}", ""]
        for part, texts in sorted(by_part.items()):
            lines += [f"**`{part}`**", "", *(f"* {_escape(text)}" for text in sorted(set(texts))), ""]
    return "\n".join(lines) + "\n"


def _first(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]


def _messages() -> dict[str, dict[str, list[str]]]:
    from tacit import errors

    known = {name for name in errors.__all__ if inspect.isclass(getattr(errors, name))}
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(ROOT.rglob("*.py")):
        part = ".".join(("tacit", *path.relative_to(ROOT).with_suffix("").parts[:1]))
        for name, text in _raised(ast.parse(path.read_text(encoding="utf-8")), known):
            found[name][part].append(text)
    return found


def _raised(tree: ast.AST, known: set[str]) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in known - {"MissingExtra"}
            and node.args
        ):
            fields = {word.arg: _template(word.value) for word in node.keywords}
            what = f"{fields.get('argument', '')} {_template(node.args[0])}".replace(" :", ":").strip()
            what += "." if {"argument", "fix"} & fields.keys() else ""
            text = " ".join(filter(None, (what, fields.get("why"), fields.get("fix"))))
            if len(re.sub(r"[^a-z]", "", text)) > 15:
                yield node.func.id, text


def _template(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_template(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
    return "…"
