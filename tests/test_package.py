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

import acclimate
from tests.paths import ROOT


def test_public_names():
    """Removing or adding a public name is a decision: it must be made in api_surface.json too."""
    recorded = json.loads((ROOT / "tests" / "api_surface.json").read_text())
    assert sorted(acclimate.__all__) == recorded
    assert all(hasattr(acclimate, name) for name in recorded)


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


@pytest.mark.parametrize(
    "name", [pytest.param("README.md", marks=pytest.mark.slow), "CONTRIBUTING.md"]
)
@pytest.mark.usefixtures("quick_accuracy")
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


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_names_in_python_blocks_of_documents_exist(name):
    """What is imported from the package, or is used as `acclimate.name`, is there."""
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
            n_names += 1
    assert n_names


BUILT_IN = set(acclimate.list_methods())


def test_linked_files_of_documents_exist():
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text()):
            if not target.startswith("http"):
                assert (ROOT / target).exists(), f"{name} links {target}"


def test_versions_agree():
    assert f"version: {acclimate.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
