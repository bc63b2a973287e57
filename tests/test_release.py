"""What is released: the distributions, the workflows that make them, and the image."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import acclimate
from tests.paths import ROOT
from tests.surface import read_commands

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = ROOT / ".github" / "workflows"


def test_versions_agree() -> None:
    version = acclimate.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changelog
    assert f"## [{version}] - " in changelog or "dev" in version


def test_the_matrix_has_the_supported_pythons_and_the_oldest_and_newest_torch() -> None:
    matrix = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]["test"]["strategy"][
        "matrix"
    ]
    classifier = "Programming Language :: Python :: 3."
    versions = [text.removeprefix(classifier) for text in PROJECT["classifiers"]]
    assert matrix["python"] == [f"3.{text}" for text in versions if text.isdecimal()]
    assert PROJECT["requires-python"] == f">={matrix['python'][0]}"
    packages = {row["torch"]: row["packages"] for row in matrix["include"]}
    extras = PROJECT["optional-dependencies"]
    for name in ("torch", "torchvision"):
        (bound,) = [
            text
            for text in [*PROJECT["dependencies"], *extras["torchvision"]]
            if f"{name}>" in text
        ]
        assert f"{bound.replace('>=', '==')}.0" in packages["oldest"].split()
        (pin,) = re.findall(rf"^{name}==.*$", (ROOT / "constraints.txt").read_text(), re.M)
        assert pin in packages["newest"].split()


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_are_complete(name: str) -> None:
    """Jobs need jobs that exist, use fixed versions of actions, and run targets that exist."""
    workflow = yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.M)
    for job in workflow["jobs"].values():
        assert set([job.get("needs", [])] if "needs" in job else []) <= set(workflow["jobs"])
        for step in job.get("steps", []):
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step.get("uses", "a/b@v1"))
            assert set(re.findall(r"\bmake (\w+)", step.get("run", ""))) <= set(targets)


def test_messages_name_extras_that_exist() -> None:
    place = {"how_to_install": 0, "import_extra": 2, "import_library": 1}  # of the argument
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(getattr(node, "func", None), "id", "")
            if isinstance(node, ast.Call) and name in place:
                extra = node.args[place[name]]
                named |= {extra.value} if isinstance(extra, ast.Constant) else set()
    assert {"corruptions", "data", "export", "parquet", "serve", "timm", "train"} <= named
    assert named <= set(PROJECT["optional-dependencies"])


@pytest.mark.slow
def test_an_extra_of_an_installed_acclimate_needs_no_release() -> None:
    """pip takes acclimate as it is installed, without an index, and would add the packages."""
    words = ["install", "--dry-run", "--no-deps", "--no-index", "--isolated", "acclimate[data]"]
    run = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=True
    )
    assert "Requirement already satisfied: acclimate[data]" in run.stdout


def read_dockerfile() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).strip().splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line]  # type: ignore[misc]


def test_the_image_serves_without_root_and_reports_its_health() -> None:
    steps = read_dockerfile()
    names = [name for name, _ in steps]
    known = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE"}
    assert set(names) <= known | {"HEALTHCHECK", "ENTRYPOINT"}
    assert names[0] == "FROM"
    last = dict(steps)
    assert int(last["USER"]) > 0
    assert "RUN" not in names[names.index("USER") :]
    command: list[str] = json.loads(last["ENTRYPOINT"])
    assert command[:2] == ["acclimate", "serve"]
    assert {text for text in command if text.startswith("--")} <= set(
        read_commands()["acclimate serve"]
    )
    assert command[command.index("--port") + 1] == last["EXPOSE"]
    check = json.loads(last["HEALTHCHECK"].partition("CMD")[2])
    assert f"127.0.0.1:{last['EXPOSE']}/healthz" in check[-1]
    compile(check[-1], "HEALTHCHECK", "exec")
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    for text in (text for name, text in steps if name == "COPY"):
        for source in text.split()[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in kept


def build(kind: str, source: Path, out: Path) -> Path:
    code = f"import setuptools.build_meta as b; print(b.build_{kind}({str(out)!r}))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=source, check=True, capture_output=True, text=True
    )
    return out / run.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="compares with the files in git")
def test_the_source_has_the_tests_and_the_wheel_runs(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    tracked = set(listed.stdout.split())
    clone = tmp_path / "clone"  # setuptools would put what an earlier build left into the wheel
    for name in tracked:
        if (ROOT / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    sdist = build("sdist", clone, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert {name for name in tracked if not (source / name).exists()} <= {".ci/run", ".gitignore"}

    wheel = build("wheel", source, tmp_path)
    assert wheel.stat().st_size < 6_000_000
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    base = installed / "acclimate"
    files = {path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file()}
    package = {name.removeprefix("src/acclimate/") for name in tracked if name.startswith("src/")}
    assert package <= files
    assert "py.typed" in files
    assert {path.name for path in installed.iterdir()} == {
        "acclimate",
        f"acclimate-{acclimate.__version__}.dist-info",
    }
    code = """
import acclimate
from acclimate.builtin import load_artifact, load_model, load_split
adapted = acclimate.adapt(load_model(), artifact=load_artifact())
assert len(adapted(load_split("test", 32)[0])) == 32
print(acclimate.__file__)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.startswith(str(installed))
