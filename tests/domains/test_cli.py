"""`acclimate data` for sets of domains."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from acclimate.cli.main import app
from tests.domains.samples import DOMAINS, make_tree


def run(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, list(words))


def test_a_folder_is_checked(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "mine", dict.fromkeys(DOMAINS, 8))
    result = run("data", "check", "domains-folder", "--dir", str(root))
    assert result.exit_code == 0
    assert "8 images, 4 classes" in result.stdout
    (root / "farm" / "cat" / "000.png").write_bytes(b"torn")
    result = run("data", "check", "domains-folder", "--dir", str(root))
    assert result.exit_code == 1
    assert "000.png cannot be read" in result.stdout
