"""BatchNorm statistics of a stream, for batches of any size and streams of any order (`"auto"`).

Statistics of one batch are noisy if it is small, and wrong if it shows few classes. Here every
layer keeps the moments of the stream, in which a batch of n samples has the weight
n / (n + `MEMORY`), and normalises with a mixture of them and the source's statistics. The source
counts as `PRIOR` samples, the stream as its *effective number* of samples, so that single images
start near the source.

Whether the stream's statistics can be trusted shows in the predictions. With the statistics of few
classes they become less confident than with the source's; under a shift they become as confident or
more. So a few images of each batch are predicted with both; the mean difference of the confidences
is the *benefit*. If it is less than −`TOLERANCE`, the share of the stream shrinks with its square.
What statistics of shuffled source images cost (the part `confidence`) is tolerated, too.

If the images have several styles (`acclimate.functional.styles`), such as clean and noisy ones, the
statistics of all of them suit none. Each style then has moments and an effective number of its own.

The state of a stream is a dictionary: `n`, the effective number of samples; `moments`, by the name
of the layer (2, C); `benefit`, None before the first batch; `styles`, None or a dictionary:
`centres` and `counts`, and, as soon as there are several, `n` (K) and `moments`, by the name of the
layer (K, 2, C), instead of those of the whole stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from acclimate.functional.across import active
from acclimate.functional.norm import batch_moments, batch_norm_layers, renormalise
from acclimate.functional.precision import at_least_float32
from acclimate.functional.styles import assign_styles, describe_styles, update_styles

Stream = Mapping[str, Any] | None
Mix = Callable[[str, _BatchNorm, Tensor], tuple[Tensor, Tensor]]

#: Samples after which a stream is half forgotten.
MEMORY = 100.0
#: Samples that the source counts as.
PRIOR = 30.0
#: Largest share of the stream in the mixture.
LARGEST = 0.52
#: Confidence that the stream's statistics may cost.
TOLERANCE = 0.04
#: Images of a batch that are predicted with both statistics, at most.
PROBE = 64
#: Images after which a measured benefit is half forgotten.
_PROBE_MEMORY = 32.0
_START: Mapping[str, Any] = {"n": 0.0, "moments": {}, "benefit": None, "styles": None}


def weigh_batch(stream: Stream, n: int) -> tuple[float, float]:
    """Return the weight of a batch of n samples in the stream, and the effective number then."""
    if stream is None or not stream["moments"]:
        return 1.0, float(n)
    own = n / (n + MEMORY)
    return own, 1 / ((1 - own) ** 2 / stream["n"] + own**2 / n)


def trust(stream: Stream, tolerance: float = TOLERANCE) -> float:
    """Return how much of the stream's share is left, from 0 to 1, after the measured benefit."""
    benefit = None if stream is None else stream["benefit"]
    return 1.0 if benefit is None or benefit >= -tolerance else (tolerance / -benefit) ** 2


@overload
def stream_share(n_effective: float) -> float: ...
@overload
def stream_share(n_effective: Tensor) -> Tensor: ...
def stream_share(n_effective: float | Tensor) -> float | Tensor:
    """Return the share of the stream in the mixture, if it can be trusted."""
    return LARGEST * n_effective / (n_effective + PRIOR)


def with_benefit(stream: Stream, difference: float, n: int) -> dict[str, Any]:
    """Return the state after the confidences of n images were compared."""
    state = {**_START, **(stream or {})}
    before = state["benefit"]
    own = 1.0 if before is None else n / (n + _PROBE_MEMORY)
    state["benefit"] = difference if before is None else before + own * (difference - before)
    return state


def with_styles(stream: Stream, x: Tensor) -> dict[str, Any]:
    """Return the state after the styles of a batch of images were found."""
    state = {**_START, **(stream or {})}
    before = state["styles"]
    found, replaced = update_styles(before, describe_styles(x))
    k = len(found["centres"])
    if k == 1:
        return {**state, "styles": {**found, "n": torch.zeros(1), "moments": {}}}
    if before is None or len(before["centres"]) == 1:
        # All that is known of the stream is known of its first style.
        n = torch.tensor([state["n"]])
        moments = {name: each[None] for name, each in state["moments"].items()}
    else:
        n, moments = before["n"], before["moments"]
    n = torch.cat([n, n.new_zeros(k - len(n))])
    n[replaced] = 0.0
    moments = {
        name: torch.cat([each, each.new_zeros(k - len(each), *each.shape[1:])])
        for name, each in moments.items()
    }
    styles = {**found, "n": n, "moments": moments}
    return {**state, "n": 0.0, "moments": {}, "styles": styles}


