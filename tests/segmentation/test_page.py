"""What the page on segmentation says can be done is done."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from acclimate.bench import JobSpec
from acclimate.cli.main import main
from acclimate.methods import METHODS
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "segmentation.md").read_text(encoding="utf-8")


def find_blocks(kind: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [text for own, text in found if own == kind]


def test_its_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    blocks = find_blocks("python")
    assert len(blocks) == 2
    for block in blocks:
        exec(block, names)
    assert re.search(r"mean IoU \d+\.\d -> \d+\.\d %", capsys.readouterr().out)
    assert 0 < names["before"].miou < names["after"].miou <= 1


def test_its_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = next(block for block in find_blocks("") if block.startswith("acclimate eval"))
    words = line.replace("\\\n", " ").split()
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "mIoU" in capsys.readouterr().out


def test_its_job_can_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("camvid.safetensors").write_bytes(b"not looked into here")
    (block,) = find_blocks("toml")
    spec = JobSpec.from_dict({**tomllib.loads(block)["job"], "method": "swr"})
    assert (spec.data, spec.images, spec.get_protocol().batch_size) == ("camvid", 60, 2)


def test_it_names_all_methods_that_work_on_pixels() -> None:
    listed = PAGE.partition("marks what works on pixels:")[2].partition(";")[0]
    named = set(re.findall(r"[a-z_]+", re.sub(r"\band\b", "", listed)))
    assert named == {name for name, kind in METHODS.items() if kind.card.dense}
