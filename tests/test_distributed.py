"""Two processes that share every batch do what one process does with all of it."""

from __future__ import annotations

import functools

import pytest
import torch

import acclimate
from acclimate.distributed import check_agreement, shard
from acclimate.methods import METHODS
from acclimate.methods.compute import Speed
from acclimate.testing.models import tiny_batches, tiny_model
from tests import distributed_jobs as jobs
from tests.codes import raises
from tests.processes import run_on_processes

#: Of logits and weights after three steps, in double precision.
TOLERANCE = 1e-11


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    for name in ("batch_norm", "vit"):
        artifact = acclimate.prepare(
            jobs.build_model(name),
            tiny_batches(8, dtype=torch.float64),
            parts=[
                acclimate.Penalty(n_samples=16),
                acclimate.Prototypes(depth=2, epochs=1, hidden=8, width=6),
                "features",
                acclimate.Accuracy(n_samples=64, severities=(5,), n_runs=4),
            ],
        )
        artifact.save(jobs.artifact_path(folder, name))
    single = jobs.build("swr_nsp", folder)
    for x in jobs.batches((17, 7), 4)[:2]:
        single(x)
    single.save(folder / "single.safetensors")
    return folder


@pytest.fixture(scope="module")
def found(folder):
    return run_on_processes(2, jobs.everything, folder, str(folder))


@pytest.fixture(scope="module")
def whole(folder):
    """What one process does with all samples of a batch."""

    @functools.cache
    def run(case, n):
        adapted = jobs.build(case, folder)
        return jobs.record(adapted, [adapted(x) for x in jobs.batches((n,))])

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("case", "sizes"), jobs.RUNS)
def test_two_processes_do_what_one_does(found, whole, case, sizes):
    first, second = (rank["agreement"][f"{case} {sizes}"] for rank in found)
    expected = whole(case, sum(sizes))
    for step in range(jobs.N_STEPS):
        logits = torch.cat([first["logits"][step], second["logits"][step]])
        assert torch.allclose(logits, expected["logits"][step], rtol=0, atol=TOLERANCE)
    for name, tensor in expected["weights"].items():
        assert torch.allclose(first["weights"][name], tensor, rtol=0, atol=TOLERANCE)
    assert first["counts"] == second["counts"] == expected["counts"]
    assert first["report"] == second["report"]
    assert first["digest"] == second["digest"]
    if expected["report"] is not None:
        check_same_report(first["report"], expected["report"])


def check_same_report(first, second):
    """Check that decisions are equal; confidences are stored in single precision."""
    first, second = dict(first), dict(second)
    found, expected = first.pop("estimate"), second.pop("estimate")
    assert first == second
    assert (found is None) == (expected is None)
    for target in ("source", "adapted", "gain") if expected else ():
        assert found[target] == pytest.approx(expected[target], abs=1e-5)


#: In these the source model answers, whose predictions depend on no other sample.
ANSWERED_BY_SOURCE = ("source", "entropy, estimated to hurt")


@pytest.mark.parametrize("case", [case for case in jobs.CASES if case not in ANSWERED_BY_SOURCE])
def test_which_each_of_them_alone_does_not(folder, whole, case):
    """So the comparison above can fail: the samples of the other process do matter."""
    adapted = jobs.build(case, folder)
    n_here = 12
    alone = [adapted(x[:n_here]) for x in jobs.batches((24,))][-1]
    together = whole(case, 24)["logits"][-1][:n_here]
    assert (alone - together).abs().max() > 1e6 * TOLERANCE


def test_the_guards_had_something_to_decide(whole):
    helps, hurts = (whole(f"entropy, estimated to {what}", 24) for what in ("help", "hurt"))
    assert (helps["report"]["answers"], helps["counts"]["restored"]) == ("adapted", 0)
    assert (hurts["report"]["answers"], hurts["report"]["n_by_source"]) == ("source", 72)
    assert hurts["counts"]["restored"] > 0
    assert whole("entropy, only watched", 24)["report"]["estimate"] is not None


@pytest.mark.slow
def test_logits_that_are_not_finite_on_one_process_are_answered_by_the_source_on_all(found, folder):
    x = jobs.batches(jobs.SMALL, 4)[2]
    with torch.no_grad():
        expected = jobs.build_model("batch_norm")(x).split(jobs.SMALL)
    for rank, logits in zip(found, expected, strict=True):
        assert rank["not finite"]["answers"] == ["adapted", "source"]
        assert torch.equal(rank["not finite"]["logits"], logits)
    assert found[0]["not finite"]["reasons"] == found[1]["not finite"]["reasons"]


