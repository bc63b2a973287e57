"""Preparation: sample counts, prototypes, projector, statistics, and what is refused."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import acclimate
from acclimate import Accuracy, ModelInfo, Penalty, Prototypes
from acclimate.errors import AcclimateWarning, BadInput, InvalidConfig
from acclimate.parts import PARTS
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises, warns

FEW = Penalty(n_samples=16)


def prepare(model, batches, *parts, **options):
    """Prepare the parts named, or all three, of which the penalty with few samples."""
    chosen = parts or (FEW, "prototypes", "features")
    return acclimate.prepare(model, batches, parts=chosen, **options)


@pytest.fixture
def model():
    return tiny_model("batch_norm")


def test_the_model_is_given_back_as_it_was(model):
    model.train()
    model.stem.weight.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    flags = [(m.training, len(m._forward_hooks)) for m in model.modules()]
    grads = [(p.requires_grad, p.grad) for p in model.parameters()]
    prepare(model, tiny_batches(4), FEW, Prototypes(depth=2, width=4, epochs=1), "features")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [(m.training, len(m._forward_hooks)) for m in model.modules()] == flags
    assert [(p.requires_grad, p.grad) for p in model.parameters()] == grads


def test_the_global_random_state_is_not_touched(model):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    prepare(model, tiny_batches(4), FEW, Prototypes(depth=2, width=4, epochs=1), "features")
    assert torch.equal(torch.rand(3), expected)


def test_same_seed_same_artifact(model):
    parts = (FEW, Prototypes(depth=1, width=4, epochs=1), "features")
    first, second = (prepare(model, tiny_batches(4), *parts, seed=3) for _ in range(2))
    other = prepare(model, tiny_batches(4), *parts, seed=4)
    assert all(torch.equal(v, second.tensors[k]) for k, v in first.tensors.items())
    assert not torch.equal(first.tensors["cosine/stem.weight"], other.tensors["cosine/stem.weight"])


def test_the_penalty_does_not_depend_on_the_loader_s_batch_size(model):
    x, y = (torch.cat(parts) for parts in zip(*tiny_batches(6), strict=True))
    one = [(x, y)]
    many = list(zip(x.split(5), y.split(5), strict=True))
    first, second = (prepare(model, b, FEW) for b in (one, many))
    assert all(torch.equal(v, second.tensors[k]) for k, v in first.tensors.items())


def test_fewer_samples_than_wanted_are_used_all_and_recorded(model):
    with warns("few_samples", found=32, expected=1024):
        artifact = acclimate.prepare(model, tiny_batches(4), parts=("penalty",))
    assert artifact.parts["penalty"]["n_samples"] == 32


def test_a_sorted_source_is_noticed(model):
    x, _ = tiny_batches(1, batch_size=32)[0]
    with warns("sorted_source", found=1, expected=4):
        prepare(model, [(x, torch.zeros(32, dtype=torch.long))], FEW)


@pytest.mark.parametrize(
    ("granularity", "units"),
    [("tensor", 12), ("module", 7), ("channel", 88), ("parameter", None)],
)
def test_granularities(model, granularity, units):
    part = Penalty(n_samples=16, granularity=granularity)
    artifact = prepare(model, tiny_batches(4), part)
    n = sum(p.numel() for p in model.parameters()) if units is None else units
    assert artifact.parts["penalty"]["n_units"] == n
    values = torch.cat([v.flatten() for v in artifact.part("penalty").values()])
    assert float(values.min()) == 0
    assert float(values.max()) == 1
    for name, parameter in model.named_parameters():
        assert (parameter * artifact.part("penalty")[name]).shape == parameter.shape


def test_exponents_are_powers_of_one_scale(model):
    found = [
        prepare(model, tiny_batches(4), Penalty(n_samples=16, exponent=e)).part("penalty")
        for e in (1, 2, 3)
    ]
    for name, value in found[0].items():
        assert torch.allclose(value**2, found[1][name])
        assert torch.allclose(value**3, found[2][name])


def test_unused_parameters_get_penalty_one_and_no_cosine(model):
    model.unused = nn.Linear(2, 2)
    artifact = prepare(model, tiny_batches(4), FEW)
    assert artifact.part("cosine")["unused.weight"].isnan()
    assert artifact.part("penalty")["unused.weight"] == 1


def test_prototypes_of_features_are_moving_averages(model):
    model.double()
    batches = tiny_batches(5, dtype=torch.float64)
    artifact = prepare(model, batches, "prototypes")
    expected = {}
    for x, y in batches:
        taken = []
        hook = model.head.register_forward_hook(lambda _, inputs, __: taken.append(inputs[0]))  # noqa: B023
        model(x)
        hook.remove()
        for z, label in zip(taken[0], y.tolist(), strict=True):
            expected[label] = 0.99 * expected[label] + 0.01 * z if label in expected else z
    found = artifact.part("prototypes")["embedding"]
    assert all(torch.allclose(found[k], v, atol=1e-12) for k, v in expected.items())


def test_prototypes_of_the_classifier_are_its_rows(model):
    part = Prototypes(source="classifier")
    artifact = prepare(model, tiny_batches(4), part)
    assert torch.equal(artifact.part("prototypes")["embedding"], model.head.weight)
    acclimate.adapt(model, "swr_nsp", prepare(model, tiny_batches(4), FEW, part, "features"))


def test_classifier_prototypes_need_a_row_a_class():
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(192, 4), nn.Identity()))
    with raises("wrong_head", head="1"):
        prepare(model, tiny_batches(4), Prototypes(source="classifier"), info=ModelInfo(head="1"))


class Unlisted:
    """A source whose labels can be seen only by reading it."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


