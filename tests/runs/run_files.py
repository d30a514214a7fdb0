"""Run files for the tests: what a test says of its run, beside what is usual."""

from collections.abc import Mapping

_USUAL = {
    "privacy": {"delta": "1e-4", "adjacency": '"add-remove"'},
    "training": {"batch_size": '"full"'},
}


def run_file(**sections: str) -> str:
    """A run file of these sections, each with its lines; ``columns_age`` is ``[columns.age]``.

    >>> text = run_file(data='name = "iris"', privacy="epsilon = 3", training="steps = 2")
    >>> text.splitlines()[5:8]
    ['[privacy]', 'epsilon = 3', 'delta = 1e-4']
    """
    lines = []
    for name, text in (
        sections if "model" in sections else {"model": 'name = "logistic"'} | sections
    ).items():
        said = text.split("; ")
        keys = {line.partition(" = ")[0] for line in said}
        usual = [f"{key} = {value}" for key, value in _USUAL.get(name, {}).items() if key not in keys]
        lines += [f"[{name.replace('columns_', 'columns.')}]", *filter(None, said), *usual]
    return "\n".join(["", *lines]) + "\n"


def digits_run(
    training: str,
    *,
    model: str = "",
    privacy: str = "epsilon = 3.0",
    optimizer: str = "learning_rate = 0.28",
    more: str = "",
) -> str:
    """A logistic regression on digits, which come with scikit-learn; ``more`` holds whole sections.

    >>> "steps = 20" in digits_run('batch_size = "full"; steps = 20')
    True
    """
    text = run_file(
        data='name = "digits"',
        model=f'name = "logistic"; {model}',
        privacy=f'{privacy}; unit = "image"; records = 1437',
        optimizer=optimizer,
        training=training,
    )
    return "\n".join(filter(None, [text.rstrip("\n"), more.strip("\n")])) + "\n"


def changed(text: str, changes: Mapping[str, str]) -> str:
    """The text with other words, each of which must stand there.

    >>> changed("steps = 2", {"2": "3"})
    'steps = 3'
    """
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text
