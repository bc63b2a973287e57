"""Methods side by side: against plain loops, what is kept, what is refused, and resuming."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import acclimate
from acclimate.bench import Preparing, Store, load, run_suite
from acclimate.bench.execute import RunOptions, Stopped, check_place, execute, read_kept
from acclimate.bench.job import JobSpec
from acclimate.bench.load import find_unsuitable
from acclimate.bench.protocol import Protocol, Unit
from acclimate.bench.run_folder import RunFolder
from acclimate.commands.measure import choose_methods, make_comparison, split_options
from acclimate.errors import BadInput, InvalidConfig
from acclimate.introspect import suits_channels_last
from acclimate.methods import get_method
from acclimate.streams import Domain
from acclimate.testing.models import tiny_batches, tiny_model
from tests.bench.jobs import read_lines, read_suite
from tests.bench.toys import (
    METHODS,
    N_CLASSES,
    ToyLoader,
    make_data,
    make_domains,
    make_toys,
    run_toys,
    stable_toys,
)
from tests.codes import raises

# The numbers ------------------------------------------------------------------------------------


def plain_loop(name: str, seed: int) -> list[int]:
    """Errors of every batch, by the public interface alone: reset, predict, count."""
    model = tiny_model("batch_norm").double()
    options = {"lr": 0.05} if name == "tent" else {}
    adapted = acclimate.adapt(model, name, seed=seed, **options)
    wrong = []
    for (domain,) in make_domains().values():
        adapted.reset()
        order = torch.randperm(20, generator=torch.Generator().manual_seed(seed))
        for part in order.split(8):
            logits = adapted(domain.x[part].double())
            wrong.append(int((logits.argmax(1) != domain.y[part]).sum()))
    return wrong


def test_side_by_side_gives_what_each_method_gives_alone(tmp_path: Path) -> None:
    """In double precision: no error that is counted hangs on an order of summation."""
    model = tiny_model("batch_norm").double()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    suite = make_toys(seeds=(3,), model=model, protocol={"order": "shuffled"})
    found = run_toys(tmp_path, suite)
    assert [run.entry.label for run in found.outcomes] == list(METHODS)
    for run in found.outcomes:
        assert [record.n_errors for record in run.result.records] == plain_loop(run.entry.label, 3)
        assert [record.index for record in run.result.records] == list(range(9))
        assert run.result.whole.n == 60
        assert all(record.predictions is None for record in run.result.records)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert not isinstance(acclimate.adapt(model, "norm").unwrap(), acclimate.Method)


def test_one_after_the_other_gives_the_same_and_reads_the_stream_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    usual = Protocol.units

    class Spy:
        def __init__(self, unit: Unit) -> None:
            self._unit = unit

        def __iter__(self) -> Any:
            reads.append(self._unit.name)
            return iter(self._unit.batches)

    def spy(self: Protocol, *arguments: Any) -> tuple[Unit, ...]:
        return tuple(replace(u, batches=Spy(u)) for u in usual(self, *arguments))  # type: ignore[arg-type]

    monkeypatch.setattr(Protocol, "units", spy)
    found = []
    for one_by_one in (False, True):
        reads.clear()
        run_toys(tmp_path / str(one_by_one), one_by_one=one_by_one)
        # Once to warm up, then once for all methods, or once for each.
        assert len(reads) == (12 if one_by_one else 4)
        found.append(stable_toys(tmp_path / str(one_by_one)))
    assert found[0] == found[1]


def test_all_methods_meet_a_batch_before_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[tuple[str, int]] = []
    usual = RunFolder.append

    def note(self: RunFolder, unit: str, record: Any) -> None:
        order.append((self.path.name.partition("-")[0], record["index"]))
        usual(self, unit, record)

    monkeypatch.setattr(RunFolder, "append", note)
    run_toys(tmp_path)
    assert order == [(method, index) for index in range(9) for method in METHODS]


def test_images_are_normalised_and_cast_on_their_way(tmp_path: Path) -> None:
    normal = acclimate.Normalization((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    model = tiny_model("batch_norm").double()
    suite = make_toys(["source"], model=model, normalization=normal.to_dict())
    found = run_toys(tmp_path, suite)
    (domain,) = make_domains()["dark"]
    with torch.no_grad():
        logits = model.eval()(normal.normalize(domain.x).double())
    wrong = int((logits.argmax(1) != domain.y).sum())
    assert found.outcomes[0].result.error_by_domain["dark"] == wrong / 20


def test_a_model_that_needs_its_layout_is_found_out(tmp_path: Path) -> None:
    class Picky(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
            self.head = torch.nn.Linear(256, N_CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).view(len(x), -1))

    x = torch.rand(2, 3, 8, 8)
    assert suits_channels_last(tiny_model("batch_norm"), x)
    assert not suits_channels_last(Picky(), x)
    groups = {"any": (Domain("any", torch.rand(9, 3, 8, 8), torch.zeros(9).long()),)}
    (entry,) = make_toys(["source"], model=Picky()).entries
    job = ToyLoader(tmp_path, make_data(groups)).open(entry.spec)
    assert not job.channels_last


# Options of methods -----------------------------------------------------------------------------


def test_options_reach_the_methods_that_have_them() -> None:
    values = {"lr": 0.5, "tent.lr": 0.25, "statistics": "source"}
    found = split_options(["source", "tent"], values)
    assert found == {
        "source": {"statistics": "source"},
        "tent": {"lr": 0.25, "statistics": "source"},
    }
    with raises("unknown_option", InvalidConfig, option="lrr", known=lambda known: "lr" in known):
        split_options(["source", "tent"], {"lrr": 1})
    with raises("unknown_option", InvalidConfig, option="source.lr"):
        split_options(["source", "tent"], {"source.lr": 1})
    with raises("unknown_name", InvalidConfig, name="tnet", known=("source", "tent")):
        split_options(["source", "tent"], {"tnet.lr": 1})


def test_methods_are_chosen_by_name_or_all() -> None:
    every = choose_methods(["all"])
    assert set(METHODS) < set(every) <= set(acclimate.list_methods())
    with raises("unknown_method", name="tnet", known=lambda known: "tent" in known):
        choose_methods(["tnet"])
    with raises("missing_option", BadInput, option="methods"):
        choose_methods([])
    with raises("duplicate", BadInput, name="tent"):
        choose_methods(["tent", "tent"])


def test_terms_are_added_to_one_method_or_to_all_that_take_gradient_steps() -> None:
    shared = {"model": "builtin"}
    suite = make_comparison(shared, ["source", "tent", "tent+swr"], {"lr": 0.5})
    assert [entry.label for entry in suite.entries] == ["source", "tent", "tent + SWR"]
    assert [list(entry.spec.terms) for entry in suite.entries] == [[], [], ["swr"]]
    assert all(entry.spec.options == {"lr": 0.5} for entry in suite.entries[1:])
    suite = make_comparison(shared, ["source", "tent", "sar"], terms=["swr", "nsp"])
    assert [entry.label for entry in suite.entries] == [
        "source",
        "tent + SWR + NSP",
        "sar + SWR + NSP",
    ]
    with raises("unknown_name", kind="term", name="swrr"):
        make_comparison(shared, ["tent+swrr"])


def test_a_method_with_a_term_differs_from_that_without(tmp_path: Path) -> None:
    found = run_toys(tmp_path, make_toys(["source", "tent", "tent+swr"], {"tent.lr": 0.05}))
    source, plain, held = (
        [(record.entropy, record.losses) for record in run.result.records] for run in found.outcomes
    )
    assert source != plain != held
    assert [run.entry.label for run in found.outcomes] == ["source", "tent", "tent + SWR"]


# What is kept -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("uncut") / "out"
    told: list[tuple[str, int, int | None]] = []
    result = run_toys(folder, make_toys(seeds=(0, 1)), progress=lambda *step: told.append(step))
    assert told == [("measuring (batches)", n + 1, 54) for n in range(54)]
    return folder, result


def test_every_batch_is_recorded_and_the_result_sums_up(uncut) -> None:
    folder, result = uncut
    assert len(stable_toys(folder)) == 2 * 3 * 9
    written = json.loads((folder / "result.json").read_text())
    for run, row in zip(result.outcomes, written["runs"], strict=True):
        own = [
            line
            for line in read_suite(folder)
            if (line["method"], line["seed"]) == (run.entry.label, run.entry.spec.seed)
        ]
        assert row["n"] == sum(line["n"] for line in own) == 60
        assert row["error"] == pytest.approx(sum(line["n_errors"] for line in own) / 60)
        assert 0 <= row["ece"] <= 1
    assert [run.entry.label for run in result.outcomes] == [
        name for name in METHODS for _ in range(2)
    ]
    facts = written["provenance"]
    assert facts["protocol_line"].startswith("reset before each domain; 3 domains")
    assert facts["settings"]["methods"]["tent"]["lr"] == 0.05
    assert facts["settings"]["versions"]["torch"] == torch.__version__
    assert facts["n_images"] == 60
    assert len(facts["settings"]["model"]) == 64


def test_the_folder_is_that_of_a_suite(uncut) -> None:
    folder, result = uncut
    store = Store(folder)
    assert [status.state for status in store.statuses()] == ["done"] * 6
    assert [own.error for own in store.outcomes()] == [own.error for own in result.outcomes]


def cut_jobs(folder: Path, out: Path, n_kept: int, torn: bytes) -> int:
    """Copy a folder as a kill after so many records leaves it; return the records to be lost."""
    shutil.copytree(folder, out)
    (out / "result.json").unlink()
    n_lost = 0
    for number, name in enumerate(Store(folder).jobs()):
        seed, method = number % 2, number // 2
        own = min(9, max(0, (n_kept - 27 * seed + 2 - method) // 3))
        place = out / name
        if own == 9:
            continue
        lines = (place / "records.jsonl").read_bytes().splitlines(keepends=True)
        (place / "records.jsonl").write_bytes(b"".join(lines[:own]) + torn)
        sums = (place / "measures.jsonl").read_bytes().splitlines(keepends=True)
        (place / "measures.jsonl").write_bytes(b"".join(sums[: own // 3]) + torn)
        (place / "result.json").unlink()
        n_lost += 9 - own // 3 * 3
    return n_lost


@pytest.mark.parametrize("kept", [0, 1, 14, 30, 53])
@pytest.mark.parametrize("torn", [b"", b'{"seed": 0, "meth'])
def test_a_cut_run_goes_on_to_the_same_records(uncut, tmp_path: Path, kept: int, torn: bytes):
    """Whatever the number of records that reached the disk, the end is that of the uncut run."""
    folder, _ = uncut
    n_lost = cut_jobs(folder, tmp_path / "cut", kept, torn)
    told: list[Any] = []
    again = run_toys(
        tmp_path / "cut",
        make_toys(seeds=(0, 1)),
        resume=True,
        progress=lambda *step: told.append(step),
    )
    assert stable_toys(tmp_path / "cut") == stable_toys(folder)
    assert [done for _, done, _ in told] == list(range(54 - n_lost + 1, 55))
    expected = json.loads((folder / "result.json").read_text())["runs"]
    found = json.loads((tmp_path / "cut" / "result.json").read_text())["runs"]
    for one, other in zip(expected, found, strict=True):
        same = {k for k in one if k not in ("ms_per_batch", "images_per_second", "peak_memory")}
        assert {k: one[k] for k in same} == {k: other[k] for k in same}
    assert again.outcomes[0].result.ece == expected[0]["ece"]


def test_methods_that_were_cut_at_different_places_go_on_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A continual stream is one unit: a checkpoint of one method is newer than those of others."""
    suite = make_toys(protocol={"stream": "continual"})
    run_toys(tmp_path / "uncut", suite)
    assert {line["unit"] for line in read_suite(tmp_path / "uncut")} == {"continual"}
    usual, n_checkpoints = RunFolder.checkpoint, 0

    def die(self: RunFolder, *arguments: Any) -> None:
        nonlocal n_checkpoints
        n_checkpoints += 1
        if n_checkpoints == 5:  # of the second method, in the second round
            raise KeyboardInterrupt
        usual(self, *arguments)

    options = RunOptions(checkpoint_every=2)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "checkpoint", die)
        with pytest.raises(KeyboardInterrupt):
            run_toys(tmp_path / "cut", suite, options=options)
    places = [
        json.loads((tmp_path / "cut" / name / "checkpoint.json").read_text())["n_batches"]
        for name in Store(tmp_path / "cut").jobs()
    ]
    assert places == [4, 2, 2]
    told: list[Any] = []
    run_toys(
        tmp_path / "cut",
        suite,
        resume=True,
        options=options,
        progress=lambda *step: told.append(step),
    )
    assert len(told) == 27 - sum(places)
    assert stable_toys(tmp_path / "cut") == stable_toys(tmp_path / "uncut")


