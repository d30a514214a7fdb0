"""The command line, with one command for each verb. It only shows results and sets exit codes.

Exit codes: 0 done, 1 refused by a privacy rule or a budget, 2 bad usage or bad input, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line. Errors of Tacit are printed as one paragraph, without a traceback."""
    try:
        from tacit.cli.app import run
        from tacit.cli.terminal import outliving_reader
        from tacit.errors import launched
    except ModuleNotFoundError as problem:
        if (problem.name or "").startswith("tacit"):
            raise  # a broken installation, not one without an extra
        sys.stderr.write(
            f"error: the command line needs more packages ({problem.name} is missing). "
            "Install them in your checkout of Tacit with: pip install -e '.[cli]', "
            "or '.[all]' for every command.\n"
        )
        sys.exit(2)
    except KeyboardInterrupt:  # during imports; ``run`` reports a later one
        sys.exit(130)
    sys.stdout, sys.stderr = outliving_reader(sys.stdout), outliving_reader(sys.stderr)
    code = run(sys.argv[1:])
    if launched().processes > 1:
        # If Python ends as usual, a thread of torch's process groups aborts about a fifth of such processes,
        # and the launcher takes a finished run for a failed one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
