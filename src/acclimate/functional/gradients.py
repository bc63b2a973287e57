"""Cosines between the gradients of two views of a sample, for every parameter (paper, eq. 2).

The plain way is two passes a sample:

    for sample, view, label in zip(x, x_transformed, y):
        g = torch.autograd.grad(cross_entropy(model(sample[None]), label[None]), parameters)
        h = torch.autograd.grad(cross_entropy(model(view[None]), label[None]), parameters)
        for total, a, b in zip(totals, g, h):
            total += cosine_similarity(a.flatten(), b.flatten(), dim=0)

`gradient_cosines` gives the same numbers from batches. One forward and one backward over both
views yield every layer's input and output gradient, from which a rule for the layer's kind makes
the per-sample gradients, or only their inner products if that is cheaper. Parameters outside of
layers that are broadcast over the batch (a class token, a scale) are copied for every row. What is
left (weights that a model changes before it uses them, ...) goes through `torch.func`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import ceil

import torch
from torch import Tensor, nn

from acclimate.errors import BadInput
from acclimate.functional.gradient_checks import check_model, check_options, check_samples
from acclimate.functional.gradient_pass import Loss, RuledPass, summed_cross_entropy
from acclimate.functional.gradient_sums import CosineSum, CosineSums, Granularity
from acclimate.functional.gradient_survey import Survey, survey
from acclimate.functional.gradient_vmap import general_gradients, listed
from acclimate.functional.precision import (
    SpeedName,
    check_speed,
    fast_autocast,
    has_fast_bfloat16,
)

__all__ = ["CosineSum", "GradientCosines", "Granularity", "gradient_cosines"]

#: Bytes for what one pass keeps. Less makes batches too small to be worth it; more is slower again
#: on a CPU, where fresh memory is paid in page faults.
MEMORY_BUDGET = 256 * 2**20

#: The largest block that moves the threshold above which glibc gives freed memory back at once.
_LARGEST_HELD = 32 * 2**20 - 2**16


def gradient_cosines(
    forward: Callable[[Tensor], Tensor],
    model: nn.Module,
    x: Tensor,
    x_transformed: Tensor,
    y: Tensor,
    granularity: Granularity = "tensor",
    chunk: int | None = None,
    memory_budget: int = MEMORY_BUDGET,
    progress: Callable[[int], None] | None = None,
    speed: SpeedName = "exact",
    loss: Loss = summed_cross_entropy,
) -> dict[str, CosineSum]:
    """Return, for every parameter, the sum over samples of cosines between two views' gradients.

    The gradient is that of the cross entropy, unless another loss is given. A sample whose gradient
    is zero in either view adds 0, as in `torch.nn.functional.cosine_similarity`. Gradients of tied
    weights and of layers called several times are added up first. Parameters count whether or not
    they require gradients. Everything about the model is left as it was found.

    Args:
        forward: From inputs to logits, (B, K) or (B, K, h, w); runs `model`.
        model: The model, in evaluation mode.
        x: Samples, (n, ...).
        x_transformed: The same samples, transformed.
        y: Their labels, (n,), or masks (n, H, W) for another loss.
        granularity: What gets one cosine: a parameter tensor, all tensors a module owns, one
            index of a tensor's first dimension, or every single weight.
        chunk: Samples in one pass; chosen from `memory_budget` if None.
        memory_budget: Bytes one pass may keep for its backward; the peak is up to twice that
            (measured). A single sample may need more.
        progress: Called with the number of samples finished so far.
        speed: "exact": the arithmetic of the loop but for the order of summation. "fast": in
            bfloat16 where the device has it (then the cosines are off by about 0.01), elsewhere
            the same as "exact".
        loss: From logits and labels of a batch to the *sum* of the samples' losses.

    Returns:
        By parameter name, in the order of `model.named_parameters()`. Shapes are () for "tensor"
        and "module", (C, 1, ...) for "channel" and the parameter's own for "parameter".

    Raises:
        UnsuitableModel: Samples of a batch influence each other, `forward` does not return
            logits, or `torch.func` is needed and cannot do the model.
        BadInput: The arguments do not belong together, or gradients are not finite.
    """
    found = GradientCosines(forward, model, granularity, chunk, memory_budget, speed, loss)
    found.add(x, x_transformed, y, progress)
    return found.result()


class GradientCosines:
    """What `gradient_cosines` returns, for samples that come one batch after the other.

    The model is looked into at the first batch; it must not change until the last.
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        model: nn.Module,
        granularity: Granularity = "tensor",
        chunk: int | None = None,
        memory_budget: int = MEMORY_BUDGET,
        speed: SpeedName = "exact",
        loss: Loss = summed_cross_entropy,
    ) -> None:
        check_options(granularity, chunk, memory_budget)
        check_speed(speed)
        self._forward, self._model, self._speed = forward, model, speed
        self._loss = loss
        self._chunk, self._memory_budget = chunk, memory_budget
        named = dict(model.named_parameters())
        self._parameters = {name: p for name, p in named.items() if p.is_floating_point()}
        self._sums = CosineSums(named, granularity)
        self._known: tuple[Survey, torch.memory_format] | None = None

    def add(
        self,
        x: Tensor,
        x_transformed: Tensor,
        y: Tensor,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Add the cosines of a batch."""
        check_samples(x, x_transformed, y)
        check_model(self._model)
        is_half = self._speed == "fast" and has_fast_bfloat16(x.device)

        def run(rows: Tensor) -> Tensor:
            with fast_autocast(x.device, is_half):
                return self._forward(rows)

        # Taken and given back untouched: from now on glibc holds freed memory for the next pass.
        # Fresh memory would be paid in page faults, 4 to 7 % of the time (measured).
        torch.empty(_LARGEST_HELD, dtype=torch.uint8)
        # A pass needs autograd, whatever the caller has switched off.
        with torch.inference_mode(False), torch.enable_grad(), _flags_given_back(self._model):
            if self._known is None:
                _require_gradients(self._parameters, True)
                trial = torch.cat([x[:1], x_transformed[:1], x[:1]])
                self._known = _survey_in_best_layout(run, self._model, self._parameters, trial)
            _require_gradients(self._parameters, False)
            found, layout = self._known
            for part in self._parts(len(x), found):
                plain = torch.stack([x[part], x_transformed[part]], 1).flatten(0, 1)
                rows = plain.contiguous(memory_format=layout)
                labels = y[part].repeat_interleave(2, dim=0)
                ruled = RuledPass(
                    self._model, self._parameters, found, self._sums, len(rows), is_half
                )
                done = ruled.run(run, rows, labels, self._loss)
                rest = {n: self._parameters[n] for n in found.uses if n not in done}
                if rest:
                    # torch.func keeps several times what an ordinary pass keeps, and does not get
                    # on with autocast.
                    step = self._fitting(3 * found.bytes_per_row, rest)
                    self._add_general(rest, plain, labels, step)
                self._sums.close_chunk()
                if progress is not None:
                    progress(part.stop)

    def result(self) -> dict[str, CosineSum]:
        """Return the sums so far, by parameter name."""
        result = self._sums.result()
        broken = [name for name, found in result.items() if not found.total.isfinite().all()]
        if broken:
            raise BadInput(
                "not_finite",
                f"expected finite gradients, found infinite or undefined ones in {listed(broken)}. "
                "Look for such values in the samples and in the model's weights.",
                found=tuple(broken),
            )
        return result

    def _parts(self, n_samples: int, found: Survey) -> Iterator[slice]:
        size = self._chunk
        if size is None:
            n_passes = ceil(n_samples / self._fitting(found.bytes_per_row, found.materialized))
            size = ceil(n_samples / n_passes)  # as many passes, but of equal size
        for start in range(0, n_samples, size):
            yield slice(start, min(start + size, n_samples))

    def _fitting(self, bytes_per_row: int, materialized: Iterable[str]) -> int:
        """Return how many pairs of rows fit if some parameters' gradients are held for each."""
        parameters = [self._parameters[name] for name in materialized]
        held = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        return max(1, self._memory_budget // (2 * (bytes_per_row + held) + 1))

    def _add_general(
        self, parameters: Mapping[str, nn.Parameter], rows: Tensor, labels: Tensor, step: int
    ) -> None:
        """Add the cosines of `parameters` for one chunk by `torch.func`, `step` pairs at a time."""
        for start in range(0, len(rows), 2 * step):
            part = slice(start, start + 2 * step)
            gradients = general_gradients(
                self._forward, self._model, parameters, rows[part], labels[part], self._loss
            )
            for name in parameters:
                self._sums.add_gradients(name, gradients.pop(name))


def _survey_in_best_layout(
    forward: Callable[[Tensor], Tensor],
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    trial: Tensor,
) -> tuple[Survey, torch.memory_format]:
    """Return what a trial tells, and the memory layout of the rows.

    With the channels last, convolutions take up to a third less time on a CPU (measured). The
    arithmetic is the same.
    """
    if trial.dim() == 4 and trial.device.type == "cpu" and trial.dtype == torch.float32:
        try:
            rows = trial.contiguous(memory_format=torch.channels_last)
            return survey(forward, model, parameters, rows), torch.channels_last
        except RuntimeError:
            # The model counts on the plain layout, by `view` for example; or it cannot run at
            # all, which the plain trial will tell.
            pass
    return survey(forward, model, parameters, trial), torch.contiguous_format


def _require_gradients(parameters: Mapping[str, nn.Parameter], flag: bool) -> None:
    for parameter in parameters.values():
        parameter.requires_grad_(flag)


@contextmanager
def _flags_given_back(model: nn.Module) -> Iterator[None]:
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
