"""Every command that a document shows is valid and is run, or listed with the reason why not."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.request import urlopen

import pytest
import typer
from typer.testing import CliRunner

from acclimate import commands as functions
from acclimate import list_methods
from acclimate.bench import Suite
from acclimate.cli.main import app
from tests.cli_models import CLASSES
from tests.conftest import quicken_accuracy
from tests.documents import make_data, make_folder, stand_in
from tests.paths import ROOT

sys.path.append(str(ROOT / "docs"))
from generate import leaderboard, methods

#: What is appended to commands that begin so, as they would take minutes or hours.
LIMITS = {
    "acclimate bench run suite.toml --out /shared/suite": "--out shared/suite",
    "acclimate demo --methods": "--images 8 --batch-size 4 --corruptions fog",
    "acclimate demo": "--images 8 --batch-size 4 --corruptions fog --methods source,tent",
    "acclimate eval --model builtin --data builtin --corruptions": "--images 24 --source-images 32",
    "acclimate eval --model builtin --data builtin --stream": "--images 24 --source-images 32",
    "acclimate eval --model builtin": "--images 4 --corruptions fog --source-images 24",
    "acclimate eval --model resnet20-cifar10": "--images 4 --corruptions fog,frost",
    "acclimate prepare data/train": "--size 16",
    "acclimate reproduce table-1b": "--images 4 --corruptions fog --row Core --row T3A --workers 0",
    "acclimate reproduce table-2 --scale": "--images 4 --corruptions fog --seeds 1 --workers 0",
    "acclimate reproduce table-6 --scale full": "--device cpu --seeds 1 --trials 1 --workers 0",
    "acclimate reproduce table-6 --scale small": "--workers 0",
    "acclimate reproduce table-s7": "--images 2 --corruptions fog --seeds 1 --workers 0",
    "acclimate send --builtin": "--limit 80",
    "acclimate train --model resnet20-cifar10": "--epochs 2",
    "acclimate train --model resnet9-cifar10": "--epochs 3",
    "acclimate train --task domains": "--steps 1 --batch-size 2 --size 32",
    "acclimate train --task segmentation": "--epochs 6 --crop-height 64 --crop-width 64",
}
#: What is removed before a command that begins so, which is to make it.
MADE = {
    "acclimate adapt photos --model my_models:resnet --weights resnet.pt --method": "resnet.state",
    "acclimate bench run suite.toml --out results/suite": "results/suite",
    "acclimate data get cifar10 ": "data",
    "acclimate data get cifar100": "data/cifar100",
    "acclimate data get pacs": "data/pacs",
    "acclimate prepare data/train": "resnet.acclimate",
    "acclimate prepare source --model": "source/images",  # other classes than those of `source`
    "acclimate train --model resnet20-cifar10": "resnet20.safetensors",
    "acclimate zoo get resnet20-cifar10": "data/zoo",
}
#: What makes files that other examples name.
PREPARED = (
    "acclimate prepare photos/train --model my_models:resnet --weights resnet.pt "
    "--out resnet.acclimate",
    "acclimate adapt photos --model my_models:resnet --weights resnet.pt --method tent "
    "--state resnet.state --out all.csv",
    "acclimate bench run suite.toml --out results/suite --workers 0",
)
#: Programs that blocks call.
COMMANDS = r"(acclimate|curl|git|make|pip|python3?|ray|serve) "
#: Commands that are not run, with the reason.
NOT_RUN = {
    r"git clone|python3 -m venv|pip install": "what they install is what runs this",
    r"make ": "the targets run these tests, or what tests/demo and tests/test_site.py run",
    r"ray start": "started from Python: its command line ends all of Ray on the machine",
    r"serve run": "needs a cluster of Ray Serve: tests/serve/test_ray.py runs what it starts",
    r"python benchmarks/estimate.py": "takes hours: tests/benchmarks/test_estimate.py",
}
#: Where the documents say that a server listens.
ADDRESS = "http://127.0.0.1:8000"


class Shown(NamedTuple):
    page: str
    line: str

    @property
    def words(self) -> list[str]:
        """The command as it is run: with its limits."""
        limit = next((LIMITS[start] for start in LIMITS if self.line.startswith(start)), "")
        return [*shlex.split(self.line, comments=True), *limit.split()]


def read_blocks(page: str, text: str) -> Iterator[Shown]:
    """Yield the commands in the blocks of a page."""
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S):
        if kind not in ("", "bash"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(COMMANDS, line):
                yield Shown(page, re.sub(r"\s+", " ", line))


def list_shown() -> list[Shown]:
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    board = leaderboard.make_board()
    for name in list_methods():
        texts[f"docs/methods/{name}.md"] = methods.make_page(name, board)
    found = [shown for page, text in texts.items() for shown in read_blocks(page, text)]
    for name, function in vars(functions).items():
        text = inspect.getdoc(function) or ""
        for line in re.findall(r"`(acclimate .*?)`", text.partition("Example")[2], re.S):
            shown = Shown(f"--help of {name}", re.sub(r"\s+", " ", line))
            if all(own.words != shown.words for own in found):  # on a page: run there
                found.append(shown)
    return found


SHOWN = list_shown()
RUN = [own for own in SHOWN if not any(re.match(each, own.line) for each in NOT_RUN)]
PAGES = list(dict.fromkeys(shown.page for shown in RUN))


def test_commands_are_found() -> None:
    assert len(SHOWN) > 100
    assert set(PAGES) > {"README.md", "docs/serving.md", "docs/methods/tent.md", "--help of train"}


@pytest.mark.parametrize("start", LIMITS)
def test_a_limit_is_needed(start: str) -> None:
    others = [other for other in LIMITS if other != start and start.startswith(other)]
    assert all(list(LIMITS).index(start) < list(LIMITS).index(other) for other in others)
    longer = tuple(other for other in LIMITS if other != start and other.startswith(start))
    lines = [shown.line for shown in SHOWN if shown.line.startswith(start)]
    assert [line for line in lines if not line.startswith(longer or "\n")]


@pytest.mark.parametrize(
    "shown",
    [shown for shown in SHOWN if shown.line.startswith("acclimate ")],
    ids=lambda shown: f"{shown.page}: {shown.line[:60]}",
)
def test_a_command_has_the_options_that_it_is_shown_with(shown: Shown) -> None:
    command, words = typer.main.get_command(app), shlex.split(shown.line, comments=True)[1:]
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            break
        command = command.commands[words.pop(0)]
    command.make_context("acclimate", words)  # raises on unknown, malformed or missing options


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_a_reason_is_needed(pattern: str) -> None:
    assert len(NOT_RUN) <= 5
    assert any(re.match(pattern, shown.line) for shown in SHOWN)


@pytest.mark.parametrize("page", ["docs/bench.md", "docs/domains.md", "docs/segmentation.md"])
def test_the_suites_of_a_page_are_valid(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(tmp_path / "folder")
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    file, shared = root / "suite.toml", ""
    blocks = re.findall(r"^```toml\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    for block in blocks:
        jobs, rows, more = block.partition("[[rows]]")
        shared = jobs if "[job]" in jobs else shared  # of the block before
        for name in re.findall(r'^weights = "(.*?)"', block, re.M):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).touch()
        file.write_text(shared + (rows + more or '[[rows]]\nmethod = "source"\n'))
        assert Suite.load(file).entries
    assert blocks


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all that the documents name, while stand-ins are in place."""
    root = tmp_path_factory.mktemp("documents") / "folder"
    with stand_in(root):
        make_data(root / "data", root)
        make_folder(root)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(root)
            quicken_accuracy(patch)
            for line in PREPARED:
                run(shlex.split(line))
        for name in ("before", "after"):
            shutil.copytree(root / "results" / "suite", root / "results" / name)
        yield root


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The current folder: a copy, with links to large files."""

    def copy(source: str, target: str) -> None:
        (os.link if Path(source).stat().st_size > 100_000 else shutil.copy2)(source, target)

    root = shutil.copytree(prepared, tmp_path / "folder", copy_function=copy)
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setenv("HOME", str(root))
    monkeypatch.setenv("ACCLIMATE_DATA", str(root / "data"))
    yield
    for name in ("my", "my.package", "my_models"):
        sys.modules.pop(name, None)


def run(words: list[str]) -> str:
    """Run a command in this process; return what it printed."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, words[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()
    options = dict(itertools.pairwise(words))
    if words[1] in ("eval", "demo"):
        names = options.get("--method", options.get("--methods", "source")).split(",")
        assert set(names) <= set(re.findall(r"\w+", result.stdout))
    if "--out" in options:
        out = Path(options["--out"])
        assert list(out.parent.glob(f"{out.name}*"))
    return result.stdout