def changed_model() -> torch.nn.Module:
    model = tiny_model("batch_norm")
    with torch.no_grad():
        next(model.parameters()).add_(1)
    return model


def test_other_settings_are_refused_by_name(uncut) -> None:
    folder, _ = uncut
    for change, differences in (
        ({"protocol": {"batch_size": 10}}, {"protocol.batch_size": (8, 10)}),
        ({"values": {"lr": 0.1}}, {"methods.tent.lr": (0.05, 0.1)}),
        ({"methods": ["source"]}, lambda found: found["methods.tent.lr"] == (0.05, None)),
        ({"seeds": (0,)}, {"seeds": ([0, 1], [0])}),
        ({"model": changed_model()}, lambda found: list(found) == ["model"]),
    ):
        with raises("other_settings", differences=differences):
            run_toys(folder, make_toys(**{"seeds": (0, 1), **change}), resume=True)
    assert len(stable_toys(folder)) == 54


def test_what_differs_comes_before_what_is_missing(tmp_path: Path) -> None:
    run_toys(tmp_path, make_toys(values={}))
    with raises("other_settings") as caught:
        run_toys(tmp_path, make_toys(["source"], protocol={"batch_size": 10}), resume=True)
    differences = list(caught.value.differences.items())
    assert differences[0] == ("protocol.batch_size", (8, 10))
    assert all(now is None for _, (_, now) in differences[1:])


