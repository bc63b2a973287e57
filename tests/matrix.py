"""Run the test suite as other processors would.

    python tests/matrix.py                      # all settings, all tests
    python tests/matrix.py --settings avx2 -- -m "not slow"

Each setting makes torch, oneDNN or acclimate take another path through its arithmetic. Arguments
after `--` are passed to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: As in the Makefile.
COMMON = {"PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

SETTINGS = {
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "onednn-avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "bfloat16-on": {"ACCLIMATE_BFLOAT16": "on"},
    "bfloat16-off": {"ACCLIMATE_BFLOAT16": "off"},
}


def main() -> int:
    """Run pytest once for each setting; return 1 if a run fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.settings:
        variables = SETTINGS[name]
        shown = " ".join(f"{key}={value}" for key, value in variables.items())
        print(f"\n== {name}: {shown}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-n", "auto", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, *arguments.pytest],
            cwd=ROOT,
            env={**os.environ, **COMMON, **variables},
        )
        verdict = "passed" if run.returncode == 0 else f"FAILED (exit {run.returncode})"
        rows.append((name, shown, verdict, f"{time.monotonic() - start:.0f} s"))
    print()
    for row in rows:
        print("{:13} {:30} {:16} {:>7}".format(*row))
    return int(any(verdict != "passed" for _, _, verdict, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
