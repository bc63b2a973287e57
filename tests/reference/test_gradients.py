"""Batched gradient cosines against a plain loop: batch size 1, autograd, `cosine_similarity`."""

from __future__ import annotations

import copy
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from acclimate.functional.per_sample import CosineSum, GradientCosines, gradient_cosines
from acclimate.functional.per_sample_rules import costs, gram_products, layer_gradients
from tests.reference.gradient_models import (
    MODELS,
    N_CLASSES,
    N_SAMPLES,
    make_model,
    make_samples,
)
from tests.torchvision_compat import import_torchvision

GRANULARITIES = ("tensor", "module", "channel", "parameter")
#: Models with parameters that no layer's rule can do.
GENERAL = (
    "depthwise, layer norm",
    "vit",
    "vit, torch's attention",
    "vit, attention by sequence",
    "vit, crossing attention",
    "vit, packed attention",
    "scales",
    "encoder layer",
    "tied",
    "applied twice",
    "two names",
    "words",
    "words, by frequency",
    "sequence first",
    "sequence first, of three",
    "subclass",
    "cubed",
    "parametrized",
)
#: The gradients of one sample by name, as it is and transformed.
Gradients = tuple[dict[str, Tensor], ...]

# ------------------------------------------------------------------------------------- oracle


def sample_gradients(model: nn.Module, samples: tuple[Tensor, ...]) -> list[Gradients]:
    """Two passes of batch size 1 a sample; nothing is shared with the package."""
    model = copy.deepcopy(model).requires_grad_(True)
    named = dict(model.named_parameters())
    pairs = []
    for x, x_transformed, y in zip(*samples, strict=True):
        views = []
        for view in (x, x_transformed):
            loss = F.cross_entropy(model(view[None]), y[None])
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            filled = (
                torch.zeros_like(parameter) if gradient is None else gradient
                for parameter, gradient in zip(named.values(), found, strict=True)
            )
            views.append(dict(zip(named, filled, strict=True)))
        pairs.append(tuple(views))
    return pairs


def sum_cosines(pairs: list[Gradients], granularity: str) -> dict[str, CosineSum]:
    named = pairs[0][0]
    sums: dict[str, list[Any]] = {name: [0, False] for name in named}
    for views in pairs:
        for name, parameter in named.items():
            owner = name.rpartition(".")[0]
            names = [n for n in named if n.rpartition(".")[0] == owner]
            names = names if granularity == "module" else [name]
            first, second = (torch.cat([view[n].flatten() for n in names])[None] for view in views)
            shape: tuple[int, ...] = ()
            if granularity == "channel" and parameter.dim():
                shape = (len(parameter),) + (1,) * (parameter.dim() - 1)
            elif granularity == "parameter":
                shape = tuple(parameter.shape)
            n_units = torch.Size(shape).numel()
            first, second = first.reshape(n_units, -1), second.reshape(n_units, -1)
            cosine = F.cosine_similarity(first.double(), second.double(), dim=1)
            both = (first != 0).any(1) & (second != 0).any(1)
            sums[name][0] = sums[name][0] + cosine.reshape(shape)
            sums[name][1] = sums[name][1] | both.reshape(shape)
    return {name: CosineSum(total, seen) for name, (total, seen) in sums.items()}


def oracle(model: nn.Module, samples: tuple[Tensor, ...], granularity: str) -> dict[str, CosineSum]:
    return sum_cosines(sample_gradients(model, samples), granularity)


@cache
def gradients_of(name: str, dtype: torch.dtype = torch.float64) -> list[Gradients]:
    """The gradients of a model as it is made; computed once, and only read."""
    return sample_gradients(make_model(name, dtype), make_samples(dtype))


def is_more_than_rounding(name: str, seen: Tensor) -> Tensor:
    """Return of which units the gradient is a number, and not the rounding error of a zero.

    The bias of keys adds the same to all scores of a query, so that attention does not depend on
    it. Whether its gradient comes out as 0 or as 1e-17 is up to the processor.
    """
    found = torch.ones_like(seen)
    if seen.dim() and name.endswith(("qkv.bias", "in_proj_bias")):
        found.chunk(3)[1].fill_(False)
    return found