def has_several_styles(stream: Stream) -> bool:
    """Return whether images of more than one style were seen."""
    return stream is not None and stream["styles"] is not None and len(stream["styles"]["n"]) > 1


def pool_styles(stream: Mapping[str, Any]) -> tuple[float, Mapping[str, Tensor]]:
    """Return the effective number of samples and the moments of all styles together."""
    if not has_several_styles(stream):
        return stream["n"], stream["moments"]
    styles = stream["styles"]
    shares = styles["counts"] * (styles["n"] > 0)
    shares = shares / shares.sum().clamp_min(1e-9)
    pooled = {}
    for name, moments in styles["moments"].items():
        mean, variance = moments.unbind(dim=1)
        own = shares.to(mean)[:, None]
        middle = (own * mean).sum(dim=0)
        spread = (own * (variance + (mean - middle) ** 2)).sum(dim=0)
        pooled[name] = torch.stack([middle, spread])
    return float(styles["n"].sum()), pooled


def weigh_styles(n: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight of a batch in each style, and the effective numbers of samples then.

    Args:
        n: Number of samples of the batch in each style.
        before: Effective number of samples of each style; 0 if it is new.
    """
    is_known, is_seen = before > 0, n > 0
    own = torch.where(is_known, n / (n + MEMORY), is_seen.to(n.dtype))
    rest = torch.where(is_known, (1 - own) ** 2 / before.clamp_min(1e-9), 0.0)
    inverse = rest + torch.where(is_seen, own**2 / n.clamp_min(1.0), 0.0)
    return own, torch.where(is_known | is_seen, 1 / inverse.clamp_min(1e-9), 0.0)


@contextmanager
def use_stream(
    model: nn.Module, stream: Stream, own: float, share: float
) -> Iterator[dict[str, Tensor]]:
    """Normalise with a mixture of the source's statistics and the stream's, this batch included.

    Run the model in evaluation mode inside. Gradients flow through the moments of the batch.

    Args:
        model: Any module. Layers without running statistics are left alone.
        stream: State of the stream; None at its start.
        own: Weight of the batch in the stream.
        share: Share of the stream in the mixture.

    Yields:
        A dict that takes the moments of the stream after the batch, by the name of the layer.
    """
    moved: dict[str, Tensor] = {}
    known = {} if stream is None else stream["moments"]

    def mix(name: str, layer: _BatchNorm, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the mixture."""
        source_mean, source_variance = _source_moments(layer)
        mean, variance = _moments(x, source_mean.dtype)
        if name in known:
            old_mean, old_variance = known[name].to(source_mean)
            between = own * (1 - own) * (mean - old_mean) ** 2
            mean = torch.lerp(old_mean, mean, own)
            variance = torch.lerp(old_variance, variance, own) + between
        moved[name] = torch.stack([mean.detach(), variance.detach()])
        mean = torch.lerp(source_mean, mean, share)
        return mean, torch.lerp(source_variance, variance, share)

    with _normalise_by(model, mix):
        yield moved


@contextmanager
def use_styles(
    model: nn.Module, styles: Mapping[str, Any], x: Tensor, trusted: float
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Like `use_stream`, but normalise every image with the statistics of its style.

    Args:
        model: Any module. Layers without running statistics are left alone.
        styles: State of the styles, of which there are several.
        x: The images.
        trusted: How much of the share of each style is left; see `trust`.

    Yields:
        A dict that takes the moments of all styles after the batch (K, 2, C), by the name of the
        layer, and their effective numbers of samples then (K).
    """
    known, before = styles["moments"], styles["n"].to(x.device)
    members = F.one_hot(assign_styles(styles, describe_styles(x)), len(before)).to(
        before.dtype
    )  # (N, K)
    n = members.sum(dim=0)
    own, n_effective = weigh_styles(n, before)
    share = trusted * stream_share(n_effective)
    moved: dict[str, Tensor] = {}

    def mix(name: str, layer: _BatchNorm, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the mixture for each image, (N, C)."""
        source_mean, source_variance = _source_moments(layer)
        chosen = members.to(source_mean.dtype)
        weights = chosen / n.clamp_min(1).to(chosen.dtype)
        # Each channel of each image is a channel of its own.
        maps = x.reshape(1, x.shape[0] * x.shape[1], -1)
        means, variances = (
            each.to(source_mean.dtype).view(x.shape[:2])
            for each in _BatchMoments.apply(maps)  # type: ignore[no-untyped-call]
        )
        mean = weights.T @ means  # (K, C)
        variance = weights.T @ (variances + (means - chosen @ mean) ** 2)
        old_mean, old_variance = (
            known[name].to(mean).unbind(dim=1) if name in known else (mean, variance)
        )
        part = own.to(mean.dtype)[:, None]
        between = part * (1 - part) * (mean - old_mean) ** 2
        mean = torch.lerp(old_mean, mean, part)
        variance = torch.lerp(old_variance, variance, part) + between
        moved[name] = torch.stack([mean.detach(), variance.detach()], dim=1)
        part = share.to(mean.dtype)[:, None]
        mean = torch.lerp(source_mean.expand_as(mean), mean, part)
        variance = torch.lerp(source_variance.expand_as(variance), variance, part)
        return chosen @ mean, chosen @ variance

    with _normalise_by(model, mix):
        yield moved, n_effective


@contextmanager
def _normalise_by(model: nn.Module, mix: Mix) -> Iterator[None]:
    """Let BatchNorm layers with running statistics normalise with the moments of `mix`."""

    def normalise(name: str, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Return what a plain layer returns, by its own statistics with other scale and shift."""
        mean, variance = mix(name, layer, x)
        source_mean, source_variance = _source_moments(layer)
        scale = (variance + layer.eps).rsqrt()
        scale = scale if layer.weight is None else layer.weight * scale
        if mean.dim() > 1:  # of each image
            shift = -scale * mean if layer.bias is None else layer.bias - scale * mean
            shape = [*scale.shape, *[1] * (x.dim() - 2)]
            return torch.addcmul(shift.to(x.dtype).view(shape), x, scale.to(x.dtype).view(shape))
        shift = scale * (source_mean - mean)
        shift = shift if layer.bias is None else shift + layer.bias
        scale = scale * (source_variance + layer.eps).sqrt()
        return F.batch_norm(x, source_mean, source_variance, scale, shift, eps=layer.eps)

    def shifted(name: str, layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (renormalise(layer, inputs[0], *mix(name, layer, inputs[0])), *inputs[1:])

    plain, hooks = [], []
    try:
        for name, layer in batch_norm_layers(model).items():
            if layer.running_mean is None or layer.running_var is None:
                continue
            if type(layer).forward is _BatchNorm.forward and "forward" not in vars(layer):
                layer.forward = partial(normalise, name, layer)  # type: ignore[method-assign]
                plain.append(layer)
            else:  # a layer that does more, such as an activation
                hook = partial(_call_with_inputs, partial(shifted, name, layer))
                hooks.append(layer.register_forward_pre_hook(hook))
        yield
    finally:
        for layer in plain:
            del layer.forward
        for handle in hooks:
            handle.remove()


def _call_with_inputs(
    function: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]],
    layer: nn.Module,
    inputs: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    return function(inputs)


def _source_moments(layer: _BatchNorm) -> tuple[Tensor, Tensor]:
    mean, variance = layer.running_mean, layer.running_var
    if mean is None or variance is None:
        raise TypeError("a layer without running statistics has no mixture")
    return mean.detach(), variance.detach()


class _BatchMoments(torch.autograd.Function):
    """Mean and biased variance by channel, by the fast kernel of BatchNorm, in float32 or more."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        # The kernel returns moments in the precision of the scale, which changes nothing else.
        scale = at_least_float32(x.new_ones(x.shape[1]))
        # Without an eps, the kernel returns the inverse 0 also for a constant channel.
        eps = torch.finfo(scale.dtype).tiny
        _, mean, inverse = torch.native_batch_norm(x, scale, None, None, None, True, 0.0, eps)
        ctx.save_for_backward(x, mean)
        return mean, inverse.square().reciprocal()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors
        of_mean, of_variance = gradients
        n = x.numel() // x.shape[1]
        slope = 2 * of_variance / n
        shape = [1, -1, *[1] * (x.dim() - 2)]
        start = (of_mean / n - slope * mean).view(shape)
        return torch.addcmul(start, x.to(start.dtype), slope.view(shape)).to(x.dtype)


def _moments(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if active() is not None:
        return batch_moments(x, dtype, correction=0)
    mean, variance = _BatchMoments.apply(x)  # type: ignore[no-untyped-call]
    return mean.to(dtype), variance.to(dtype)
