"""Exceptions and warnings, validators, the check for weak epsilons, and ranks.

Every error that a user can cause derives from :class:`TacitError`.  Its message is one paragraph: what
happened, why Tacit refuses it, and the fix.  ``exit_code`` is the exit code of the command line: 1 if a
privacy rule or a budget refuses, 2 if usage or input is wrong.

An error about an argument has fields instead of one text, because each interface spells the argument in its
own way: ``batch_size`` in Python, ``[privacy] batch_size`` in a run file, ``--batch-size`` in a shell.  In
these fields, arguments are in backticks, alone or with a value, as in "Set `allow_large_delta=True`".  The
problem follows the argument's name; if it is a sentence, it begins with a colon.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
import os
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar, cast, get_type_hints

__all__ = [
    "BudgetExceeded",
    "Diverged",
    "InvalidInput",
    "LossWarning",
    "MissingExtra",
    "PrivacyRefusal",
    "PrivacyWarning",
    "ProcessLost",
    "TacitError",
    "UnsupportedEvent",
    "UnsupportedModel",
    "WeakSignalWarning",
]

F = TypeVar("F", bound=Callable[..., Any])

Spelling: TypeAlias = Callable[[str, str | None], str]
"""A function that spells an argument in an interface, from its Python name and its value (or None)."""


class TacitError(Exception):
    """Base class of all errors that Tacit raises.

    Attributes:
        argument: the Python name of the wrong argument; None if the error is not about one.
        value: the argument's value; ``...`` (Ellipsis) if the message must not show the value.
        why: the reason for the refusal.
        fix: what the user can do.
        spelling: the function that writes arguments in the message; in the example, as options of a command.

    >>> error = InvalidInput("must be below 1", argument="delta", value=2.0, fix="Take `delta=1e-5`.")
    >>> str(error)
    'delta must be below 1; got 2.0. Take delta=1e-5.'
    >>> error.spelling = lambda name, value: f"--{name}" if value is None else f"--{name} {value}"
    >>> str(error)
    '--delta must be below 1; got 2.0. Take --delta 1e-5.'
    """

    exit_code: ClassVar[int] = 2
    spelling: Spelling | None = None  # None writes arguments as Python does, name=value

    def __init__(
        self,
        what: str = "",
        *,
        argument: str | None = None,
        value: object = ...,
        why: str = "",
        fix: str = "",
    ) -> None:
        super().__init__(what)
        self.argument, self.value, self.why, self.fix = argument, value, why, fix

    def __str__(self) -> str:
        problem = super().__str__()
        if self.argument is None and not self.fix:
            return problem
        if self.argument is not None:
            problem = f"`{self.argument}`{'' if problem.startswith(':') else ' '}{problem}"
        got = "" if self.value is ... else f"; got {self.value!r}"
        first, *rest = (self._with_spelling(text) for text in (problem, self.why, self.fix))
        return " ".join([f"{first}{got}.", *filter(None, rest)])

    def _with_spelling(self, text: str) -> str:
        """Return the text with each argument between backticks replaced by its form in ``spelling``."""
        spell = self.spelling or (lambda name, value: name if value is None else f"{name}={value}")
        parts = text.split("`")
        for place in range(1, len(parts), 2):
            name, _, value = parts[place].partition("=")
            parts[place] = spell(name, value or None)
        return "".join(parts)


@contextlib.contextmanager
def spelled(spelling: Spelling) -> Iterator[None]:
    """Set ``spelling`` on every error raised in the ``with`` block, unless it has one."""
    try:
        yield
    except TacitError as problem:
        problem.spelling = problem.spelling or spelling
        raise


class InvalidInput(TacitError, ValueError):
    """Raised for a wrong value, file or setting; exit code 2."""


class MissingExtra(TacitError, ImportError):
    """Raised if an optional dependency is not installed; the message says how to install it.

    >>> str(MissingExtra("duckdb", "query", "asking a table")).rpartition(": ")[2]
    "pip install -e '.[query]'"
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f"Install it in your checkout of Tacit with: pip install -e '.[{extra}]'"
        )


def needed(module: str, extra: str, purpose: str, *, package: str = "") -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(package or module.partition(".")[0], extra, purpose) from None


class PrivacyRefusal(TacitError):
    """Raised if a privacy rule would be broken; exit code 1.

    >>> issubclass(BudgetExceeded, PrivacyRefusal), PrivacyRefusal.exit_code
    (True, 1)
    """

    exit_code: ClassVar[int] = 1


class UnsupportedEvent(PrivacyRefusal):
    """Raised if a function has no proven bound for an event, which is the description of a mechanism."""


class UnsupportedModel(PrivacyRefusal):
    """Raised if per-example gradients do not exist, for example with BatchNorm, or have no bounded norm.

    >>> issubclass(UnsupportedModel, PrivacyRefusal)
    True
    """


class BudgetExceeded(PrivacyRefusal):
    """Raised if a request would cost more than what is left of the budget."""