def test_a_folder_is_not_overwritten_unasked(uncut, tmp_path: Path) -> None:
    folder, _ = uncut
    with raises("already_exists", path=folder):
        check_place(folder)
    with raises("conflicting_options", options=("resume", "force")):
        check_place(folder, resume=True, force=True)
    (tmp_path / "file").write_text("precious")
    with raises("not_a_folder", path=tmp_path / "file"):
        check_place(tmp_path / "file")
    with raises("not_writable", path=tmp_path / "file" / "x"):
        run_toys(tmp_path / "file" / "x")
    own = tmp_path / "own"
    run_toys(own, make_toys(["norm"]))
    (own / "notes.txt").write_text("kept")
    run_toys(own, make_toys(["source"]), force=True)
    assert {line["method"] for line in read_suite(own)} == {"source"}
    assert len(list((own / "jobs").iterdir())) == 1
    assert (own / "notes.txt").read_text() == "kept"
    (job,) = (own / "jobs").iterdir()
    text = (job / "records.jsonl").read_bytes()
    (job / "records.jsonl").write_bytes(b"nonsense\n" + text)
    (job / "result.json").unlink()
    with raises("unreadable_file", path=job / "records.jsonl"):
        run_toys(own, make_toys(["source"]), resume=True)


def test_force_leaves_the_jobs_of_other_suites(tmp_path: Path) -> None:
    run_toys(tmp_path, make_toys(["norm"]))
    other = tmp_path / "jobs" / "tent-of-another"
    other.mkdir()
    run_toys(tmp_path, make_toys(["source"]), force=True)
    assert other.is_dir()
    assert len(list((tmp_path / "jobs").iterdir())) == 2


