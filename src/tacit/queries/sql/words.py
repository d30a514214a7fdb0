"""The words that a statement may contain; all others are refused, with an error that points at the word.

This is the first of two checks of a statement; the second checks the tree. This one reads the words alone,
before parsing, so that words that the parser ignores, as in ``count(ALL x)``, are refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from sqlglot.dialects import DuckDB
from sqlglot.errors import TokenError

from tacit.errors import InvalidInput, TacitError

_LONGEST = 20_000  # characters; far above any human question
_MOST_WORDS = 4_000
_DEEPEST = 40  # nested brackets, or NOTs in a row; the parser is recursive
_SHOWN = 76  # characters of the line shown in an error

ONE_TABLE = (
    "a statement reads one table: a join would repeat a person's rows, and the noise would no longer hide "
    "that person. Join beforehand, and open the result with a policy whose parent is the first table"
)
"""The reason why there are no joins, and the fix."""

_NO_ROWS = "rows are never shown, only aggregates with noise"
NO_ARITHMETIC = (
    "there is no arithmetic on columns, whose result would have no declared bounds: prepare the column "
    "beforehand and declare it in the policy"
)
_NO_FUNCTIONS = "only names of columns and literals stand in a condition: prepare the column beforehand"
_ONE_QUESTION = "ask one question at a time: each is priced and charged separately"
_READ_ONLY = "a statement only reads: it cannot write, set or load anything"
_SORTED = (
    "rows come in the order of their keys, which reveals nothing: sort or shorten the answer, which is free"
)
_NO_CASTS = "there are no casts: the policy says of what kind a column is"
_NO_PATTERNS = "there are no patterns: list the values with IN"
_PLAIN_STRING = "write a string in plain single quotes, a quote inside it twice"
_NO_WINDOWS = f"window functions show single rows, and {_NO_ROWS}"

# For each reason to refuse a word, with its fix, sqlglot's names for the kinds of such words.
_REASONS = {
    ONE_TABLE: "JOIN STRAIGHT_JOIN CROSS NATURAL LATERAL ASOF USING ON INNER OUTER LEFT RIGHT FULL SEMI ANTI "
    "POSITIONAL UNION EXCEPT INTERSECT WITH EXISTS RECURSIVE TABLE_SAMPLE PIVOT UNPIVOT UNNEST VALUES ONLY "
    "FINAL FROM",
    _READ_ONLY: "INTO COPY INSERT UPDATE DELETE CREATE DROP ALTER PRAGMA ATTACH DETACH SET COMMAND LOAD "
    "INSTALL EXECUTE TRUNCATE MERGE USE CALL RESET BEGIN COMMIT ROLLBACK",
    _NO_ROWS: "DESCRIBE SUMMARIZE SHOW EXPLAIN ANALYZE",
    NO_ARITHMETIC: "PLUS SLASH DIV MOD CARET DPIPE AMP PIPE DSTAR",
    _NO_CASTS: "DCOLON CAST TRY_CAST",
    "write a date as a text: '2020-01-31'": "DATE TIMESTAMP DATETIME TIME",
    _NO_PATTERNS: "LIKE ILIKE GLOB RLIKE SIMILAR_TO TILDE IRLIKE",
    "write the value itself into the statement": "PARAMETER PLACEHOLDER COLON SESSION_PARAMETER",
    _PLAIN_STRING: "BYTE_STRING HEREDOC_STRING RAW_STRING HEX_STRING BIT_STRING NATIONAL_STRING "
    "UNICODE_STRING",
    _NO_WINDOWS: "OVER WINDOW QUALIFY PARTITION_BY",
    _SORTED: "LIMIT OFFSET FETCH ORDER_BY SORT_BY",
    _NO_FUNCTIONS: "CASE WHEN THEN ELSE END ANY SOME ARROW DARROW L_BRACE STRUCT MAP INTERVAL",
    "filter the answer, which is free: every group is released anyway": "HAVING",
    "write the condition after WHERE; two conditions are two questions": "FILTER",
    "nothing stands next to this comma: leave it out": "COMMA",
    "only units can be counted once each: count(DISTINCT unit_column)": "DISTINCT",
    "name the columns of GROUP BY one by one, and leave ALL out elsewhere": "ALL",
    "there is one table and no schema: write the bare name. A number begins with a digit": "DOT",
    f"a minus stands only before a number; {NO_ARITHMETIC}": "DASH",
    "brackets stand only around the edges of a histogram: histogram(age, [0, 20, 40])": "L_BRACKET R_BRACKET",
    f"there are no subqueries: {ONE_TABLE}": "SELECT",
    _ONE_QUESTION: "SEMICOLON WHERE GROUP_BY",
}
_REASON_OF = {kind: reason for reason, kinds in _REASONS.items() for kind in kinds.split()}

_ONCE = frozenset(["SELECT", "FROM", "WHERE", "GROUP_BY"])
_PLAIN = (
    "VAR IDENTIFIER NUMBER STRING STAR COMMA L_PAREN R_PAREN ALIAS AND OR NOT IN IS NULL TRUE FALSE BETWEEN "
    "EQ NEQ LT LTE GT GTE"
)
_OPENING = ("SELECT", "GROUP_BY", "COMMA", "L_PAREN", "L_BRACKET", "DISTINCT", "ORDER_BY")
_CLOSING = ("FROM", "WHERE", "GROUP_BY", "COMMA", "R_PAREN", "R_BRACKET")
_ALLOWED = _ONCE.union(_PLAIN.split())


@dataclass(frozen=True)
class Word:
    """A word of a statement: its kind in sqlglot's names, its text, and the characters ``[start, end)``."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class SourceText:
    """The text of a statement; makes errors that show a position in it."""

    text: str

    def refusal(
        self, start: int, end: int, problem: str, remedy: str, kind: type[TacitError] = InvalidInput
    ) -> TacitError:
        """Return an error that shows the characters ``[start, end)`` with carets below them."""
        line_start = self.text.rfind("\n", 0, start) + 1
        line = self.text[line_start:].partition("\n")[0]
        number, column = self.text.count("\n", 0, start) + 1, start - line_start
        cut = max(0, min(column - _SHOWN // 2, len(line) - _SHOWN))
        excerpt = "".join(letter if letter.isprintable() else " " for letter in line[cut : cut + _SHOWN])
        carets = "^" * max(1, min(end - start, len(line) - column, cut + _SHOWN - column))
        return kind(
            f"line {number}, column {column + 1}: {problem}\n"
            f"  {excerpt}\n"
            f"  {' ' * (column - cut)}{carets}\n"
            f"{remedy[:1].upper()}{remedy[1:]}."
        )

    def words(self) -> list[Word]:
        """Cut the statement into words, without comments.

        Raises:
            InvalidInput: if the text is too long, contains a NUL, or a string or comment has no end.
        """
        if len(self.text) > _LONGEST:
            length = f"{len(self.text):,} characters, more than {_LONGEST:,}"
            raise InvalidInput(f"the statement has {length}. Shorten it.")
        if "\0" in self.text:
            place = self.text.index("\0")
            raise self.refusal(place, place + 1, "a NUL character", "leave it out")
        try:
            tokens = DuckDB().tokenize(self.text)
        except TokenError:
            reason = "a string, a quoted name or a comment has no end"
            raise self.refusal(0, len(self.text), reason, "close it") from None
        return [Word(token.token_type.name, token.text, token.start, token.end + 1) for token in tokens]


def closest(name: str, names: Iterable[str]) -> str:
    """Return a hint with the one of ``names`` that is nearest to ``name``; empty if none is near.

    >>> closest("wrad", ["ward", "age"])
    "did you mean 'ward'? "
    """
    by_lower = {word.lower(): word for word in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[near[0]]!r}? " if near else ""


def checked_words(source: SourceText, columns: Iterable[str] = ()) -> list[Word]:
    """Return the words of the statement, if each is allowed where it stands.

    ``columns``: the names of columns, to hint that a column named like a keyword needs double quotes.

    Raises:
        InvalidInput: if a word is not allowed; the message gives its position, the reason and the fix.

    >>> [word.kind for word in checked_words(SourceText("SELECT count(*) FROM visits"))]
    ['SELECT', 'VAR', 'L_PAREN', 'STAR', 'R_PAREN', 'FROM', 'VAR']
    """
    words = source.words()
    while words and words[-1].kind == "SEMICOLON":
        words.pop()
    first = words[0] if words else Word("", "", 0, 1)
    if first.kind != "SELECT":
        reason = _REASON_OF.get(first.kind, "write for example: SELECT count(*) FROM visits WHERE age > 65")
        raise source.refusal(first.start, first.end, "a statement begins with SELECT", reason)
    if len(words) > _MOST_WORDS:
        raise InvalidInput(f"the statement has {len(words):,} words, more than {_MOST_WORDS:,}. Shorten it.")
    quoted = {name.lower(): name for name in columns}
    used: set[str] = set()
    for place, word in enumerate(words):
        if word.kind in used or not _may_stand(words, place):
            raise _refusal(source, word, quoted)
        used.update(_ONCE & {word.kind})
    _check_depth(source, words)
    return words


def _may_stand(words: list[Word], place: int) -> bool:
    before = words[max(0, place - 3) : place]
    match words[place].kind:
        case "DASH":
            number = place + 1 < len(words) and words[place + 1].kind == "NUMBER"
            return number and before[-1].kind not in ("VAR", "IDENTIFIER", "NUMBER", "R_PAREN", "STRING")
        case "COMMA":  # the parser drops a comma next to nothing
            following = words[place + 1].kind if place + 1 < len(words) else "FROM"
            return before[-1].kind not in _OPENING and following not in _CLOSING
        case "DISTINCT":
            return [word.text.lower() for word in before[-2:]] == ["count", "("]
        case "ORDER_BY":
            return [word.text.lower() for word in before] == ["within", "group", "("]
        case "L_BRACKET" | "R_BRACKET":
            return _inside_histogram(words, place)
        case kind:
            return kind in _ALLOWED


def _inside_histogram(words: list[Word], place: int) -> bool:
    """Return whether the innermost open parenthesis around this bracket is that of ``histogram(``."""
    depth = 0
    for back in range(place - 1, 0, -1):
        depth += (words[back].kind == "R_PAREN") - (words[back].kind == "L_PAREN")
        if depth < 0:
            return words[back - 1].text.lower() == "histogram"
    return False


def _refusal(source: SourceText, word: Word, columns: dict[str, str]) -> TacitError:
    text = source.text[word.start : word.end]
    if text.lower() in columns:
        remedy = f'if you mean the column, write "{columns[text.lower()]}"'
        return source.refusal(word.start, word.end, f"{text} is a keyword of SQL", remedy)
    reason = _REASON_OF.get(word.kind, "leave it out; the page on queries shows what is supported")
    excerpt = " ".join(text.split())[:40]
    return source.refusal(word.start, word.end, f"{excerpt} is not supported here", reason)


def _check_depth(source: SourceText, words: list[Word]) -> None:
    depth = nots = 0
    for word in words:
        depth += (word.kind == "L_PAREN") - (word.kind == "R_PAREN")
        nots = nots + 1 if word.kind == "NOT" else 0
        if depth > _DEEPEST or nots > _DEEPEST:
            problem = "parentheses or NOTs are nested too deeply"
            raise source.refusal(word.start, word.end, problem, "ask a simpler question")