@pytest.mark.parametrize("kind", [list, Unlisted])
def test_a_class_that_never_appears_is_named(model, kind):
    batches = [(x, y.clamp(max=2)) for x, y in tiny_batches(4)]
    for depth in (0, 2):
        with raises("missing_classes", missing=(3,)):
            prepare(model, kind(batches), Prototypes(depth=depth, width=4, epochs=1))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_training_the_projector_lowers_its_loss(model, optimizer):
    part = Prototypes(depth=2, width=8, hidden=16, epochs=4, optimizer=optimizer, lr=0.01)
    artifact = prepare(model, tiny_batches(8), part)
    history = artifact.parts["prototypes"]["loss"]
    assert len(history) == 4
    assert history[-1] < 0.9 * history[0]


@pytest.mark.parametrize(("depth", "shapes"), [(1, 2), (2, 9), (3, 16)])
def test_projectors_of_every_depth(model, depth, shapes):
    part = Prototypes(depth=depth, width=6, hidden=5, epochs=1)
    artifact = prepare(model, tiny_batches(4), FEW, part, "features")
    assert artifact.part("prototypes")["embedding"].shape == (4, 6)
    assert len(artifact.part("projector")) == shapes
    adapted = acclimate.adapt(model, "swr_nsp", artifact)
    assert adapted(tiny_batches(1)[0][0]).isfinite().all()


def test_moments_against_numpy(model):
    model.double()
    batches = tiny_batches(6, dtype=torch.float64)
    artifact = prepare(model, batches, "features")
    h, p, labels = [], [], []
    for x, y in batches:
        taken = []
        hook = model.head.register_forward_hook(lambda _, inputs, __: taken.append(inputs[0]))  # noqa: B023
        p.append(model(x).detach().softmax(1).numpy())
        hook.remove()
        h.append(taken[0].detach().numpy())
        labels.append(y.numpy())
    h, p, labels = np.concatenate(h), np.concatenate(p), np.concatenate(labels)
    found = {k: v.numpy() for k, v in artifact.part("features").items()}
    assert np.allclose(found["mean"], h.mean(0), atol=1e-6)
    assert np.allclose(found["covariance"], np.cov(h.T), atol=1e-6)
    for k in range(4):
        assert found["class_count"][k] == (labels == k).sum()
        assert np.allclose(found["class_mean"][k], h[labels == k].mean(0), atol=1e-6)
        assert np.allclose(found["class_variance"][k], h[labels == k].var(0, ddof=1), atol=1e-6)
    predictions = artifact.part("predictions")
    assert np.allclose(predictions["mean"], p.mean(0), atol=1e-6)
    assert np.allclose(predictions["entropy"], -(p * np.log(p)).sum(1).mean(), atol=1e-6)
    assert artifact.parts["features"]["error"] == pytest.approx((p.argmax(1) != labels).mean())