def penalties(sums: dict[str, CosineSum], n_samples: int = N_SAMPLES) -> Tensor:
    """Min-max over the seen units, squared (paper, eq. 2)."""
    counted = [s.total[s.seen & is_more_than_rounding(n, s.seen)] for n, s in sums.items()]
    values = torch.cat([total.flatten() for total in counted]) / n_samples
    return ((values - values.min()) / (values.max() - values.min())) ** 2


def difference(ours: dict[str, CosineSum], theirs: dict[str, CosineSum]) -> float:
    """Return the largest difference of mean cosines; all else must be equal."""
    assert list(ours) == list(theirs)
    for name in theirs:
        assert ours[name].total.dtype == torch.float64
        assert ours[name].total.shape == theirs[name].total.shape
        counts = is_more_than_rounding(name, theirs[name].seen)
        assert torch.equal(ours[name].seen[counts], theirs[name].seen[counts]), name
    largest = max((ours[n].total - theirs[n].total).abs().max().item() for n in theirs)
    return largest / N_SAMPLES


# -------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_loop_in_float64(name: str, granularity: Any) -> None:
    model, samples = make_model(name), make_samples()
    ours = gradient_cosines(model, model, *samples, granularity)
    theirs = sum_cosines(gradients_of(name), granularity)
    assert difference(ours, theirs) < 1e-10
    assert (penalties(ours) - penalties(theirs)).abs().max() < 1e-10


@pytest.mark.parametrize("name", MODELS)
def test_equals_the_loop_in_float32(name: str) -> None:
    model, samples = make_model(name, torch.float32), make_samples(torch.float32)
    ours = penalties(gradient_cosines(model, model, *samples))
    theirs = penalties(sum_cosines(gradients_of(name, torch.float32), "tensor"))
    assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["batch norm", "group norm", "instance norm", "vit", "tied"])
def test_bfloat16_is_near_float64(name: str) -> None:
    """bfloat16 has 8 bits, so only the neighbourhood can be asked for (an error is far off)."""
    exact = sum_cosines(gradients_of(name), "tensor")
    x, x_transformed, y = make_samples(torch.bfloat16)
    model = make_model(name, torch.bfloat16)
    assert difference(gradient_cosines(model, model, x, x_transformed, y), exact) < 0.1


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", ["batch norm", "vit, packed attention", "tied"])
def test_chunks_change_nothing(name: str, granularity: Any) -> None:
    model, samples = make_model(name), make_samples()
    whole = gradient_cosines(model, model, *samples, granularity, chunk=N_SAMPLES)
    for options in ({"chunk": 1}, {"chunk": 3}, {"memory_budget": 1}, {"chunk": 99}):
        part = gradient_cosines(model, model, *samples, granularity, **options)
        assert difference(part, whole) < 1e-12


def test_batches_add_up_and_the_model_is_looked_into_once() -> None:
    model, samples, rows = make_model("vit"), make_samples(), []

    def forward(x: Tensor) -> Tensor:
        rows.append(len(x))
        return model(x)

    found = GradientCosines(forward, model)
    for start in range(0, N_SAMPLES, 2):
        found.add(*(tensor[start : start + 2] for tensor in samples))
    assert difference(found.result(), gradient_cosines(model, model, *samples)) < 1e-12
    # One trial, then one pass a batch, and one by `torch.func` (rows of one).
    assert rows == [3, 4, 1, 4, 1, 2, 1]


def test_progress_counts_samples() -> None:
    model, samples, done = make_model("mlp"), make_samples(), []
    gradient_cosines(model, model, *samples, chunk=2, progress=done.append)
    assert done == [2, 4, 5]


def test_memory_budget_bounds_the_rows_of_a_pass() -> None:
    model, samples, rows = make_model("batch norm"), make_samples(n=64), []

    def forward(x: Tensor) -> Tensor:
        rows.append(len(x))
        return model(x)

    gradient_cosines(forward, model, *samples, memory_budget=2**20)
    small = max(rows)
    rows.clear()
    gradient_cosines(forward, model, *samples, memory_budget=4 * 2**20)
    assert 2 < small < max(rows) <= 4 * small + 8
    # The first block alone has two outputs of 4 × 8 × 8 float64 a row.
    assert small * 2 * 4 * 64 * 8 < 2**20


