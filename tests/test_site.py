"""The generated pages of the documentation site, without building it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import acclimate
from tests.paths import ROOT

sys.path.append(str(ROOT / "docs"))
from generate import api, commands, leaderboard, methods


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    return leaderboard.make_board()


def test_the_leaderboard_has_what_the_results_have(board: dict[str, Any]) -> None:
    steady = json.loads((ROOT / "results/steady.json").read_text())["dirichlet"]
    (table,) = [
        table
        for table in board["tables"]
        if table["protocol"] == steady["provenance"]["protocol_line"]
    ]
    assert {row["method"]: row["error"] for row in table["rows"]} == {
        name: row["error"] for name, row in steady["rows"].items()
    }
    assert table["source_error"] == steady["rows"]["source"]["error"]
    assert table["weights_sha256"] == steady["provenance"]["model"]["file_sha256"]


def test_a_table_of_the_leaderboard_has_one_model_one_protocol_and_known_methods(
    board: dict[str, Any],
) -> None:
    keys = [
        (table["model"], table["weights_sha256"], table["protocol"], table["images_sha256"])
        for table in board["tables"]
    ]
    assert len(set(keys)) == len(keys)
    for table in board["tables"]:
        names = [(row["method"], row["setting"]) for row in table["rows"]]
        assert len(set(names)) == len(names)
        assert {name for name, _ in names} <= set(acclimate.list_methods())
        assert all((ROOT / row["file"]).exists() for row in table["rows"])


def test_published_figures_stand_beside_ours(board: dict[str, Any]) -> None:
    (table,) = [table for table in board["tables"] if table["published"]]
    assert table["model"] == "resnet26-gn-cifar10"
    assert table["published"][0]["errors"] == {"source": 32.7, "lame": 11.3, "roid": 15.9}
    page = leaderboard.make_page(board)
    for method, published in table["published"][0]["errors"].items():
        link = re.escape(f"[{method}](methods/{method}.md)")
        assert re.search(rf"{link} \| (–|[\d.]+) \| {published} \|", page), method


@pytest.mark.parametrize("name", sorted(acclimate.list_methods()))
def test_the_page_of_a_method_has_all_options(name: str, board: dict[str, Any]) -> None:
    page = methods.make_page(name, board)
    kind = acclimate.get_method(name)
    assert f"# {name}\n" in page
    assert f"| cost of a batch | {kind.card.cost} |" in page
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) >= set(kind.config_class().to_dict())


def test_all_methods_are_in_a_family_and_all_public_names_in_a_group() -> None:
    assert all(f"({name}.md)" in methods.make_index() for name in acclimate.list_methods())
    assert "acclimate.preparation.prepare" in api.make_page()


def test_the_reference_of_commands_has_all_commands() -> None:
    page = commands.make_page()
    for name in ("demo", "serve", "bench run", "data corrupt", "methods show"):
        assert re.search(rf"^##+ acclimate {name}$", page, re.M), name
    assert "`--builtin CORRUPTION`" in page


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("mkdocs"), reason="needs the extra docs: make docs")
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = ["mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT)
    pages = {path: path.read_text() for path in tmp_path.rglob("*.html")}
    assert len(pages) > 60
    foreign = re.compile(r"<script[^>]+src=.?https?:|<link[^>]+stylesheet[^>]+href=.?https?:")
    assert not [path.name for path, text in pages.items() if foreign.search(text)]
