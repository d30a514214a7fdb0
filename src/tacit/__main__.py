"""The command line as ``python -m tacit``, for systems on which the script ``tacit`` is not on the PATH."""

from __future__ import annotations

from tacit.cli import main

if __name__ == "__main__":
    main()
