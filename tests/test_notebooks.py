"""The notebooks run, and they are stored with their outputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.paths import ROOT

sys.path.append(str(ROOT / "docs"))
from generate import notebooks

PATHS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
by_name = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::acclimate.errors.AcclimateWarning")
@by_name
def test_the_code_of_a_notebook_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="needs the extra notebooks")
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    module = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)
    for number, code in enumerate(notebooks.list_code(path)):
        exec(compile(code, f"{path.name}, code cell {number}", "exec"), vars(module))


@by_name
def test_a_notebook_begins_with_its_installation_and_has_its_outputs(path: Path) -> None:
    first, *others = notebooks.list_code(path)
    assert 'REPOSITORY = ""\nif REPOSITORY:' in first
    assert len(others) >= 3
    cells = json.loads(path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    pages = notebooks.make_pages()
    page = pages[f"notebooks/{path.stem}.md"]
    assert f"]({path.stem}-1.png)" in page
    assert pages[f"notebooks/{path.stem}-1.png"][:4] == b"\x89PNG"
    assert "```text\n" in page


def test_there_are_three_of_them() -> None:
    assert [path.stem for path in PATHS] == ["choosing", "own-data", "quickstart"]
