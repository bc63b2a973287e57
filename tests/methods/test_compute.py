"""Levels of speed: what they may change, and what they must not."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import acclimate
from acclimate import Nsp, Penalty, Prototypes, Speed
from acclimate.forward import split
from acclimate.functional.checkpointing import find_blocks
from acclimate.functional.norm import norm_parameters
from acclimate.functional.views import spread
from acclimate.methods.compute import SPEEDS
from acclimate.methods.gradient import GradientMethod
from acclimate.testing.cases import METHOD_OPTIONS, tiny_artifact
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises

XS = [x for x, _ in tiny_batches(4, dtype=torch.float64)]
#: Trained by a head of their own, or on a source model of their own, or with BatchNorm only.
ELSEWHERE = {"tfa", "ttt_pp", "note", "supervised", "tribe"}
LEARNERS = [
    name
    for name in acclimate.list_methods()
    if issubclass(acclimate.get_method(name), GradientMethod) and name not in ELSEWHERE
]


@functools.cache
def artifact_of(name):
    model = tiny_model(name).double()
    prototypes = Prototypes(depth=2, width=6, hidden=8, epochs=1)
    parts = [Penalty(n_samples=16), prototypes, "features", "mirror", "confidence"]
    return acclimate.prepare(
        model,
        tiny_batches(4, dtype=torch.float64),
        parts=[*parts, "fisher"] if norm_parameters(model) else parts,
    )


def adapt(method, name="batch_norm", **options):
    artifact = artifact_of(name)
    options = {**METHOD_OPTIONS.get(method, {}), **options}
    return acclimate.adapt(tiny_model(name).double(), method, artifact, **options)


def predict(adapted, xs=XS):
    return torch.cat([adapted(x) for x in xs])


@functools.cache
def predictions(method, name, speed, **options):
    return predict(adapt(method, name, speed=speed, **options))


def difference(method, name, one, other, **options):
    a, b = (predictions(method, name, Speed.of(speed), **options) for speed in (one, other))
    return float((a - b).abs().max())


# Exact ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", LEARNERS)
def test_the_layout_changes_the_order_of_summation_only(method):
    assert difference(method, "batch_norm", "exact", Speed(channels_last=False)) < 1e-9


def test_a_model_that_cannot_take_channels_last_is_left_in_its_layout():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.norm = nn.BatchNorm2d(8)
            self.head = nn.Linear(8 * 36, 4)
            self.layouts = []

        def forward(self, x):
            self.layouts.append(x.is_contiguous())
            x = self.norm(self.conv(x))
            return self.head(x.view(len(x), -1))

    model = Picky().double()
    adapted = acclimate.adapt(model, "tent")
    predict(adapted)
    assert model.layouts[-1]
    assert not model.layouts[1]  # it was tried once


def test_the_model_keeps_its_own_layout():
    adapted = adapt("swr_nsp")
    predict(adapted)
    assert all(p.is_contiguous() for p in adapted.unwrap().parameters())


def test_two_views_are_passed_one_after_the_other():
    """No more is kept for the backward than by one pass, with the same batch and parameters."""

    def peak(adapted):
        alive, most = [0], [0]

        def pack(tensor):
            size = tensor.untyped_storage().nbytes()
            alive[0] += size
            most[0] = max(most[0], alive[0])
            return tensor, Kept(alive, size)

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda pair: pair[0]):
            adapted(XS[0])
        return most[0]

    class Kept:
        def __init__(self, alive, size):
            self.alive, self.size = alive, size

        def __del__(self):
            self.alive[0] -= self.size

    single, double = peak(adapt("infomax")), peak(adapt("swr_nsp"))
    both = peak(adapt("swr_nsp", detach_target=False))
    assert double < 1.3 * single
    assert both > 1.8 * single  # which is what it would be otherwise


# Parts of a batch -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["group_norm", "vit"])
@pytest.mark.parametrize("method", LEARNERS)
def test_micro_batches_change_nothing_without_batch_norm(method, name):
    # A projector has BatchNorm too; the source's statistics do not look at the batch.
    own = {"terms": (Nsp(projector_statistics="source"),)}
    if "projector_statistics" in acclimate.get_method(method).config_class().to_dict():
        own = {"projector_statistics": "source"}
    elif method not in ("tent", "infomax", "sar"):
        own = {}
    assert difference(method, name, "exact", Speed(micro_batch=3), **own) < 1e-9


def test_micro_batches_with_the_sources_statistics_change_nothing():
    options = {"statistics": "source", "projector_statistics": "source"}
    assert difference("swr_nsp", "batch_norm", "exact", Speed(micro_batch=3), **options) < 1e-9


def test_micro_batches_have_statistics_of_their_own():
    assert difference("tent", "batch_norm", "exact", Speed(micro_batch=3)) > 1e-4


def test_micro_batches_hold_few_activations():
    seen = []
    adapted = adapt("swr_nsp", "group_norm", speed=Speed(micro_batch=3))
    handle = adapted.model.stem.register_forward_hook(lambda *a: seen.append(len(a[1][0])))
    adapted(XS[0])
    handle.remove()
    assert max(seen) <= 3
    # Two views of 8 samples, each passed twice in 3 parts; besides two tries of 2 samples.
    assert sum(seen) - sum(n for n in seen if n == 2) + 2 * 2 * 2 == 4 * len(XS[0])


def test_parts_are_even_and_never_too_small():
    sizes = {n: [len(part) for part in split(torch.zeros(n), 3, 2)] for n in (3, 4, 7, 8)}
    assert sizes == {3: [3], 4: [2, 2], 7: [3, 2, 2], 8: [3, 3, 2]}
    assert [len(part) for part in split(torch.zeros(3), 2, 2)] == [3]


def test_micro_batches_refuse_moving_statistics():
    with raises("conflicting_options", options=("micro_batch", "statistics")):
        adapt("tent", statistics="running", speed=Speed(micro_batch=4))
    adapt("tent", "group_norm", statistics="running", speed=Speed(micro_batch=4))


def test_micro_batches_put_outputs_together():
    model = tiny_model("returns_dict")
    x = XS[0].float()
    whole = acclimate.adapt(copy.deepcopy(model), "tent", statistics="source")(x)
    parts = acclimate.adapt(model, "tent", statistics="source", speed=Speed(micro_batch=3))(x)
    assert parts.keys() == whole.keys()
    assert all(parts[key].shape == whole[key].shape for key in whole)
    with raises("unsupported_output", found="SimpleNamespace"):
        acclimate.adapt(tiny_model("returns_object"), "tent", speed=Speed(micro_batch=3))(x)


# Checkpointing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch_norm", "vit"])
@pytest.mark.parametrize("method", LEARNERS)
def test_forgetting_activations_changes_nothing(method, name):
    assert find_blocks(tiny_model(name))
    if method in ("rotta", "petta", "steady") and name == "batch_norm":
        # It has statistics of its own.
        with raises("conflicting_options", options=("checkpoint", "statistics")):
            adapt(method, name, speed=Speed(checkpoint=True))
        return
    assert difference(method, name, Speed(), Speed(checkpoint=True)) == 0


@pytest.mark.parametrize("statistics", ["running", "mixed", "source"])
def test_forgetting_activations_moves_statistics_once(statistics):
    options = {"statistics": statistics}
    assert difference("tent", "batch_norm", Speed(), Speed(checkpoint=True), **options) == 0


def test_forgetting_leaves_nothing_behind():
    adapted = adapt("tent", speed=Speed(checkpoint=True))
    adapted(XS[0])
    assert not any("forward" in module.__dict__ for module in adapted.model.modules())


def test_forgetting_refuses_what_it_cannot_do():
    with raises("conflicting_options", options=("checkpoint", "statistics")):
        adapt("tent", statistics="robust", speed=Speed(checkpoint=True))
    with raises("not_applicable", option="checkpoint"):
        adapt("infomax", "mlp", speed=Speed(checkpoint=True))


# Trade-offs -------------------------------------------------------------------------------------


def test_no_view_is_no_self_supervised_term():
    a = predict(adapt("swr_nsp", speed=Speed(view_share=0.0)))
    b = predict(adapt("swr_nsp", consistency=0.0))
    assert (a - b).abs().max() < 1e-9
    assert (a - predict(adapt("swr_nsp"))).abs().max() > 1e-3


def test_a_rarer_view_is_passed_on_every_other_batch():
    adapted = adapt("swr_nsp", speed=Speed(view_every=2))
    forwards = []
    for x in XS:
        before = adapted.counts.forwards
        adapted(x)
        forwards.append(adapted.counts.forwards - before)
    assert forwards == [2, 1, 2, 1]


def test_pinned_tensors_do_not_move():
    artifact = artifact_of("batch_norm")
    weights = {name: float(w) for name, w in artifact.part("penalty").items()}
    limit = sorted(weights.values())[len(weights) // 2]
    adapted = adapt("swr_nsp", speed=Speed(pinned=limit))
    before = {name: p.detach().clone() for name, p in adapted.model.named_parameters()}
    predict(adapted)
    for name, parameter in adapted.model.named_parameters():
        if name != "stem.bias":  # BatchNorm takes it away again: nothing but rounding moves it
            assert torch.equal(parameter, before[name]) == (weights[name] >= limit), name


def test_what_has_no_penalty_is_not_pinned():
    a, b = (predict(adapt("infomax", speed=Speed(pinned=limit))) for limit in (0.0, 1e-9))
    assert torch.equal(a, b)


def test_bfloat16_is_used_where_the_machine_has_it(monkeypatch):
    artifact, xs = tiny_artifact("batch_norm"), [x.float() for x in XS]

    def run(speed):
        adapted = acclimate.adapt(tiny_model("batch_norm"), "swr_nsp", artifact, speed=speed)
        return predict(adapted, xs), adapted

    exact, _ = run("exact")
    half = Speed(bfloat16=True)
    monkeypatch.setattr("acclimate.functional.precision.has_fast_bfloat16", lambda device: False)
    assert torch.equal(run(half)[0], exact)
    monkeypatch.setattr("acclimate.functional.precision.has_fast_bfloat16", lambda device: True)
    rounded, adapted = run(half)
    assert rounded.dtype == torch.float32
    assert 1e-5 < (rounded - exact).abs().max() < 0.2
    assert all(p.dtype == torch.float32 for p in adapted.model.parameters())


@pytest.mark.parametrize("level", SPEEDS)
@pytest.mark.parametrize("method", ["tent", "swr_nsp"])
def test_a_cut_stream_goes_on_the_same_at_every_level(method, level, tmp_path):
    whole = predict(adapt(method, speed=level))
    first = adapt(method, speed=level)
    parts = [predict(first, XS[:1])]
    first.save(tmp_path / "state")
    second = adapt(method, speed=level).load(tmp_path / "state")
    assert torch.equal(torch.cat([*parts, predict(second, XS[1:])]), whole)
    first.reset()
    assert torch.equal(predict(first), whole)


def test_a_state_belongs_to_its_level(tmp_path):
    adapted = adapt("swr_nsp", speed="fast")
    adapted.save(tmp_path / "state")
    with raises("other_settings", differences=lambda found: set(found) == {"speed"}):
        adapt("swr_nsp").load(tmp_path / "state")


# What a user says -------------------------------------------------------------------------------


def test_levels_by_name():
    assert adapt("tent", speed="fast").speed == SPEEDS["fast"]
    assert SPEEDS["exact"] == Speed()
    with raises("unknown_name", kind="speed", name="fastes", known=tuple(SPEEDS)):
        adapt("tent", speed="fastes")
    with raises("wrong_type", option="speed", found="int"):
        adapt("tent", speed=3)
    with raises("invalid_options", problems=lambda found: set(found) == {"view_share"}):
        Speed(view_share=1.5)


def test_a_part_of_the_batch_is_spread_over_it():
    x = torch.arange(10)
    assert x[spread(x, 5)].tolist() == [0, 2, 4, 6, 8]
    assert x[spread(x, 4)].tolist() == [0, 3, 6, 9]
    assert Speed(view_share=0.25).view_size(200, 0) == 50
    assert Speed(view_share=0.01).view_size(8, 0) == 2
    assert Speed(view_every=3).view_size(8, 1) == 0
