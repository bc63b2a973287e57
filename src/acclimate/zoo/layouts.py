"""How the tensors of published checkpoints are named, and what we call them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """How the names in a published checkpoint become ours.

    Attributes:
        renames: regular expressions and what replaces them, applied one after the other.
        extras: what the file may carry that is no part of the model, as regular expressions.
    """

    renames: tuple[tuple[str, str], ...] = ()
    extras: tuple[str, ...] = ()

    def rename(self, name: str) -> str:
        """Return our name of a tensor."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name

    def is_extra(self, name: str) -> bool:
        """Return whether a tensor of that name is no part of the model."""
        return any(re.search(pattern, name) for pattern in self.extras)


_BLOCKS = (
    (r"^layer(\d)\.", r"stage\1."),
    (r"\.bn(\d)\.", r".norm\1."),
    (r"\.shortcut\.0\.", r".shortcut.conv."),
    (r"\.shortcut\.1\.", r".shortcut.norm."),
)

LAYOUTS = {
    # https://github.com/RobustBench/robustbench, model_zoo/architectures/wide_resnet.py. Some files
    # have a stage `sub_block1` that the published model never runs; it is left out.
    "robustbench": Layout(
        (
            (r"^conv1\.", "stem."),
            (r"^block(\d)\.layer\.", r"stage\1."),
            (r"\.bn(\d)\.", r".norm\1."),
            (r"\.convShortcut\.", ".shortcut."),
            (r"^bn1\.", "norm."),
            (r"^fc\.", "head."),
            (r"^mu$", "mean"),
            (r"^sigma$", "std"),
        ),
        (r"^sub_block1\.",),
    ),
    # https://github.com/akamaster/pytorch_resnet_cifar10 and, with projections,
    # https://github.com/karanchahal/distiller.
    "cifar_resnet": Layout(
        ((r"^conv1\.", "stem."), (r"^bn1\.", "norm."), *_BLOCKS, (r"^linear\.", "head."))
    ),
    # https://github.com/yueatsprograms/ttt_cifar_release and https://github.com/zhangmarvin/memo.
    "ttt": Layout(((r"^conv1\.", "stem."), (r"^bn\.", "norm."), *_BLOCKS, (r"^fc\.", "head."))),
    # https://github.com/vita-epfl/ttt-plus-plus: `encoder` (or `ext`) and `fc` are the classifier;
    # `head.0` and `head.2` project features for the contrastive loss of training.
    "ttt_plus_plus": Layout(
        (
            (r"^(encoder|ext)\.", ""),
            (r"^conv1\.", "stem."),
            (r"^bn1\.", "norm."),
            *_BLOCKS,
            (r"^(head\.)?fc\.", "head."),
        ),
        (r"^head\.\d",),
    ),
}