X, Y = tiny_batches(1)[0][0], torch.arange(8) % 4


@pytest.mark.parametrize(
    ("source", "code", "data"),
    [
        (iter([(X, Y)]), "not_repeatable", {}),
        (42, "wrong_type", {"option": "source", "found": "int"}),
        ([], "empty_source", {}),
        ([X], "wrong_type", {"option": "batch", "found": "Tensor"}),
        ([(X, Y.float())], "wrong_dtype", {"found": "float32"}),
        ([(X, Y[:3])], "wrong_shape", {"found": (3,)}),
        ([(X, Y % 2 + 4)], "wrong_labels", {"found": (4, 5), "n_classes": 4}),
        ([(X, Y % 2 - 2)], "wrong_labels", {"found": (-2, -1), "n_classes": 4}),
        ([(X * 255, Y)], "pixel_range", {"high": lambda high: high > 200}),
        ([(X.to(torch.uint8), Y)], "wrong_dtype", {"found": "uint8"}),
        ([(X[:, :, 0], Y)], "wrong_shape", {"found": (8, 3, 8)}),
        ([(X * torch.nan, Y)], "not_finite", {"found": tuple(range(8))}),
        ([(X[:0], Y[:0])], "empty_batch", {}),
    ],
)
def test_unusable_sources(model, source, code, data):
    with raises(code, BadInput, **data):
        prepare(model, source)


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        (Penalty, "n_samples", 0),
        (Penalty, "n_samples", 10.5),
        (Penalty, "exponent", "2"),
        (Prototypes, "lr", float("inf")),
        (Prototypes, "hidden", 1.5),
        (Penalty, "exponent", -1),
        (Prototypes, "depth", 4),
        (Prototypes, "momentum", 1.0),
        (Prototypes, "epochs", 0),
    ],
)
def test_values_out_of_range(kind, option, value):
    with raises("invalid_options", InvalidConfig, problems=lambda found: set(found) == {option}):
        kind(**{option: value})


@pytest.mark.parametrize(
    ("kind", "option", "name", "known"),
    [
        (Penalty, "granularity", "layer", "parameter"),
        (Prototypes, "source", "mean", "embedding"),
        (Prototypes, "optimizer", "lion", "adam"),
    ],
)
def test_names_that_nothing_has(kind, option, name, known):
    with raises("invalid_options", InvalidConfig) as caught:
        kind(**{option: name})
    assert list(caught.value.problems) == [option]
    assert name in caught.value.problems[option]
    assert known in caught.value.problems[option]


@pytest.mark.parametrize("kind", [Penalty, Prototypes])
def test_views_that_do_not_exist(kind):
    with raises("unknown_name", InvalidConfig, name="swrr", known=lambda names: "swr" in names):
        kind(views="swrr")


def test_parts_are_added_to_what_a_method_needs_or_replace_its_options(model):
    batches, quick = tiny_batches(4), Accuracy(n_samples=64, severities=(5,), n_runs=4)
    expected = acclimate.prepare(model, batches, parts=[FEW, "prototypes", "features", quick])
    artifact = acclimate.prepare(model, batches, method="swr_nsp", parts=[FEW, quick])
    assert list(artifact.parts) == ["penalty", "prototypes", "features", "accuracy"]
    assert artifact.parts["penalty"]["n_samples"] == 16
    assert artifact.parts["accuracy"]["n_runs"] == 4
    assert_same_tensors(artifact, expected)
    artifact = acclimate.prepare(model, batches, method="tent", parts=[FEW, quick])
    assert list(artifact.parts) == ["penalty", "features", "accuracy"]
    names = ["tent", "swr", "nsp"]
    assert_same_tensors(
        acclimate.prepare(model, batches, method=names, parts=[FEW, quick]), expected
    )


def assert_same_tensors(first, second):
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(value, second.tensors[name]) for name, value in first.tensors.items())


