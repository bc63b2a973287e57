"""Checkpoints with the names of published ones, and what the published models do with them.

Written from the publishers' code, with plain functions over the published names: nothing of
`acclimate.zoo` is used. Weights are drawn; every normalisation layer has statistics of its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]


class Draw:
    """Draws the tensors of a checkpoint under their published names."""

    def __init__(self, seed: int, norm: str = "batch") -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.state: State = {}
        self.norm_kind = norm

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def conv(self, name: str, n_in: int, n_out: int, size: int) -> None:
        scale = (2 / (n_in * size * size)) ** 0.5
        self.state[f"{name}.weight"] = self._normal(n_out, n_in, size, size) * scale

    def norm(self, name: str, n: int) -> None:
        self.state[f"{name}.weight"] = 1 + 0.3 * self._normal(n)
        self.state[f"{name}.bias"] = 0.2 * self._normal(n)
        if self.norm_kind == "batch":
            self.state[f"{name}.running_mean"] = 0.2 * self._normal(n)
            self.state[f"{name}.running_var"] = 0.5 + self._normal(n).square()
            self.state[f"{name}.num_batches_tracked"] = torch.tensor(17)

    def linear(self, name: str, n_in: int, n_out: int) -> None:
        self.state[f"{name}.weight"] = self._normal(n_out, n_in) / n_in**0.5
        self.state[f"{name}.bias"] = 0.1 * self._normal(n_out)


def conv(state: State, name: str, x: Tensor, stride: int = 1) -> Tensor:
    weight = state[f"{name}.weight"]
    return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)


def norm(state: State, name: str, x: Tensor, n_groups: int = 0) -> Tensor:
    weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
    if n_groups:
        return F.group_norm(x, n_groups, weight, bias)
    mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    scaled = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
    return scaled * weight[:, None, None] + bias[:, None, None]


def linear(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def blocks(state: State, prefix: str) -> int:
    return len({name[len(prefix) :].split(".")[0] for name in state if name.startswith(prefix)})


# RobustBench's wide residual network ------------------------------------------------------------


def robustbench(
    depth: int, width: int, n_classes: int, seed: int, sub_block: bool = False
) -> State:
    draw, n_in = Draw(seed), 16
    draw.conv("conv1", 3, 16, 3)
    stages = ["block1", *(["sub_block1"] if sub_block else []), "block2", "block3"]
    for stage in stages:
        n_out = {"block1": 16, "sub_block1": 16, "block2": 32, "block3": 64}[stage] * width
        n_first = 16 if stage == "sub_block1" else n_in
        for index in range((depth - 4) // 6):
            here = n_first if index == 0 else n_out
            draw.norm(f"{stage}.layer.{index}.bn1", here)
            draw.conv(f"{stage}.layer.{index}.conv1", here, n_out, 3)
            draw.norm(f"{stage}.layer.{index}.bn2", n_out)
            draw.conv(f"{stage}.layer.{index}.conv2", n_out, n_out, 3)
            if here != n_out:
                draw.conv(f"{stage}.layer.{index}.convShortcut", here, n_out, 1)
        n_in = n_out
    draw.norm("bn1", 64 * width)
    draw.linear("fc", 64 * width, n_classes)
    return draw.state


def run_robustbench(state: State, x: Tensor, mean: float, std: float) -> Tensor:
    x = conv(state, "conv1", (x - mean) / std)
    for stage, first_stride in (("block1", 1), ("block2", 2), ("block3", 2)):
        for index in range(blocks(state, f"{stage}.layer.")):
            name, stride = f"{stage}.layer.{index}", first_stride if index == 0 else 1
            out = F.relu(norm(state, f"{name}.bn1", x))
            if f"{name}.convShortcut.weight" in state:
                x = out  # the published block goes on with the activated input
            out = F.relu(norm(state, f"{name}.bn2", conv(state, f"{name}.conv1", out, stride)))
            out = conv(state, f"{name}.conv2", out)
            if f"{name}.convShortcut.weight" in state:
                x = conv(state, f"{name}.convShortcut", x, stride)
            x = x + out
    pooled = F.avg_pool2d(F.relu(norm(state, "bn1", x)), 8)
    return linear(state, "fc", pooled.view(x.shape[0], -1))


# Residual networks for CIFAR ---------------------------------------------------------------------


def akamaster(depth: int, n_classes: int, seed: int) -> State:
    draw, n_in = Draw(seed), 16
    draw.conv("conv1", 3, 16, 3)
    draw.norm("bn1", 16)
    for stage, n_out in ((1, 16), (2, 32), (3, 64)):
        for index in range((depth - 2) // 6):
            name = f"layer{stage}.{index}"
            draw.conv(f"{name}.conv1", n_in, n_out, 3)
            draw.norm(f"{name}.bn1", n_out)
            draw.conv(f"{name}.conv2", n_out, n_out, 3)
            draw.norm(f"{name}.bn2", n_out)
            n_in = n_out
    draw.linear("linear", 64, n_classes)
    # The published files are from before the count of batches was kept.
    return {key: value for key, value in draw.state.items() if "num_batches" not in key}


def run_akamaster(state: State, x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    x = F.relu(norm(state, "bn1", conv(state, "conv1", (x - mean) / std)))
    for stage in (1, 2, 3):
        for index in range(blocks(state, f"layer{stage}.")):
            name, halves = f"layer{stage}.{index}", stage > 1 and index == 0
            out = conv(state, f"{name}.conv1", x, 2 if halves else 1)
            out = conv(state, f"{name}.conv2", F.relu(norm(state, f"{name}.bn1", out)))
            out = norm(state, f"{name}.bn2", out)
            if halves:
                quarter = out.shape[1] // 4
                padded = torch.zeros_like(out)
                padded[:, quarter : out.shape[1] - quarter] = x[:, :, ::2, ::2]
                x = padded
            x = F.relu(out + x)
    pooled = F.avg_pool2d(x, x.shape[3])
    return linear(state, "linear", pooled.view(x.shape[0], -1))


def distiller(depth: int, n_classes: int, seed: int) -> State:
    draw, n_in = Draw(seed), 64
    draw.conv("conv1", 3, 64, 3)
    draw.norm("bn1", 64)
    for stage, n_out in ((1, 16), (2, 32), (3, 64)):
        for index in range((depth - 2) // 6):
            name = f"layer{stage}.{index}"
            draw.conv(f"{name}.conv1", n_in, n_out, 3)
            draw.norm(f"{name}.bn1", n_out)
            draw.conv(f"{name}.conv2", n_out, n_out, 3)
            draw.norm(f"{name}.bn2", n_out)
            if n_in != n_out:
                draw.conv(f"{name}.shortcut.0", n_in, n_out, 1)
                draw.norm(f"{name}.shortcut.1", n_out)
            n_in = n_out
    draw.linear("linear", 256, n_classes)
    return draw.state


def run_distiller(state: State, x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    x = F.relu(norm(state, "bn1", conv(state, "conv1", (x - mean) / std)))
    for stage in (1, 2, 3):
        for index in range(blocks(state, f"layer{stage}.")):
            name, stride = f"layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1
            out = F.relu(norm(state, f"{name}.bn1", conv(state, f"{name}.conv1", x, stride)))
            out = norm(state, f"{name}.bn2", conv(state, f"{name}.conv2", out))
            if f"{name}.shortcut.0.weight" in state:
                x = conv(state, f"{name}.shortcut.0", x, stride)
                x = norm(state, f"{name}.shortcut.1", x)
            x = out + x
        x = F.relu(x)
    return linear(state, "linear", F.avg_pool2d(x, 4).reshape(x.shape[0], -1))


def ttt(depth: int, n_classes: int, seed: int, n_groups: int) -> State:
    draw, n_in = Draw(seed, "group" if n_groups else "batch"), 16
    draw.conv("conv1", 3, 16, 3)
    for stage, n_out in ((1, 16), (2, 32), (3, 64)):
        for index in range((depth - 2) // 6):
            name = f"layer{stage}.{index}"
            draw.norm(f"{name}.bn1", n_in)
            draw.conv(f"{name}.conv1", n_in, n_out, 3)
            draw.norm(f"{name}.bn2", n_out)
            draw.conv(f"{name}.conv2", n_out, n_out, 3)
            n_in = n_out
    draw.norm("bn", 64)
    draw.linear("fc", 64, n_classes)
    return draw.state


def run_ttt(state: State, x: Tensor, mean: float, std: float, n_groups: int) -> Tensor:
    x = conv(state, "conv1", (x - mean) / std)
    for stage in (1, 2, 3):
        for index in range(blocks(state, f"layer{stage}.")):
            name, halves = f"layer{stage}.{index}", stage > 1 and index == 0
            out = F.relu(norm(state, f"{name}.bn1", x, n_groups))
            out = conv(state, f"{name}.conv1", out, 2 if halves else 1)
            out = conv(state, f"{name}.conv2", F.relu(norm(state, f"{name}.bn2", out, n_groups)))
            if halves:
                pooled = F.avg_pool2d(x, 2)
                x = torch.cat([pooled, 0 * pooled], 1)
            x = x + out
    pooled = F.avg_pool2d(F.relu(norm(state, "bn", x, n_groups)), 8)
    return linear(state, "fc", pooled.view(x.shape[0], -1))


# The four-stage networks of TTT++ -----------------------------------------------------------------


def ttt_plus_plus(n_blocks: tuple[int, ...], bottleneck: bool, n_classes: int, seed: int) -> State:
    draw, n_in, factor = Draw(seed), 64, 4 if bottleneck else 1
    draw.conv("encoder.conv1", 3, 64, 3)
    draw.norm("encoder.bn1", 64)
    for stage, n in enumerate(n_blocks, 1):
        inside = 32 * 2**stage
        for index in range(n):
            name = f"encoder.layer{stage}.{index}"
            widths = [n_in, inside, inside, inside * 4] if bottleneck else [n_in, inside, inside]
            sizes = [1, 3, 1] if bottleneck else [3, 3]
            for number, size in enumerate(sizes, 1):
                draw.conv(f"{name}.conv{number}", widths[number - 1], widths[number], size)
                draw.norm(f"{name}.bn{number}", widths[number])
            if n_in != inside * factor:
                draw.conv(f"{name}.shortcut.0", n_in, inside * factor, 1)
                draw.norm(f"{name}.shortcut.1", inside * factor)
            n_in = inside * factor
    draw.linear("head.0", n_in, n_in)
    draw.linear("head.2", n_in, 128)
    draw.linear("fc", n_in, n_classes)
    return draw.state


def run_ttt_plus_plus(state: State, x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    x = F.relu(norm(state, "encoder.bn1", conv(state, "encoder.conv1", (x - mean) / std)))
    for stage in (1, 2, 3, 4):
        for index in range(blocks(state, f"encoder.layer{stage}.")):
            name, stride = f"encoder.layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1
            last = 3 if f"{name}.conv3.weight" in state else 2
            out = x
            for number in range(1, last + 1):
                step = stride if number == last - 1 else 1  # the 3×3 of a bottleneck, or the first
                out = conv(state, f"{name}.conv{number}", out, step)
                out = norm(state, f"{name}.bn{number}", out)
                out = F.relu(out) if number < last else out
            if f"{name}.shortcut.0.weight" in state:
                x = norm(state, f"{name}.shortcut.1", conv(state, f"{name}.shortcut.0", x, stride))
            x = F.relu(out + x)
    return linear(state, "fc", x.mean(dim=(2, 3)))
