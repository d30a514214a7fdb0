"""The example format for a language model, proposed from one line of a file."""

# **Guarantee**
#
# * A proposal holds nothing but names of fields. They depend on the names and the types of the fields of one
#   line alone, never on a text.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
_ANSWERED = (("prompt", "completion"), ("prompt", "response"), ("question", "answer"))
_TEXTS = ("text", "body", "content", "document")
NAMED = frozenset((*FIELDS, *(name for pair in _ANSWERED for name in pair)))
"""Usual names of fields, which an error may print."""


def is_chat(value: object) -> bool:
    """Return whether a value is a list of messages, {"role": ..., "content": ...} with texts."""
    return isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
        for one in value
    )


def proposed_fields(example: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of ``[data]`` that fit an example; empty if its fields show no form.

    >>> proposed_fields({"id": 7, "question": "Why?", "answer": "So."})
    {'prompt': 'question', 'completion': 'answer'}
    """

    def holds(*names: str) -> bool:
        return all(isinstance(example.get(name), str | list) for name in names)

    if holds("chosen", "rejected"):
        alike = isinstance(example.get("prompt"), type(example["chosen"]))
        return {key: key for key in (*["prompt"] * alike, "chosen", "rejected")}
    for prompt, completion in _ANSWERED:
        if holds(prompt, completion):
            return {"prompt": prompt, "completion": completion}
    if chats := [name for name, value in example.items() if value and is_chat(value)]:
        return {"messages": chats[0]}

    texts = [name for name, value in example.items() if isinstance(value, str)]
    usual = [name for name in _TEXTS if name in texts]
    return {"text": (usual or texts)[0]} if usual or len(texts) == 1 else {}


def in_run_file(fields: Mapping[str, str]) -> str:
    """Return settings as they are written in a run file.

    >>> in_run_file({"prompt": "question", "completion": "answer"})
    'prompt = "question", completion = "answer"'
    """
    return ", ".join(f'{key} = "{name}"' for key, name in fields.items())
