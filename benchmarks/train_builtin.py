"""Train a source model of the built-in task and write its weights.

A plain source model: cross entropy on clean images, flips and shifts by up to two pixels, nothing
that resembles a corruption. The command, on one thread:

    python benchmarks/train_builtin.py --out src/acclimate/builtin/source.safetensors

gives the same weights to the last bit every time on the same machine with the same versions of
torch and NumPy; other processors sum in another order and end at slightly different weights.

Two methods need another source model of the same architecture. `--kind iabn` builds it with
instance-aware BatchNorm (for NOTE). `--kind joint` adds the contrastive loss of SimCLR, as
`acclimate train --objective simclr` does, and writes the projection head beside the model (for
TTT++); it goes on from the plain model, because from fresh weights a budget of minutes is too small
for two losses: 56 000 images, once, end at an error of 39.6 %. The card of each file has its
command.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from acclimate.builtin import CLASSES, SPLITS, WideResNet, load_split, render, untrained_model
from acclimate.functional.iabn import convert
from acclimate.training.objectives import Objective, SimclrJoint

BATCH_SIZE = 64
PEAK_LR = 0.1
WEIGHT_DECAY = 5e-4
MAX_SHIFT = 2
N_TEST = 10_000
N_VALIDATION = 2_000

#: By kind: what the model is that is written.
KINDS = {
    "plain": "WideResNet(depth=10, width=2, n_classes=10)",
    "iabn": "WideResNet(depth=10, width=2, n_classes=10), its BatchNorm layers made "
    "instance-aware (acclimate.functional.iabn.convert) before training",
    "joint": "WideResNet(depth=10, width=2, n_classes=10), trained jointly with a projection head "
    "(beside it) on the contrastive loss of SimCLR, weight 1, temperature 0.5",
}


def parse_arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Train a source model of the built-in task.")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--kind", choices=tuple(KINDS), default="plain", help="of source model")
    parser.add_argument("--images", type=int, default=100_000, help="training images")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training images")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation")
    parser.add_argument("--start", type=Path, help="weights to go on from, instead of fresh ones")
    parser.add_argument("--peak-lr", type=float, default=PEAK_LR, help="highest learning rate")
    return parser.parse_args()


def augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the images flipped at random and shifted by up to two pixels, edges mirrored."""
    n, _, height, width = x.shape
    flipped = torch.rand(n, generator=generator) < 0.5
    x = torch.where(flipped[:, None, None, None], x.flip(3), x)
    padded = F.pad(x, (MAX_SHIFT,) * 4, mode="reflect")
    shifts = torch.randint(0, 2 * MAX_SHIFT + 1, (2, n), generator=generator)
    rows = shifts[0][:, None] + torch.arange(height)
    columns = shifts[1][:, None] + torch.arange(width)
    picked = padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    # Indexing puts the channels last, which is the layout the convolutions are fastest in.
    return picked.permute(0, 3, 1, 2)


class CrossEntropy(Objective):
    """Cross entropy on images that are flipped and shifted."""

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean over the batch."""
        return F.cross_entropy(model(augment(x.float() / 255, generator)), y)


def make_objective(kind: str, seed: int) -> Objective:
    """Return what a source model of that kind is trained to minimise."""
    return SimclrJoint(CrossEntropy(), seed=seed) if kind == "joint" else CrossEntropy()


@torch.no_grad()
def error_percent(model: WideResNet, split: str, n: int) -> float:
    """Return the error on the first images of a split, in percent."""
    model.eval()
    n_wrong = 0
    for start in range(0, n, 500):
        x, y = load_split(split, min(500, n - start), start)
        n_wrong += int((model(x).argmax(dim=1) != y).sum())
    return 100 * n_wrong / n


def train(
    kind: str, n_images: int, n_epochs: int, seed: int, start: Path | None, peak_lr: float
) -> tuple[WideResNet, Objective]:
    """Return a trained model, and the objective with what was trained in it."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = render(n_images, SPLITS["train"])
    x_all, y_all = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)
    model = untrained_model()
    model.initialise(generator)
    if start is not None:
        model.load_state_dict(load_file(start))
    if kind == "iabn":
        convert(model)
    objective = make_objective(kind, seed)
    objective.attach(model, x_all[:2])
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        [*model.parameters(), *objective.parameters()],
        peak_lr,
        momentum=0.9,
        nesterov=True,
        weight_decay=WEIGHT_DECAY,
    )
    n_steps = n_images // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, peak_lr, total_steps=n_epochs * n_steps, pct_start=0.15
    )
    began = time.perf_counter()
    for epoch in range(n_epochs):
        model.train()
        recent = 0.0
        order = torch.randperm(n_images, generator=generator)
        for step, picks in enumerate(torch.split(order, BATCH_SIZE)[:n_steps], start=1):
            loss = objective(model, x_all[picks], y_all[picks], generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            recent += loss.item()
            if step % 100 == 0 or step == n_steps:
                seconds = time.perf_counter() - began
                n_recent = (step - 1) % 100 + 1
                print(
                    f"epoch {epoch + 1}/{n_epochs} step {step}/{n_steps} "
                    f"loss {recent / n_recent:.3f} {seconds:.0f} s",
                    flush=True,
                )
                recent = 0.0
        error = error_percent(model, "validation", N_VALIDATION)
        print(f"validation error {error:.2f} %", flush=True)
    return model.eval(), objective


def write(model: WideResNet, path: Path, card: dict[str, str]) -> None:
    """Write the weights under another name first, so that no half-written file can remain."""
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    os.close(handle)
    try:
        save_file(tensors, temporary, metadata=card)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def main() -> None:
    """Train, measure on the test split once, write."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory before it is written; filling it first would only take time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    began = time.process_time()
    model, objective = train(
        arguments.kind,
        arguments.images,
        arguments.epochs,
        arguments.seed,
        arguments.start,
        arguments.peak_lr,
    )
    minutes = (time.process_time() - began) / 60
    test_error = error_percent(model, "test", N_TEST)
    print(f"test error {test_error:.2f} % on {N_TEST} images, trained in {minutes:.1f} core-min")
    command = shlex.join(["python", *sys.argv])
    card = {
        "command": command,
        "kind": arguments.kind,
        "images": str(arguments.images),
        "epochs": str(arguments.epochs),
        "seed": str(arguments.seed),
        "start": "fresh weights" if arguments.start is None else arguments.start.name,
        "architecture": KINDS[arguments.kind],
        "data": "acclimate built-in task, split train: 32×32 colour images made by code, "
        f"{len(CLASSES)} classes ({', '.join(CLASSES)}); flips and shifts, no corruption",
        "test_error_percent": f"{test_error:.2f}",
        "test_images": str(N_TEST),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, 1 thread",
    }
    write(model, arguments.out, card)
    objective.write(arguments.out, model, card)
    print(f"wrote {arguments.out}, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
