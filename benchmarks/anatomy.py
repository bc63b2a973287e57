"""Where the time of a step goes: its pieces one by one, and its operators.

    python benchmarks/anatomy.py --net wrn-40-2 --out results/anatomy.json

The pieces run in turn in one process, on the same batch; the medians are over rounds. They are what
`plain_loops.SameArithmetic`, and with it swr_nsp at level exact, does: once in PyTorch's plain
layout, once with colour as the last axis. The operators are those of one step of the library, as
torch's profiler counts them on the processor.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import acclimate
import plain_loops
from acclimate.functional.views import VIEW_SETS, apply_views
from speed_cases import NETS, Case, make_case, make_noise
from speed_report import describe_run

#: Operators by what they belong to: the first name that is found in the operator's.
KINDS = {
    "convolution, backward": ("convolution_backward", "mkldnn_convolution_backward"),
    "convolution, forward": ("convolution", "conv2d"),
    "BatchNorm, backward": ("batch_norm_backward",),
    "BatchNorm, forward": ("batch_norm",),
    "ReLU": ("relu", "threshold_backward", "clamp_min"),
    "optimiser and regulariser": ("_foreach", "_fused_adam", "addcmul", "addcdiv", "sqrt", "lerp"),
    "copies and additions": ("copy_", "add", "contiguous", "clone", "zero", "fill_"),
}


def make_pieces(case: Case, x: Tensor) -> dict[str, Callable[[], Any]]:
    """Return the pieces of a step by name, each ready to be called again and again."""
    pieces: dict[str, Callable[[], Any]] = {}
    for layout, form in (("plain", torch.contiguous_format), ("last", torch.channels_last)):
        images = x.contiguous(memory_format=form)
        tent, full = plain_loops.Tent(case.model), plain_loops.Paper(case.model, case.prepared)
        pieces[f"forward, {layout}"] = _forward(tent.model, images)
        pieces[f"forward and backward to scale and shift, {layout}"] = _backward(tent.model, images)
        pieces[f"forward and backward to all, {layout}"] = _backward(full.model, images)
    loop = plain_loops.SameArithmetic(case.model, case.prepared)
    logits, near = (value.detach() for value in loop.forward(x))
    draws = torch.Generator().manual_seed(0)
    pieces["transform"] = lambda: apply_views(VIEW_SETS["test"], x, None, draws)
    pieces["losses"] = lambda: _losses(logits, near)
    pieces["regulariser, as a term of the loss"] = lambda: _penalty_by_autograd(loop)
    pieces["regulariser, in closed form"] = lambda: _penalty_in_closed_form(loop)
    pieces["copy of the parameters"] = loop.copy_parameters
    for parameter in loop.parameters:
        parameter.grad = torch.zeros_like(parameter)
    pieces["Adam"] = loop.optimizer.step
    return pieces


def _forward(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    def run() -> None:
        with torch.no_grad():
            model(x)

    return run


def _backward(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    def run() -> None:
        plain_loops.entropy(model(x)).mean().backward()
        model.zero_grad()

    return run


def _losses(logits: Tensor, near: Tensor) -> None:
    logits, near = logits.clone().requires_grad_(), near.clone().requires_grad_()
    loss = plain_loops.entropy(logits).mean() - plain_loops.entropy_of_mean(logits)
    loss = loss + plain_loops.entropy(near).mean() - plain_loops.entropy_of_mean(near)
    loss.backward()


def _penalty_by_autograd(loop: plain_loops.SameArithmetic) -> None:
    loss = torch.zeros(())
    for name, p in loop.model.named_parameters():
        loss = loss + 250 * loop.penalty[name] * ((p - loop.previous[name]) ** 2).sum()
    torch.autograd.grad(loss, loop.parameters)


@torch.no_grad()
def _penalty_in_closed_form(loop: plain_loops.SameArithmetic) -> None:
    moves = torch._foreach_sub(loop.parameters, loop.anchors)
    torch._foreach_mul_(moves, loop.coefficients)


def time_pieces(pieces: dict[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """Return the median and the quartiles of each piece, in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in pieces}
    for number in range(rounds + 1):
        for name, piece in pieces.items():
            start = time.perf_counter()
            piece()
            if number:  # the first round warms up
                times[name].append(1000 * (time.perf_counter() - start))
    return {
        name: dict(zip(("q1", "median", "q3"), np.quantile(own, (0.25, 0.5, 0.75)), strict=True))
        for name, own in times.items()
    }


def measure_batch_norm() -> dict[str, float]:
    """Return the largest error of BatchNorm's output in float32, by layout, against float64."""
    draws = torch.Generator().manual_seed(0)
    x = 3 + torch.randn(200, 16, 32, 32, generator=draws, dtype=torch.float64)
    true = F.batch_norm(x, None, None, training=True)
    layouts = {"plain": torch.contiguous_format, "last": torch.channels_last}
    return {
        name: float(
            (
                F.batch_norm(x.float().contiguous(memory_format=form), None, None, training=True)
                - true
            )
            .abs()
            .max()
        )
        for name, form in layouts.items()
    }


def count_operators(case: Case, x: Tensor) -> dict[str, float]:
    """Return the share of each kind of operator in one step of swr_nsp."""
    adapted = acclimate.adapt(case.model, "swr_nsp", case.artifact)
    adapted(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        adapted(x)
    adapted.unwrap()
    shares = dict.fromkeys([*KINDS, "everything else"], 0.0)
    events = profile.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    for event in events:
        kind = next(
            (kind for kind, names in KINDS.items() if any(name in event.key for name in names)),
            "everything else",
        )
        shares[kind] += event.self_cpu_time_total / total
    return shares


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--net", default="wrn-40-2", choices=NETS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = options.batch_size or NETS[options.net].batch_size
    case = make_case(options.net)
    [(x, _)] = make_noise(options.net, size, 1, torch.float32)
    content = {
        "provenance": describe_run(options.threads, 1, script="anatomy.py"),
        "net": options.net,
        "model": case.description,
        "batch_size": size,
        "rounds": options.rounds,
        "pieces_ms": time_pieces(make_pieces(case, x), options.rounds),
        "operators": count_operators(case, x),
        "batch_norm_error": measure_batch_norm(),
    }
    table = Table(title=f"{options.net}, batches of {size}")
    table.add_column("piece")
    table.add_column("ms", justify="right")
    for name, found in content["pieces_ms"].items():
        table.add_row(name, f"{found['median']:.1f}")
    for name, share in content["operators"].items():
        table.add_row(name, f"{100 * share:.1f} %")
    Console().print(table)
    if options.out:
        options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