def test_seen_is_false_without_any_gradient() -> None:
    model, samples = make_model("unused"), make_samples()
    sums = gradient_cosines(model, model, *samples)
    seen = {name for name, found in sums.items() if found.seen}
    assert seen == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    model = make_model("dead unit")
    sums = gradient_cosines(model, model, *samples, "channel")
    for name in ("1.weight", "1.bias"):
        assert sums[name].seen.any()
        assert not sums[name].seen[2]
        assert sums[name].total[2] == 0


@pytest.mark.slow
def test_resnet50_has_161_units() -> None:
    models = import_torchvision().models
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models.resnet50(weights=None, num_classes=N_CLASSES).eval().double()
    generator = torch.Generator().manual_seed(0)
    # In double: in single precision one ReLU in a million is off by rounding, which two samples
    # do not average out.
    x = torch.rand(2, 3, 32, 32, generator=generator, dtype=torch.float64)
    samples = (x, 0.5 * x + 0.5 * x.mean(1, keepdim=True), torch.tensor([0, 2]))
    ours = gradient_cosines(model, model, *samples)
    assert len(ours) == sum(bool(found.seen) for found in ours.values()) == 161
    theirs = oracle(model, samples, "tensor")
    assert (penalties(ours, 2) - penalties(theirs, 2)).abs().max() < 1e-10


class Snapshot:
    """Everything a visitor could leave behind in a model."""

    def __init__(self, model: nn.Module) -> None:
        self.state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.parameters = {
            name: (id(p), p.requires_grad, id(p.grad) if p.grad is not None else None)
            for name, p in model.named_parameters(remove_duplicate=False)
        }
        self.modules = [
            (
                module.training,
                list(module._forward_hooks.values()),
                list(module._forward_pre_hooks),
                list(module._backward_hooks),
                sorted(vars(module)),
            )
            for module in model.modules()
        ]
        self.switches = (
            torch.is_grad_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
        )

    def assert_equal(self, other: Snapshot) -> None:
        assert self.parameters == other.parameters
        assert self.modules == other.modules
        assert self.switches == other.switches
        for name, tensor in self.state.items():
            assert torch.equal(tensor, other.state[name])


@pytest.mark.parametrize(
    "name", ["batch norm", "vit", "vit, torch's attention", "two names", "tied"]
)
def test_nothing_is_left_behind(name: str) -> None:
    """Also if the model fails: in a trial, in the batched pass, under torch.func."""
    model, samples, calls = make_model(name), make_samples(), []
    first, *_, last = model.parameters()
    first.requires_grad_(False)
    last.grad = torch.ones_like(last)
    model.register_forward_hook(lambda module, args, output: None)

    def forward(x: Tensor, stops_at: int | None = None) -> Tensor:
        calls.append(len(x))
        try:
            return model(x)
        finally:
            if len(calls) == stops_at:
                raise KeyError("stop")

    with torch.no_grad():
        before = Snapshot(model)
        gradient_cosines(forward, model, *samples)
        before.assert_equal(Snapshot(model))
        for stops_at in range(1, len(calls) + 1):
            calls.clear()
            with pytest.raises(KeyError):
                gradient_cosines(partial(forward, stops_at=stops_at), model, *samples)
            before.assert_equal(Snapshot(model))
    assert torch.equal(last.grad, torch.ones_like(last))
    assert all(p.grad is None for p in model.parameters() if p is not last)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", ["batch norm", "vit, packed attention"])
def test_works_in_any_grad_mode_and_with_frozen_parameters(name: str, mode: Any) -> None:
    theirs = sum_cosines(gradients_of(name), "tensor")
    model = make_model(name).requires_grad_(False)
    with mode():
        ours = gradient_cosines(model, model, *make_samples())
    assert difference(ours, theirs) < 1e-10


@pytest.mark.parametrize("name", MODELS)
def test_rules_spare_the_general_way(name: str) -> None:
    """Trials and one pass over both views; `torch.func` (rows of one) only where it must be."""
    model, rows = make_model(name), []

    def forward(x: Tensor) -> Tensor:
        rows.append(len(x))
        return model(x)

    gradient_cosines(forward, model, *make_samples())
    assert rows.count(2 * N_SAMPLES) == 1
    assert (1 in rows) == (name in GENERAL)
    assert [n for n in rows if n != 1] == [3, 2 * N_SAMPLES]