def test_force_leaves_jobs_that_another_suite_shares(tmp_path: Path) -> None:
    both = make_toys(["norm", "source"])
    run_toys(tmp_path, replace(both, title="both"))
    Store.create(tmp_path, replace(make_toys(["norm"]), title="one"))
    run_toys(tmp_path, replace(make_toys(["source"]), title="two"), force=True)
    assert sorted(Store(tmp_path).list_suites()) == ["both", "two"]
    assert [status.state for status in Store(tmp_path, "both").statuses()] == ["done", "done"]


def test_two_processes_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with RunFolder(tmp_path).lock(), raises("in_use", path=tmp_path):
        run_toys(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    run_toys(tmp_path)


def test_an_artifact_is_prepared_once_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, usual = [], load.prepare

    def note(*arguments: Any, **options: Any) -> Any:
        made.append([part if isinstance(part, str) else part.name for part in options["parts"]])
        return usual(*arguments, **options)

    monkeypatch.setattr(load, "prepare", note)
    how = {"prepare": Preparing(source="builtin", parts={"penalty": {"n_samples": 16}})}
    suite = make_toys(["source", "swr_nsp"], {}, **how)
    result = run_toys(tmp_path, suite)
    for name in Store(tmp_path).jobs():
        (tmp_path / name / "result.json").unlink()
    again = run_toys(tmp_path, suite, resume=True)
    assert made == [["penalty", "prototypes"]]
    assert again.provenance["artifact_sha256"] == result.provenance["artifact_sha256"]
    assert [r.result.error for r in again.outcomes] == [r.result.error for r in result.outcomes]
    other = {"prepare": replace(how["prepare"], images=9)}
    with raises("other_settings", differences=lambda found: list(found) == ["artifact.swr_nsp"]):
        run_toys(tmp_path, make_toys(["source", "swr_nsp"], {}, **other), resume=True)


# What is refused --------------------------------------------------------------------------------


def test_a_job_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    def check(suite: Any = None, **data: Any) -> None:
        out = tmp_path / "out"
        try:
            run_toys(out, suite, data=make_data(**data))
        finally:
            assert not out.exists()

    with raises("no_clean_images", name="toys"):
        check(make_toys(protocol={"clean_probe": True}), clean=None)
    with raises("no_clean_images", name="toys"):
        check(make_toys(protocol={"stream": "alternating"}), clean=None)
    with raises("count_mismatch", BadInput, expected=N_CLASSES, found=2):
        check(classes=("a", "b"))
    groups = {"wide": (Domain("wide", torch.rand(4, 5, 8, 8), torch.zeros(4).long()),)}
    with raises("model_rejects_input", found=(2, 5, 8, 8)):
        check(groups=groups)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(N_CLASSES))
    model(make_data().domains[0].take(torch.arange(2))[0])
    with raises(
        "method_refused",
        methods=("norm", "tent"),
        reasons=lambda reasons: list(reasons) == ["norm", "tent"] and all(reasons.values()),
    ):
        check(make_toys(model=model))


