"""CIFAR-10-C and what stands in for it: published files and copies made here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from acclimate import data
from acclimate.corruptions import BENCHMARK, HELD_OUT, apply
from acclimate.data import check, corruptor, generate
from acclimate.data.catalog import SETS
from acclimate.errors import BadInput, CorruptFile
from tests.codes import raises, warns
from tests.data.samples import (
    N_BATCH,
    as_npy,
    binary_files,
    corrupted_files,
    make_pair,
    sha256,
    tiny_corrupted_entry,
    tiny_entry,
    write_files,
    write_tar,
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETS, "cifar10", tiny_entry("cifar10"))
    monkeypatch.setitem(SETS, "cifar10c", tiny_corrupted_entry())
    monkeypatch.setattr(generate, "_BLOCK", 4)


def unpack(name: str, severity: int) -> np.ndarray:
    """Return a block of the published stand-in, by counting bytes."""
    n = N_BATCH * 3072
    content = corrupted_files()[f"{name}.npy"][-5 * n :]
    part = content[(severity - 1) * n : severity * n]
    return np.frombuffer(part, np.uint8).reshape(N_BATCH, 32, 32, 3)


class TestPublished:
    @pytest.mark.parametrize("packed", [True, False])
    def test_blocks_are_severities(self, packed, tmp_path):
        files = corrupted_files()
        place = tmp_path / "given"
        source = write_tar(tmp_path / "a.tar", files) if packed else write_files(place, files)
        data.get("cifar10c", tmp_path, source)
        _, labels = make_pair("cifar10", "test")
        for severity in (1, 3, 5):
            fog = data.load("cifar10c", root=tmp_path, corruption="fog", severity=severity)
            assert isinstance(fog.images, np.memmap)
            assert np.array_equal(fog.images, unpack("fog", severity))
            assert np.array_equal(fog.labels, labels)
            assert fog.description == {
                "name": "cifar10c",
                "split": "test",
                "n": N_BATCH,
                "source": "official",
                "sha256": sha256(unpack("fog", severity)),
                "corruption": "fog",
                "severity": severity,
            }
        assert check("cifar10c", tmp_path).problems == []
        assert data.find_state("cifar10c", tmp_path) == "official, 2 corruptions"

    def test_a_folder_put_there_by_hand_is_unchecked_until_checked(self, tmp_path):
        write_files(tmp_path / "CIFAR-10-C", corrupted_files())

        def source() -> str:
            loaded = data.load("cifar10c", root=tmp_path, corruption="fog")
            return str(loaded.description["source"])

        assert source() == "unchecked"
        assert check("cifar10c", tmp_path).problems == []
        assert source() == "official"

    def test_a_file_that_is_not_the_published_one_is_refused(self, tmp_path):
        files = {**corrupted_files(), "fog.npy": as_npy(np.zeros((30, 32, 32, 3), np.uint8))}
        source = write_tar(tmp_path / "a.tar", files)
        with raises("wrong_checksum", CorruptFile, path=source / "fog.npy"):
            data.get("cifar10c", tmp_path / "root", source)
        assert [path.name for path in (tmp_path / "root").iterdir()] == [".locks"]
        other = write_files(tmp_path / "other", {"a": b""})
        with raises("wrong_archive", BadInput, path=other):
            data.get("cifar10c", tmp_path / "root", other)

    def test_missing_files_are_told_and_an_error_when_needed(self, tmp_path):
        files = {**corrupted_files()}
        del files["fog.npy"]
        notes: list[str] = []
        source = write_files(tmp_path / "given", files)
        data.get("cifar10c", tmp_path, source, notify=notes.append)
        assert notes == ["1 of 3 files are missing: fog.npy."]
        data.load("cifar10c", root=tmp_path, corruption="brightness")
        with raises("file_missing", CorruptFile, path=tmp_path / "cifar10c" / "fog.npy"):
            data.load("cifar10c", root=tmp_path, corruption="fog")
        assert len(check("cifar10c", tmp_path).problems) == 1

    def test_damage_is_found(self, tmp_path):
        files = corrupted_files()
        folder = write_files(tmp_path / "cifar10c", files)
        (folder / "fog.npy").write_bytes(files["fog.npy"][:-1])
        with raises("unreadable_file", CorruptFile, path=folder / "fog.npy"):
            data.load("cifar10c", root=tmp_path, corruption="fog")
        assert len(check("cifar10c", tmp_path).problems) == 1
        (folder / "fog.npy").write_bytes(files["fog.npy"][:-1] + b"!")
        assert "MD5 differs" in check("cifar10c", tmp_path).problems[0]
        (folder / "labels.npy").write_bytes(as_npy(np.zeros(29, np.uint8)))
        labels = folder / "labels.npy"
        with raises("wrong_length", CorruptFile, path=labels, expected=30, found=29):
            data.load("cifar10c", root=tmp_path, corruption="fog")
        (folder / "fog.npy").write_bytes(as_npy(np.zeros((29, 32, 32, 3), np.uint8)))
        with raises("wrong_content", CorruptFile, path=labels):
            data.load("cifar10c", root=tmp_path, corruption="fog")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    data.get("cifar10", tmp_path, write_files(tmp_path / "given", binary_files("cifar10")))
    return tmp_path


def expected(name: str, severity: int, seed: int = 0) -> np.ndarray:
    """Return the whole test set corrupted at once."""
    return apply(make_pair("cifar10", "test")[0], name, severity, seed, 0)


def ledger(root: Path) -> dict:
    return json.loads((root / "cifar10c-generated" / "generated.json").read_text())


class TestGenerated:
    def test_what_is_not_on_disk_is_made_and_says_so(self, root):
        fog = data.load("cifar10c", root=root, corruption="fog", severity=2, seed=3)
        assert np.array_equal(fog.images, expected("fog", 2, 3))
        assert isinstance(fog.images, np.memmap)
        assert np.array_equal(fog.labels, make_pair("cifar10", "test")[1])
        said = fog.description
        assert (said["source"], said["seed"], said["severity"]) == ("generated", 3, 2)
        assert said["sha256"] == sha256(expected("fog", 2, 3))
        assert said["clean"]["source"] == "official"
        assert list(ledger(root)["blocks"]) == ["fog"]
        assert list(ledger(root)["blocks"]["fog"]) == ["2"]
        assert check("cifar10c", root).problems == []

    def test_the_layout_is_the_published_one(self, root):
        folder = data.corrupt("cifar10", ["fog"], [1, 2, 3, 4, 5], root)
        array = np.load(folder / "fog.npy")
        assert array.shape == (5 * N_BATCH, 32, 32, 3)
        whole = np.concatenate([expected("fog", severity) for severity in (1, 2, 3, 4, 5)])
        assert np.array_equal(array, whole)
        assert (folder / "labels.npy").read_bytes() == corrupted_files()["labels.npy"]

    def test_without_names_it_is_the_benchmark(self, root, monkeypatch):
        made = []
        monkeypatch.setattr(
            "acclimate.data.datasets.generate", lambda *asked: made.append(asked[2].names)
        )
        for names in (None, ["extra"], ["all"], ["fog", "extra", "fog"]):
            data.corrupt("cifar10", names, [5], root)
        fifteen, four = list(BENCHMARK), list(HELD_OUT)
        assert made == [fifteen, four, fifteen + four, ["fog", *four]]
        assert len(fifteen) == 15

    def test_a_published_set_comes_first(self, root):
        data.load("cifar10c", root=root, corruption="fog")
        write_files(root / "cifar10c", corrupted_files())
        fog = data.load("cifar10c", root=root, corruption="fog")
        assert np.array_equal(fog.images, unpack("fog", 5))

    def test_a_cut_run_goes_on_where_it_was(self, root, monkeypatch):
        calls: list[tuple[str, int, int]] = []

        def counted(images, name, severity, seed, start):
            calls.append((name, severity, start))
            if (severity, start) == (3, 4) and len(calls) == 4:
                raise KeyboardInterrupt
            return apply(images, name, severity, seed, start)

        monkeypatch.setattr(generate, "apply", counted)
        with pytest.raises(KeyboardInterrupt):
            data.corrupt("cifar10", ["fog", "brightness"], [1, 3], root)
        folder = root / "cifar10c-generated"
        names = sorted(path.name for path in folder.iterdir() if path.name != ".locks")
        assert names == ["fog.npy.part", "generated.json", "labels.npy"]
        assert list(ledger(root)["blocks"]["fog"]) == ["1"]
        calls.clear()
        data.corrupt("cifar10", ["fog", "brightness"], [1, 3], root)
        again = [("fog", 3), ("brightness", 1), ("brightness", 3)]
        assert calls == [(*block, start) for block in again for start in (0, 4)]
        calls.clear()
        data.corrupt("cifar10", ["fog", "brightness"], [3, 1], root)
        assert calls == []
        for name, severity in again:
            loaded = data.load("cifar10c", root=root, corruption=name, severity=severity)
            assert np.array_equal(loaded.images, expected(name, severity))
        data.load("cifar10c", root=root, corruption="fog", severity=5)
        assert calls == [("fog", 5, 0), ("fog", 5, 4)]
        assert np.array_equal(
            np.load(folder / "fog.npy")[2 * N_BATCH :][:N_BATCH], expected("fog", 3)
        )

    def test_a_part_that_was_cut_itself_is_begun_anew(self, root):
        data.corrupt("cifar10", ["fog"], [1], root)
        file = root / "cifar10c-generated" / "fog.npy"
        file.write_bytes(file.read_bytes()[:1000])
        data.corrupt("cifar10", ["fog"], [5], root)
        assert list(ledger(root)["blocks"]["fog"]) == ["5"]
        loaded = data.load("cifar10c", root=root, corruption="fog", severity=1)
        assert np.array_equal(loaded.images, expected("fog", 1))

    def test_any_number_of_workers_gives_the_same(self, root, workers):
        told = []
        folder = data.corrupt(
            "cifar10", ["fog"], [4], root, workers=workers, progress=lambda *step: told.append(step)
        )
        block = np.load(folder / "fog.npy")[3 * N_BATCH :][:N_BATCH]
        assert np.array_equal(block, expected("fog", 4))
        assert told[-1] == ("fog, severity 4", N_BATCH, N_BATCH)

    def test_blocks_of_another_version_are_told_and_made_anew(self, root, monkeypatch):
        data.load("cifar10c", root=root, corruption="fog")

        def darker(images, name, severity, seed, start):
            return images // 2

        for module in (generate, corruptor):
            monkeypatch.setattr(module, "apply", darker)
        with warns("old_version", path=root / "cifar10c-generated" / "fog.npy"):
            data.load("cifar10c", root=root, corruption="fog")
        notes: list[str] = []
        data.corrupt("cifar10", ["fog"], root=root, notify=notes.append)
        assert len(notes) == 1
        loaded = data.load("cifar10c", root=root, corruption="fog")
        assert np.array_equal(loaded.images, make_pair("cifar10", "test")[0] // 2)

    def test_damage_is_found(self, root):
        folder = data.corrupt("cifar10", ["fog"], [5], root)
        content = bytearray((folder / "fog.npy").read_bytes())
        content[-1] ^= 1
        (folder / "fog.npy").write_bytes(content)
        assert "severity 5: its SHA-256 differs" in check("cifar10c", root).problems[0]
        (folder / "fog.npy").unlink()
        assert "fog.npy is missing" in check("cifar10c", root).problems[0]

    def test_mistakes_are_told_apart(self, root, tmp_path):
        folder = data.corrupt("cifar10", ["fog"], [5], root)
        foreign = write_files(tmp_path / "foreign", corrupted_files())
        frog = {"kind": "corruption", "name": "frog", "known": lambda known: "fog" in known}
        train = {"kind": "split", "name": "train", "known": ("test",)}
        none = {"option": "severities", "found": ()}
        another = {"path": folder, "differences": {"seed": (0, 1)}}

        def corrupt(names: list[str] | None, *more: object, **options: object) -> None:
            data.corrupt("cifar10", names, *more, root=root, **options)

        def load(**options: object) -> None:
            data.load("cifar10c", root=root, **options)

        cases = (
            (lambda: corrupt(["frog"]), "unknown_name", frog),
            (lambda: corrupt(["fog"], [6]), "out_of_range", {**none, "found": (6,)}),
            (lambda: corrupt(["fog"], []), "out_of_range", none),
            (lambda: corrupt([], [5]), "missing_option", {"option": "names"}),
            (
                lambda: corrupt(["fog"], workers=0),
                "out_of_range",
                {"option": "workers", "found": 0},
            ),
            (lambda: corrupt(["fog"], seed=1), "made_differently", another),
            (lambda: corrupt(["fog"], out=foreign), "other_content", {"path": foreign}),
            (
                lambda: data.corrupt("builtin", ["fog"], root=root),
                "missing_option",
                {"option": "out"},
            ),
            (lambda: load(), "missing_option", {"option": "corruption"}),
            (lambda: load(split="train", corruption="fog"), "unknown_name", train),
            (lambda: load(corruption="frog"), "unknown_name", frog),
            (
                lambda: load(corruption="fog", severity=0),
                "out_of_range",
                {"option": "severities", "found": (0,)},
            ),
            (
                lambda: data.load("cifar10c", root=tmp_path / "no", corruption="fog"),
                "not_fetched",
                {"name": "cifar10"},
            ),
            (lambda: check("cifar10c", tmp_path / "no"), "not_fetched", {"name": "cifar10c"}),
        )
        for call, code, more in cases:
            with raises(code, BadInput, **more):
                call()

    def test_the_message_names_both_commands(self, tmp_path):
        with raises("not_fetched") as caught:
            check("cifar10c", tmp_path)
        for command in ("acclimate data get cifar10c", "acclimate data corrupt cifar10"):
            assert command in str(caught.value)
