"""Take a finished suite into `results`: its report, and what came out of every job.

    python benchmarks/gather_suite.py runs/stream results/segmentation-stream

writes `results/segmentation-stream.md` and `.json`; the jobs have their provenance.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from acclimate.bench import Store
from acclimate.report import make_document, summarize
from gather_reproduction import shorten_paths


def main() -> None:
    """Read the folder of the suite, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="what `acclimate bench run --out` made")
    parser.add_argument("out", help="path of the files, without an ending")
    asked = parser.parse_args()
    store = Store(asked.folder)
    suite, outcomes = store.suite, store.outcomes()
    facts = {"selection": suite.selection, "notes": suite.notes, "entries": suite.entries}
    summary = summarize(outcomes, title=suite.title, **facts)
    jobs = [store.folder(outcome.folder).read_result() for outcome in outcomes]
    content = {"title": suite.title, "jobs": jobs}
    text = shorten_paths(json.dumps(content, indent=1, ensure_ascii=False))
    Path(f"{asked.out}.md").write_text(make_document(summary).to_markdown(), encoding="utf-8")
    Path(f"{asked.out}.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
