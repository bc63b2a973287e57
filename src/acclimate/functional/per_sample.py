"""Cosines between the gradients of a sample and of its transformed view, for every parameter.

The result is that of a loop over single samples (SWR paper, eq. 2), but computed from batches:

1. A trial forward finds the parameters that are used once, in a layer that has a rule.
2. For every chunk of samples, one forward and one backward pass of the summed loss give the input
   and the output gradient of these layers. Rules turn them into inner products of gradients.
3. For all other parameters (class tokens, scales, tied weights, attention, layers that run twice,
   ...), `torch.func.vmap` computes the gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import ceil
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel

from acclimate.errors import InvalidConfig, UnsuitableModel, check_name, name_some
from acclimate.functional import per_sample_rules as rules
from acclimate.functional import precision
from acclimate.functional.inputs import check_pairs, check_rows
from acclimate.functional.norm import check_independent
from acclimate.functional.per_sample_rules import Granularity
from acclimate.functional.precision import at_least_float32
from acclimate.functional.swr_nsp import CosineSum, CosineSums

__all__ = ["CosineSum", "GradientCosines", "Granularity", "gradient_cosines"]

#: Bytes that one pass may store. More is slower on a CPU, because of page faults.
MEMORY_BUDGET = 256 * 2**20
#: The largest block that raises the size above which glibc returns freed memory to the system.
_LARGEST_HELD = 32 * 2**20 - 2**16


def summed_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the sum of the samples' cross entropies."""
    return F.cross_entropy(logits, y, reduction="sum")


