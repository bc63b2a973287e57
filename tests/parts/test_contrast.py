"""The part `contrast` of an artifact, the projection head, and the functions they stand on."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import acclimate
from acclimate.functional.contrast import (
    contrastive_loss,
    covariance_distance,
    feature_moments,
    mean_distance,
)
from acclimate.functional.views import (
    VIEW_SETS,
    ColorJitter,
    Crop,
    Flip,
    Grayscale,
    apply_views,
    get_views,
)
from acclimate.methods import METHODS
from acclimate.methods.tfa import Tfa
from acclimate.methods.ttt_pp import TttPp
from acclimate.parts import Contrast
from acclimate.parts.contrastive_head import (
    build_contrastive_head,
    head_from_weights,
    read_head,
    write_head,
)
from acclimate.testing.models import MODEL_INFO, TINY_MODELS, tiny_batches, tiny_model
from tests.codes import raises
from tests.reference import oracles_alignment as oracles

METHODS.setdefault("tfa", Tfa)
METHODS.setdefault("ttt_pp", TttPp)

DOUBLE = torch.float64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=DOUBLE)


def prepare(model, batches, head=None, **options):
    part = Contrast(head=head, **{"batch_size": 8, **options})
    return acclimate.prepare(model, batches, parts=[part])


# Functions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_the_contrastive_loss_is_the_oracle_s(n, temperature):
    first, second = randn(n, 5), randn(n, 5, seed=1)
    expected = oracles.nt_xent(first, second, temperature)
    assert contrastive_loss(first, second, temperature).item() == pytest.approx(
        float(expected), abs=1e-12
    )


@given(n=st.integers(2, 6), d=st.integers(1, 5), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_the_contrastive_loss_ignores_order_length_and_which_view_is_first(n, d, seed):
    first, second = randn(n, d, seed=seed), randn(n, d, seed=seed + 1000)
    loss = contrastive_loss(first, second, 0.5)
    order = torch.randperm(n, generator=seeded(seed))
    assert loss > 0
    for other in (
        contrastive_loss(second, first, 0.5),
        contrastive_loss(first[order], second[order], 0.5),
        contrastive_loss(first * 3, second / 7, 0.5),
    ):
        assert other.item() == pytest.approx(loss.item(), abs=1e-9)


def test_the_contrastive_loss_falls_when_partners_agree_and_is_finite_for_zeros():
    views = torch.eye(4, dtype=DOUBLE)
    assert contrastive_loss(views, views, 0.1) < 1e-3 < contrastive_loss(views, views.flip(0), 0.1)
    zeros = torch.zeros(3, 4, requires_grad=True)
    loss = contrastive_loss(zeros, torch.ones(3, 4), 0.5)
    loss.backward()
    assert bool(loss.isfinite() & zeros.grad.isfinite().all())
    half = contrastive_loss(views.bfloat16(), views.bfloat16(), 0.5)
    assert half.dtype == torch.float32


def test_moments_are_the_oracle_s():
    features = randn(9, 4)
    mean, covariance = feature_moments(features)
    torch.testing.assert_close(mean, oracles.mean_of(list(features)))
    torch.testing.assert_close(covariance, oracles.covariance_of(list(features)))
    assert torch.equal(feature_moments(features[:1])[1], torch.zeros(4, 4, dtype=DOUBLE))
    other = randn(6, 4, seed=1)
    second_mean, second = feature_moments(other)
    torch.testing.assert_close(
        covariance_distance(covariance, second), oracles.frobenius(covariance, second)
    )
    torch.testing.assert_close(mean_distance(mean, second_mean), oracles.squared(mean, second_mean))


def test_the_views_are_those_of_ttt_pp():
    crop, flip, often, gray = VIEW_SETS["simclr"]
    assert (crop, flip, gray) == (Crop((0.2, 1.0)), Flip(0.5), Grayscale(0.2))
    assert list(VIEW_SETS["crop+flip"]) == [crop, flip]
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1)
    x = torch.rand(2000, 3, 4, 4, generator=seeded(), dtype=DOUBLE)
    changed = (often.apply(x, often.uniforms(len(x), seeded(1))) != x).flatten(1).any(dim=1)
    assert 0.77 < changed.double().mean() < 0.83
    assert {view for view in often.views if view != jitter} == {Grayscale(0.0)}


# The part -----------------------------------------------------------------------------------------


def features_of(model, batches, views):
    """Features of views of the source, by the same draws; the model is in evaluation mode."""
    draws = seeded(4)  # seed 0, fifth part
    taken = []
    hook = model.head.register_forward_hook(lambda _, inputs, __: taken.append(inputs[0]))
    with torch.no_grad():
        for x, _ in batches:
            model(apply_views(get_views(views), x, None, draws))
    hook.remove()
    return torch.cat(taken)


@pytest.mark.parametrize("views", ["crop+flip", "none"])
@pytest.mark.parametrize("name", ["batch_norm", "vit"])
def test_the_part_is_the_oracle_s(name, views):
    model = tiny_model(name).double()
    batches = tiny_batches(5, dtype=DOUBLE)
    head = build_contrastive_head(model.head.in_features, 10, 6).double()
    artifact = prepare(model, batches, head, batch_size=12, views=views)  # 40 = 3 · 12 + 4
    features = features_of(model, batches, views)
    weights = artifact.part("contrast_head")
    assert all(torch.equal(value, weights[key]) for key, value in head.state_dict().items())
    part = artifact.part("contrast")
    for space, rows in (("encoder", features), ("head", oracles.project(weights, features))):
        for moment, expected in oracles.summarise(list(rows), 12).items():
            found = part[f"{space}_{moment}"]
            assert found.dtype == DOUBLE
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    card = artifact.parts["contrast"]
    assert (card["n_samples"], card["batch_size"], card["head"]) == (40, 12, [10, 6])


def test_without_a_head_there_is_one_space():
    artifact = prepare(tiny_model("batch_norm"), tiny_batches(4))
    assert artifact.parts["contrast"]["head"] is None
    assert {name.partition("_")[0] for name in artifact.part("contrast")} == {"encoder"}
    assert artifact.part("contrast")["encoder_mean"].dtype == torch.float32


def test_crops_are_for_models_that_were_trained_with_a_head():
    model, head = tiny_model("batch_norm"), build_contrastive_head(8, 8, 4)
    for with_head, name in ((None, "none"), (head, "crop+flip")):
        artifact = prepare(model, tiny_batches(4), with_head)
        assert artifact.parts["contrast"]["views"] == get_views(name).to_dict()
        same = prepare(model, tiny_batches(4), with_head, views=name)
        assert all(torch.equal(t, same.tensors[key]) for key, t in artifact.tensors.items())


def test_the_part_does_not_depend_on_the_loader_s_batch_size():
    model = tiny_model("batch_norm").double()
    x, y = (torch.cat(parts) for parts in zip(*tiny_batches(6, dtype=DOUBLE), strict=True))
    one = prepare(model, [(x, y)])
    many = prepare(model, list(zip(x.split(5), y.split(5), strict=True)))
    for name, value in one.tensors.items():
        torch.testing.assert_close(many.tensors[name], value, rtol=1e-8, atol=1e-12)


def test_no_more_samples_are_used_than_asked_for():
    model = tiny_model("batch_norm").double()
    batches = tiny_batches(6, dtype=DOUBLE)
    artifact = prepare(model, batches, n_samples=20)
    assert artifact.parts["contrast"]["n_samples"] == 20
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    first = prepare(model, [(x[:20], y[:20])])
    for name, value in first.tensors.items():
        torch.testing.assert_close(artifact.tensors[name], value, rtol=1e-8, atol=1e-12)


def test_a_small_source_is_halved_and_a_smaller_one_refused():
    model = tiny_model("batch_norm").double()
    batches = tiny_batches(3, batch_size=5, dtype=DOUBLE)
    artifact = prepare(model, batches, batch_size=1536)
    assert artifact.parts["contrast"]["batch_size"] == 7
    same = prepare(model, batches, batch_size=7)
    assert all(torch.equal(value, same.tensors[key]) for key, value in artifact.tensors.items())
    with raises("too_few_samples", expected=4, found=3):
        prepare(model, tiny_batches(1, batch_size=3, dtype=DOUBLE))


def test_a_source_of_one_image_again_and_again_is_refused():
    x, y = tiny_batches(1)[0]
    repeated = [(x[:1].expand(8, -1, -1, -1), y[:1].expand(8))] * 3
    with raises("degenerate_source"):
        prepare(tiny_model("batch_norm"), repeated, views="none")


@pytest.mark.parametrize("name", TINY_MODELS)
def test_every_tiny_model_can_have_the_part(name):
    info = MODEL_INFO.get(name)
    artifact = acclimate.prepare(tiny_model(name), tiny_batches(4), method="tfa", info=info)
    assert all(bool(value.isfinite().all()) for value in artifact.part("contrast").values())


def test_model_and_global_random_state_are_given_back():
    model = tiny_model("batch_norm").train()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    prepare(model, tiny_batches(4), build_contrastive_head(8, 8, 4))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_wrong_options_are_refused():
    for option, value in (("n_samples", 0), ("batch_size", 1), ("batch_size", 0.5)):
        with raises(
            "invalid_options", problems=lambda found, option=option: set(found) == {option}
        ):
            Contrast(**{option: value})
    with raises("unknown_name", name="crops", known=tuple(VIEW_SETS)):
        Contrast(views="crops")


def test_a_head_of_another_model_is_refused_before_anything_is_measured():
    parts = ["penalty", Contrast(head=build_contrastive_head(7))]
    told = []
    with raises("other_model", differences={"n_features": (7, 8)}):
        acclimate.prepare(
            tiny_model("batch_norm"),
            tiny_batches(4),
            parts=parts,
            progress=lambda *facts: told.append(facts),
        )
    assert told == []


def test_an_artifact_with_a_head_is_saved_and_adapts_as_before(tmp_path):
    model = tiny_model("batch_norm")
    artifact = prepare(model, tiny_batches(4), build_contrastive_head(8, 8, 4))
    artifact.save(tmp_path / "a.acclimate")
    loaded = acclimate.Artifact.load(tmp_path / "a.acclimate")
    xs = [x for x, _ in tiny_batches(3, seed=7)]
    runs = []
    for each in (artifact, loaded):
        adapted = acclimate.adapt(copy.deepcopy(model), "ttt_pp", each, lr=1e-5)
        runs.append([adapted(x) for x in xs])
    assert all(map(torch.equal, *runs))


# The head -----------------------------------------------------------------------------------------


def test_fresh_heads_depend_on_their_seed_alone():
    torch.manual_seed(1)
    first = build_contrastive_head(6, seed=3)
    torch.manual_seed(2)
    second = build_contrastive_head(6, seed=3)
    assert [tuple(p.shape) for p in first.parameters()] == [(6, 6), (6,), (128, 6), (128,)]
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not torch.equal(first[0].weight, build_contrastive_head(6, seed=4)[0].weight)


def test_a_head_goes_through_a_file_and_belongs_to_its_model(tmp_path):
    model, head = tiny_model("batch_norm"), build_contrastive_head(8, 10, 6)
    path = tmp_path / "model.head.safetensors"
    write_head(path, head, model, {"note": "any"})
    found = read_head(path, model, 8)
    assert all(map(torch.equal, found.parameters(), head.parameters()))
    assert not any(parameter.requires_grad for parameter in found.parameters())
    by_file = prepare(model, tiny_batches(4), path)
    by_module = prepare(model, tiny_batches(4), head)
    assert all(torch.equal(value, by_file.tensors[key]) for key, value in by_module.tensors.items())
    with raises("other_model", differences=lambda found: set(found) == {"weights_sha256"}):
        read_head(path, tiny_model("batch_norm", seed=1), 8)
    by_file.save(tmp_path / "a.acclimate")
    with raises("other_kind", expected="contrast_head", found="artifact"):
        read_head(tmp_path / "a.acclimate", model, 8)


def test_unfit_heads_are_refused():
    model = tiny_model("batch_norm")
    with raises("wrong_projection_head"):
        read_head(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)), model, 8)
    with raises("wrong_projection_head"):
        read_head(nn.Linear(8, 4), model, 8)
    with raises("other_model", differences={"n_features": (7, 8)}):
        read_head(build_contrastive_head(7), model, 8)
    with raises("wrong_projection_head"):
        head_from_weights({"0.weight": torch.zeros(2, 2)})


def test_a_head_given_is_left_as_it_is():
    model, head = tiny_model("batch_norm").double(), build_contrastive_head(8, 8, 4)
    artifact = prepare(model, tiny_batches(4, dtype=DOUBLE), head)
    assert all(parameter.requires_grad for parameter in head.parameters())
    assert head[0].weight.dtype == torch.float32
    assert artifact.part("contrast_head")["0.weight"].dtype == DOUBLE
    kept = head[0].weight.detach().clone()
    adapted = acclimate.adapt(model, "ttt_pp", artifact, lr=1e-6)
    adapted(tiny_batches(1, dtype=DOUBLE)[0][0])
    assert torch.equal(head[0].weight, kept)