class ProcessLost(TacitError):
    """Raised if another process of a distributed run failed or ended too early.

    >>> issubclass(ProcessLost, TacitError), ProcessLost.exit_code
    (True, 2)
    """


class DeviceLost(TacitError):
    """Raised if the GPU fails in a step.  The step released nothing.  Catch it as a :class:`TacitError`."""


class Diverged(TacitError):
    """Raised if weights become NaN or infinite, because further steps would waste budget."""


class LossWarning(UserWarning):
    """Warns that losses look wrong: they are NaN, too large or do not fall.

    The warning depends only on noisy losses, which the run releases anyway, and on losses of dummy records.
    """


class PrivacyWarning(UserWarning):
    """Warns that a guarantee is weak: its epsilon is large, or it covers only one of many fits.

    The costs of all fits on the same records add up.
    """


class WeakSignalWarning(UserWarning):
    """Warns that a plan adds too much noise for the model to learn.

    The warning depends only on public facts: the plan and the number of trained weights.

    >>> issubclass(WeakSignalWarning, UserWarning)
    True
    """


def without_values(problem: BaseException) -> str:
    """Describe an error by type and place, because its text may contain a record's value."""
    # For an error of the operating system the result is the system's reason. For other errors it is the type,
    # and the file and line in the user's code if there is one. Raise an error with this text ``from None``,
    # because a traceback prints every cause.
    if isinstance(problem, OSError) and problem.strerror:
        return reason_of(problem)
    not_the_users = {Path(__file__).parent, Path(traceback.__file__).parent}  # Tacit's and Python's code
    frames = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if "site-packages" not in frame.filename and not_the_users.isdisjoint(Path(frame.filename).parents)
    ]
    place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return type(problem).__name__ + place


def users_level() -> int:
    """Return the ``stacklevel`` that makes a warning of the caller point to the user's code."""
    # This is the nearest line outside Tacit, as functions of Tacit may have called the calling function.
    own, level, frame = str(Path(__file__).parent), 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        level, frame = level + 1, frame.f_back
    return level


def of_device(problem: BaseException) -> bool:
    """Return whether the device caused an error, such as out of memory, not the model or the records."""
    # This compares names of classes, because this module does not import torch.
    by_type = type(problem).__name__ in ("OutOfMemoryError", "AcceleratorError")
    return isinstance(problem, RuntimeError) and (by_type or "CUDA error" in str(problem))


def reason_of(problem: BaseException) -> str:
    """Return why a file cannot be read or written, without errno and path."""
    if isinstance(problem, IsADirectoryError):
        return "it is a folder, not a file"
    return (isinstance(problem, OSError) and problem.strerror) or str(problem)


def check_real(
    name: str,
    value: object,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
    why: str = "",
) -> float:
    """Return ``value`` as a float if it is finite and in range; otherwise raise an error with ``why``."""

    def refused(value: object) -> InvalidInput:
        left = "(" if open_low or math.isinf(low) else "["
        right = ")" if open_high or math.isinf(high) else "]"
        text = f"must be a real number in {left}{low:g}, {high:g}{right}"
        return InvalidInput(text, argument=name, value=value, why=why)

    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise refused(value)
    try:
        number = float(value)
    except OverflowError:  # an integer or fraction beyond all floats
        raise refused(value) from None
    below = number <= low if open_low else number < low
    above = number >= high if open_high else number > high
    if not math.isfinite(number) or below or above:
        raise refused(number)
    return number


def check_integer(name: str, value: object, *, low: int, high: int | None = None, why: str = "") -> int:
    """Return ``value`` if it is an integer in ``[low, high]``; otherwise raise an error with ``why``."""
    # the first is the usual case, and the other takes a microsecond
    if type(value) is int or (not isinstance(value, bool) and isinstance(value, Integral)):
        value = int(value)
        if low <= value and (high is None or value <= high):
            return value
    allowed = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    raise InvalidInput(f"must be {allowed}", argument=name, value=value, why=why)


def check_lengths(name: str, lengths: Sequence[object]) -> tuple[int, ...]:
    """Return lengths as a tuple if they are positive integers in ascending order."""
    checked = tuple(check_integer(name, length, low=1) for length in lengths)
    if not checked or any(one >= two for one, two in pairwise(checked)):
        raise InvalidInput(
            "must be lengths in ascending order", argument=name, value=list(lengths), fix="Name each once."
        )
    return checked


def check_shares(name: str, shares: Sequence[object] | None, count: int) -> tuple[float, ...]:
    """Return ``count`` shares if they are positive and add up to 1; None means equal shares."""
    if shares is None:
        return (1 / count,) * count
    checked = tuple(check_real(name, share, low=0, open_low=True) for share in shares)
    if len(checked) != count or not math.isclose(math.fsum(checked), 1, abs_tol=1e-3):
        raise InvalidInput(
            f"must be {count} numbers that add up to 1, one for each length",
            argument=name,
            value=list(shares),
        )
    return checked


