"""Every command that a document shows is valid, and is run, or listed with the reason why not."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import typer
from safetensors.torch import save_file

from acclimate import commands as functions
from acclimate import list_methods
from acclimate.cli.main import app
from tests.cli_models import CLASSES, tiny_cnn
from tests.images import write_images
from tests.paths import ROOT

sys.path.append(str(ROOT / "docs"))
from generate import leaderboard, methods

#: Pages whose commands are run as they stand, in a folder that has what they name.
RUN = (
    "README.md",
    "docs/own-model.md",
    "docs/choosing.md",
    "docs/export.md",
    "docs/segmentation.md",
)
#: Commands of other pages that take seconds.
RUN_ALSO = (
    "acclimate reproduce --list",
    "acclimate reproduce table-2",
    "acclimate reproduce table-6 --scale smoke",
)
#: Commands of these pages, or that begin so, are not run here.
NOT_RUN = {
    "acclimate serve": "starts a server: tests/serve",
    "acclimate send": "needs a server: tests/serve",
    "acclimate train": "takes minutes: tests/training",
    "acclimate reproduce table-s7": "takes hours; at the small scale, tests/paper/test_smoke.py",
    "docs/bench.md": "needs a suite: tests/bench, tests/cli/test_bench_report.py",
    "docs/cifar10c.md": "downloads: tests/data, tests/cli/test_eval.py",
    "docs/domains.md": "needs archives: tests/domains, tests/training/domains",
    "docs/reproduction.md": "takes minutes to hours: tests/paper/test_smoke.py",
    "docs/methods": "the same for every method; one of them is run below",
    "--help": "examples with files of a user: their options are checked",
}
#: Numbers of images that would take long, and what is run instead.
FEWER = {"600": "40", "1024": "64"}


class Shown(NamedTuple):
    page: str
    line: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)


def read_blocks(page: str, text: str) -> Iterator[Shown]:
    """Yield the commands in the blocks of a page, without those that are cut short."""
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        if kind not in ("", "bash"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("acclimate ") and "…" not in line:
                yield Shown(page, re.sub(r"\s+", " ", line))


def list_shown() -> list[Shown]:
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    board = leaderboard.make_board()
    for name in list_methods():
        texts[f"docs/methods/{name}.md"] = methods.make_page(name, board)
    found = [shown for page, text in texts.items() for shown in read_blocks(page, text)]
    for name, function in vars(functions).items():
        for line in re.findall(r"`(acclimate .*?)`", inspect.getdoc(function) or "", re.S):
            if "Example" in (inspect.getdoc(function) or "").partition(line)[0]:
                found.append(Shown(f"--help of {name}", re.sub(r"\s+", " ", line)))
    return found


SHOWN = list_shown()


def is_run(shown: Shown) -> bool:
    if shlex.join(shown.words) in RUN_ALSO:
        return True
    return shown.page in RUN and not any(shown.line.startswith(text) for text in NOT_RUN)


def test_commands_are_found_and_each_is_run_or_has_a_reason() -> None:
    assert len(SHOWN) > 80
    assert {shown.page for shown in SHOWN} > {*RUN, "docs/serving.md", "--help of prepare"}
    starts = tuple(NOT_RUN)
    left = [shown for shown in SHOWN if not is_run(shown)]
    assert not [
        own for own in left if not own.line.startswith(starts) and not own.page.startswith(starts)
    ]
    needless = [
        text
        for text in NOT_RUN
        if not any(own.line.startswith(text) or own.page.startswith(text) for own in left)
    ]
    assert not needless


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: f"{shown.page}: {shown.line[:60]}")
def test_a_command_has_the_options_that_it_is_shown_with(shown: Shown) -> None:
    command, words = typer.main.get_command(app), shown.words[1:]
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            break
        command = command.commands[words.pop(0)]
    command.make_context("acclimate", words)  # raises on unknown, malformed or missing options


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, weights and images that the documents name."""
    root = tmp_path_factory.mktemp("documents")
    (root / "my").mkdir()
    code = "from tests.cli_models import tiny_cnn\n\nbuild = resnet = net = tiny_cnn\n"
    (root / "my" / "package.py").write_text(code)
    (root / "my_models.py").write_text(code)
    save_file(tiny_cnn().state_dict(), root / "w.safetensors")
    torch.save(tiny_cnn().state_dict(), root / "resnet.pt")
    counts = dict.fromkeys(CLASSES, 16)
    for name in ("source", "source/images", "labelled/images", "shifted/rain", "shifted/dusk"):
        write_images(root / name, counts)
    for name in ("some/images", "new/images", "photos"):
        write_images(root / name, {"": 40})
    write_images(root / "IMAGES_DIR", {"": 2}, size=(48, 64))
    return root


def run(words: list[str], folder: Path) -> str:
    code = "from acclimate.cli.main import main; main()"
    words = [FEWER.get(word, word) for word in words]
    words += ["--no-accuracy"] if "prepare" in words[:2] else []  # takes minutes: tests/parts
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", code, *words[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_run_one_after_the_other(
    page: str, folder: Path, tmp_path: Path
) -> None:
    place = shutil.copytree(folder, tmp_path / "folder")
    chosen = [shown for shown in SHOWN if shown.page == page and is_run(shown)]
    assert chosen
    for shown in chosen:
        if page == "docs/own-model.md" and shown.line.startswith("acclimate prepare source "):
            shutil.rmtree(place / "source" / "images")  # the classes of another example
        assert run(shown.words, place).strip()


@pytest.mark.slow
@pytest.mark.parametrize("line", RUN_ALSO)
def test_a_short_command_of_other_pages_runs(line: str, tmp_path: Path) -> None:
    assert line in {shlex.join(shown.words) for shown in SHOWN}
    assert run(shlex.split(line), tmp_path).strip()


@pytest.mark.slow
def test_a_command_of_the_pages_of_methods_runs(tmp_path: Path) -> None:
    (shown,) = [own for own in SHOWN if own.page == "docs/methods/tent.md"]
    assert " tent " in run([*shown.words, "--images", "40", "--corruptions", "fog"], tmp_path)
