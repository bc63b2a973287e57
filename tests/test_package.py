"""Guards around the package as a whole: public names, import cost, documents."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from types import ModuleType

import pytest
import torch

import acclimate
from acclimate.builtin import load_artifact, load_model, load_split
from acclimate.zoo.torchvision_compat import import_torchvision
from tests.paths import ROOT
from tests.surface import MODULES, RECORD, read_commands, read_modules

SURFACE = json.loads(RECORD.read_text())


def test_public_names():
    """Adding or removing a public name is a decision: `python -m tests.surface` records it."""
    assert read_modules() == SURFACE["modules"]
    for module, names in SURFACE["modules"].items():
        loaded = importlib.import_module(module)
        assert [name for name in names if not hasattr(loaded, name)] == []
    for module in set(MODULES) - {"acclimate"}:
        assert getattr(acclimate, module.removeprefix("acclimate.")).__name__ == module


def test_commands_and_options():
    """As above: a script that runs today must run with the next release."""
    assert read_commands() == SURFACE["commands"]


@pytest.mark.slow
def test_import_is_light():
    """`import acclimate` and its verbs load no third-party package that torch does not load."""
    code = """
import sys
import torch, numpy.random
known = set(sys.modules)
import acclimate
acclimate.adapt, acclimate.prepare, acclimate.evaluate
new = {name.partition(".")[0] for name in set(sys.modules) - known}
print(*sorted(new - set(sys.stdlib_module_names)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["acclimate", "numpy", "safetensors"]


def test_help_needs_no_torch():
    code = "import sys, acclimate.cli.main; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def blocks(name):
    text = (ROOT / name).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def find_pages():
    """All pages with Python, but docs/data.md, whose blocks tests/data/test_registry.py runs."""
    pages = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("*.md"))]
    return [name for name in pages if blocks(name) and name != "docs/data.md"]


@pytest.fixture
def names_of_pages(name, monkeypatch, tmp_path):
    """What a page may use without making it: a model, an artifact, an adapted model, batches."""
    if name == "docs/integrations.md":
        import_torchvision()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    if name == "docs/serving.md":
        ray_serve = pytest.importorskip("ray.serve", reason="needs the extra serve-ray")
        monkeypatch.setattr(ray_serve, "run", lambda application: application)
    model = load_model()
    x, y = load_split("train", 96)
    source_loader = list(zip(x.split(48), y.split(48), strict=True))
    stream = load_split("test", 32)[0].split(16)
    return {
        "acclimate": acclimate,
        "torch": torch,
        "model": model,
        "x": stream[0],
        "y": load_split("test", 16)[1],
        "source_loader": source_loader,
        "artifact": load_artifact(),
        "stream": stream,
        "batches": stream,
        "adapted": acclimate.adapt(load_model(), "tent"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *find_pages()])
@pytest.mark.usefixtures("quick_accuracy")
@pytest.mark.filterwarnings("ignore::acclimate.errors.AcclimateWarning")
def test_python_blocks_of_documents_run(name, tmp_path, monkeypatch, names_of_pages):
    """The blocks of a document run one after the other, in one namespace."""
    monkeypatch.chdir(tmp_path)
    found = blocks(name)
    assert found
    module = ModuleType("document")
    if name.startswith("docs/"):
        vars(module).update(names_of_pages)
    monkeypatch.setitem(sys.modules, "document", module)  # dataclasses look their module up
    try:
        for block in found:
            exec(compile(block, name, "exec", dont_inherit=True), module.__dict__)
    finally:
        for method in set(acclimate.list_methods()) - BUILT_IN:
            acclimate.methods.METHODS.pop(method)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *find_pages()])
def test_names_in_python_blocks_of_documents_exist(name):
    """What is imported from the package, or is used as `acclimate.name`, is there and is public."""
    n_names = 0
    for node in (node for block in blocks(name) for node in ast.walk(ast.parse(block))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("acclimate"):
            used = [(importlib.import_module(str(node.module)), own.name) for own in node.names]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "acclimate":
            used = [(acclimate, node.attr)]
        else:
            continue
        for module, attribute in used:
            assert hasattr(module, attribute), f"{name}: {module.__name__}.{attribute}"
            is_module = f"{module.__name__}.{attribute}" in MODULES
            assert is_module or attribute in SURFACE["modules"][module.__name__]
            n_names += 1
    assert n_names or name.startswith("docs/")


BUILT_IN = set(acclimate.list_methods())


#: Pages that exist on the site only; its strict build checks their anchors.
GENERATED = {"api.md", "changelog.md", "cli.md", "contributing.md", "leaderboard.md"}
GENERATED |= {"methods/index.md", *(f"methods/{name}.md" for name in BUILT_IN)}
GENERATED |= {f"notebooks/{path.stem}.md" for path in (ROOT / "docs/notebooks").glob("*.ipynb")}


def find_anchors(path):
    """The anchors of a page's headings: those of GitHub that the site has, too."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    heads = [
        re.sub(r"[^\w\s-]", "", text).strip().lower()
        for text in re.findall(r"^#+ (.*)", text, re.M)
    ]
    return {re.sub(r"\s", "-", head) for head in heads} & {
        re.sub(r"[-\s]+", "-", head) for head in heads
    }


def test_links_of_documents_resolve():
    pages = [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md"), *(ROOT / "docs").glob("*.md")]
    broken = []
    for path in pages:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)", text):
            target, _, anchor = link.partition("#")
            if link.startswith(("http", "mailto:")) or (
                target in GENERATED and path.parent != ROOT
            ):
                continue
            found = path.parent / target if target else path
            if not found.exists() or (anchor and anchor not in find_anchors(found)):
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert not broken


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