def check_probability(name: str, value: object) -> float:
    return check_real(name, value, low=0.0, high=1.0)


def check_in(name: str, value: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidInput(f"must be one of {', '.join(allowed)}", argument=name, value=value)
    return value


def listing(
    settings: Any, defaults: Mapping[str, object], *, needed: Mapping[str, str] | None = None
) -> Callable[[F], F]:
    """Return a decorator that replaces ``**settings`` in a signature by the individual settings.

    Args:
        settings: a ``TypedDict`` whose docstring describes the settings under ``Attributes:``.
        defaults: the default of each optional setting.
        needed: for required settings, what to do if one is missing.
    """
    described = (settings.__doc__ or "").partition("    Attributes:\n")[2].partition("\n\n")[0]
    advice = needed or {}

    # ``help()`` then lists and describes the settings, and a call with an unknown one raises an error that
    # names it.
    def listed(function: F) -> F:
        own, empty = inspect.signature(function), inspect.Parameter.empty
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, empty), annotation=hint
            )
            for name, hint in get_type_hints(settings).items()
        ]
        first = [item for item in own.parameters.values() if item.kind is not inspect.Parameter.VAR_KEYWORD]
        signature = own.replace(parameters=[*first, *added])

        @functools.wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            # An unknown setting first: if it is misspelt, the right one is missing too.
            try:
                signature.bind_partial(*args, **keywords)
            except TypeError as problem:
                raise TypeError(f"{function.__qualname__}() {problem}") from None
            for name, fix in advice.items():
                if name not in keywords:
                    raise InvalidInput("is missing", argument=name, fix=fix)
            return function(*args, **keywords)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        if described:
            entry = re.compile(r"^ *settings: the keywords of .*$", re.MULTILINE)
            entries = textwrap.indent(textwrap.dedent(described), " " * 12)
            checked.__doc__ = entry.sub(lambda _: entries, checked.__doc__ or "")
        return cast(F, checked)

    return listed


# --- promises that are too weak ----------------------------------------------------------------------------

# Tacit refuses no positive epsilon, because runs with little noise are useful on public data.  An epsilon
# above MOST promises nothing in practice, so Tacit warns.  It refuses a delta of 1/N or more.

MOST = 20.0
"""The largest epsilon without a warning: e^20 is 485 million."""


def weakness(epsilon: float) -> str | None:
    """Explain why an epsilon above :data:`MOST` is too weak; None for a smaller epsilon."""
    if not MOST < epsilon < math.inf:
        return None
    return (
        f"epsilon = {epsilon:.4g} is too weak to guarantee anything: a membership attack with 1 % false "
        "positives may reach 100 % true positives, as if without noise. Usual values are 0.1 to 10: 1 is "
        "strong, 3 is useful against strong attackers, 8 is weak (docs/explanation/what-epsilon-means.md)."
    )


def warn_if_weak(epsilon: float | None, *, stacklevel: int = 2) -> None:
    """Warn about an epsilon above :data:`MOST`, at the line of code that sets it."""
    words = None if epsilon is None else weakness(epsilon)
    if words is not None:
        warnings.warn(words, PrivacyWarning, stacklevel=stacklevel + 1)


def suggested_delta(records: int) -> float:
    """Return the largest power of ten that is at most a tenth of 1 / ``records``.

    >>> [suggested_delta(records) for records in (375, 10_000, 100_000)]
    [0.0001, 1e-05, 1e-06]
    """
    return float(f"1e{math.floor(-1.0 - math.log10(records) + 1e-9)}")


def check_small_delta(delta: float, records: int, unit: str) -> None:
    """Refuse a delta of 1/N or more, because publishing one record in full would satisfy it."""
    usual = suggested_delta(records)
    if delta >= 1 / records:
        raise PrivacyRefusal(
            f"= {delta:g} is not below 1/N = {1 / records:.3g}",
            argument="delta",
            why=f"Publishing one {unit} out of N = {records} in full would already satisfy such a guarantee.",
            fix=f"Choose a smaller delta, such as {usual:g}, or set `allow_large_delta=True`.",
        )


# --- the processes of a run ---------------------------------------------------------------------------------
#
# The variables of a batch system such as SLURM are not read, because they describe the allocated resources
# and not the number of processes that run this program.


@dataclass(frozen=True)
class Launch:
    """The rank of this process in the run and on this machine."""

    rank: int = 0
    processes: int = 1
    rank_here: int = 0
    processes_here: int = 1


def launched() -> Launch:
    """Read the ranks that ``torchrun`` sets in the environment."""
    # If one of the first two is not set, there is one process.
    processes, rank = _number("WORLD_SIZE"), _number("RANK")
    if processes is None or rank is None:
        return Launch()
    rank_here, processes_here = _number("LOCAL_RANK"), _number("LOCAL_WORLD_SIZE")
    return Launch(
        rank,
        processes,
        rank if rank_here is None else rank_here,
        processes if processes_here is None else processes_here,
    )


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None
