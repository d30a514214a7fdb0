"""The example format for a language model, proposed from one line of a file."""

# **Guarantee**
#
# * A proposal holds nothing but names of fields. They depend on the names and the types of the fields of one
#   line alone, never on a text.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from tacit.columns.sections import toml_value

Names: TypeAlias = str | tuple[str, ...]
"""A field, or the fields of a prompt: the first, and others that may be empty."""

FORMS: tuple[tuple[str, ...], ...] = (
    ("text",),
    ("prompt", "completion"),
    ("messages",),
    ("chosen", "rejected"),
    ("prompt", "chosen", "rejected"),
)
"""The keys of ``[data]`` that together name the fields of an example."""
FIELDS = tuple(dict.fromkeys(key for form in FORMS for key in form))
FORMS_IN_WORDS = (
    "text for documents; prompt and completion; messages for chats; or chosen and rejected for preferences, "
    "with prompt unless they are chats"
)
_ANSWERED: tuple[tuple[Names, str], ...] = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    (("instruction", "input"), "output"),  # Alpaca
    (("instruction", "context"), "response"),  # Dolly
    ("instruction", "output"),
    ("instruction", "response"),
)
_TEXTS = ("text", "body", "content", "document")
_ROLES = {"human": "user", "gpt": "assistant"}
"""Roles that ShareGPT's files name otherwise."""


def each_of(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


NAMED = frozenset((*FIELDS, *(name for pair in _ANSWERED for names in pair for name in each_of(names))))
"""Usual names of fields, which an error may print."""


def messages_of(value: object) -> list[dict[str, Any]] | None:
    """Return a chat as messages {"role": ..., "content": ...}; None if the value is no chat.

    A message may be written as ShareGPT's files do, {"from": "human" or "gpt", "value": ...}.

    >>> messages_of([{"from": "human", "value": "Hello"}])
    [{'role': 'user', 'content': 'Hello'}]
    """
    if not isinstance(value, list):
        return None

    messages = []
    for one in value:
        if not isinstance(one, dict):
            return None
        message = one
        if "from" in one and "role" not in one:
            message = {"role": one["from"], "content": one.get("value")}
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            return None
        if message is not one:
            message["role"] = _ROLES.get(message["role"], message["role"])
        messages.append(message)
    return messages


def proposed_fields(example: Mapping[str, Any]) -> dict[str, Names]:
    """Return the keys of ``[data]`` that fit an example; empty if its fields show no form.

    >>> proposed_fields({"id": 7, "question": "Why?", "answer": "So."})
    {'prompt': 'question', 'completion': 'answer'}
    """

    def holds(*fields: Names) -> bool:
        return all(isinstance(example.get(name), str | list) for names in fields for name in each_of(names))

    if holds("chosen", "rejected"):
        alike = isinstance(example.get("prompt"), type(example["chosen"]))
        return {key: key for key in (*["prompt"] * alike, "chosen", "rejected")}
    for prompt, completion in _ANSWERED:
        if holds(prompt, completion):
            return {"prompt": prompt, "completion": completion}
    if chats := [name for name, value in example.items() if value and messages_of(value)]:
        return {"messages": chats[0]}

    texts = [name for name, value in example.items() if isinstance(value, str)]
    usual = [name for name in _TEXTS if name in texts]
    return {"text": (usual or texts)[0]} if usual or len(texts) == 1 else {}


def in_run_file(fields: Mapping[str, Names]) -> str:
    """Return settings as they are written in a run file.

    >>> in_run_file({"prompt": ("instruction", "input"), "completion": "output"})
    'prompt = ["instruction", "input"], completion = "output"'
    """
    return ", ".join(f"{key} = {toml_value(names)}" for key, names in fields.items())
