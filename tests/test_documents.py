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
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.request import urlopen

import pytest
import typer
from typer.testing import CliRunner

from acclimate import commands as functions
from acclimate import list_methods
from acclimate.bench import Store, Suite
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
#: What suites are run with instead of what pages show, as they would take hours.
SUITE_LIMITS = {
    '[job]\nmodel = "resnet20-cifar10"': '[job]\nmodel = "resnet20-cifar10"\ncorruptions = ["fog"]',
    "seed = [0, 1, 2]": "seed = [0]",
    "lr = [1e-4, 1e-3]": "lr = [1e-3]",
    "size = 224": "size = 16",
    "images = 2048": "images = 100",
    "n_samples = 256": 'n_samples = 64, shifts = ["spatter"]',
    "guard = [false, true]": "guard = [true]",
    "domains = { names": "domains = { size = 32, names",
    "prepare = { domains": "prepare = { parts.penalty.n_samples = 4, domains",
    "images = 60": "images = 2\nprepare = { images = 2, parts.penalty.n_samples = 2 }",
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


class ShownSuite(NamedTuple):
    page: str
    text: str

    @property
    def small(self) -> str:
        """The suite as it is run: with its limits."""
        text = self.text
        for shown, small in SUITE_LIMITS.items():
            text = text.replace(shown, small)
        return text


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


def read_inline(page: str, text: str) -> Iterator[Shown]:
    """Yield the commands in the sentences of a page."""
    for line in re.findall(
        r"`(acclimate\s[^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    ):
        yield Shown(page, re.sub(r"\s+", " ", line))


def read_suites(page: str, text: str) -> Iterator[ShownSuite]:
    """Yield the suites of a page; one without [job] has that of the one before."""
    shared = ""
    for block in re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S):
        jobs, rows, more = block.partition("[[rows]]")
        shared = jobs if "[job]" in jobs else shared
        yield ShownSuite(page, shared + (rows + more or '[[rows]]\nmethod = "swr"\n'))


def read_pages() -> dict[str, str]:
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    board = leaderboard.make_board()
    for name in list_methods():
        texts[f"docs/methods/{name}.md"] = methods.make_page(name, board)
    return texts


def list_shown() -> list[Shown]:
    found = [shown for page, text in TEXTS.items() for shown in read_blocks(page, text)]
    for name, function in vars(functions).items():
        text = inspect.getdoc(function) or ""
        for line in re.findall(r"`(acclimate .*?)`", text.partition("Example")[2], re.S):
            shown = Shown(f"--help of {name}", re.sub(r"\s+", " ", line))
            if all(own.words != shown.words for own in found):  # on a page: run there
                found.append(shown)
    return found


def list_suites() -> list[ShownSuite]:
    (block,) = re.findall(
        r"^ {4}.*\n(?: {4}.*\n|\n)*", inspect.getdoc(functions.bench_run) or "", re.M
    )
    found = [ShownSuite("--help of bench_run", textwrap.dedent(block))]
    return [*found, *(own for page, text in TEXTS.items() for own in read_suites(page, text))]


TEXTS = read_pages()
SHOWN = list_shown()
INLINE = [own for page, text in TEXTS.items() for own in read_inline(page, text)]
SUITES = list_suites()
RUN = [own for own in SHOWN if not any(re.match(each, own.line) for each in NOT_RUN)]
PAGES = list(dict.fromkeys(own.page for own in (*RUN, *SUITES)))


def test_commands_are_found() -> None:
    assert len(SHOWN) > 100
    assert len(INLINE) > 40
    assert len(SUITES) > 6
    assert set(PAGES) > {"README.md", "docs/serving.md", "docs/methods/tent.md", "--help of train"}


@pytest.mark.parametrize("start", LIMITS)
def test_a_limit_is_needed(start: str) -> None:
    others = [other for other in LIMITS if other != start and start.startswith(other)]
    assert all(list(LIMITS).index(start) < list(LIMITS).index(other) for other in others)
    longer = tuple(other for other in LIMITS if other != start and other.startswith(start))
    lines = [shown.line for shown in SHOWN if shown.line.startswith(start)]
    assert [line for line in lines if not line.startswith(longer or "\n")]


@pytest.mark.parametrize("start", MADE)
def test_what_is_removed_is_made_by_a_command(start: str) -> None:
    assert any(shown.line.startswith(start) for shown in RUN)


@pytest.mark.parametrize("line", PREPARED)
def test_what_is_prepared_is_named_by_a_command(line: str) -> None:
    options = dict(itertools.pairwise(shlex.split(line)))
    made = {options[name] for name in ("--out", "--state") if name in options}
    assert made & {word for shown in RUN for word in shown.words}


@pytest.mark.parametrize("shown", SUITE_LIMITS)
def test_a_limit_of_suites_is_needed(shown: str) -> None:
    assert any(shown in suite.text for suite in SUITES)


def find_command(shown: Shown) -> tuple[Any, list[str]]:
    """Return the command that is shown, and the words behind its name."""
    command, words = typer.main.get_command(app), shlex.split(shown.line, comments=True)[1:]
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            break
        command = command.commands[words.pop(0)]
    return command, words


@pytest.mark.parametrize(
    "shown",
    [shown for shown in SHOWN if shown.line.startswith("acclimate ")],
    ids=lambda shown: f"{shown.page}: {shown.line[:60]}",
)
def test_a_command_has_the_options_that_it_is_shown_with(shown: Shown) -> None:
    command, words = find_command(shown)
    command.make_context("acclimate", words)  # raises on unknown, malformed or missing options


@pytest.mark.parametrize("shown", INLINE, ids=lambda shown: f"{shown.page}: {shown.line[:60]}")
def test_a_command_in_a_sentence_has_the_options_that_it_is_shown_with(shown: Shown) -> None:
    command, words = find_command(shown)
    known = {name for own in command.params for name in own.opts}
    assert {word for word in words if word.startswith("-")} <= known
    if not words or (len(words) == 1 and words[0].startswith("-")):
        return  # a command or an option is named, without values
    try:
        command.make_context("acclimate", [word for word in words if word != "…"])
    except typer.BadParameter as error:
        if type(error).__name__ != "MissingParameter":  # raised after what is there was parsed
            raise


@pytest.mark.parametrize("page", PAGES)
def test_each_reproduction_of_a_page_has_a_folder(page: str) -> None:
    lines = [own for own in RUN if own.page == page and own.line.startswith("acclimate reproduce")]
    options = [dict(itertools.pairwise(own.words)) for own in lines]
    folders = [own["--out"] for own in options if "--out" in own]
    assert len(folders) == len(set(folders))


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_a_reason_is_needed(pattern: str) -> None:
    assert len(NOT_RUN) <= 5
    assert any(re.match(pattern, shown.line) for shown in SHOWN)


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.page)
def test_a_suite_is_valid(
    suite: ShownSuite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(tmp_path / "folder")
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root))
    for name in re.findall(r'^weights = "(.*?)"', suite.text, re.M):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    file = root / "suite.toml"
    file.write_text(suite.text)
    assert Suite.load(file).entries


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


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def start_server(words: list[str]) -> Iterator[str]:
    """Run `acclimate serve` at a free port until the end of the block; give its address."""
    port = find_port()
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
    import ray
    from ray import _raylet

    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as place:
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.setenv(name, place)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # A node ends if the port files of its agents, which start slowly on a busy machine, do not
        # appear within 15 s; no setting changes that. So one agent is given its port, and the files
        # of the other one are there from the beginning: -1 stands for services that are not in use.
        monkeypatch.setenv("RAY_agent_register_timeout_ms", "300000")
        node, session = ray.NodeID.from_random().hex(), Path(place) / "ray" / "session_documents"
        monkeypatch.setenv("RAY_OVERRIDE_NODE_ID_FOR_TESTING", node)
        session.mkdir(parents=True)
        for name in ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN"):
            _raylet.persist_port(str(session), node, getattr(_raylet, f"{name}_PORT_NAME"), -1)
        head = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100_000_000}
        head |= {"session_name": session.name, "runtime_env_agent_port": find_port()}
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
    for number, suite in enumerate(own for own in SUITES if own.page == page):
        file, out = Path(f"suite-{number}.toml"), f"results/suite-{number}"
        file.write_text(suite.small)
        run(["acclimate", "bench", "run", str(file), "--out", out, "--workers", "0"])
        assert len(Store(out).outcomes()) == len(Suite.load(file).entries)
