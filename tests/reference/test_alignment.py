"""TFA and TTT++ against the plain versions of `oracles_alignment.py`."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

import acclimate
from acclimate import ModelInfo
from acclimate.errors import ArtifactMissing
from acclimate.functional.inputs import Normalization
from acclimate.functional.views import apply_views, get_views
from acclimate.methods import METHODS
from acclimate.methods.tfa import Tfa
from acclimate.methods.ttt_pp import TttPp
from acclimate.parts import Contrast
from acclimate.parts.contrastive_head import build_contrastive_head
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises, warns
from tests.reference import oracles_alignment as oracles

METHODS.setdefault("tfa", Tfa)
METHODS.setdefault("ttt_pp", TttPp)

WIDTHS = {"batch_norm": 8, "vit": 16}
MODELS = list(WIDTHS)
LR = 1e-3  # the published rate is too high for nets of this size
WINDOW = 20  # batches of 8: used with a queue of 12 from the third batch on


def stream(dtype=torch.float64, n=5):
    return [x for x, _ in tiny_batches(n, seed=3, dtype=dtype)]


def encode(model, x):
    taken = []
    hook = model.head.register_forward_hook(lambda _, inputs, __: taken.append(inputs[0]))
    logits = model(x)
    hook.remove()
    return taken[0], logits


def prepared(model, with_head=True):
    parameter = next(model.parameters())
    head = build_contrastive_head(model.head.in_features, 10, 6) if with_head else None
    return acclimate.prepare(
        model,
        tiny_batches(6, dtype=parameter.dtype),
        parts=[Contrast(batch_size=8, head=head)],
    )


def source_model(name, dtype=torch.float64):
    """A tiny model whose running statistics are those of the source, as after training on it."""
    model = tiny_model(name).to(dtype).train()
    with torch.no_grad():
        for x, _ in tiny_batches(40, seed=9, dtype=dtype):
            model(x)
    return model.eval()


@functools.cache
def _case(name, dtype, with_head):
    model = source_model(name, dtype)
    return model, prepared(model, with_head)


def case(name, dtype=torch.float64, with_head=True):
    return copy.deepcopy(_case(name, dtype, with_head))


def source_moments(artifact):
    spaces = {}
    for name, value in artifact.part("contrast").items():
        space, _, moment = name.partition("_")
        spaces.setdefault(space, {})[moment] = value
    return spaces


def close(found, expected, tolerance):
    return all((a - b).abs().max() <= tolerance for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("dtype", "n", "tolerance"), [(torch.float64, 5, 1e-8), (torch.float32, 1, 1e-5)]
)
@pytest.mark.parametrize("method", ["tfa", "ttt_pp"])
@pytest.mark.parametrize("name", MODELS)
def test_against_the_oracle(name, method, dtype, n, tolerance):
    model, artifact = case(name, dtype)
    unchanged = oracles.batch_mode(model)
    xs, draws = stream(dtype, n), torch.Generator().manual_seed(5)
    views = functools.partial(apply_views, get_views("simclr"), normalization=None, generator=draws)
    expected = list(
        oracles.tttpp(
            model,
            xs,
            encode,
            source_moments(artifact),
            artifact.part("contrast_head"),
            (lambda x: views(x=x)) if method == "ttt_pp" else None,
            window=WINDOW,
            lr=LR,
        )
    )
    assert [n_rows for _, n_rows in expected] == [8, 8, 20, 20, 20][:n]
    adapted = acclimate.adapt(model, method, artifact, seed=5, window=WINDOW, lr=LR)
    found = [adapted(x) for x in xs]
    assert adapted.counts.updates == n
    assert close(found, [logits for logits, _ in expected], tolerance)
    if n > 1:  # and the updates matter: the model as it is would give something else
        assert not close(found, [unchanged(x).detach() for x in xs], 1e-4)


CASES = [
    ({"encoder_scale": 0.5, "head_scale": 0.1, "lr": 1e-4}, {"s_encoder": 0.5, "s_head": 0.1}),
    ({"head_scale": 0.0, "mean_weight": 2.0}, {"s_head": 0.0, "mean": 2.0}),
    ({"temperature": 0.2, "contrast_weight": 3.0}, {"T": 0.2, "contrast": 3.0}),
]


@pytest.mark.parametrize(("options", "weights"), CASES)
def test_every_weight_is_where_it_belongs(options, weights):
    model, artifact = case("batch_norm")
    xs, draws = stream(n=4), torch.Generator().manual_seed(2)
    expected = list(
        oracles.tttpp(
            model,
            xs,
            encode,
            source_moments(artifact),
            artifact.part("contrast_head"),
            lambda x: apply_views(get_views("simclr"), x, None, draws),
            window=WINDOW,
            lr=options.get("lr", LR),
            **weights,
        )
    )
    adapted = acclimate.adapt(
        model, "ttt_pp", artifact, seed=2, window=WINDOW, **{"lr": LR, **options}
    )
    assert close([adapted(x) for x in xs], [logits for logits, _ in expected], 1e-8)


def test_the_encoder_s_space_alone():
    model, artifact = case("batch_norm", with_head=False)
    xs = stream()
    expected = list(
        oracles.tttpp(model, xs, encode, source_moments(artifact), None, window=WINDOW, lr=LR)
    )
    adapted = acclimate.adapt(model, "tfa", artifact, head_scale=0.0, window=WINDOW, lr=LR)
    assert close([adapted(x) for x in xs], [logits for logits, _ in expected], 1e-8)


def test_without_a_head_tfa_says_what_it_leaves_out_and_ttt_pp_refuses():
    model, artifact = case("batch_norm", with_head=False)
    with warns("encoder_only"):
        acclimate.adapt(model, "tfa", artifact)
    with raises("projection_head_needed"):
        acclimate.adapt(model, "ttt_pp", artifact)
    with raises("projection_head_needed"):
        acclimate.prepare(model, tiny_batches(2), method="ttt_pp")


def test_the_message_names_the_command_that_trains_a_projection_head():
    model, artifact = case("batch_norm", with_head=False)
    for use in (
        lambda: acclimate.adapt(model, "ttt_pp", artifact),
        lambda: acclimate.prepare(model, tiny_batches(2), method="ttt_pp"),
    ):
        with pytest.raises(ArtifactMissing) as caught:
            use()
        assert "acclimate train --objective simclr" in str(caught.value)


def test_a_queue_of_uneven_batches_is_used_when_it_fills_the_window():
    model, artifact = case("batch_norm")
    xs = [x[:n] for x, n in zip(stream(n=7), [8, 3, 8, 2, 8, 5, 8], strict=True)]
    expected = list(
        oracles.tttpp(
            model,
            xs,
            encode,
            source_moments(artifact),
            artifact.part("contrast_head"),
            window=WINDOW,
            lr=LR,
        )
    )
    assert [n_rows for _, n_rows in expected] == [8, 3, 8, 20, 20, 20, 20]
    adapted = acclimate.adapt(model, "tfa", artifact, window=WINDOW, lr=LR)
    assert close([adapted(x) for x in xs], [logits for logits, _ in expected], 1e-8)
    assert adapted.n_queued == len(adapted.queue) == WINDOW


def test_a_window_no_larger_than_the_batch_has_no_queue():
    model, artifact = case("batch_norm")
    xs = stream()
    runs = []
    for window in (2, 8):
        adapted = acclimate.adapt(copy.deepcopy(model), "tfa", artifact, window=window, lr=LR)
        runs.append([adapted(x) for x in xs])
    assert all(map(torch.equal, *runs))


def test_classifier_and_projection_head_stay():
    model, artifact = case("batch_norm")
    adapted = acclimate.adapt(model, "ttt_pp", artifact, window=WINDOW, lr=LR, weight_decay=0.1)
    fixed = {"head": model.head.weight, "projection": adapted.alignment.head[0].weight}
    before = {name: tensor.detach().clone() for name, tensor in fixed.items()}
    stem = model.stem.weight.detach().clone()
    for x in stream():
        adapted(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in fixed.items())
    assert not torch.equal(model.stem.weight, stem)


def test_alignment_brings_the_features_closer():
    """On a shifted stream the loss of a fixed batch falls."""
    model, artifact = case("batch_norm")
    xs = [x * 0.5 for x in stream(n=20)]
    adapted = acclimate.adapt(model, "tfa", artifact, window=WINDOW, lr=LR)
    probe = torch.cat(xs[:3])

    def distance():
        with torch.no_grad():
            return float(adapted.alignment(encode(oracles.batch_mode(adapted.model), probe)[0]))

    before = distance()
    for x in xs:
        adapted(x)
    assert distance() < 0.9 * before


def test_a_skipped_batch_leaves_nothing_in_the_queue():
    model, artifact = case("batch_norm")
    adapted = acclimate.adapt(model, "tfa", artifact)
    honest = adapted.loss
    adapted.loss = lambda x: (honest(x)[0], honest(x)[1] * torch.inf)
    adapted(stream()[0])
    assert adapted.counts.skipped == {"non_finite": 1}
    assert adapted.n_queued == 0
    adapted.loss = honest
    adapted(stream()[1])
    assert adapted.n_queued == 8


def test_a_frozen_encoder_is_refused():
    model = tiny_model("batch_norm")
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    artifact = prepared(model)
    with raises("nothing_to_train"):
        acclimate.adapt(model, "tfa", artifact)


@pytest.mark.parametrize("method", ["tfa", "ttt_pp"])
def test_equal_samples_and_half_precision_stay_finite(method):
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny_model("vit").to(dtype)
        adapted = acclimate.adapt(model, method, prepared(model), window=WINDOW, lr=1e-5)
        same = stream(dtype)[0][:1].expand(8, -1, -1, -1)
        for x in [same, same, *stream(dtype), same, same[:1], same[:2]]:
            assert bool(adapted(x).isfinite().all())
        assert all(bool(p.isfinite().all()) for p in model.parameters())
        assert adapted.counts.updates > 0


def test_presets_and_costs():
    config = TttPp.config_class.from_preset("cifar100")
    assert (config.lr, config.window, config.encoder_scale, config.head_scale) == (
        1e-4,
        2048,
        5.0,
        20.0,
    )
    assert config.temperature == 0.5
    assert TttPp.config_class().contrast_weight == pytest.approx(7.142857)
    for kind in (Tfa, TttPp):
        model, artifact = case("batch_norm")
        adapted = acclimate.adapt(model, kind.name, artifact)
        adapted(stream()[0])
        assert (adapted.counts.forwards, adapted.counts.backwards) == (
            kind.card.forwards,
            kind.card.backwards,
        )


def test_normalised_inputs_see_the_same_views():
    """A model that normalises inside and one that gets normalised inputs behave alike."""
    normal = Normalization.of(((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)))

    class Inside(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(normal.normalize(x))

    inner = tiny_model("batch_norm").double().train()
    batches = tiny_batches(6, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(8):
            inner(normal.normalize(torch.cat([x for x, _ in batches])))
    inner.eval()
    inside = Inside(copy.deepcopy(inner))
    given = {
        "method": "ttt_pp",
        "parts": [Contrast(batch_size=8, head=build_contrastive_head(8, 10, 6))],
    }
    plain = acclimate.prepare(inside, batches, **given)
    normalised = [(normal.normalize(x), y) for x, y in batches]
    other = acclimate.prepare(inner, normalised, info=ModelInfo(normalization=normal), **given)
    left = acclimate.adapt(inside, "ttt_pp", plain, lr=LR)
    right = acclimate.adapt(inner, "ttt_pp", other, lr=LR)
    found = [left(x) for x in stream()]
    assert close(found, [right(normal.normalize(x)) for x in stream()], 1e-8)