class GradientCosines:
    """Sums of cosines between the gradients of two views of a sample, for every parameter.

    A sample whose gradient is zero in either view adds 0. Parameters count whether or not they
    require gradients. The model is unchanged afterwards; it must not change between two calls of
    `add`.

    Args:
        forward: Maps inputs to logits, (B, K) or (B, K, h, w), by running `model`.
        model: The model, in evaluation mode.
        granularity: The unit of one cosine: a parameter tensor, all tensors of a module, one index
            of a tensor's first dimension, or every single weight.
        chunk: Samples per pass; by default as many as `memory_budget` allows.
        memory_budget: Bytes that one pass may store for its backward; the peak is up to twice that.
        speed: "exact", or "fast": bfloat16 if the device supports it (errors of about 0.01).
        loss: Maps logits and labels of a batch to the *sum* of the samples' losses.
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        model: nn.Module,
        granularity: Granularity = "tensor",
        chunk: int | None = None,
        memory_budget: int = MEMORY_BUDGET,
        speed: precision.SpeedName = "exact",
        loss: Callable[[Tensor, Tensor], Tensor] = summed_cross_entropy,
    ) -> None:
        _check_options(granularity, chunk, memory_budget)
        precision.check_speed(speed)
        self._forward, self._model, self._loss, self._speed = forward, model, loss, speed
        self._granularity, self._chunk, self._memory_budget = granularity, chunk, memory_budget
        self._parameters = {n: p for n, p in model.named_parameters() if p.is_floating_point()}
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._layers: list[tuple[nn.Module, dict[str, str]]] = []  # and names of weight and bias
        for module in filter(rules.has_rule, model.modules()):
            owned = ((key, id(module._parameters.get(key))) for key in ("weight", "bias"))
            self._layers.append((module, {key: names[i] for key, i in owned if i in names}))
        # The trial sets these: the parameters for rules and for vmap, the bytes that a pass stores
        # per row, and the memory layout of the inputs.
        self._ruled, self._others = set[str](), set[str]()
        self._bytes_per_row, self._layout = -1, torch.contiguous_format
        self._sums = CosineSums(dict(model.named_parameters()), granularity)

    def add(
        self,
        x: Tensor,
        x_transformed: Tensor,
        y: Tensor,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Add the cosines of samples (n, ...) and their views, with labels (n,).

        Masks (n, H, W) may be the labels for another loss. `progress` is called with the number of
        samples finished so far.
        """
        check_pairs(x, x_transformed, y)
        check_independent(self._model)
        # After this, glibc keeps freed memory for the next pass: fewer page faults.
        torch.empty(_LARGEST_HELD, dtype=torch.uint8)
        with torch.inference_mode(False), torch.enable_grad(), ExitStack() as restoring:
            for parameter in self._model.parameters():
                restoring.callback(parameter.requires_grad_, parameter.requires_grad)
            if self._bytes_per_row < 0:
                self._look_into(torch.cat([x[:1], x_transformed[:1], x[:1]]))
            most = max(1, self._memory_budget // (2 * self._bytes_per_row + 1))
            size = self._chunk or ceil(len(x) / ceil(len(x) / most))
            self._model.requires_grad_(False)  # autograd computes the gradients of outputs only
            for start in range(0, len(x), size):
                part = slice(start, min(start + size, len(x)))
                rows = torch.stack([x[part], x_transformed[part]], 1).flatten(0, 1)
                labels = y[part].repeat_interleave(2, dim=0)
                missed = self._add_by_rules(rows, labels) if self._ruled else set()
                self._add_by_vmap(self._others | missed, rows, labels)
                self._sums.close_chunk()
                if progress is not None:
                    progress(part.stop)

    def result(self) -> dict[str, CosineSum]:
        """Return the sums so far, by parameter name; raise BadInput if some are not finite."""
        return self._sums.result()

    def _look_into(self, x: Tensor) -> None:
        """Run the trial forward, in channels-last format if possible, which is faster on a CPU."""
        for parameter in self._parameters.values():
            parameter.requires_grad_()
        if x.dim() == 4 and x.device.type == "cpu" and x.dtype == torch.float32:
            self._layout = torch.channels_last
        sizes: dict[int, int] = {}  # bytes of the tensors that autograd stores, by address

        def note_size(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(note_size, lambda tensor: tensor):
            try:
                logits, calls, _ = self._run(x)
            except RuntimeError:  # the model needs the contiguous layout, or cannot run at all
                self._layout = torch.contiguous_format
                sizes.clear()
                logits, calls, _ = self._run(x)
        check_rows(logits, len(x))
        uses = _count_uses(logits.grad_fn)
        used = {name for name, parameter in self._parameters.items() if uses[id(parameter)]}
        self._ruled = {n for n in used if uses[id(self._parameters[n])] == calls[n] == 1}
        self._others = used - self._ruled
        for parameter in self._model.parameters():
            sizes.pop(parameter.untyped_storage().data_ptr(), None)
        # vmap stores about three times as much, and the gradients.
        held = sum(self._parameters[name].nbytes for name in self._others)
        self._bytes_per_row = sum(sizes.values()) // len(x) * (3 if self._others else 1) + held

    def _run(
        self, rows: Tensor, on_gradient: Callable[..., None] | None = None
    ) -> tuple[Tensor, Counter[str], list[Tensor]]:
        """Run the model; return logits, how often rules apply, and the leaves of the graph.

        A rule applies if the first dimension of input and output is the rows. The trial has an odd
        number of rows, other passes have an even one, so another dimension cannot match both.
        """
        calls, leaves = Counter[str](), list[Tensor]()

        def hook(names: dict[str, str], module: nn.Module, args: Any, kwargs: Any, y: Any) -> Any:
            x = args[0] if args else kwargs.get("input")
            if not all(isinstance(v, Tensor) and v.shape[:1] == rows.shape[:1] for v in (x, y)):
                return y
            calls.update(names.values())
            if on_gradient is None or self._ruled.isdisjoint(names.values()):
                return y
            if not y.requires_grad:
                # The graph starts here. The model receives a copy, which it may change in place.
                leaves.append(y.detach().requires_grad_())
                y = leaves[-1].clone()
            # A hook of the tensor, not of the module, because the next layer may work in place.
            y.register_hook(partial(on_gradient, module, names, [(x.detach(), x._version)]))
            return y

        with ExitStack() as stack, precision.fast_autocast(rows.device, self._speed == "fast"):
            for module, names in self._layers:
                register = module.register_forward_hook  # runs before other hooks of the model
                handle = register(partial(hook, names), prepend=True, with_kwargs=True)
                stack.callback(handle.remove)
            return self._forward(rows.contiguous(memory_format=self._layout)), calls, leaves

    def _add_by_rules(self, rows: Tensor, labels: Tensor) -> set[str]:
        """Add the cosines of parameters with a rule; return those not called as in the trial."""
        missed: set[str] = set()
        keeps_half = self._speed == "fast" and precision.has_fast_bfloat16(rows.device)

        def on_gradient(module: nn.Module, names: dict[str, str], kept: Any, delta: Tensor) -> None:
            x, version = kept.pop()
            if x._version != version:
                message = (
                    f"The input of a {type(module).__name__} ({', '.join(names.values())}) is "
                    "changed in place later in the forward. Use an out-of-place operation, for "
                    "example ReLU(inplace=False)."
                )
                layers = tuple(sorted({name.rpartition(".")[0] for name in names.values()}))
                raise UnsuitableModel("changed_in_place", message, layers=layers)
            if not keeps_half:
                x, delta = at_least_float32(x), at_least_float32(delta)
            for attribute, name in names.items():
                if name in self._ruled and name not in missed:
                    blocks = rules.iter_products(module, attribute, x, delta, self._granularity)
                    self._sums.add(name, blocks)

        logits, calls, leaves = self._run(rows, on_gradient)
        missed |= {name for name in self._ruled if calls[name] != 1}
        if leaves:
            loss = self._loss(at_least_float32(logits), labels)
            torch.autograd.grad(loss, leaves, allow_unused=True)
        return missed

    def _add_by_vmap(self, names: set[str], rows: Tensor, labels: Tensor) -> None:
        """Add the cosines of parameters without a rule."""
        if not names:
            return
        ordered = tuple(name for name in self._parameters if name in names)
        known = {id(self._parameters[name]): name for name in ordered}
        # `functional_call` (torch 2.13) does not restore a module that has two names.
        places = [
            (module._parameters, key, known[id(parameter)])
            for module in self._model.modules()
            for key, parameter in module._parameters.items()
            if id(parameter) in known
        ]

        def loss_of(values: dict[str, Any], sample: Tensor, label: Tensor) -> Tensor:
            for owned, key, name in places:
                owned[key] = values[name]
            return self._loss(at_least_float32(self._forward(sample[None])), label[None])

        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
        try:
            # `grad` works inside no_grad. The fused kernels of attention have no batching rule.
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                values = {name: self._parameters[name].detach() for name in ordered}
                gradients = each(values, rows, labels)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            reason = (str(error).strip() or repr(error)).splitlines()[0]
            message = (
                "Expected a model that torch.func can differentiate, because these parameters do "
                f"not belong to standard layers: {name_some(ordered)}. Found: {reason} Remove "
                "data-dependent branches, .item() and in-place changes of new tensors from the "
                "forward, or move these parameters into standard layers (Conv, Linear, norms)."
            )
            raise UnsuitableModel("not_differentiable", message, parameters=ordered) from error
        finally:
            for owned, key, name in places:
                owned[key] = self._parameters[name]
        for name in ordered:
            products = rules.gradient_products(gradients.pop(name), self._granularity)
            self._sums.add(name, [products])


def gradient_cosines(
    forward: Callable[[Tensor], Tensor],
    model: nn.Module,
    x: Tensor,
    x_transformed: Tensor,
    y: Tensor,
    granularity: Granularity = "tensor",
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> dict[str, CosineSum]:
    """Return the result of `GradientCosines`, which takes the options, for one batch."""
    cosines = GradientCosines(forward, model, granularity, **options)
    cosines.add(x, x_transformed, y, progress)
    return cosines.result()


def _count_uses(root: Node | None) -> Counter[int]:
    """Return the number of edges of the autograd graph to each leaf, by the id of the leaf."""
    uses: Counter[int] = Counter()
    waiting = [root] if root is not None else []
    visited = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and hasattr(node, "variable"):
                uses[id(node.variable)] += 1
            elif node is not None and node not in visited:
                visited.add(node)
                waiting.append(node)
    return uses


def _check_options(granularity: str, chunk: int | None, memory_budget: int) -> None:
    check_name(granularity, get_args(Granularity), "granularity", InvalidConfig)
    for option, value in (("chunk", chunk), ("memory_budget", memory_budget)):
        if value is not None and value < 1:
            text = f"Expected {option} to be at least 1, found {value}. Remove it, or increase it."
            raise InvalidConfig("out_of_range", text, option=option, found=value)