def test_other_hooks_of_the_model_take_part() -> None:
    """A hook of the user that changes an output is part of the function that is differentiated."""
    model, samples = make_model("mlp"), make_samples()
    model[1].register_forward_hook(lambda module, args, output: output.sin())
    model[3].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    assert (
        difference(gradient_cosines(model, model, *samples), oracle(model, samples, "tensor"))
        < 1e-10
    )


def test_a_module_whose_forward_was_replaced_has_no_rule() -> None:
    model, samples = make_model("mlp"), make_samples()
    layer = model[3]
    layer.forward = lambda x: F.linear(x, layer.weight**2, layer.bias)
    theirs = {}
    named = dict(model.named_parameters())
    for x, x_transformed, y in zip(*samples, strict=True):
        first, second = (
            torch.autograd.grad(F.cross_entropy(model(v[None]), y[None]), list(named.values()))
            for v in (x, x_transformed)
        )
        for name, a, b in zip(named, first, second, strict=True):
            theirs[name] = theirs.get(name, 0) + F.cosine_similarity(a.flatten(), b.flatten(), 0)
    ours = gradient_cosines(model, model, *samples)
    assert max((ours[n].total - theirs[n]).abs().item() for n in named) < 1e-10


def test_channels_last_is_the_same() -> None:
    model, (x, x_transformed, y) = make_model("batch norm"), make_samples()
    plain = gradient_cosines(model, model, x, x_transformed, y)
    model = model.to(memory_format=torch.channels_last)
    x, x_transformed = (v.to(memory_format=torch.channels_last) for v in (x, x_transformed))
    assert difference(gradient_cosines(model, model, x, x_transformed, y), plain) < 1e-10


@settings(deadline=None, max_examples=40)
@given(data=st.data(), axes=st.integers(1, 2))
def test_convolution_rules_hold_for_any_window(data: st.DataObject, axes: int) -> None:
    """Both ways of one layer, each against autograd: gradients, and products without gradients."""

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(axes))

    groups, kernel, dilation = data.draw(st.integers(1, 3)), draw(1, 4), draw(1, 2)
    conv = (nn.Conv1d, nn.Conv2d)[axes - 1](
        2 * groups, 3 * groups, kernel, draw(1, 3), draw(0, 3), dilation, groups
    ).double()
    generator = torch.Generator().manual_seed(0)
    sizes = [
        d * (k - 1) + 1 + extra for d, k, extra in zip(dilation, kernel, draw(0, 4), strict=True)
    ]
    x = torch.randn(4, 2 * groups, *sizes, generator=generator, dtype=torch.float64)
    delta = torch.randn(conv(x).shape, generator=generator, dtype=torch.float64)
    if axes == 2 and data.draw(st.booleans()):
        x, delta = (v.contiguous(memory_format=torch.channels_last) for v in (x, delta))
    wanted = torch.stack(
        [
            torch.autograd.grad(conv(row[None]), conv.weight, grad[None])[0]
            for row, grad in zip(x, delta, strict=True)
        ]
    )
    with torch.no_grad():
        gradients = layer_gradients(conv, "weight", x, delta)
        # Grouped and 1-D convolutions always go through their gradients.
        ways = (True, False) if groups == 1 and axes == 2 else ()
        found = [gram_products(conv, x, delta, by_channel) for by_channel in ways]
    torch.testing.assert_close(gradients, wanted, rtol=1e-10, atol=1e-10)
    between = (wanted[0::2] * wanted[1::2]).flatten(2).sum(2)
    squares = (wanted**2).flatten(2).sum(2)
    sums = [(between, squares), (between.sum(1, keepdim=True), squares.sum(1, keepdim=True))]
    for products, expected in zip(found, sums, strict=bool(found)):
        torch.testing.assert_close(products, expected, rtol=1e-10, atol=1e-10)


def test_the_cheaper_way_is_taken() -> None:
    """Many positions: the gradients. Few positions and wide layers: Gram matrices."""
    for width, size, by_gram in ((16, 32, False), (64, 16, False), (128, 8, True), (512, 4, True)):
        conv = nn.Conv2d(width, width, 3, padding=1)
        x = torch.empty(2, width, size, size)
        gram, direct, _ = costs(conv, x)
        assert (gram < direct) == by_gram
    x = torch.empty(2, 512)
    gram, direct, _ = costs(nn.Linear(512, 512), x)
    assert gram < direct / 100