@contextmanager
def start_server(words: list[str]) -> Iterator[str]:
    """Run `acclimate serve` at a free port until the end of the block; give its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    code = "from acclimate.cli.main import main; main()"
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-c", code, *words[1:], "--port", str(port)]
    with Path("serve.log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=log)
    try:
        page = ""
        while not page:
            assert process.poll() is None
            with suppress(OSError):
                ask(f"{address}/readyz")
                page = ask(address)
            time.sleep(0.1)
        assert "<html" in page
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert f"{address}/" in Path("serve.log").read_text()


def ask(address: str) -> str:
    with urlopen(address) as answer:
        return str(answer.read().decode())


def send(words: list[str], address: str) -> None:
    """Send images to a server as shown; check that all are answered, and the server counts them."""
    words = [word.replace(ADDRESS, address) for word in words]
    if words[0] == "curl":
        done = subprocess.run([*words, "--fail"], capture_output=True, check=True)
        (answer,) = json.loads(done.stdout)["predictions"]
        assert answer["label"] in CLASSES
        return
    before = count_answered(address)
    text = run([*words, "--to", address])
    n = int(re.search(r"answered +(\d+) images", text)[1])
    assert n == (80 if "--builtin" in words else 40)
    assert re.search(r"failed +0", text)
    assert ("error" in text) == ("--builtin" in words)
    assert count_answered(address) == before + n


def count_answered(address: str) -> int:
    """Return how many images a server has answered, by its metrics."""
    metrics = ask(f"{address}/metrics")
    return int(sum(map(float, re.findall(r"^acclimate_answered_total.* (\S+)$", metrics, re.M))))


@contextmanager
def start_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start a cluster of one node with four cores, which `--address auto` finds."""
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs the extra ray")
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as place:
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.setenv(name, place)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100_000_000}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        try:
            yield
        finally:
            cluster.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("place", "quick_accuracy")
@pytest.mark.filterwarnings("ignore::acclimate.errors.AcclimateWarning")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_one_after_the_other(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        server, address = stack.enter_context(ExitStack()), ""
        for shown in [own for own in RUN if own.page == page]:
            for start, made in MADE.items():
                if shown.line.startswith(start):
                    shutil.rmtree(made) if Path(made).is_dir() else Path(made).unlink()
            words = [re.sub("^~", str(Path.home()), word) for word in shown.words]  # as shells do
            if words[:2] == ["acclimate", "serve"]:
                server.close()
                address = server.enter_context(start_server(words))
            elif words[0] == "curl" or words[:2] == ["acclimate", "send"]:
                address = address or server.enter_context(start_server(["acclimate", "serve"]))
                send(words, address)
            else:
                if "ray" in words:
                    stack.enter_context(start_ray(monkeypatch))
                run(words)
