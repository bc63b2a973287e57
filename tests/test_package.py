"""Guards around the package as a whole: public names, import cost, documents."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import acclimate

ROOT = Path(__file__).parent.parent


def test_public_names():
    """Removing or adding a public name is a decision: it must be made in api_surface.json too."""
    recorded = json.loads((ROOT / "tests" / "api_surface.json").read_text())
    assert sorted(acclimate.__all__) == recorded
    assert all(hasattr(acclimate, name) for name in recorded)


def test_import_is_light():
    """`import acclimate` adds under 0.3 s to `import torch`, and loads nothing heavy."""
    code = """
import sys, time
import torch
start = time.process_time()
import acclimate
acclimate.adapt, acclimate.prepare, acclimate.evaluate
print(time.process_time() - start)
print(*sorted({"typer", "rich", "torchvision", "pyarrow", "PIL", "timm"} & set(sys.modules)))
"""
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(5)
    ]
    seconds = min(float(run.stdout.splitlines()[0]) for run in runs)
    assert seconds < 0.3
    assert runs[0].stdout.splitlines()[1] == ""


def test_help_needs_no_torch():
    code = "import sys, acclimate.cli.main; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def blocks(name):
    text = (ROOT / name).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_python_blocks_of_documents_run(name, tmp_path, monkeypatch):
    """The blocks of a document run one after the other, in one namespace."""
    monkeypatch.chdir(tmp_path)
    found = blocks(name)
    assert found
    module = ModuleType("document")
    monkeypatch.setitem(sys.modules, "document", module)  # dataclasses look their module up
    try:
        for block in found:
            exec(compile(block, name, "exec", dont_inherit=True), module.__dict__)
    finally:
        for method in set(acclimate.list_methods()) - BUILT_IN:
            acclimate.methods.METHODS.pop(method)


BUILT_IN = set(acclimate.list_methods())


def test_linked_files_of_documents_exist():
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text()):
            if not target.startswith("http"):
                assert (ROOT / target).exists(), f"{name} links {target}"


def test_versions_agree():
    assert f"version: {acclimate.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
