"""What is wrong with the section [canaries]? Found without torch, before any record is read."""

from __future__ import annotations

from tacit.errors import InvalidInput, PrivacyRefusal
from tacit.runs.catalogue import NAMES_ALPHABET, NAMES_LONGEST
from tacit.runs.config import CanariesSection, Config, DataSection

TAG = "{name}"
"""The place of the canary's name in its prefix."""
_PRINTABLE = "".join(map(chr, range(32, 127)))
_MOST_SECRETS = 2**62
_LARGEST_SHARE = 0.2  # of the records that may be canaries: a model learns nothing useful from them


def check_canaries(config: Config) -> str | None:
    """The characters of the records, in which canaries are written; None if the configuration has none.

    Raises:
        InvalidInput: the section describes canaries that these records cannot hold.
        PrivacyRefusal: the coin of a canary changes the number of records, which is public.
    """
    section = config.canaries
    if not section.count:
        _refuse_without_count(section)
        return None
    alphabet, longest = _declared(config.data)
    if config.privacy.adjacency != "add-remove":
        raise PrivacyRefusal(
            f"canaries are added by a secret coin, and under {config.privacy.adjacency} the number of "
            'records is public and fixed. Take adjacency = "add-remove", or no canaries.'
        )
    if len(section.count) != len(section.copies) or len(set(section.copies)) < len(section.copies):
        raise InvalidInput(
            f"[canaries] count = {section.count} must have one number for each of copies = {section.copies}, "
            "which must all differ."
        )
    if section.prefix.count(TAG) != 1:
        raise InvalidInput(
            f'[canaries] prefix = "{section.prefix}" must hold {TAG} once: two secrets after one prefix '
            "would compete for one place."
        )
    if len(set(letters_of(alphabet))) < 2:
        raise InvalidInput(
            f"[data] alphabet = {alphabet!r} has too few characters for [canaries], each of which has a tag "
            "of its own. Declare at least two beside the space, or plant no canaries."
        )
    needed = section.prefix.replace(TAG, "") + section.alphabet
    if missing := [character for character in needed if character not in alphabet]:
        raise InvalidInput(
            f"[canaries] prefix and alphabet need {missing[0]!r}, which no record may hold. Add it to "
            "[data] alphabet, or write the canaries without it; those of documents are in ASCII."
        )
    if len(section.alphabet) ** section.length > _MOST_SECRETS:
        raise InvalidInput(f"[canaries] length = {section.length} makes more secrets than can be counted.")
    tag = tag_length(alphabet, sum(section.count))
    characters = len(section.prefix) - len(TAG) + tag + section.length
    if characters > longest:
        raise InvalidInput(
            f"[canaries] have {characters} characters, and the longest record has {longest}. Take a shorter "
            "prefix or length, or a larger [data] longest."
        )
    most = sum(count * copies for count, copies in zip(section.count, section.copies, strict=True))
    if most > _LARGEST_SHARE * config.privacy.records:
        raise InvalidInput(
            f"[canaries] are up to {most} lines beside {config.privacy.records} records; at most "
            f"{100 * _LARGEST_SHARE:g} % may be, as a model learns nothing useful from them. Plant fewer."
        )
    return alphabet


def _declared(section: DataSection) -> tuple[str, int]:
    """The alphabet and the longest line of a text, before any of it is read."""
    if section.name == "names":
        return NAMES_ALPHABET, NAMES_LONGEST
    if section.corpus is not None and section.sequence_length is not None:
        return _PRINTABLE, section.sequence_length  # one token for each character
    if section.text is None or section.alphabet is None or section.longest is None:
        raise InvalidInput(
            "[canaries] are lines of text; they need [data] text with its alphabet and longest, jsonl, or "
            'name = "names".'
        )
    return section.alphabet, section.longest


def letters_of(characters: str) -> str:
    """The characters of tags: letters, where there are two."""
    letters = "".join(character for character in characters if character.isalpha())
    return letters if len(letters) > 1 else characters.replace(" ", "")


def tag_length(characters: str, count: int) -> int:
    """How long tags must be for ``count`` of them to differ."""
    length = 2
    while len(letters_of(characters)) ** length < 4 * count:
        length += 1
    return length


def _refuse_without_count(section: CanariesSection) -> None:
    given = sorted(section.model_fields_set - {"count"})
    if given or "count" in section.model_fields_set:
        raise InvalidInput(
            "[canaries] count is missing or empty, so none would be planted. Say how many canaries for each "
            "number of copies, such as count = [60, 20, 10] for copies = [1, 4, 16]."
        )


def check_nothing_planted(config: Config) -> None:
    """Refuse audit slots and canaries where the batches are drawn beforehand, without them; and people.

    Raises:
        InvalidInput: the configuration plants some, or a record is a person with several rows.
    """
    if config.data.rows_per_user is not None:
        raise InvalidInput(
            "`tacit batches` draws single sequences, and with [data] rows_per_user a record is a person "
            "with several. Train from the corpus itself."
        )
    if config.data.date is not None:
        raise InvalidInput(
            "`tacit batches` draws samples, and [data] date takes the documents by date. Train from the "
            "corpus itself."
        )
    for name, given in (("[audit] slots", config.audit.slots), ("[canaries]", config.canaries.count)):
        if given:
            raise InvalidInput(
                f"{name} are planted among the records before batches are drawn, and `tacit batches` plants "
                "none. Leave them out, or train from the corpus itself."
            )