def test_the_check_leaves_a_model_in_training_as_it_is(tmp_path: Path) -> None:
    model = tiny_model("batch_norm").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for entry in make_toys(model=model).entries:
        ToyLoader(tmp_path).open(entry.spec)
    assert model.training
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_a_refused_call_leaves_nothing_behind(tmp_path: Path) -> None:
    def artifact_of(kind: str) -> dict[str, Any]:
        path = tmp_path / f"{kind}.acclimate"
        made = acclimate.prepare(tiny_model(kind), tiny_batches(4, 8, 0), parts=["prototypes"])
        made.save(path)
        return {"prepare": Preparing(artifact=str(path))}

    other = make_toys(**artifact_of("group_norm"))
    with raises("other_model"):
        run_toys(tmp_path / "out", other)
    assert not (tmp_path / "out").exists()
    notes = tmp_path / "kept" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("precious")
    with raises("other_model"):
        run_toys(notes.parent, other)
    assert [path.name for path in notes.parent.iterdir()] == ["notes.txt"]
    # What was recorded before is not thrown away by a call that is refused, or fails, later.
    run_toys(notes.parent)
    n_records = len(read_suite(notes.parent))
    with raises(
        "other_settings",
        differences=lambda found: all(name.startswith("artifact") for name in found),
    ):
        run_toys(notes.parent, make_toys(**artifact_of("batch_norm")), resume=True)
    assert len(read_suite(notes.parent)) == n_records == 27


def test_a_call_that_fails_before_its_first_record_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BadInput("degenerate_source", "no.")

    monkeypatch.setattr(load, "prepare", refuse)
    suite = make_toys(["swr"], {}, prepare=Preparing(source="builtin"))
    with raises("degenerate_source"):
        run_toys(tmp_path / "out", suite)
    check_place(tmp_path / "out")
    monkeypatch.undo()
    run_toys(tmp_path / "out", suite)


def test_methods_that_an_artifact_cannot_serve_are_found_and_the_reason_names_what_it_lacks():
    model = tiny_model("batch_norm")
    names = ["source", "eata", "tfa", "ttt_pp"]
    configs = {name: get_method(name).config_class() for name in names}
    assert list(find_unsuitable(model, configs)) == ["ttt_pp"]
    source = tiny_batches(4, 8, 0)
    artifact = acclimate.prepare(model, source, parts=["prototypes"])
    found = find_unsuitable(model, configs, artifact)
    assert list(found) == ["eata", "tfa", "ttt_pp"]
    assert "fisher" in found["eata"]
    artifact = acclimate.prepare(model, source, parts=["fisher", "contrast"])
    found = find_unsuitable(model, configs, artifact)
    assert list(found) == ["ttt_pp"]
    assert "projection head" in found["ttt_pp"]


