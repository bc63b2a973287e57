"""Gradient cosines: memory layouts, and the two speeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from acclimate.functional import precision
from acclimate.functional.per_sample import CosineSum, gradient_cosines
from tests.codes import raises
from tests.reference.gradient_models import (
    MODELS,
    N_CLASSES,
    N_SAMPLES,
    make_model,
    make_samples,
    pooled,
)


def largest_difference(ours: dict[str, CosineSum], theirs: dict[str, CosineSum]) -> float:
    assert list(ours) == list(theirs)
    return max((ours[n].total - theirs[n].total).abs().max().item() for n in theirs) / N_SAMPLES


class Viewed(nn.Module):
    """Counts on the plain memory layout: `view` does not merge channels that come last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, N_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.conv(x)).view(len(x), -1))


def layouts_seen(model: nn.Module, dtype: torch.dtype) -> tuple[list[bool], dict[str, CosineSum]]:
    """Return whether the rows of each forward that went through had their channels last."""
    seen = []

    def forward(x: Tensor) -> Tensor:
        logits = model(x)
        seen.append(x.is_contiguous(memory_format=torch.channels_last))
        return logits

    return seen, gradient_cosines(forward, model, *make_samples(dtype))


def test_channels_come_last_in_single_precision_only() -> None:
    """Double precision has no kernels that would gain by it."""
    model = make_model("batch norm")
    assert layouts_seen(model, torch.float64)[0] == [False, False]
    assert layouts_seen(model.float(), torch.float32)[0] == [True, True]


def test_a_model_that_needs_the_plain_layout_gets_it() -> None:
    torch.manual_seed(0)
    model = Viewed().eval()
    seen, found = layouts_seen(model, torch.float32)
    assert seen == [False, False]
    exact = gradient_cosines(model.double(), model, *make_samples())
    assert largest_difference(found, exact) < 1e-5


def test_an_error_of_the_model_is_not_taken_for_a_matter_of_layout() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4, N_CLASSES)).eval()
    with pytest.raises(RuntimeError, match="channels"):
        gradient_cosines(model, model, *make_samples(torch.float32))


@pytest.mark.parametrize("granularity", ["tensor", "channel", "parameter"])
def test_convolutions_with_channels_last_equal_those_without(granularity: Any) -> None:
    """Strides, dilations and paddings through the products by columns, in double precision."""
    layers = (
        nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        nn.Tanh(),
        nn.Conv2d(4, 6, 4, padding="same"),
        nn.Tanh(),
        nn.Conv2d(6, 6, 3, padding=(0, 1)),
    )
    torch.manual_seed(0)
    model, samples = pooled(*layers, width=6).double().eval(), make_samples()
    plain = gradient_cosines(model, model, *samples, granularity)
    # Weights with channels last make every layer's output so.
    model = model.to(memory_format=torch.channels_last)
    assert largest_difference(gradient_cosines(model, model, *samples, granularity), plain) < 1e-10


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that says it has bfloat16; torch imitates it if that is not so."""
    monkeypatch.setattr(precision, "has_fast_bfloat16", lambda device: True)


@pytest.mark.parametrize("name", MODELS)
def test_fast_is_exact_without_bfloat16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_fast_bfloat16", lambda device: False)
    model, samples = make_model(name, torch.float32), make_samples(torch.float32)
    exact, fast = (gradient_cosines(model, model, *samples, speed=s) for s in ("exact", "fast"))
    assert all(torch.equal(fast[n].total, exact[n].total) for n in exact)


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize(
    "name", ["batch norm", "group norm", "wide at few positions", "vit", "tied", "mlp", "words"]
)
def test_fast_is_near_with_bfloat16(name: str, granularity: Any) -> None:
    """bfloat16 has 8 bits, so only the neighbourhood can be asked for (an error is far off)."""
    model, samples, types = make_model(name, torch.float32), make_samples(torch.float32), set()

    def forward(x: Tensor) -> Tensor:
        logits = model(x)
        types.add(logits.dtype)
        return logits

    exact = gradient_cosines(forward, model, *samples, granularity)
    assert types == {torch.float32}
    types.clear()
    fast = gradient_cosines(forward, model, *samples, granularity, speed="fast")
    # torch.func, which some parameters go through, is left in single precision.
    is_general = name in ("vit", "tied", "words")
    assert types == {torch.bfloat16, *([torch.float32] if is_general else [])}
    for key, parameter in model.named_parameters():
        if granularity == "channel" and parameter.dim() == 1:
            continue  # the cosine of one number is ±1, and tips over where the number is near 0
        mean = (fast[key].total - exact[key].total).abs().mean().item() / N_SAMPLES
        assert mean < 0.1


@pytest.mark.usefixtures("bfloat16")
def test_fast_leaves_doubles_alone() -> None:
    model, samples = make_model("batch norm"), make_samples()
    exact, fast = (gradient_cosines(model, model, *samples, speed=s) for s in ("exact", "fast"))
    assert all(torch.equal(fast[n].total, exact[n].total) for n in exact)


def test_unknown_speeds_are_refused() -> None:
    model = make_model("mlp")
    with raises("unknown_name", kind="speed", name="exakt", known=("exact", "fast")):
        gradient_cosines(model, model, *make_samples(), speed="exakt")  # type: ignore[arg-type]
