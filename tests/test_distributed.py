"""Two processes that share every batch do what one process does with all of it."""

from __future__ import annotations

import functools

import pytest
import torch

import acclimate
from acclimate.distributed import shard
from acclimate.errors import NotAdapted
from acclimate.methods import METHODS
from acclimate.testing.models import tiny_batches, tiny_model
from tests import distributed_jobs as jobs
from tests.processes import run_on_processes

#: Of logits and weights after three steps, in double precision.
TOLERANCE = 1e-11


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    for name in ("batch_norm", "vit"):
        artifact = acclimate.prepare(
            jobs.build_model(name),
            tiny_batches(4, dtype=torch.float64),
            penalty=acclimate.PenaltyOptions(n_samples=16),
            prototypes=acclimate.PrototypeOptions(depth=2, epochs=1, hidden=8, width=6),
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
    assert first["digest"] == second["digest"]


@pytest.mark.parametrize("case", [case for case in jobs.CASES if case != "source"])
def test_which_each_of_them_alone_does_not(folder, whole, case):
    """So the comparison above can fail: the samples of the other process do matter."""
    adapted = jobs.build(case, folder)
    n_here = 12
    alone = [adapted(x[:n_here]) for x in jobs.batches((24,))][-1]
    together = whole(case, 24)["logits"][-1][:n_here]
    assert (alone - together).abs().max() > 1e-4


def test_the_guard_had_something_to_decide(whole):
    assert whole("entropy with a guard", 24)["counts"]["restored"] > 0


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


def test_pause_reset_and_unwrap_are_as_ever(found):
    source = jobs.build_model("batch_norm").state_dict()
    for rank in found:
        life = rank["life"]
        assert life["pausing changed nothing"]
        assert all(torch.equal(a, b) for a, b in zip(life["logits"], life["again"], strict=True))
        assert torch.equal(life["next"], life["copy's next"])
        assert all(torch.equal(life["model"][name], source[name]) for name in source)


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("method", "InvalidConfig", ["eta cannot be spread", "swr_nsp", "in one process"]),
        ("subclass", "InvalidConfig", ["undeclared cannot be spread"]),
        ("speed", "InvalidConfig", ["view_share"]),
        ("weights", "NotAdapted", ["weights: rank 1 has", "source: rank 1 has"]),
        ("seed", "NotAdapted", ["seed: rank 1 has", "same weights, artifact, options and seed"]),
        ("artifact", "NotAdapted", ["artifact: rank 1 has"]),
        ("options", "NotAdapted", ["config: rank 1 has", "'lr': 0.2"]),
        ("one of two", "InvalidConfig", ["eta cannot be spread"]),
        ("layers", "InvalidConfig", ["instance-aware", 'statistics="source"']),
        ("empty", "BadInput", ["at least one sample"]),
        ("not finite", "BadInput", ["expected finite values"]),
        ("shape", "BadInput", ["expected samples of shape (3, 8, 8)"]),
        ("no tensor", "BadInput", ["expected a torch.Tensor"]),
        ("paused", "NotAdapted", ["paused: rank 1 has True, rank 0 has False"]),
        ("reset", "NotAdapted", ["counts: rank 1 has", "do it on all"]),
        ("failing", "AcclimateError", ["half-way"]),
        ("after failing", "NotAdapted", ["out of step", "shard(adapted) makes a new start"]),
        ("drift", "NotAdapted", ["weights: rank 1 has"]),
    ],
)
def test_refusals_come_on_all_processes(found, what, kind, words):
    for rank in found:
        said = rank["refusals"][what]
        assert said.startswith(f"{kind}: ")
        assert all(word in said for word in words)


def test_refused_batches_change_nothing_and_the_next_is_taken(found):
    for rank in found:
        said = rank["refusals"]
        assert said["nothing changed"]
        assert said["all reset"] == said["new start"] == "nothing"


def test_the_process_that_is_not_to_blame_learns_who_is(found):
    assert "refused on all processes" in found[0]["refusals"]["empty"]
    assert "rank 1: expected at least one sample" in found[0]["refusals"]["empty"]


def test_numbers_that_are_not_finite_on_one_skip_the_update_on_all(found):
    assert [rank["refusals"]["skipped"] for rank in found] == [{"non_finite": 1}] * 2


def test_without_processes_it_says_how_to_start_them():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent")
    with pytest.raises(NotAdapted, match="torchrun"):
        shard(adapted)
    with pytest.raises(NotAdapted, match="found Linear"):
        shard(torch.nn.Linear(2, 2))
    adapted.unwrap()


def test_methods_that_declare_it():
    declared = {name for name, kind in METHODS.items() if vars(kind).get("shards")}
    tested = {method for method, _, _ in jobs.CASES.values()}
    assert declared == tested
