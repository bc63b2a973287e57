"""Adapting: arguments, refusals, and what the wrapper promises besides conformance."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import acclimate
from acclimate import ModelInfo, Penalty
from acclimate.errors import AcclimateError
from acclimate.testing.cases import tiny_artifact
from acclimate.testing.models import tiny_batches, tiny_model
from acclimate.testing.steps import same_state, take_state
from tests.codes import raises

X = tiny_batches(1)[0][0]
PARTS = [Penalty(n_samples=16), "prototypes", "features"]


@pytest.fixture
def model():
    return tiny_model("batch_norm")


def test_a_model_is_lent_once(model):
    adapted = acclimate.adapt(model, "tent")
    with raises("already_adapted"):
        acclimate.adapt(model, "norm")
    with raises("already_adapted"):
        acclimate.adapt(adapted, "norm")
    acclimate.adapt(copy.deepcopy(model), "norm")
    acclimate.adapt(adapted.unwrap(), "norm")


def test_a_forgotten_wrapper_does_not_block_its_model(model):
    acclimate.adapt(model, "norm")
    gc.collect()
    acclimate.adapt(model, "norm")


def places(*expected):
    """Return a check that a refusal of tent is about these places and no others."""

    def holds(reasons):
        found = tuple(reason.partition(":")[0] for reason in reasons["tent"])
        return list(reasons) == ["tent"] and found == expected

    return holds


def test_frozen_models_are_refused_with_the_remedy(model):
    model.requires_grad_(False)
    with raises("method_refused", methods=("tent",), reasons=places("parameters")) as caught:
        acclimate.adapt(model, "tent")
    assert "model.requires_grad_(True)" in caught.value.reasons["tent"][0]
    model.requires_grad_(True)
    acclimate.adapt(model, "tent")


def test_partially_frozen_parameters_stay(model):
    model.stem.requires_grad_(False)
    artifact = acclimate.prepare(model, tiny_batches(4), parts=PARTS)
    before = model.stem.weight.detach().clone()
    acclimate.adapt(model, "swr_nsp", artifact)(X)
    assert torch.equal(model.stem.weight, before)
    assert not model.stem.weight.requires_grad


def test_a_caller_s_gradients_are_left_alone(model):
    model(X).sum().backward()
    kept = {n: p.grad.clone() for n, p in model.named_parameters()}
    acclimate.adapt(model, "tent")(X)
    assert all(torch.equal(p.grad, kept[n]) for n, p in model.named_parameters())


def test_states_of_other_things_are_refused(model, tmp_path):
    path = tmp_path / "s.safetensors"
    acclimate.adapt(model, "tent", lr=1e-4).save(path)
    other = tiny_model("batch_norm", seed=1)
    with raises("other_settings") as caught:
        acclimate.adapt(other, "tent").load(path)
    differences = caught.value.differences
    assert set(differences) == {"config", "source"}
    assert [config["lr"] for config in differences["config"]] == [1e-4, 1e-3]
    with raises("other_settings", differences=lambda found: found["method"] == ("tent", "norm")):
        acclimate.adapt(tiny_model("batch_norm"), "norm").load(path)


@pytest.mark.slow
def test_resume_in_a_new_process(tmp_path):
    """Cut, save, new interpreter, load, go on: exactly the logits of the uncut stream."""
    xs = [x for x, _ in tiny_batches(4, seed=7)]
    artifact = tiny_artifact("batch_norm")
    artifact.save(tmp_path / "a.acclimate")
    adapted = acclimate.adapt(tiny_model("batch_norm"), "swr_nsp", artifact)
    for x in xs[:2]:
        adapted(x)
    adapted.save(tmp_path / "s.safetensors")
    expected = [adapted(x) for x in xs[2:]]
    code = f"""