def test_a_part_by_name_by_class_and_by_object(model):
    found = [
        prepare(model, tiny_batches(4), part) for part in ("prototypes", Prototypes, Prototypes())
    ]
    assert_same_tensors(found[0], found[1])
    assert_same_tensors(found[0], found[2])
    with raises("wrong_type", option="parts", found="int"):
        prepare(model, tiny_batches(4), 3)
    with raises("duplicate", name="penalty"):
        prepare(model, tiny_batches(4), FEW, "penalty")


def test_an_own_part_in_a_few_lines(model, request):
    @dataclass(frozen=True, kw_only=True)
    class Brightness(acclimate.Part):
        name = "brightness"
        n_batches: int = acclimate.hp(8, low=1, help="source batches that are averaged")

        def compute(self, context):
            taken = [x.mean() for x, _ in context.source.iterate("brightness")][: self.n_batches]
            draw = torch.rand((), generator=context.generator)
            return {"brightness/mean": torch.stack(taken).mean(), "brightness/draw": draw}, {
                **self.to_card()
            }

    request.addfinalizer(lambda: PARTS.pop("brightness", None))
    batches = tiny_batches(4)
    artifact = prepare(model, batches, FEW, Brightness(n_batches=2))
    found = artifact.part("brightness")
    assert found["mean"] == torch.stack([x.mean() for x, _ in batches[:2]]).mean()
    assert artifact.parts["brightness"]["n_batches"] == 2
    alone = prepare(model, batches, Brightness(n_batches=2)).part("brightness")
    assert torch.equal(alone["draw"], found["draw"])  # whatever else is prepared
    with raises("unknown_name", kind="part", name="brightness"):
        prepare(model, batches, "brightness")
    acclimate.register_part(Brightness)
    assert prepare(model, batches, "brightness").parts["brightness"]["n_batches"] == 8
    with raises("invalid_options", problems=lambda found: set(found) == {"n_batches"}):
        Brightness(n_batches=0)

    @dataclass(frozen=True, kw_only=True)
    class Other(acclimate.Part):
        name = "penalty"

    with raises("name_taken", name="penalty"):
        acclimate.register_part(Other)
    with raises("missing_option", option="name"):
        acclimate.register_part(type("Unnamed", (acclimate.Part,), {}))


def test_unknown_parts_are_answered_with_the_known_ones(model):
    with raises("unknown_name", kind="part", name="penlty", known=lambda names: "penalty" in names):
        prepare(model, tiny_batches(2), "penlty")


def test_batches_of_one_cannot_train_a_projector(model):
    x, y = tiny_batches(1, 40)[0]
    singles = list(zip(x.split(1), y.split(1), strict=True))
    part = Prototypes(depth=2, width=4, epochs=1)
    with raises("single_sample"):
        prepare(model, singles, part)
    prepare(model, [(x, y), *singles[:1]], part)


def test_automatic_depth():
    assert Prototypes().depth_for(10) == 0
    assert Prototypes().depth_for(100) == 2
    assert Prototypes(depth=3).depth_for(10) == 3


def test_progress_is_reported(model):
    calls = []
    prepare(model, tiny_batches(4), progress=lambda *call: calls.append(call))
    assert ("penalty", 16, 16) in calls
    assert ("prototypes", 4, 4) in calls
    assert ("features", 4, 4) in calls


def test_labels_in_another_order_than_the_logits_are_noticed():
    model, batches = tiny_model("batch_norm").eval(), tiny_batches(8)
    right = [(x, model(x).argmax(dim=1)) for x, _ in batches]
    wrong = [(x, (y + 1) % 4) for x, y in right]
    with warns("low_accuracy", accuracy=0.0, chance=0.25):
        acclimate.prepare(model, wrong, parts=["features"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", AcclimateWarning)
        acclimate.prepare(model, right, parts=["features"])
        acclimate.prepare(model, wrong[:2], parts=["features"])  # too few images to judge


def test_an_adapted_model_is_refused_before_anything_is_computed():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent")
    with raises("already_adapted"):
        acclimate.prepare(adapted, tiny_batches(2), parts=["features"])
