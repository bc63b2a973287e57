"""Maps from label-free signals to accuracy, fitted on source images under synthetic shifts."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from acclimate import corruptions
from acclimate.errors import BadInput, UnsuitableModel, how_to_install
from acclimate.forward import Forward, run
from acclimate.functional.entropy import information_maximization
from acclimate.functional.inputs import Normalization
from acclimate.functional.norm import Statistics, batch_norm_layers, use_statistics
from acclimate.functional.pixels import Grid, resize_masks
from acclimate.functional.signals import (
    AccuracyMap,
    describe_predictions,
    find_places,
    measure_signals,
    mirror_back,
    pick_rows,
)
from acclimate.functional.stream_norm import stream_share, use_stream, weigh_batch
from acclimate.options import hp
from acclimate.parts.part import Computed, Context, Part, Saved, register_part
from acclimate.parts.shifts import ALTERATIONS, CLEAN, shift_images
from acclimate.parts.source import iterate_blocks
from acclimate.schema import Schema, TensorOf

#: Corruptions need a neighbourhood.
SMALLEST_SIDE = 8
#: Larger images cost so much more that fewer are used.
LARGE_SIDE = 64

#: Window sizes that have a map of their own: small windows have other signals than large ones.
SIZES = (32, 128, 512)
#: Images that the moments of a stream are measured on.
_STREAM_SIZE = 256


@dataclass(frozen=True)
class Run:
    """One way to predict the images of a shift while adapting.

    Attributes:
        order: `"shuffled"`, `"sorted"` by class, or `"few"`: images of two classes, repeated.
        batch_size: Batch size.
        statistics: BatchNorm statistics; `"stream"` for those of the shuffled images, mixed with
            the source's as `statistics="auto"` does.
        momentum: Share of the batch in mixed and robust statistics.
        rate: Learning rate of entropy minimisation over all parameters; 0 for no learning.
        diversity: Weight of the entropy of the mean prediction, which is then maximised.
        passes: Number of times that the images are predicted; the last time counts.
    """

    order: str
    batch_size: int
    statistics: Statistics | Literal["stream"] = "batch"
    momentum: float = 0.5
    rate: float = 0.0
    diversity: float = 0.0
    passes: int = 1


class Window(NamedTuple):
    """What was measured on a window of predictions."""

    signals: Tensor
    accuracies: Tensor
    is_correlated: bool
    shift: str


#: Of these, the first three are made with each shift, and some of the others in turn.
_STATISTICS_RUNS = (
    Run("shuffled", 128),
    Run("sorted", 32),
    Run("few", 32),
    Run("shuffled", 4),
    Run("shuffled", 64, "mixed"),
    Run("shuffled", 16),
    Run("sorted", 32, "mixed"),
    Run("shuffled", 64, "robust", momentum=0.1, passes=2),
    Run("sorted", 32, "stream"),
    Run("few", 32, "stream"),
    Run("shuffled", 8, "stream"),
)
_N_FIXED = 3
# Careful learning, which helps, and several ways to collapse, of which some take many steps.
_LEARNING_RUNS = (
    Run("shuffled", 64, "source", rate=3e-4, diversity=1.0, passes=4),
    Run("shuffled", 64, "batch", rate=3e-3, passes=2),
    Run("sorted", 32, "source", rate=1e-3),
    Run("shuffled", 64, "batch", rate=3e-4, diversity=1.0, passes=4),
    Run("shuffled", 64, "source", rate=1e-2),
    Run("sorted", 32, "batch", rate=1e-2),
    Run("shuffled", 64, "batch", rate=1e-3, passes=4),
    Run("few", 32, "source", rate=1e-2),
    Run("shuffled", 64, "batch", rate=1e-2, diversity=1.0),
)


@register_part
@dataclass(frozen=True, kw_only=True)
class Accuracy(Part):
    """What the guard and `estimate` need: how label-free signals relate to accuracy.

    Source images are spoilt by synthetic shifts, clean ones included, and predicted by the source
    model and by models that adapt in different ways: with statistics of large, small and one-sided
    batches and of the stream, and by minimising entropy until the predictions collapse. The signals
    of all windows and the true accuracies give one map for each window size; see
    `acclimate.functional.signals`. The shifts are described in `acclimate.parts.shifts`.

    The tensors are `accuracy/<size>/...`, and on clean images `accuracy/confidence` and
    `accuracy/is_correct`, by which other estimators are calibrated.
    """

    name: ClassVar[str] = "accuracy"
    dense: ClassVar[bool] = True
    always_exact: ClassVar[bool] = True

    n_samples: int = hp(512, low=64, help="number of source images of up to 64 × 64 pixels")
    n_large: int = hp(128, low=64, help="number of source images if they are larger")
    shifts: tuple[str, ...] = hp(
        corruptions.HELD_OUT, help="corruptions by which source images are shifted"
    )
    alterations: tuple[str, ...] = hp(
        ALTERATIONS, help="simpler shifts, used at the highest severity"
    )
    severities: tuple[int, ...] = hp((1, 3, 5), help="severities of each shift")
    n_runs: int = hp(7, low=4, help="number of adapting models per shift and severity")

    @classmethod
    def tensor_schemas(cls, saved: Saved) -> Mapping[str, Schema]:
        share = TensorOf(("rows",), low=0, high=1)
        maps = AccuracyMap.tensor_schemas().items()
        return {
            "accuracy/confidence": share,
            "accuracy/is_correct": share,
            **{f"accuracy/{size}/{name}": schema for size in SIZES for name, schema in maps},
        }

    @staticmethod
    def find_obstacle(x: Tensor) -> str:
        """Return why source images such as these cannot be corrupted; empty if they can."""
        if x.dim() != 4 or x.shape[1] != 3 or min(x.shape[2:]) < SMALLEST_SIDE:
            return (
                f"it corrupts colour images (N, 3, height, width) of at least {SMALLEST_SIDE} "
                f"pixels, but the source has images of shape {tuple(x.shape)}"
            )
        absent = [name for name in ("scipy", "cv2") if importlib.util.find_spec(name) is None]
        if absent:
            how = how_to_install("corruptions")
            return f"{' and '.join(absent)} cannot be imported; install the extra: {how}"
        return ""

    @torch.no_grad()
    def compute(self, context: Context) -> Computed:
        images, labels = _take_images(context, self.n_samples, self.n_large)
        generator = context.generator
        has_batch_norm = bool(batch_norm_layers(context.model))
        found: dict[int, list[Window]] = {size: [] for size in SIZES}
        shifts = self._list_shifts()
        clean = torch.empty(0)
        n_done = 0
        for number, (name, severity) in enumerate(shifts):
            x = _shift(images, name, severity, context.info.normalization)
            x = x.to(dtype=_dtype(context.model))
            source, targets = _predict(context, x, labels, "source")
            if number == 0:
                clean = torch.stack([source[..., 1], _is_correct(source, targets)], dim=-1)
                clean = clean[~targets.isnan()]  # (rows, 2)
            for each in self._choose_runs(number, has_batch_norm):
                order = _order(each, labels, generator)
                described = _adapt(context, x[order], each)
                adapted = described[..., :3]
                records = torch.cat([source[order], described], dim=-1)
                for group in _groups(order, name):
                    for size, window in _windows(len(group)):
                        chosen = group[window]
                        truth = targets[order][chosen]
                        signals = measure_signals(
                            records[chosen].flatten(0, 1), context.info.known_classes
                        )
                        accuracies = torch.stack(
                            [
                                _is_correct(source[order][chosen], truth).nanmean(),
                                _is_correct(adapted[chosen], truth).nanmean(),
                            ]
                        ).double()
                        if signals.isfinite().all() and accuracies.isfinite().all():
                            found[size].append(
                                Window(signals, accuracies, each.order != "shuffled", name)
                            )
                n_done += 1
                if context.source.progress is not None:
                    context.source.progress("accuracy", n_done, len(shifts) * self.n_runs)
        tensors = {
            "accuracy/confidence": clean[:, 0].clone(),
            "accuracy/is_correct": clean[:, 1].clone(),
        }
        if not all(found.values()):
            raise BadInput(
                "too_few_samples",
                f"Expected at least 2 source images for the part accuracy, found {len(images)}. "
                "Pass more source data; some hundreds are needed for a useful estimate.",
                expected=2,
                found=len(images),
            )
        spreads = {}
        for size, rows in found.items():
            made = AccuracyMap.fit(
                size,
                signals=torch.stack([row.signals for row in rows]),
                accuracies=torch.stack([row.accuracies for row in rows]),
                is_correlated=torch.tensor([row.is_correlated for row in rows]),
                shifts=[row.shift for row in rows],
            )
            tensors |= {f"accuracy/{size}/{k}": v for k, v in made.to_tensors().items()}
            spreads[str(size)] = [round(value, 4) for value in made.spread.tolist()]
        return tensors, {**self.to_card(), "n_samples": len(images), "spread": spreads}

    def _list_shifts(self) -> list[tuple[str, int]]:
        """Return names and severities: clean images, each shift, several at once, and mixtures.

        Several shifts of the highest severity spoil images more than any one does. In a mixture,
        predictions spread over more classes than under one shift.
        """
        highest = max(self.severities)
        single = [(name, severity) for name in self.shifts for severity in self.severities]
        single += [(name, highest) for name in self.alterations]
        groups = [*itertools.combinations(self.shifts, 2), self.shifts]
        groups += zip(self.alterations, self.shifts, strict=False)
        several = [("+".join(names), highest) for names in groups if len(names) > 1]
        mixtures = [self.shifts, (CLEAN, *self.shifts), self.alterations]
        mixtures.append((*self.shifts, *self.alterations))
        mixed = [("/".join(names), highest) for names in mixtures if len(names) > 1]
        return list(dict.fromkeys([(CLEAN, 0), *single, *several, *mixed]))

    def _choose_runs(self, number: int, has_batch_norm: bool) -> list[Run]:
        """Return the runs of the shift with this number, so that all kinds come in turn."""
        fixed = _STATISTICS_RUNS[:_N_FIXED] if has_batch_norm else ()
        others = [
            each
            for each in (*_STATISTICS_RUNS[len(fixed) :], *_LEARNING_RUNS)
            if has_batch_norm or each.rate > 0
        ]
        if not has_batch_norm:
            others = [dataclasses.replace(each, statistics="source") for each in others]
        n = self.n_runs - len(fixed)
        return [*fixed, *(others[(number * n + place) % len(others)] for place in range(n))]


def _take_images(context: Context, n_samples: int, n_large: int) -> tuple[Tensor, Tensor]:
    """Return source images, 8-bit (n, height, width, 3) on the CPU, and their labels."""
    normalization: Normalization | None = context.info.normalization
    images: list[Tensor] = []
    labels: list[Tensor] = []
    n = max(n_samples, n_large)
    for x, y in iterate_blocks(context.source, "accuracy", n, 64):
        n = n_samples if max(x.shape[-2:]) <= LARGE_SIDE else n_large
        if sum(map(len, images)) >= n:
            break
        if obstacle := Accuracy.find_obstacle(x):
            raise UnsuitableModel(
                "not_applicable",
                f"The part accuracy cannot be prepared: {obstacle}. Prepare without it, and adapt "
                "without a guard.",
                option="accuracy",
            )
        pixels = (
            x.float() if normalization is None else normalization.denormalize(x.float())
        ).cpu()
        images.append((pixels.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).contiguous())
        labels.append(y.cpu())
    return torch.cat(images)[:n], torch.cat(labels)[:n]


def _shift(images: Tensor, name: str, severity: int, normalization: Normalization | None) -> Tensor:
    pixels = shift_images(images.numpy(), name, severity)
    x = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).float() / 255
    return x if normalization is None else normalization.normalize(x)


def _dtype(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _order(each: Run, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return the order in which a run predicts the images."""
    order = torch.randperm(len(labels), generator=generator)
    if labels.dim() > 1:  # masks: a camera that sees few scenes
        return (
            order
            if each.order == "shuffled"
            else order[:4].repeat(-(-len(order) // 4))[: len(order)]
        )
    if each.order == "sorted":
        return order[torch.argsort(labels[order], stable=True)]
    if each.order == "few":
        kinds = torch.unique(labels)
        kinds = kinds[torch.randperm(len(kinds), generator=generator)[:2]]
        chosen = order[torch.isin(labels[order], kinds)]
        return chosen[torch.randint(len(chosen), (len(order),), generator=generator)]
    return order


def _groups(order: Tensor, shift: str) -> list[Tensor]:
    """Return the places of the images of each component of a mixture; of others, all places.

    The guard judges the images of each style by themselves, however they are mixed.
    """
    n = len(shift.split("/"))
    groups = [torch.nonzero(order % n == number)[:, 0] for number in range(n)]
    return [group for group in groups if len(group) > 1]


def _windows(n: int) -> Iterator[tuple[int, slice]]:
    """Yield the window sizes with the windows of up to `n` images; at least one for each size."""
    for size in SIZES:
        length = min(size, n)
        for start in range(0, n - length + 1, length):
            yield size, slice(start, start + length)


def _adapt(context: Context, x: Tensor, each: Run) -> Tensor:
    """Return descriptions of the predictions of a model that adapts while it predicts.

    The last two of the five columns are of the source model with statistics of the batch.
    """
    model, has_batch_norm = context.model, bool(batch_norm_layers(context.model))
    is_norm = not each.rate and each.statistics == "batch"
    optimizer = None
    if each.rate or each.statistics == "robust":
        model = copy.deepcopy(model)
    if each.rate:
        parameters = [p for p in model.requires_grad_(True).parameters() if p.is_floating_point()]
        optimizer = torch.optim.Adam(parameters, lr=each.rate)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    stream = _find_moments(context, x, device) if each.statistics == "stream" else None
    batches = torch.split(x, each.batch_size)
    n_unseen = len(batches) * (each.passes - 1)
    found = []
    for number, batch in enumerate(batches * each.passes):
        batch = batch.to(device)
        learns = torch.set_grad_enabled(optimizer is not None)
        with _normalise_as(model, each, len(batch), stream), learns:
            result = _forward(model, batch, context)
        if number >= n_unseen:
            with _normalise_as(model, each, len(batch), stream, moves=False):
                described = _describe(result, _forward(model, batch.flip(-1), context))
            by_norm = described
            if not is_norm:
                alone = len(batch) == 1 or not has_batch_norm
                with use_statistics(context.model, "source" if alone else "batch"):
                    by_norm = _describe(_forward(context.model, batch, context), None)
            found.append(torch.cat([described, by_norm[..., :2]], dim=-1))
        if optimizer is not None:
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = information_maximization(result.logits, 1.0, each.diversity)
            if loss.requires_grad and bool(loss.isfinite()):
                torch.autograd.backward(loss)
                optimizer.step()
    return torch.cat(found)


@contextmanager
def _normalise_as(
    model: nn.Module, each: Run, n: int, stream: Mapping[str, Any] | None, moves: bool = True
) -> Iterator[None]:
    """Normalise a batch of n images with the statistics of a run."""
    if each.statistics == "stream":
        own, n_effective = weigh_batch(stream, n)
        with (
            use_statistics(model, "source"),
            use_stream(model, stream, own, stream_share(n_effective)),
        ):
            yield
        return
    alone = n == 1 and each.statistics == "batch"
    with use_statistics(model, "source" if alone else each.statistics, each.momentum, moves):
        yield


def _find_moments(context: Context, x: Tensor, device: torch.device) -> Mapping[str, Any]:
    """Return the state of a stream in which the images came shuffled."""
    order = torch.randperm(len(x), generator=context.generator)[:_STREAM_SIZE]
    with use_statistics(context.model, "source"), use_stream(context.model, None, 1.0, 0.0) as seen:
        _forward(context.model, x[order].to(device), context)
    return {"n": float(len(order)), "moments": dict(seen)}


def _predict(
    context: Context, x: Tensor, labels: Tensor, statistics: Statistics
) -> tuple[Tensor, Tensor]:
    """Return descriptions of the source model's predictions (images, rows, 3), and their labels."""
    device = next((p.device for p in context.model.parameters()), torch.device("cpu"))
    found, targets = [], []
    with use_statistics(context.model, statistics):
        for batch, y in zip(torch.split(x, 64), torch.split(labels, 64), strict=True):
            batch = batch.to(device)
            result = _forward(context.model, batch, context)
            mirrored = _forward(context.model, batch.flip(-1), context)
            found.append(_describe(result, mirrored))
            targets.append(_label_rows(y, result.grid, context.source.ignore_label))
    return torch.cat(found), torch.cat(targets)


def _forward(model: nn.Module, x: Tensor, context: Context) -> Forward:
    return run(model, x, None, context.info.logits_at, context.call)


def _describe(result: Forward, mirrored: Forward | None) -> Tensor:
    n_images = len(result.logits) if result.grid is None else result.grid.n_images
    back = None
    if mirrored is not None:
        back = pick_rows(mirror_back(mirrored.logits, mirrored.grid), result.grid)
    rows = pick_rows(result.logits.detach(), result.grid)
    return describe_predictions(rows, back).reshape(n_images, -1, 3)


def _label_rows(y: Tensor, grid: Grid | None, ignore_label: int | None) -> Tensor:
    """Return labels (images, rows) in single precision; NaN where there is none."""
    if grid is None:
        return y[:, None].float()
    masks = resize_masks(y, grid[1:]).flatten(1)[:, find_places(grid)].float()
    return masks if ignore_label is None else masks.masked_fill(masks == ignore_label, torch.nan)


def _is_correct(described: Tensor, targets: Tensor) -> Tensor:
    """Return 1 where a prediction is correct, 0 where it is wrong, NaN where there is no label."""
    correct = (described[..., 0] == targets).float()
    return correct.masked_fill(targets.isnan(), torch.nan)
