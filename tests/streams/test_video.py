"""Video-like frames: small smooth changes of one image, in the range of its values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from acclimate import streams
from acclimate.errors import BadInput
from acclimate.streams import Domain
from tests.codes import raises


def images(n=6, size=24, seed=0):
    """Smooth images whose values reach 0 and 1 in every channel."""
    small = torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    x = torch.nn.functional.interpolate(small, size, mode="bicubic")
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return ((x - low) / (high - low)).clamp(0, 1)


def frames_of(stream):
    batches = list(stream)
    return torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches])


def test_frames_of_a_scene_are_alike_and_have_one_label():
    domain = Domain("a", images(), torch.arange(6))
    x, y = frames_of(streams.video([domain], 8, batch_size=5, seed=1))
    assert len(x) == 48
    scenes, labels = x.unflatten(0, (6, 8)), y.unflatten(0, (6, 8))
    assert (labels == labels[:, :1]).all()
    assert sorted(labels[:, 0].tolist()) == list(range(6))
    assert labels[:, 0].tolist() != list(range(6))
    within = (scenes[:, 1:] - scenes[:, :-1]).abs().mean(dim=(2, 3, 4))
    between = (scenes[1:, 0] - scenes[:-1, -1]).abs().mean(dim=(1, 2, 3))
    assert within.max() < 0.5 * between.min()
    assert within.min() > 0
    # The first frame is the image itself with noise and nothing else.
    originals = domain.x[labels[:, 0]]
    assert (scenes[:, 0] - originals).abs().max() < 0.06
    # Changes accumulate: the last frame is farther from the first one than the second is.
    far = (scenes[:, -1] - scenes[:, 0]).abs().mean(dim=(1, 2, 3))
    assert (far > within[:, 0]).all()


def test_an_image_moves_by_less_than_a_pixel_a_frame():
    size = 32
    ramp = torch.arange(size).float() / size
    across = ramp.expand(3, size, size)
    for image in (across, across.transpose(1, 2)):
        domain = Domain("ramp", image[None].expand(4, -1, -1, -1), torch.zeros(4).long())
        x, _ = frames_of(streams.video([domain], 32, batch_size=64))
        inner = x.unflatten(0, (4, 32))[..., 8:-8, 8:-8].mean(dim=(2, 3, 4)) * size
        steps = inner.diff(dim=1).abs()
        assert steps.mean() > 0.02
        assert steps.max() < 1


def test_there_are_no_borders():
    domain = Domain("grey", torch.full((3, 3, 16, 16), 0.5), torch.zeros(3).long())
    x, _ = frames_of(streams.video([domain], 64, batch_size=50))
    # At most 2 * 0.025 of brightness, and noise of 0.01.
    assert (x - 0.5).abs().max() < 0.05 + 0.07
    edges = torch.cat([x[..., 0, :], x[..., -1, :], x[..., :, 0], x[..., :, -1]])
    assert abs(float(edges.mean()) - float(x.mean())) < 0.002


def test_normalised_images_give_the_normalised_frames():
    x = images().double()
    plain, _ = frames_of(streams.video([Domain("a", x, torch.arange(6))], 5, seed=3))
    mean = torch.tensor([0.4, 0.5, 0.6]).double()[:, None, None]
    scaled = Domain("a", (x - mean) / 0.2, torch.arange(6))
    normalised, _ = frames_of(streams.video([scaled], 5, seed=3))
    assert torch.allclose(normalised, (plain - mean) / 0.2, atol=1e-9)
    assert plain.min() >= 0
    assert plain.max() <= 1


def test_the_seed_decides_and_the_batch_size_does_not():
    pixels = (images(4).permute(0, 2, 3, 1).numpy() * 255).astype(np.uint8)
    domains = [Domain(name, pixels, np.arange(4)) for name in "ab"]
    stream = streams.video(domains, 5, 3, 4, seed=2)
    x, y = frames_of(stream)
    assert len(x) == 2 * 3 * 5
    assert torch.equal(x, frames_of(stream)[0])
    assert torch.equal(x, frames_of(streams.video(domains, 5, 3, 4, seed=2))[0])
    other, labels = frames_of(streams.video(domains, 5, 3, 7, seed=2))
    assert torch.allclose(x, other, atol=1e-6)
    assert torch.equal(y, labels)
    assert not torch.equal(x, frames_of(streams.video(domains, 5, 3, 4, seed=3))[0])
    assert not torch.equal(x[:15], x[15:])  # the same images move differently in each domain
    assert [batch.reset for batch in stream] == [True] + [False] * 7
    assert [len(batch.x) for batch in stream] == [4, 4, 4, 3] * 2
    assert "5 frames of each of 3 images a domain" in stream.protocol


def test_what_cannot_move_is_refused():
    vectors = Domain("vectors", torch.rand(4, 7), torch.zeros(4).long())
    with raises("wrong_shape", BadInput, found=(1, 7)):
        list(streams.video([vectors]))
    domain = Domain("a", images(), torch.arange(6))
    for name in ("frames", "n_scenes"):
        with raises("out_of_range", BadInput, option=name, found=0):
            streams.video([domain], **{name: 0})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frames_have_the_type_of_the_images(dtype):
    domain = Domain("a", images().to(dtype), torch.arange(6))
    assert next(iter(streams.video([domain], 3))).x.dtype == dtype
