"""`statistics="auto"` of an adapted model: its statistics of the stream, and their state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor, nn

from acclimate.forward import run
from acclimate.functional.across import batch_mean, batch_size
from acclimate.functional.entropy import log_probs
from acclimate.functional.norm import batch_norm_layers, use_statistics
from acclimate.functional.stream_norm import (
    PROBE,
    TOLERANCE,
    has_several_styles,
    stream_share,
    trust,
    use_stream,
    use_styles,
    weigh_batch,
    with_benefit,
    with_styles,
)
from acclimate.functional.styles import MOST, N_NUMBERS, has_style
from acclimate.functional.views import spread
from acclimate.schema import Fields, Maybe, Number, Schema, TensorOf, Where
from acclimate.snapshot import Tree

if TYPE_CHECKING:
    from acclimate.methods.method import Method


def trust_of(method: Method) -> float:
    """Return how much the statistics of the stream count, from 0 to 1."""
    tolerance, artifact = TOLERANCE, method.artifact
    if artifact is not None and "confidence" in artifact.parts:
        tolerance += max(0.0, float(artifact.part("confidence")["loss"]))
    return trust(method.stream, tolerance)


@contextmanager
def use_stream_of(method: Method, model: nn.Module, x: Tensor, moves: bool) -> Iterator[None]:
    """Normalise a pass over a batch with the statistics of the stream; remember them."""
    with _mixed(method, model, x, batch_size(x), trust_of(method)) as (moved, n):
        yield
    is_finite = all(bool(moments.isfinite().all()) for moments in moved.values())
    if not (moves and method.is_learning and moved and is_finite):
        return
    known = dict(method.stream or {"benefit": None, "styles": None})
    if isinstance(n, Tensor):
        method.stream = {**known, "styles": {**known["styles"], "n": n.cpu(), "moments": moved}}
    else:
        method.stream = {**known, "n": n, "moments": moved}


def probe_stream(method: Method, x: Tensor) -> None:
    """Compare the confidence with the source's statistics and with those of the stream."""
    if has_style(x) and method.processes is None:
        method.stream = with_styles(method.stream, x)
    images, model = x[spread(x, PROBE)], method.model
    with use_statistics(model, "source"):
        source = run(model, images, None, method.logits_at, method.call).logits
        with _mixed(method, model, images, batch_size(x), 1.0):
            here = run(model, images, None, method.logits_at, method.call).logits
    method.counts.forwards += 2
    values = [log_probs(logits).exp().amax(dim=1) for logits in (here, source)]
    difference = float(batch_mean(values[0] - values[1]))
    if math.isfinite(difference):
        method.stream = with_benefit(method.stream, difference, batch_size(images))


@contextmanager
def _mixed(
    method: Method, model: nn.Module, x: Tensor, n: int, trusted: float
) -> Iterator[tuple[dict[str, Tensor], float | Tensor]]:
    """Normalise by the statistics of the stream, in which this batch counts as n samples."""
    stream = method.stream
    if stream is not None and has_several_styles(stream):
        with use_styles(model, stream["styles"], x, trusted) as (moved, numbers):
            yield moved, numbers
    else:
        own, n_effective = weigh_batch(stream, n)
        with use_stream(model, stream, own, stream_share(n_effective) * trusted) as moved:
            yield moved, n_effective


def stream_schema(model: nn.Module) -> Schema:
    """Return what the state of the stream must look like."""
    layers = batch_norm_layers(model).items()
    sizes = {n: len(layer.running_mean) for n, layer in layers if layer.running_mean is not None}

    def moments(*leading: int | None) -> Schema:
        each = {name: TensorOf((*leading, 2, size)) for name, size in sizes.items()}
        has_variances = {name: Where(one, _has_variances, _NEGATIVE) for name, one in each.items()}
        return Fields(has_variances, partial=True)

    styles: dict[str, Schema] = {
        "centres": TensorOf((None, N_NUMBERS)),
        "counts": TensorOf((None,), low=0),
        "n": TensorOf((None,), low=0),
        "moments": moments(None),
    }
    fields = {
        "n": Number(float, low=0),
        "moments": moments(),
        "benefit": Maybe(Number(float, low=-1, high=1)),
        "styles": Maybe(Where(Fields(styles), _are_styles, "styles that do not fit each other")),
    }
    is_counted = "moments of no samples"
    return Maybe(Where(Fields(fields), lambda s: s["n"] > 0 or not s["moments"], is_counted))


_NEGATIVE = "negative variances"


def _has_variances(moments: Tensor) -> bool:
    return bool((moments[..., 1, :] >= 0).all())


def _are_styles(styles: Tree) -> bool:
    """Return whether there is one of everything for each style."""
    sizes = {len(styles[name]) for name in ("centres", "counts", "n")}
    sizes |= {len(each) for each in styles["moments"].values()}
    return len(sizes) == 1 and 0 < max(sizes) <= MOST
