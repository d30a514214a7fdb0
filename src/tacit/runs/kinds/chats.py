"""Chats as tokens, by the chat template of a tokenizer, with the tokens of the assistant's turns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from tacit.errors import InvalidInput, needed, without_values
from tacit.pretrained.finding import ModelFolder

if TYPE_CHECKING:  # a run file is checked without torch
    from tacit.datasets.text import Answered

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""The beginning of an answer in a template that marks answers."""

Messages = Sequence[Mapping[str, Any]]


@final
class ChatTemplate:
    """The chat template of the tokenizer in a folder; no other code of the folder is run."""

    def __init__(self, folder: ModelFolder) -> None:
        if folder.chat_template is None:
            raise InvalidInput(
                f"the tokenizer in {folder.path} has no chat template (chat_template.jinja). Choose a chat "
                "model, add the file, or write the chats as prompt and completion."
            )
        fast = needed("transformers", "transformers", "[data] messages").PreTrainedTokenizerFast
        self._tokenizer = fast.from_pretrained(folder.path, local_files_only=True)
        self._template = folder.chat_template
        self._roles: set[str] = set()

    def encode(self, prompt: Messages, answer: Messages, where: str) -> Answered:
        """Encode a chat; the assistant's turns in ``answer`` are learned.  ``where`` names it in errors."""
        from tacit.datasets.text import Answered

        turns = [*prompt, *answer]
        self._check_roles(turns, where)
        if _MARKS.search(self._template):
            marked = self._applied(turns, where, return_dict=True, return_assistant_tokens_mask=True)
            whole, learned = marked["input_ids"], [bool(mark) for mark in marked["assistant_masks"]]
            start = self._length(prompt, whole, where)
            learned[:start] = [False] * start
        else:
            whole = self._tokens(turns, where)
            learned = [False] * len(whole)
            for place in range(len(prompt), len(turns)):
                if turns[place]["role"] == "assistant":
                    first = self._length(turns[:place], whole, where, add_generation_prompt=True)
                    last = self._length(turns[: place + 1], whole, where)
                    learned[first:last] = [True] * (last - first)
        return Answered(whole, learned)

    def begin(self, turns: Messages, where: str) -> list[int]:
        """Encode a chat up to the beginning of the assistant's next turn."""
        self._check_roles(turns, where)
        return self._tokens(turns, where, add_generation_prompt=True)

    def _length(self, turns: Messages, whole: list[int], where: str, **settings: Any) -> int:
        """Return how many of the tokens of a whole chat belong to its first turns."""
        beginning = self._tokens(turns, where, **settings)
        if whole[: len(beginning)] != beginning:
            raise InvalidInput(
                f"{where}: the chat template writes the first {len(turns)} turns differently if more follow, "
                "so the assistant's tokens cannot be located. Mark them with {% generation %} in the "
                "template, or write prompt and completion."
            )
        return len(beginning)

    def _check_roles(self, turns: Messages, where: str) -> None:
        """Refuse a role that the template leaves out; each role is tried once."""
        for place, turn in enumerate(turns):
            if turn["role"] not in self._roles:
                self._roles.add(turn["role"])
                others = [*turns]
                others[place] = {**turn, "content": turn["content"] + "x"}
                # As texts: a tokenizer may write both contents in the same tokens.
                before, after = (self._applied(each, where, tokenize=False) for each in (turns, others))
                if before == after:
                    raise InvalidInput(
                        f"{where}: the chat template omits turn {place + 1}, whose role it does not support. "
                        "Usual roles are system, user and assistant."
                    )

    def _tokens(self, turns: Messages, where: str, **settings: Any) -> list[int]:
        tokens: list[int] = self._applied(turns, where, return_dict=False, **settings) if turns else []
        return tokens

    def _applied(self, turns: Messages, where: str, **settings: Any) -> Any:
        from jinja2 import TemplateSyntaxError  # the extra cli; a run file is checked without it

        try:
            return self._tokenizer.apply_chat_template([*turns], chat_template=self._template, **settings)
        except TemplateSyntaxError as problem:
            raise InvalidInput(
                f"the tokenizer's chat template is not valid Jinja at line {problem.lineno}. Correct "
                "chat_template.jinja in the model's folder."
            ) from None
        except Exception as problem:  # noqa: BLE001  # its message may show the record
            raise InvalidInput(
                f"{where}: the chat template refuses the messages ({without_values(problem)}). Use the "
                "roles it supports; turns of user and assistant may have to alternate."
            ) from None