import torch, acclimate
from acclimate.testing.models import tiny_batches, tiny_model
torch.set_num_threads(1)
artifact = acclimate.Artifact.load({str(tmp_path / "a.acclimate")!r})
adapted = acclimate.adapt(tiny_model("batch_norm"), "swr_nsp", artifact)
adapted.load({str(tmp_path / "s.safetensors")!r})
torch.save([adapted(x) for x, _ in tiny_batches(4, seed=7)[2:]], {str(tmp_path / "out.pt")!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_single_images_are_refused_first_and_skipped_last(model):
    adapted = acclimate.adapt(model, "tent")
    with raises("single_sample"):
        adapted(X[:1])
    adapted(X)
    weights = model.norm.weight.detach().clone()
    adapted(X[:1])
    assert torch.equal(model.norm.weight, weights)
    assert adapted.counts.skipped == {"single": 1}
    for statistics in ("running", "source"):
        acclimate.adapt(tiny_model("batch_norm"), "tent", statistics=statistics)(X[:1])


def test_a_loss_that_is_not_finite_changes_nothing(model):
    with torch.no_grad():
        model.stem.weight.mul_(torch.inf)
    adapted = acclimate.adapt(model, "tent", statistics="running")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    adapted(X)
    assert adapted.counts.skipped == {"non_finite": 1}
    assert adapted.counts.updates == 0
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_an_interrupted_step_changes_nothing(model, monkeypatch):
    adapted = acclimate.adapt(model, "tent")
    adapted(X)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    step = adapted.optimizer.step

    def interrupted():
        step()
        raise KeyboardInterrupt

    monkeypatch.setattr(adapted.optimizer, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        adapted(X)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_wrong_devices_and_types_are_named(model):
    adapted = acclimate.adapt(model, "norm")
    with raises("wrong_dtype", found="float64"):
        adapted(X.double())
    with raises("wrong_device", expected="cpu", found="meta"):
        adapted(torch.empty(2, 3, 8, 8, device="meta"))


def test_tensors_made_in_inference_mode_can_be_learned_from(model):
    with torch.inference_mode():
        x = X.clone()
    adapted = acclimate.adapt(model, "tent")
    adapted(x)
    assert adapted.counts.updates == 1


def test_costs_are_counted(model):
    adapted = acclimate.adapt(model, "swr_nsp", tiny_artifact("batch_norm"))
    adapted(X)
    adapted(X)
    counts = adapted.counts
    assert (counts.batches, counts.samples, counts.updates) == (2, 16, 2)
    assert (counts.forwards, counts.backwards) == (4, 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype):
    model = tiny_model("batch_norm").to(dtype)
    artifact = acclimate.prepare(model, tiny_batches(4, dtype=dtype), parts=PARTS)
    adapted = acclimate.adapt(model, "swr_nsp", artifact)
    logits = [adapted(x) for x, _ in tiny_batches(3, dtype=dtype)]
    assert all(z.dtype == dtype and z.isfinite().all() for z in logits)
    assert adapted.counts.updates == 3


def test_learning_shows_inside_one_long_autocast(model):
    """Autocast caches low-precision weights; learning and reset() must get through to it."""
    adapted = acclimate.adapt(model, "swr_nsp", tiny_artifact("batch_norm"), lr=0.05, seed=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = [adapted(X) for _ in range(3)]
        adapted.reset()
        again = adapted(X)
    assert not torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[1], logits[2])
    assert torch.equal(again, logits[0])


@pytest.mark.parametrize("statistics", ["batch", "running", "source"])
@pytest.mark.parametrize("name", ["batch_norm", "group_norm"])
def test_single_images_with_a_projector(name, statistics):
    artifact = tiny_artifact(name, depth=2)
    adapted = acclimate.adapt(tiny_model(name), "swr_nsp", artifact, statistics=statistics)
    adapted(X)
    assert adapted(X[:1]).isfinite().all()
    assert adapted.counts.skipped == {"single": 1}


def test_pixels_out_of_range_are_refused_wherever_the_range_is_known(model):
    adapted = acclimate.adapt(model, "tent", tiny_artifact("batch_norm"))
    brightest = float(255 * X.max())
    with raises("pixel_range", high=pytest.approx(brightest)):
        adapted(X * 255)
    with adapted.paused(), raises("pixel_range", high=pytest.approx(brightest)):
        adapted(X * 255)
    adapted.unwrap()
    # Given back as pixels, of which ImageNet's have a deviation of 0.22 to 0.23 and a mean below.
    with raises("pixel_range", high=lambda high: 0.2 * brightest < high < 0.3 * brightest):
        acclimate.adapt(model, "tent", info=ModelInfo(normalization="imagenet"))(X * 255)


def test_a_forward_that_fails_changes_nothing(model):
    adapted = acclimate.adapt(model, "swr_nsp", tiny_artifact("batch_norm"))
    adapted(X)
    twin = copy.deepcopy(adapted)
    calls = []

    def fails_second(module, inputs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    hook = model.register_forward_pre_hook(fails_second)
    with pytest.raises(KeyboardInterrupt):
        adapted(X)
    hook.remove()
    assert adapted.counts == twin.counts
    assert torch.equal(adapted(X), twin(X))
    assert torch.equal(adapted(X), twin(X))


def test_half_precision_that_cannot_be_trained_is_refused(model):
    with raises("method_refused", methods=("tent",), reasons=places("precision")):
        acclimate.adapt(model.half(), "tent")


def test_states_with_other_moving_parameters_are_refused(model, tmp_path):
    path = tmp_path / "s.safetensors"
    acclimate.adapt(model, "tent").save(path)
    other = tiny_model("batch_norm")
    other.norm.requires_grad_(False)
    adapted = acclimate.adapt(other, "tent")
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with raises("other_settings", differences=lambda found: set(found) == {"moves"}):
        adapted.load(path)
    assert all(torch.equal(v, before[k]) for k, v in other.state_dict().items())


def test_state_dicts_of_other_things_are_refused(model):
    state = acclimate.adapt(model, "tent").state_dict()
    other = acclimate.adapt(tiny_model("batch_norm"), "norm")
    with raises("other_settings", differences=lambda found: found["method"] == ("tent", "norm")):
        other.load_state_dict(state)
    with raises("assign_refused"):
        other.load_state_dict(other.state_dict(), assign=True)


def _wrong_state_dicts(state):
    """Yield what is wrong, and a state dict with it."""
    name, extra = "model.norm.weight", state["_extra_state"]
    weight, moved = state[name], next(iter(extra["tensors"]))
    yield "missing", {key: value for key, value in state.items() if key != name}
    yield "unexpected", {**state, "x": weight}
    yield "another shape", {**state, name: weight[:1]}
    yield "a broadcast shape", {**state, name: weight.mean()}
    yield "another type", {**state, name: weight.long()}
    yield "no tensor", {**state, name: weight.tolist()}
    yield "undefined", {**state, name: weight * torch.nan}
    yield "infinite", {**state, name: weight * torch.inf}
    yield "variances", {**state, "model.norm.running_var": -1 - state["model.norm.running_var"]}
    yield "no state", {key: value for key, value in state.items() if key != "_extra_state"}
    for own in (None, [], {}, {**extra, "tensors": {}}, {**extra, "tree": "["}):
        yield "other state", {**state, "_extra_state": own}
    yield "a tree of lists", {**state, "_extra_state": {**extra, "tree": "[" * 5000 + "]" * 5000}}
    lost = {key: value for key, value in extra["tensors"].items() if key != moved}
    yield "a lost tensor", {**state, "_extra_state": {**extra, "tensors": lost}}
    spoilt = {**extra["tensors"], moved: extra["tensors"][moved].float() * torch.nan}
    yield "a spoilt tensor", {**state, "_extra_state": {**extra, "tensors": spoilt}}


@pytest.mark.parametrize("method", ["tent", "rotta", "swr_nsp"])
def test_hostile_state_dicts_change_nothing(method):
    artifact = tiny_artifact("batch_norm")
    other = acclimate.adapt(tiny_model("batch_norm"), method, artifact)
    other(X)
    adapted = acclimate.adapt(tiny_model("batch_norm"), method, artifact)
    adapted(X + 0.1)
    before = take_state(adapted)
    for what, state in _wrong_state_dicts(other.state_dict()):
        with pytest.raises(AcclimateError):
            adapted.load_state_dict(state)
        assert same_state(take_state(adapted), before), what
    adapted.load_state_dict(other.state_dict())
    assert same_state(take_state(adapted), take_state(other))


def test_another_precision_in_mid_stream(model):
    adapted = acclimate.adapt(model, "swr_nsp", tiny_artifact("batch_norm"))
    adapted(X)
    snapshot = adapted.snapshot()
    adapted.to(torch.float64)
    adapted.restore(snapshot)
    assert adapted(X.double()).isfinite().all()
    steps = [s["step"] for s in adapted.optimizer.state.values()]
    assert all(step.dtype == torch.float32 for step in steps)


@pytest.mark.parametrize("guard", [1, "yes"])
def test_guards_that_are_none(model, guard):
    with raises("wrong_type", option="guard", found=type(guard).__name__):
        acclimate.adapt(model, "tent", tiny_artifact("batch_norm"), guard=guard)


def test_another_head_than_the_artifact_s_is_refused(model):
    with raises("artifact_conflict", option="head", expected="head", found="stem"):
        acclimate.adapt(model, "swr_nsp", tiny_artifact("batch_norm"), info=ModelInfo(head="stem"))


def test_lazy_models_are_refused_until_they_have_run():
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    with raises("lazy_layers"):
        acclimate.adapt(lazy, "tent")
    lazy(X)
    acclimate.adapt(lazy, "tent")


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(2, 9),
    size=st.integers(4, 12),
    scale=st.floats(0, 1),
    method=st.sampled_from(["norm", "tent"]),
    name=st.sampled_from(["batch_norm", "group_norm", "depthwise"]),
)
def test_any_legal_batch_is_taken(n, size, scale, method, name):
    """Shapes and value ranges, down to images of one colour."""
    kind = acclimate.get_method(method)
    if kind.check(tiny_model(name), kind.config_class()):
        return
    x = scale * torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(n))
    adapted = acclimate.adapt(tiny_model(name), method)
    assert adapted(x).shape == (n, 4)
    assert all(p.isfinite().all() for p in adapted.model.parameters())


def test_a_model_without_parameters_is_refused():
    model = nn.Sequential(nn.Flatten(), nn.Softmax(dim=1))
    with raises("method_refused", methods=("tent",), reasons=places("normalisation")):
        acclimate.adapt(model, "tent")
