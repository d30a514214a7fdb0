"""Branch coverage of the parts that the guarantee hangs on must be at least 95 %; run after pytest --cov."""

import json
import sys
from collections import Counter
from pathlib import Path

BAR = 95.0
PARTS = ("columns", "events", "accounting", "clipping", "noise", "sampling", "plan", "ledger", "queries")


def main(report: Path) -> int:
    """Print the coverage per part, and what is missing in those below the bar; 1 if there are such."""
    totals: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
    missing: dict[str, list[str]] = {part: [] for part in PARTS}
    for name, entry in json.loads(report.read_text())["files"].items():
        part = name.split("src/tacit/")[-1].split("/")[0].removesuffix(".py")
        if part in totals:
            totals[part].update({k: v for k, v in entry["summary"].items() if isinstance(v, int)})
            lines = [*entry["missing_lines"], *(f"{a}->{b}" for a, b in entry["missing_branches"])]
            missing[part] += [f"{name}: {' '.join(map(str, lines))}"] if lines else []
    low = []
    for part, count in totals.items():
        covered = count["covered_lines"] + count["covered_branches"]
        share = 100 * covered / max(1, count["num_statements"] + count["num_branches"])
        sys.stdout.write(f"coverage of {part:<11} {share:5.1f} %\n")
        low += [part] if share < BAR else []
    for part in low:
        sys.stderr.write("\n".join([f"{part} is below {BAR:g} %; no test reaches", *missing[part]]) + "\n")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