# Models that are Python objects -----------------------------------------------------------------


def test_the_key_of_a_model_object_is_that_of_its_weights() -> None:
    one, same = (JobSpec(model=tiny_model("batch_norm"), data="toys") for _ in range(2))
    assert one.key == same.key
    assert JobSpec(model=changed_model(), data="toys").key != one.key
    # What was written into a folder is the same job, which cannot be run without the model.
    read = JobSpec.from_dict(json.loads(json.dumps(one.to_dict())))
    assert read.key == one.key
    with raises("model_object", name=one.model_name):
        read.check_portable()


def test_a_model_object_is_run_in_this_process_only(tmp_path: Path) -> None:
    suite = make_toys(["source"], data="builtin")
    for options in ({"n_workers": 1}, {"engine": "ray"}):
        with raises("model_object"):
            run_suite(suite, tmp_path, **options)
    assert not list(tmp_path.iterdir())
    (entry,) = suite.entries
    read = JobSpec.from_dict(entry.spec.to_dict())
    with raises("model_object"):
        ToyLoader(tmp_path).open(read)


# What a job keeps -------------------------------------------------------------------------------


def test_predictions_of_the_last_images_are_kept(tmp_path: Path) -> None:
    suite = make_toys(["source"], keep={"predictions": 6})
    run_toys(tmp_path, suite)
    (name,) = Store(tmp_path).jobs()
    model = tiny_model("batch_norm").to(memory_format=torch.channels_last)
    for place, (domain,) in enumerate(make_domains().values()):
        found = read_kept(tmp_path / name, place)
        with torch.no_grad():
            logits = model.eval()(domain.x)
        assert found["labels"].tolist() == domain.y[-6:].tolist()
        assert found["predictions"].tolist() == logits.argmax(1)[-6:].tolist()
    (tmp_path / name / "kept-1.safetensors").write_bytes(b"altered")
    with raises("wrong_checksum", path=tmp_path / name / "kept-1.safetensors"):
        RunFolder(tmp_path / name).read_result()


@pytest.mark.parametrize("keep", [{"predictions": 10}, {"features": 12}])
def test_what_is_kept_is_the_same_after_a_cut(tmp_path: Path, keep: dict[str, int]) -> None:

    protocol = {"stream": "continual", "batch_size": 4}
    (entry,) = make_toys(["tent"], protocol=protocol, keep=keep).entries
    loader = ToyLoader(tmp_path)
    job = loader.load(entry.spec)
    execute([job], [make_folder(tmp_path / "uncut")], RunOptions(checkpoint_every=1))
    n = len(read_lines(tmp_path / "uncut"))
    for stop in range(1, n + 1):
        place = tmp_path / str(stop)
        left = [stop]

        def is_over(left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] == 0

        with pytest.raises(Stopped):
            execute([job], [make_folder(place)], RunOptions(), should_stop=is_over)
        execute([job], [make_folder(place)], RunOptions())
        expected, found = read_kept(tmp_path / "uncut"), read_kept(place)
        assert expected.keys() == found.keys() == {*keep, "labels"}
        assert all(torch.equal(expected[name], found[name]) for name in expected)
        assert len(expected["labels"]) == next(iter(keep.values()))


def make_folder(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.make()
    return folder


def test_keeping_something_changes_no_number_and_is_made_up_for(tmp_path: Path) -> None:
    plain, kept = make_toys(["tent"]), make_toys(["tent"], keep={"features": 4})
    spec = kept.entries[0].spec
    assert plain.entries[0].spec.key == spec.key
    run_toys(tmp_path, plain)
    before = stable_toys(tmp_path)
    (name,) = Store(tmp_path).jobs()
    folder = RunFolder(tmp_path / name)
    assert folder.is_done
    assert not folder.has_finished(spec.keep)
    run_toys(tmp_path, kept, resume=True)
    assert folder.has_finished(spec.keep)
    assert stable_toys(tmp_path) == before
    assert read_kept(folder.path)["features"].shape[0] == 4
    written = (folder.path / "result.json").stat().st_mtime_ns
    run_toys(tmp_path, plain, resume=True)
    assert (folder.path / "result.json").stat().st_mtime_ns == written
    with raises("unknown_option", option="logits"):
        make_toys(["tent"], keep={"logits": 4})
