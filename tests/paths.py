"""Where the repository is, and the data that some tests need and the repository does not have."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
SHARED = Path(os.environ.get("ACCLIMATE_SHARED", ROOT.parent / "shared"))
