"""Evaluating predictions of every pixel: counts against loops in NumPy."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import acclimate
from acclimate.errors import AcclimateError
from acclimate.metrics import PixelSums, Record, pack_sums, pool, unpack_sums
from acclimate.streams import (
    Batch,
    Domain,
    alternating,
    continual,
    dirichlet,
    episodic,
    foreign,
    imbalanced,
    label_sorted,
    markov,
    mixed,
    one_class,
    recurring,
    reset_each,
    sliding_window,
    video,
    with_clean_probe,
)
from acclimate.testing.cases import tiny_artifact
from acclimate.testing.dense_models import tiny_masks
from acclimate.testing.models import tiny_model
from tests.codes import raises


def oracle(predicted, y, n_classes, ignore):
    """Return intersections over unions by class, and the confusion, from the pixels themselves."""
    truth, guess = np.asarray(y).ravel(), np.asarray(predicted).ravel()
    guess = guess[truth != ignore]
    truth = truth[truth != ignore]
    ious, confusion = {}, np.zeros((n_classes, n_classes), int)
    for a, b in zip(truth, guess, strict=True):
        confusion[a, b] += 1
    for k in range(n_classes):
        union = ((truth == k) | (guess == k)).sum()
        if union:
            ious[k] = ((truth == k) & (guess == k)).sum() / union
    return ious, confusion


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 3), st.sampled_from([255, 0, -1]))
def test_overlaps_are_those_of_the_masks(seed, n_classes, n_batches, ignore):
    rng = np.random.default_rng(seed)
    model = nn.Conv2d(3, n_classes, 1)
    shape = (2, *rng.integers(1, 6, 2))
    batches = []
    for _ in range(n_batches):
        known = rng.integers(0, n_classes, rng.integers(1, n_classes + 1))  # often not all classes
        y = rng.choice([*known, ignore], shape)
        y.flat[0] = known[0] if known[0] != ignore else (ignore + 1) % n_classes
        x = torch.from_numpy(rng.random((shape[0], 3, *shape[1:]))).float()
        batches.append(Batch(x, torch.from_numpy(y), "any"))
    adapted = acclimate.adapt(model, "source")
    result = acclimate.evaluate(adapted, batches, keep_predictions=True, ignore_label=ignore)
    with torch.no_grad():
        predicted = torch.cat([model(batch.x).argmax(dim=1) for batch in batches])
    y = torch.cat([batch.y for batch in batches])
    ious, confusion = oracle(predicted, y, n_classes, ignore)
    assert result.iou_by_class == pytest.approx(ious)
    assert result.miou == pytest.approx(sum(ious.values()) / len(ious))
    assert result.confusion.dtype == np.int64
    assert (result.confusion == confusion).all()
    n = confusion.sum()
    assert result.pixel_accuracy == pytest.approx(np.trace(confusion) / n)
    assert result.error == pytest.approx(1 - np.trace(confusion) / n)
    assert (result.n, result.n_images) == (n, 2 * n_batches)
    kept = torch.cat([record.predictions for record in result.records])
    assert torch.equal(kept, predicted)


def domains(n=3, seed=0, dtype=torch.float32):
    batches = tiny_masks(n, seed=seed, dtype=dtype)
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return [
        Domain("fog", x[: 8 * (n - 1)], y[: 8 * (n - 1)]),
        Domain("snow", x[8:], y[8:].numpy().astype(np.uint8)),
    ]


def doubled():
    """Domains in double precision, in which no batch size turns one class into another."""
    return domains(dtype=torch.float64)


def test_logits_are_enlarged_and_domains_told_apart():
    model = tiny_model("dense").double()
    result = acclimate.evaluate(acclimate.adapt(model, "source"), reset_each(doubled(), 5))
    for domain in doubled():
        with torch.no_grad():
            small = model(domain.x)
        maps = F.interpolate(small, (8, 8), mode="bilinear", align_corners=False)
        ious, confusion = oracle(maps.argmax(dim=1), domain.y, 4, 255)
        assert result.miou_by_domain[domain.name] == pytest.approx(sum(ious.values()) / len(ious))
        wrong = 1 - np.trace(confusion) / confusion.sum()
        assert result.error_by_domain[domain.name] == pytest.approx(wrong)
        y = torch.as_tensor(domain.y).long()
        expected = F.cross_entropy(maps, y, ignore_index=255)
        assert result.sums_by_domain[domain.name].nll == pytest.approx(float(expected), 1e-12)
    assert result.miou_by_domain.keys() == {"fog", "snow"}


def test_mixed_domains_give_the_sums_of_their_own_streams():
    adapted = acclimate.adapt(tiny_model("dense").double(), "source")
    together = acclimate.evaluate(adapted, mixed(doubled(), 5))
    apart = acclimate.evaluate(adapted, continual(doubled(), 5))
    assert together.error_by_domain == pytest.approx(apart.error_by_domain)
    for name, own in together.sums_by_domain.items():
        assert (own.confusion == apart.sums_by_domain[name].confusion).all()


def test_streams_that_do_not_look_at_labels_run():
    clean = domains(2, seed=8)[0]
    streams = [
        episodic(continual(domains(), 6)),
        with_clean_probe(reset_each(domains(), 6), clean, 4),
        sliding_window(reset_each([Domain("few", clean.x[:4], clean.y[:4])], 4), 3),
        alternating(domains(), Domain("clean", clean.x, clean.y), 2, 6),
        foreign(domains(), 0.25, 4),
    ]
    for stream in streams:
        result = acclimate.evaluate(acclimate.adapt(tiny_model("dense"), "infomax"), stream)
        assert 0 <= result.miou <= 1
    assert acclimate.evaluate(
        acclimate.adapt(tiny_model("dense"), "source"), streams[1]
    ).forgetting == pytest.approx(0.0)


@pytest.mark.parametrize(
    "scenario", [label_sorted, dirichlet, imbalanced, one_class, markov, video]
)
def test_streams_by_class_refuse_masks(scenario):
    with raises("wrong_shape", found=(16, 8, 8)):
        list(scenario(domains(), batch_size=4))


X, Y = tiny_masks(1)[0]


@pytest.mark.parametrize(
    ("y", "code", "found"),
    [
        (Y[:, :4], "wrong_shape", (8, 4, 8)),
        (Y.masked_fill(Y == 1, 19), "wrong_labels", (19,)),
        (Y.double(), "wrong_dtype", "float64"),
        (Y[:, 0, 0], "wrong_shape", (8,)),
        (Y[:, None], "wrong_shape", (8, 1, 8, 8)),
    ],
)
def test_masks_that_do_not_fit(y, code, found):
    with raises(code, found=found):
        acclimate.evaluate(acclimate.adapt(tiny_model("dense"), "source"), [Batch(X, y, "any")])


@pytest.mark.parametrize("has_artifact", [False, True])
def test_masks_are_looked_at_before_they_are_learned_from(has_artifact):
    artifact = tiny_artifact("dense") if has_artifact else None
    wrong = Y.clone()
    wrong[-1, 0, 0] = 77
    for y, code, found in (
        (wrong, "wrong_labels", (77,)),
        (torch.zeros(8).long(), "wrong_shape", (8,)),
    ):
        adapted = acclimate.adapt(tiny_model("dense"), "tent", artifact)
        for good in ([], [Batch(X, Y, "fog")]):
            adapted.reset()
            with raises(code, found=found):
                acclimate.evaluate(adapted, [*good, Batch(X, y, "snow")])
            if y.dim() == 3 or has_artifact or good:
                assert adapted.counts.updates == len(good)


@pytest.mark.parametrize("has_artifact", [False, True])
@pytest.mark.parametrize("y", [Y.masked_fill(Y == 1, 19), Y[:, 0, 0]])
def test_the_message_names_the_batch_and_its_domain(y, has_artifact):
    adapted = acclimate.adapt(
        tiny_model("dense"), "source", tiny_artifact("dense") if has_artifact else None
    )
    for good in ([], [Batch(X, Y, "fog")]):
        with pytest.raises(AcclimateError, match=rf"^Batch {len(good)} \(snow\): "):
            acclimate.evaluate(adapted, [*good, Batch(X, y, "snow")])


def test_masks_for_a_model_of_whole_images():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "source")
    with raises("wrong_shape", found=(8, 8, 8)):
        acclimate.evaluate(adapted, [Batch(X, Y, "any")])


def test_images_without_labels_are_predicted_and_count_nothing():
    adapted = acclimate.adapt(tiny_model("dense"), "infomax")
    blank = Batch(X, torch.full_like(Y, 255), "blank")
    result = acclimate.evaluate(adapted, [blank, Batch(X, Y, "any")])
    assert adapted.counts.updates == 2
    assert result.n_images == 16
    assert result.n == int((Y != 255).sum())
    assert result.error_by_domain.keys() == result.miou_by_domain.keys() == {"any"}
    assert np.isfinite(result.nll)
    json.dumps(result.to_dict(), allow_nan=False)
    with raises("no_labelled_pixels"):
        acclimate.evaluate(adapted, [blank])


def test_files_hold_everything():
    adapted = acclimate.adapt(tiny_model("dense"), "tent")
    result = acclimate.evaluate(adapted, reset_each(domains(), 6))
    packed = json.loads(json.dumps(pack_sums(result.sums)))
    for group, own in unpack_sums(packed).items():
        assert isinstance(own, PixelSums)
        assert own.to_dict() == result.sums[group].to_dict()
    lines = [json.loads(json.dumps(record.to_dict())) for record in result.records]
    assert [Record.from_dict(line).n_images for line in lines] == [6, 6, 4, 6, 6, 4]
    summary = result.to_dict()
    assert summary["miou"] == pytest.approx(result.miou)
    assert np.array(summary["confusion"]).sum() == result.n
    both = pool([result, result])
    assert both.miou == pytest.approx(result.miou)
    assert both.n == 2 * result.n


def test_records_of_whole_images_are_written_as_ever():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "source")
    result = acclimate.evaluate(adapted, [Batch(X, torch.arange(8) % 4, "any")])
    assert "n_pixel_images" not in result.records[0].to_dict()
    assert "miou" not in result.to_dict()
    assert result.n_images == result.n == 8
    with raises("not_recorded", what="pixels"):
        _ = result.miou


def test_an_oracle_is_shown_masks():
    adapted = acclimate.adapt(tiny_model("dense"), "supervised", lr=1e-2)
    stream = recurring(domains(), 8, batch_size=8)
    result = acclimate.evaluate(adapted, stream, reveal_labels=True)
    assert adapted.counts.updates == len(result.records) == 32
    source = acclimate.evaluate(acclimate.adapt(tiny_model("dense"), "source"), stream)
    assert result.miou > source.miou
