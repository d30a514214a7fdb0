"""A run file for the tests: digits, which come with scikit-learn, and what a test says beside the usual."""


def digits_run(
    training: str,
    *,
    model: str = "",
    privacy: str = "epsilon = 3.0",
    optimizer: str = "learning_rate = 0.28",
    more: str = "",
) -> str:
    """A logistic regression on digits; each argument holds lines of its section, ``more`` whole sections.

    >>> "steps = 20" in digits_run('batch_size = "full"; steps = 20')
    True
    """
    sections = {
        "data": 'name = "digits"',
        "model": f'name = "logistic"; {model}',
        "privacy": f'{privacy}; delta = 1e-4; unit = "image"; adjacency = "add-remove"; records = 1437',
        "optimizer": optimizer,
        "training": training,
    }
    lines = [line for name, text in sections.items() for line in (f"[{name}]", *text.split("; "))]
    return "\n".join(["", *filter(None, lines), more.strip("\n")]) + "\n"
