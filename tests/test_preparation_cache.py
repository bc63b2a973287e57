"""What the frozen model made of the source's images is kept: same bits, fewer runs, bounded."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import acclimate
from acclimate import Penalty, Prototypes, preparation
from acclimate.parts.encoder import PATIENCE, Encoder, RowCache, Rows, image_keys
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import warns

EPOCHS = 4
N_BATCHES = 6
PROJECTOR = Prototypes(depth=2, width=8, hidden=16, epochs=EPOCHS)
PARTS = (PROJECTOR, "features")


class Shuffled:
    """A source whose samples come in another order at every pass, with a smaller last batch."""

    def __init__(self, change=lambda x, generator: x, dtype=torch.float32):
        batches = tiny_batches(N_BATCHES, dtype=dtype)
        self.x, self.y = (torch.cat(parts)[:-3] for parts in zip(*batches, strict=True))
        self.draws = torch.Generator().manual_seed(0)
        self.change = change

    def __iter__(self):
        order = torch.randperm(len(self.x), generator=self.draws)
        for part in order.split(8):
            yield self.change(self.x[part], self.draws), self.y[part]


def brighten(x, generator):
    return (x * (0.5 + 0.5 * torch.rand(len(x), 1, 1, 1, generator=generator))).clamp(0, 1)


@pytest.fixture
def caches(monkeypatch):
    """Every cache that is made, with options that a test may set."""
    made, options = [], {}

    def make():
        made.append(RowCache(**options))
        return made[-1]

    monkeypatch.setattr(preparation, "RowCache", make)
    return made, options


@pytest.fixture
def uncached(monkeypatch):
    """A function that prepares without any cache."""

    def prepare(*arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(preparation, "Encoder", lambda *given: Encoder(*given[:4]))
            return acclimate.prepare(*arguments, **options)

    return prepare


def count_images(model):
    """Return a list that grows by the number of images at every run of the model."""
    counts = []
    model.register_forward_pre_hook(lambda _, inputs: counts.append(len(inputs[0])))
    return counts


def assert_same(first, second):
    assert first.tensors.keys() == second.tensors.keys()
    for name, tensor in first.tensors.items():
        assert torch.equal(tensor, second.tensors[name]), name
    assert first.parts == second.parts


@pytest.mark.parametrize("prototypes", [PROJECTOR, Prototypes(depth=0)], ids=["2", "0"])
@pytest.mark.parametrize("kind", ["batch_norm", "group_norm", "vit"])
def test_kept_features_change_no_bit(kind, prototypes, caches, uncached):
    model, batches = tiny_model(kind), [*tiny_batches(N_BATCHES), tiny_batches(1, 5)[0]]
    made, settings_ = caches
    parts = (prototypes, "features")
    expected = uncached(model, batches, parts=parts)
    made.clear()  # one is made in any case
    for n_made, budget in enumerate((2**20, 0), 1):
        settings_["memory_budget"] = budget
        found = acclimate.prepare(model, batches, parts=parts)
        assert len(made) == n_made
        assert_same(found, expected)


@pytest.mark.parametrize("budget", [2**20, 0])
def test_the_model_sees_every_image_once_and_every_view(budget, caches):
    model, batches = tiny_model("batch_norm"), tiny_batches(N_BATCHES)
    caches[1]["memory_budget"] = budget
    counts = count_images(model)
    acclimate.prepare(model, batches, parts=PARTS)
    n_images = 8 * N_BATCHES
    n_found_out = 2 * 2  # two images, twice: head and features are looked for
    assert sum(counts) == n_found_out + n_images + EPOCHS * n_images


def test_prototypes_and_moments_share_one_pass(caches):
    model, counts = tiny_model("batch_norm"), []
    counts = count_images(model)
    acclimate.prepare(model, tiny_batches(N_BATCHES), parts=("prototypes", "features"))
    assert sum(counts) == 2 * 2 + 8 * N_BATCHES
    assert len(caches[0][0]) == 0  # released


def test_one_pass_is_not_kept(monkeypatch):
    monkeypatch.setattr(RowCache, "put", lambda *_: pytest.fail("kept for nobody"))
    model, batches = tiny_model("batch_norm"), tiny_batches(N_BATCHES)
    acclimate.prepare(model, batches, parts=("features",))
    acclimate.prepare(model, batches, parts=(Prototypes(source="classifier"), "features"))
    acclimate.prepare(model, batches, parts=(Penalty(n_samples=16), "fisher"))


def test_another_order_at_every_pass_is_no_hindrance(uncached):
    """What was kept is that of another batch: it may be rounded otherwise, but no more."""
    model = tiny_model("batch_norm").double()
    counts = count_images(model)
    source = partial(Shuffled, dtype=torch.float64)
    found = acclimate.prepare(model, source(), parts=PARTS)
    n_images = 8 * N_BATCHES - 3
    assert sum(counts) < 4 + (EPOCHS + 2) * n_images
    expected = uncached(model, source(), parts=PARTS)
    # A bias before BatchNorm has no gradient but rounding, which Adam makes large; and the layer
    # takes away again what it adds.
    without_effect = {"projector/0.bias", "projector/1.running_mean"}
    assert without_effect < expected.tensors.keys()
    for name in expected.tensors.keys() - without_effect:
        torch.testing.assert_close(
            found.tensors[name], expected.tensors[name], rtol=1e-8, atol=1e-10
        )


def test_a_source_that_never_repeats_itself_is_given_up(caches, uncached):
    model = tiny_model("batch_norm")
    found = acclimate.prepare(model, Shuffled(brighten), parts=PARTS)
    assert caches[0][0].is_given_up
    expected = uncached(model, Shuffled(brighten), parts=PARTS)
    assert_same(found, expected)


@pytest.mark.parametrize("budget", [2**20, 0])
def test_an_error_leaves_nothing_behind(budget, caches, tmp_path):
    class Breaking:
        n_passes = 0

        def __iter__(self):
            self.n_passes += 1
            yield from tiny_batches(N_BATCHES)
            if self.n_passes == 4:
                raise KeyError("broken")

    made, settings_ = caches
    settings_ |= {"memory_budget": budget, "folder": str(tmp_path)}
    seen, append = [], Rows.append

    def watch(rows, values):
        append(rows, values)
        seen.append((rows.is_on_disk, rows._file))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rows, "append", watch)
        with pytest.raises(KeyError):
            acclimate.prepare(tiny_model("batch_norm"), Breaking(), parts=PARTS)
    assert {on_disk for on_disk, _ in seen} == {budget == 0}
    assert all(file.closed for _, file in seen)
    assert made[0].is_given_up
    assert not list(tmp_path.iterdir())
    if Path("/proc/self/fd").exists():
        names = [str(link.readlink()) for link in open_files()]
        assert not any(str(tmp_path) in name for name in names)


def open_files():
    for link in Path("/proc/self/fd").iterdir():
        if link.is_symlink():
            yield link


# The store itself -------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    width=st.integers(1, 5),
    budget=st.integers(0, 100),
    seed=st.integers(0, 99),
)
def test_rows_come_back_as_they_were(sizes, width, budget, seed):
    draws = np.random.default_rng(seed)
    rows, kept = Rows(budget, disk_budget=10**6), []
    for size in sizes:
        kept.extend(draws.integers(0, 256, (size, width), dtype=np.uint8))
        rows.append(np.stack(kept[-size:]))
        wanted = draws.integers(0, len(kept), 7).tolist()
        assert np.array_equal(rows.take(wanted), np.stack([kept[n] for n in wanted]))
        assert rows.is_on_disk == (len(kept) * width > budget)
    rows.close()


def test_thousands_of_rows():
    values = np.arange(10_000, dtype=np.int64).view(np.uint8).reshape(10_000, 8)
    for budget in (10**6, 70_000):
        rows = Rows(budget, disk_budget=10**6)
        for part in np.split(values, 10):
            rows.append(part)
        numbers = [9_999, 0, 4_095, 4_096, 8_192]
        assert rows.take(numbers).view(np.int64).flatten().tolist() == numbers
        assert rows.is_on_disk == (budget == 70_000)
        rows.close()
        assert not rows.is_on_disk


def test_a_file_takes_half_of_the_free_disk_at_most(monkeypatch):
    from acclimate.parts import encoder as module

    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    rows = Rows(0)
    rows.append(np.zeros((5, 10), np.uint8))
    with pytest.raises(OSError, match=r"60 bytes .* 50 "):
        rows.append(np.zeros((1, 10), np.uint8))
    rows.close()


def test_without_room_the_model_runs_again_and_the_message_names_the_remedy(caches, uncached):
    model, batches = tiny_model("batch_norm"), tiny_batches(N_BATCHES)
    caches[1].update(memory_budget=100, disk_budget=1000)
    with warns("cache_full") as told:
        found = acclimate.prepare(model, batches, parts=PARTS)
    assert [("1,000" in str(warning), "TMPDIR" in str(warning)) for warning in told] == [
        (True,) * 2
    ]
    assert_same(found, uncached(model, batches, parts=PARTS))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("budget", [0, 10**6])
def test_every_type_keeps_its_bits(dtype, budget):
    x = torch.rand(6, 3, 4, 4)
    rows = torch.randn(6, 5).to(dtype)
    with RowCache(budget) as cache:
        keys = image_keys(x)
        assert cache.get(keys) is None
        cache.put(keys[:4], rows[:4])
        assert cache.get(keys) is None
        cache.put(keys, rows)
        found = cache.get(keys[::-1])
        assert found.dtype == dtype
        assert torch.equal(found, rows.flip(0))


def test_images_are_told_apart_by_every_pixel_and_their_shape():
    x = torch.zeros(3, 1, 2, 3)
    x[1, 0, 1, 2] = 1e-7
    first, second, third = image_keys(x)
    assert first == third != second
    assert image_keys(x.view(3, 1, 3, 2))[0] != first
    assert image_keys(x.double())[0] != first
    assert (
        image_keys(x.expand(3, 3, 2, 3).to(memory_format=torch.channels_last))[0]
        == (image_keys(x.expand(3, 3, 2, 3))[0])
    )


def test_not_more_than_two_passes_are_kept():
    with RowCache() as cache:
        keys = partial(lambda tag, n: [f"{tag}{i}".encode() for i in range(n)])
        cache.put(keys("a", 10), torch.rand(10, 2))
        cache.end_pass()
        for tag in "bcd":
            assert cache.get([b"a0", *keys(tag, 4)]) is None
            cache.put(keys(tag, 4), torch.rand(4, 2))
        assert len(cache) == 18
        assert not cache.is_given_up


def test_patience_ends_only_in_a_later_pass_without_any_hit():
    with RowCache() as cache:
        for number in range(PATIENCE + 2):
            assert cache.get([str(number).encode()]) is None
            cache.put([str(number).encode()], torch.rand(1, 2))
        cache.end_pass()
        assert cache.get([b"0"]) is not None
        for number in range(PATIENCE + 2):
            cache.get([f"new {number}".encode()])
        assert not cache.is_given_up
        cache.end_pass()
        for number in range(PATIENCE):
            assert not cache.is_given_up
            cache.get([f"newer {number}".encode()])
        assert cache.is_given_up
        cache.put([b"0"], torch.rand(1, 2))
        assert len(cache) == 0


def test_a_model_that_counts_on_the_plain_layout_is_prepared():
    class Viewed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 4)

        def forward(self, x):
            return self.head(torch.relu(self.conv(x)).view(len(x), -1))

    torch.manual_seed(0)
    model = Viewed()
    parts = (Penalty(n_samples=16), "prototypes", "features")
    found = acclimate.prepare(model, tiny_batches(4), parts=parts)
    batches = tiny_batches(4, dtype=torch.float64)
    exact = acclimate.prepare(model.double(), batches, parts=parts)
    for name, tensor in exact.tensors.items():
        torch.testing.assert_close(found.tensors[name].to(tensor), tensor, rtol=1e-3, atol=1e-4)