@pytest.mark.slow
def test_a_state_goes_from_many_processes_to_one_and_back(found, folder):
    one, two = (rank["life"] for rank in found)
    x = jobs.batches((17, 7), 4)[2]
    single = jobs.build("swr_nsp", folder)
    single.load(folder / "sharded.safetensors")
    paused = torch.cat([one["paused"], two["paused"]])
    with single.paused():
        assert torch.allclose(single(x), paused, rtol=0, atol=TOLERANCE)
    expected = single(x)
    for key in ("next", "copy's next", "loaded"):
        assert torch.allclose(torch.cat([one[key], two[key]]), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
def test_pause_reset_and_unwrap_are_as_ever(found):
    source = jobs.build_model("batch_norm").state_dict()
    for rank in found:
        life = rank["life"]
        assert life["pausing changed nothing"]
        assert all(torch.equal(a, b) for a, b in zip(life["logits"], life["again"], strict=True))
        assert torch.equal(life["next"], life["copy's next"])
        assert all(torch.equal(life["model"][name], source[name]) for name in source)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "code", "data"),
    [
        ("method", "not_shardable", {"method": "eta"}),
        ("subclass", "not_shardable", {"method": "undeclared"}),
        ("one of two", "not_shardable", {"method": "eta"}),
        ("speed", "not_applicable", {"option": "view_share"}),
        ("layers", "out_of_range", {"option": "statistics", "found": "batch"}),
        ("failing", "duplicate", {"name": "batch"}),
        ("after failing", "out_of_step", {}),
    ],
)
def test_refusals_come_on_all_processes(found, what, code, data):
    for rank in found:
        said = rank["refusals"][what]
        assert said["code"] == code
        assert {name: said[name] for name in data} == data
        if code == "not_shardable":
            assert "swr_nsp" in said["known"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("weights", {"weights", "source"}),
        ("seed", {"seed"}),
        ("artifact", {"artifact"}),
        ("options", {"config"}),
        ("paused", {"learns"}),
        ("reset", {"counts"}),
        ("drift", {"weights"}),
    ],
)
def test_differences_are_found_on_all_processes(found, what, names):
    one, two = (rank["refusals"][what] for rank in found)
    assert one == two
    assert one["code"] == "processes_differ"
    assert names <= one["differences"].keys()
    assert all(a != b for a, b in one["differences"].values())


@pytest.mark.slow
def test_differences_are_told_by_rank(found):
    said = found[0]["refusals"]
    assert said["paused"]["differences"]["learns"] == (True, False)
    assert [config["lr"] for config in said["options"]["differences"]["config"]] == [0.1, 0.2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "to_blame", "code", "data"),
    [
        ("empty", 1, "empty_batch", {}),
        ("not finite", 0, "not_finite", {"found": (0, 1, 2, 3)}),
        ("shape", 1, "wrong_shape", {"found": (4, 3, 7, 8)}),
        ("no tensor", 0, "wrong_type", {"found": "NoneType"}),
    ],
)
def test_the_process_that_is_not_to_blame_learns_who_is(found, what, to_blame, code, data):
    said, other = found[to_blame]["refusals"][what], found[1 - to_blame]["refusals"][what]
    assert said["code"] == code
    assert {name: said[name] for name in data} == data
    assert other["code"] == "refused_elsewhere"
    assert list(other["refusals"]) == [to_blame]


@pytest.mark.slow
def test_refused_batches_change_nothing_and_the_next_is_taken(found):
    for rank in found:
        said = rank["refusals"]
        assert said["nothing changed"]
        assert said["all reset"] is said["new start"] is None


@pytest.mark.slow
def test_numbers_that_are_not_finite_on_one_skip_the_update_on_all(found):
    assert [rank["refusals"]["skipped"] for rank in found] == [{"non_finite": 1}] * 2


def test_without_processes_the_message_says_how_to_start_them():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent")
    with raises("no_process_group") as caught:
        shard(adapted)
    assert "torchrun --nproc-per-node 2 " in str(caught.value)
    with raises("not_adapted", found="Linear"):
        shard(torch.nn.Linear(2, 2))
    adapted.unwrap()


@pytest.fixture
def group_of_one(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=(tmp_path / "meeting").as_uri(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_one_process_alone_does_what_it_does_without_a_group(group_of_one, whole, folder):
    adapted = shard(jobs.build("swr_nsp", folder))
    logits = [adapted(x) for x in jobs.batches((24,))]
    check_agreement(adapted)
    expected = whole("swr_nsp", 24)["logits"]
    assert all(torch.equal(a, b) for a, b in zip(logits, expected, strict=True))


def test_what_cannot_be_spread_is_refused_by_one_process_too(group_of_one):
    with raises("not_shardable", method="eta", known=lambda known: "swr_nsp" in known):
        shard(acclimate.adapt(tiny_model("batch_norm"), "eta"))
    in_parts = Speed(micro_batch=3)
    with raises("not_applicable", option="micro_batch"):
        shard(acclimate.adapt(tiny_model("batch_norm"), "tent", speed=in_parts))
    with raises("out_of_range", option="statistics", found="batch"):
        shard(acclimate.adapt(tiny_model("instance_aware"), "tent"))


def test_methods_that_declare_it():
    declared = {name for name, kind in METHODS.items() if kind.card.shards}
    tested = {method for method, _, _ in jobs.CASES.values()}
    assert declared == tested
