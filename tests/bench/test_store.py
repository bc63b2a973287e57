"""What jobs and suites keep on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from acclimate.bench import Entry, Store, Suite
from acclimate.bench.run_folder import Checkpoint, RunFolder
from acclimate.bench.suite import read_outcome
from acclimate.cli.main import app
from acclimate.errors import BadInput, CorruptFile
from acclimate.evaluation import Record
from acclimate.metrics import Group, Sums, pack_sums
from tests.bench.jobs import make_spec, read_lines, run_once
from tests.codes import check_coded, raises, warns

SETTING = {"key": "k", "n_batches": 6, "n_threads": 2, "versions": {"torch": "1"}}


def record(index: int) -> dict:
    return Record("fog", index, 4, 1, 0.5, 0.7, 3.25, 0, 0, None, {"fog": (4, 1)}).to_dict()


def measures(n: int = 4) -> list[dict]:
    own = Sums(2)
    own.n_by_class[0] = n
    return pack_sums({Group(1, "fog"): own})


def open_folder(path: Path, **changes):
    folder = RunFolder(path)
    folder.make()
    return folder, folder.begin({**SETTING, **changes})


def write_state(text: str):
    return lambda path: path.write_text(text)


def test_records_after_the_last_checkpoint_are_cut_off(tmp_path: Path) -> None:
    folder, known = open_folder(tmp_path)
    assert (known.records, known.sums, known.checkpoint) == ([], {}, None)
    for index in range(3):
        folder.append("one", record(index))
    folder.close_unit("one", measures())
    folder.append("two", record(3))
    folder.checkpoint(Checkpoint("two", 1, measures(1)), write_state("learned"))
    folder.append("two", record(4))
    # Nothing is closed here: the process was killed.
    with (tmp_path / "records.jsonl").open("ab") as file:
        file.write(b'{"unit": "two", "ind')
    folder, known = open_folder(tmp_path)
    assert [own["index"] for own in known.records] == [0, 1, 2, 3]
    assert list(known.sums) == ["one"]
    assert known.checkpoint == Checkpoint("two", 1, measures(1))
    assert known.state is not None
    assert known.state.read_text() == "learned"
    folder.append("two", record(4))
    assert [line["index"] for line in read_lines(tmp_path)] == [0, 1, 2, 3, 4]


def test_without_a_checkpoint_the_unit_is_begun_again(tmp_path: Path) -> None:
    folder, _ = open_folder(tmp_path)
    for index in range(2):
        folder.append("one", record(index))
    folder.close_unit("one", measures())
    folder.append("two", record(2))
    with (tmp_path / "measures.jsonl").open("ab") as file:
        file.write(b'{"unit": "two", "by')
    _, known = open_folder(tmp_path)
    assert [own["index"] for own in known.records] == [0, 1]
    assert known.checkpoint is None
    assert len(read_lines(tmp_path, "measures.jsonl")) == 1
    assert (tmp_path / "measures.jsonl").read_bytes().endswith(b"\n")


def test_a_checkpoint_of_a_finished_unit_is_passed_over(tmp_path: Path) -> None:
    folder, _ = open_folder(tmp_path)
    folder.append("one", record(0))
    folder.checkpoint(Checkpoint("one", 1, measures()), write_state("old"))
    folder.append("one", record(1))
    folder.close_unit("one", measures())
    folder, known = open_folder(tmp_path)
    assert known.checkpoint is None
    assert len(known.records) == 2
    folder.append("two", record(2))
    folder.checkpoint(Checkpoint("two", 1, measures()), write_state("new"))
    _, known = open_folder(tmp_path)
    assert known.state is not None
    assert known.state.read_text() == "new"
    assert [path.name for path in tmp_path.glob("*.state")] == [known.state.name]


def test_a_checkpoint_that_was_cut_leaves_the_one_before(tmp_path: Path) -> None:
    folder, _ = open_folder(tmp_path)
    folder.append("one", record(0))
    folder.checkpoint(Checkpoint("one", 1, measures()), write_state("good"))
    folder.append("one", record(1))

    def die(path: Path) -> None:
        path.write_text("half")
        (path.parent / f".{path.name}.0a0a0a0a.part").write_text("part")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.checkpoint(Checkpoint("one", 2, measures()), die)
    folder, known = open_folder(tmp_path)
    assert known.checkpoint is not None
    assert known.checkpoint.n_batches == 1
    assert known.state is not None
    assert known.state.read_text() == "good"
    folder.checkpoint(Checkpoint("one", 1, measures()), write_state("again"))
    assert sorted(path.name for path in tmp_path.iterdir() if "state" in path.name) == ["2.state"]


@pytest.mark.parametrize("change", [{"versions": {"torch": "2"}}, {"n_batches": 7}, {"key": "j"}])
def test_a_job_begun_under_another_setting_starts_anew(tmp_path: Path, change) -> None:
    folder, _ = open_folder(tmp_path)
    folder.append("one", record(0))
    folder.checkpoint(Checkpoint("one", 1, measures()), write_state("old"))
    _, known = open_folder(tmp_path, **change)
    assert (known.records, known.checkpoint) == ([], None)
    assert (tmp_path / "records.jsonl").read_bytes() == b""
    assert not list(tmp_path.glob("*.state"))


def test_the_number_of_threads_is_that_of_the_beginning(tmp_path: Path) -> None:
    folder, known = open_folder(tmp_path)
    assert known.n_threads == 2
    folder.append("one", record(0))
    folder.close_unit("one", measures())
    _, known = open_folder(tmp_path, n_threads=8)
    assert known.n_threads == 2
    assert len(known.records) == 1


def test_a_disk_that_lost_records_makes_the_job_start_anew(tmp_path: Path) -> None:
    folder, _ = open_folder(tmp_path)
    folder.append("one", record(0))
    folder.append("one", record(1))
    folder.close_unit("one", measures())
    text = (tmp_path / "records.jsonl").read_bytes()
    (tmp_path / "records.jsonl").write_bytes(text[:-5])
    _, known = open_folder(tmp_path)
    assert (known.records, known.sums) == ([], {})


def test_states_are_read_from_disk(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "job")
    assert folder.state == "waiting"
    folder.make()
    with folder.hold() as is_mine:
        assert is_mine
        assert folder.state == "running"
        with RunFolder(tmp_path / "job").hold() as also_mine:
            assert not also_mine
        RunFolder(folder.path).begin(SETTING)
    assert folder.state == "interrupted"
    folder.fail("WorkerDied", "why")
    assert folder.state == "failed"
    found = folder.read("error.json")
    assert found is not None
    assert (found["type"], found["message"]) == ("WorkerDied", "why")
    assert "code" not in found
    assert "last checkpoint" in found["remedy"]
    with folder.hold():
        RunFolder(folder.path).begin(SETTING)
    assert folder.state == "interrupted"
    folder.write("result.json", {})
    assert folder.state == "done"


def test_files_that_were_altered_are_named(tmp_path: Path) -> None:
    assert run_once(make_spec("source"), tmp_path / "job") == "finished"
    folder = RunFolder(tmp_path / "job")
    entry = Entry(make_spec("source"), "x")
    records = tmp_path / "job" / "records.jsonl"
    good = records.read_bytes()
    lines = [json.loads(line) for line in good.splitlines()]
    records.write_bytes(good.replace(b"0.", b"1.", 1))
    with raises("wrong_checksum", CorruptFile, path=records):
        read_outcome(folder, entry, "job")
    # What was written before there were checksums is looked at line by line.
    result = folder.read("result.json")
    assert result is not None
    folder.write("result.json", {name: own for name, own in result.items() if name != "sha256"})
    del lines[3]["entropy"]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    records.write_text(text)
    with raises("wrong_content", CorruptFile, path=records) as caught:
        read_outcome(folder, entry, "job")
    check_coded(caught.value.__cause__, "wrong_fields", missing=("entropy",), unknown=())
    assert "line 4" in str(caught.value)
    records.write_bytes(good.rpartition(b"\n{")[0] + b"\n")
    with raises("wrong_length", CorruptFile, path=records, found=11, expected=12):
        read_outcome(folder, entry, "job")
    records.write_bytes(b"nonsense\n" + good)
    with raises("unreadable_file", CorruptFile, path=records) as caught:
        read_outcome(folder, entry, "job")
    assert "line 1" in str(caught.value)
    records.write_bytes(good + b"[" * 100_000 + b"\n")
    with raises("unreadable_file", CorruptFile, path=records):
        read_outcome(folder, entry, "job")
    (tmp_path / "job" / "result.json").write_text('{"a":' * 100_000)
    with raises("unreadable_file", CorruptFile, path=tmp_path / "job" / "result.json"):
        read_outcome(folder, entry, "job")
    (tmp_path / "job" / "result.json").write_text("[]")
    with raises("wrong_content", CorruptFile, path=tmp_path / "job" / "result.json"):
        read_outcome(folder, entry, "job")


def test_a_full_disk_is_one_error_and_the_run_goes_on_later(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = RunFolder(tmp_path / "job")
    folder.make()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        with folder.lock():
            folder.begin(SETTING)
            for number in range(3):
                folder.append("x", {"number": number, "text": "t" * 1000})
            with raises("not_writable", BadInput, path=tmp_path / "job" / "records.jsonl"):
                folder.append("x", {"number": 3, "text": "t" * 1000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    lines, _ = RunFolder(tmp_path / "job").read_lines("records.jsonl")
    assert [line["number"] for line in lines] == [0, 1, 2]
    with folder.lock():
        folder.begin(SETTING)
        folder.append("x", {"number": 0})


def test_a_damaged_job_does_not_hide_the_others(tmp_path: Path) -> None:
    suite = Suite(
        title="two", entries=(Entry(make_spec("tent"), "tent"), Entry(make_spec("source"), "plain"))
    )
    store = Store.create(tmp_path, suite)
    for name, entry in store.jobs().items():
        assert run_once(entry.spec, tmp_path / name) == "finished"
    assert [status.state for status in store.statuses()] == ["done", "done"]
    damaged = tmp_path / next(iter(store.jobs()))
    (damaged / "result.json").write_text('{"a":')
    with warns("job_left_out", name="tent"):
        (found,) = store.outcomes()
    assert found.entry.label == "plain"
    states = store.statuses()
    assert [status.state for status in states] == ["failed", "done"]
    assert states[0].error is not None
    assert states[0].error["type"] == "CorruptFile"
    assert str(damaged / "result.json") in states[0].error["message"]


def test_a_suite_is_found_again_with_what_is_done_of_it(tmp_path: Path) -> None:
    tent, source = make_spec("tent"), make_spec("source")
    entries = (
        Entry(tent, "tent", axes={"lr": 1e-3}),
        Entry(source, "source"),
        Entry(source, "the same again", "other"),
    )
    suite = Suite(title="three rows", entries=entries, notes="small", selection="oracle")
    store = Store.create(tmp_path / "deep" / "out", suite)
    assert list(store.jobs()) == [f"jobs/tent-{tent.key}", f"jobs/source-{source.key}"]
    run_once(source, tmp_path / "deep" / "out" / f"jobs/source-{source.key}")
    again = Store(tmp_path / "deep" / "out")
    assert again.suite == suite
    outcomes = again.outcomes()
    assert [(own.entry.label, own.entry.group) for own in outcomes] == [
        ("source", ""),
        ("the same again", "other"),
    ]
    assert outcomes[0].folder == f"jobs/source-{source.key}"
    assert outcomes[0].error == pytest.approx(100 * outcomes[0].result.error)
    assert outcomes[0].result.ece > 0
    assert [(own.state, own.done, own.total) for own in again.statuses()] == [
        ("waiting", 0, None),
        ("done", 12, 12),
    ]


def test_other_suites_may_share_the_folder(tmp_path: Path) -> None:
    source = make_spec("source")
    one = Suite(title="one", entries=(Entry(source, "a"),))
    two = Suite(title="two", entries=(Entry(make_spec("norm"), "b"), Entry(source, "c")))
    store = Store.create(tmp_path, one)
    run_once(source, tmp_path / f"jobs/source-{source.key}")
    other = Store.create(tmp_path, two)
    assert [own.entry.label for own in store.outcomes()] == ["a"]
    assert [own.entry.label for own in other.outcomes()] == ["c"]
    assert Store(tmp_path).suite.title == "two"
    # The list of the first is not lost.
    assert sorted(Store(tmp_path).list_suites()) == ["one", "two"]
    assert Store(tmp_path, "one").suite == one
    assert [own.entry.label for own in Store(tmp_path, "one").outcomes()] == ["a"]
    with raises("unknown_name", BadInput, kind="suite", name="three"):
        Store(tmp_path, "three")
    shown = CliRunner().invoke(app, ["bench", "status", str(tmp_path), "--suite", "one"]).stdout
    assert "1 jobs: 1 done" in shown
    assert "other suites in this folder (--suite TITLE): two" in shown


def test_what_is_no_folder_of_a_suite_is_refused(tmp_path: Path) -> None:
    with raises("not_found", BadInput, path=tmp_path / "suite.json"):
        Store(tmp_path)
    (tmp_path / "suite.json").write_text(json.dumps({"title": "x"}))
    with raises("altered_file", CorruptFile, path=tmp_path / "suite.json"):
        Store(tmp_path)
    (tmp_path / "suite.json").write_text("[" * 100_000)
    with raises("altered_file", CorruptFile, path=tmp_path / "suite.json"):
        Store(tmp_path)
    (tmp_path / "file").write_text("precious")
    suite = Suite(title="x", entries=(Entry(make_spec(), "x"),))
    with raises("not_writable", BadInput, path=tmp_path / "file"):
        Store.create(tmp_path / "file", suite)
