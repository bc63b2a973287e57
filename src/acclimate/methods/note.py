from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from acclimate.forward import Forward
from acclimate.functional.iabn import iabn_layers
from acclimate.functional.norm import use_statistics
from acclimate.functional.reservoir import choose_slot
from acclimate.methods.config import (
    Config,
    EntropyConfig,
    MethodCard,
    Problem,
    changed,
    hp,
    options,
    published,
)
from acclimate.methods.tent import Tent
from acclimate.schema import Items, Maybe, Number, TensorOf


@options
class NoteConfig(EntropyConfig):
    """Options of `note`; NOTE* for i.i.d. streams: memory="fifo", statistics="batch", lr=1e-3."""

    # The authors' script has the same values for all three.
    presets = published("cifar10", "cifar100", "imagenet")

    lr: float = changed(EntropyConfig, "lr", 1e-4)
    statistics: str = changed(EntropyConfig, "statistics", "running")
    statistics_momentum: float = changed(EntropyConfig, "statistics_momentum", 0.01)
    memory: str = hp(
        "balanced",
        choices=("balanced", "fifo"),
        help="what is remembered: as many samples of each predicted class, or the last ones",
    )
    memory_size: int = hp(64, low=2, help="samples remembered")
    update_every: int = hp(64, low=2, help="samples between two updates")


class Note(Tent):
    """Minimises the entropy over a class-balanced memory, on a model with instance-aware BatchNorm.

    The model must have been trained with instance-aware layers (`acclimate.functional.iabn`). Each
    sample is predicted alone, with running statistics; after every 64 samples, also in the midst of
    a batch, follow one pass over the memory (with its own statistics, of which the running ones
    take a share) and one update. In the authors' code the entropy has log(p + 1e-6) and is averaged
    over classes too. Adam hides that factor only where gradients are far larger than its epsilon:
    logits differ by 1e-8 to 3e-2, depending on the model and the stream. Also, a stream shorter
    than 64 gets an update at its end there; here no stream has an end.
    """

    name = "note"
    config_class = NoteConfig
    config: NoteConfig
    card = MethodCard(
        authors="Gong et al.",
        year=2022,
        paper="https://arxiv.org/abs/2208.05117",
        code="https://github.com/TaesikGong/NOTE",
        moves="scale and shift of normalisation layers, running statistics",
        forwards=2,
        backwards=1,
        replays=True,
    )

    images: Tensor | None
    kept: list[int]
    seen: dict[str, int]
    n_samples: int

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        if iabn_layers(model):
            return super().check(model, config)
        return [
            Problem(
                "normalisation",
                "no instance-aware BatchNorm layer was found; NOTE relies on them, and they must "
                "be there when the source model is trained.",
                "Build the model, call acclimate.functional.iabn.convert(model), train it and "
                'adapt that one; or use "tent".',
            )
        ]

    def setup(self) -> None:
        super().setup()
        size, count = self.config.memory_size, Number(int, low=0)
        self.add_state("images", None, Maybe(TensorOf((size, ...))))
        self.add_state("kept", [], Items(count, list, longest=size))
        self.add_state("seen", {}, Items(count))
        self.add_state("n_samples", 0)

    def step(self, x: Tensor) -> Iterator[Tensor]:
        """Predict and remember sample by sample; learn whenever enough have come."""
        parts: list[Tensor] = []
        rest = x
        while len(rest):
            n = self.config.update_every - self.n_samples % self.config.update_every
            parts.append(self.infer(rest[:n]))
            if not parts[1:] and n < len(x) and self.returns_more:
                # What else the model returns is to be that of the whole batch.
                self.return_from(self.run(x, moves=False))
            self._remember(rest[:n], parts[-1])
            rest = rest[n:]
            if not len(rest):
                yield torch.cat(parts)
            is_time = self.n_samples % self.config.update_every == 0
            if is_time and len(self.kept) > 1 and self.images is not None:
                for _ in super().step(self.images[: len(self.kept)]):
                    pass

    def loss(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self._run_memory(x).logits
        return logits, self.config.entropy_of(logits).mean()

    def _run_memory(self, x: Tensor) -> Forward:
        if self.config.statistics != "running":
            return self.run(x)
        # Normalised by its own statistics, as in training; the running ones only follow.
        with use_statistics(self.model, "running", self.config.statistics_momentum):
            return self.run(x, statistics="batch")

    def _remember(self, x: Tensor, logits: Tensor) -> None:
        size, kept, seen = self.config.memory_size, list(self.kept), dict(self.seen)
        if self.images is None:
            images = x.new_zeros(size, *x.shape[1:])
        else:
            images = self.images.to(x, copy=True)  # a loaded state may have another precision
        # An image that overflowed in the model would spoil every pass over the memory.
        usable = torch.isfinite(logits).all(dim=1)
        for image, label in zip(x[usable], logits[usable].argmax(dim=1).tolist(), strict=True):
            key = str(label)
            seen[key] = seen.get(key, 0) + 1
            slot: int | None = (sum(seen.values()) - 1) % size
            if self.config.memory == "balanced":
                slot = choose_slot(kept, label, seen[key], size, self.generator)
            if slot is not None:
                images[slot] = image
                kept[slot : slot + 1] = [label]
        self.images, self.kept, self.seen = images, kept, seen
        self.n_samples += len(x)
