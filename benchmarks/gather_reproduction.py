"""Take finished runs of `acclimate reproduce` into `results/paper`, and list their verdicts.

    python benchmarks/gather_reproduction.py runs/table-2 runs/fig-1      # folders given by --out
    python benchmarks/gather_reproduction.py                              # only the list again

The list stands in `docs/reproduction.md` between two marks; what is around it is written by hand.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

from acclimate.paper import EXPERIMENTS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "paper"
PAGE = ROOT / "docs" / "reproduction.md"
BEGIN, END = "<!-- verdicts -->", "<!-- end of verdicts -->"
SIGNS = {"holds": "✓", "does not hold": "✗", "cannot be told": "?"}


def shorten_paths(text: str) -> str:
    """Keep the last name only of every path: folders of one machine tell nobody anything."""
    return re.sub(r'(?<=["= ])/(?:[\w.@+-]+/)+', "", text)


def take(run: Path) -> None:
    """Copy what a run has written, but for the jobs' own folders."""
    result = json.loads((run / "result.json").read_text())
    text = shorten_paths(json.dumps(result, indent=1, ensure_ascii=False))
    place = RESULTS / result["experiment"]
    place.mkdir(parents=True, exist_ok=True)
    (place / "result.json").write_text(text + "\n")
    for path in sorted(run.iterdir()):
        if path.suffix in (".md", ".svg", ".png"):
            shutil.copyfile(path, place / path.name)


def list_verdicts() -> str:
    """Return a table of all claims, in the order of the paper."""
    lines = [
        "| | claim | where | difference, points | confidence | pairs | in the paper's numbers |",
        "|---|---|---|---:|---:|---|---|",
    ]
    for name in EXPERIMENTS:
        path = RESULTS / name / "result.json"
        if not path.is_file():
            continue
        result = json.loads(path.read_text())
        lines.append(f"| | **[{name}](../results/paper/{name}/table.md)** | | | | | |")
        lines += [_line(own) for own in result["verdicts"]]
    return "\n".join(lines)


def _line(own: dict[str, Any]) -> str:
    number = "–" if own["margin"] is None else f"{own['margin']:+.2f}".replace("-", "−")
    sure = "–" if own["confidence"] is None else f"{100 * own['confidence']:.1f} %"
    pairs = f"{own['n_seeds']} × {own['n_domains']} {own['units']}"
    published = {True: "yes", False: "no", None: "no number"}[own["published"]]
    sign = SIGNS.get(own["verdict"], "?")
    return (
        f"| {sign} | {own['claim']} | {own['setup']} | {number} | {sure} | {pairs} | {published} |"
    )


def main() -> None:
    """Take the runs that are named, and write the list."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path)
    for run in parser.parse_args().runs:
        take(run)
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{list_verdicts()}\n{END}{after}")


if __name__ == "__main__":
    main()
