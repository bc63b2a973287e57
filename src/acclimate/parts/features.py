"""Moments of features and predictions on source data, which methods and the guard need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acclimate.functional.entropy import entropy, log_probs
from acclimate.introspect import ModelInfo
from acclimate.parts.part import Computed, Context, Part, Saved, register_part
from acclimate.parts.source import check_labelled
from acclimate.schema import Schema, TensorOf


@register_part
@dataclass(frozen=True, kw_only=True)
class Features(Part):
    """Moments of the features and of the predictions over one pass of the source.

    The tensors are `features/mean` (d) and `features/covariance` (d, d; unbiased), and by class
    `class_count` (K), `class_mean` (K, d) and `class_variance` (K, d; unbiased, zero for a class
    with one sample); and the mean probabilities `predictions/mean` (K) and the mean entropy
    `predictions/entropy`. If the model predicts every pixel, the predictions are those of all
    pixels of the logits, and the features those of the labelled pixels at the input of the head.
    """

    name: ClassVar[str] = "features"
    dense: ClassVar[bool] = True

    @classmethod
    def tensor_schemas(cls, saved: Saved) -> Mapping[str, Schema]:
        return {
            "features/mean": TensorOf(("features",)),
            "features/covariance": TensorOf(("features", "features")),
            "features/class_count": TensorOf(("classes",), low=0),
            "features/class_mean": TensorOf(("classes", "features")),
            "features/class_variance": TensorOf(("classes", "features"), low=0),
            "predictions/mean": TensorOf(("classes",), low=0),
            "predictions/entropy": TensorOf((), low=0),
        }

    def n_passes(self, info: ModelInfo) -> int:
        return 1

    @torch.no_grad()
    def compute(self, context: Context) -> Computed:
        source, encoder = context.source, context.encoder
        n_classes, n_features = context.info.known_classes, context.info.known_width
        # On the CPU in double precision: sums over a data set lose digits in single precision, and
        # not every device supports double precision.
        count = torch.zeros(n_classes, dtype=torch.float64)
        total = torch.zeros(n_classes, n_features, dtype=torch.float64)
        squares = torch.zeros(n_classes, n_features, dtype=torch.float64)
        products = torch.zeros(n_features, n_features, dtype=torch.float64)
        mean_prediction = torch.zeros(n_classes, dtype=torch.float64)
        entropy_sum = torch.zeros((), dtype=torch.float64)
        shift: Tensor | None = None
        n_images = n_rows = n_labelled = n_errors = 0
        for x, y in source.iterate("features"):
            result = encoder.recall(x)
            at_logits, is_judged = source.label_rows(y, result.grid)
            y, is_labelled = source.label_rows(y, result.feature_grid)
            features, y = result.features.cpu().double(), y[is_labelled].cpu()
            # Shift the data by a first estimate of the mean, which avoids cancellation.
            shift = features.mean(dim=0) if shift is None else shift
            centred = features[is_labelled.cpu()] - shift
            count += torch.bincount(y, minlength=n_classes)
            total.index_add_(0, y, centred)
            squares.index_add_(0, y, centred**2)
            products += centred.T @ centred
            mean_prediction += log_probs(result.logits).exp().sum(dim=0).cpu().double()
            entropy_sum += entropy(result.logits).sum().cpu().double()
            n_images += len(x)
            n_rows += len(result.logits)
            n_labelled += int(is_judged.sum())
            n_errors += int((result.logits.argmax(dim=1) != at_logits)[is_judged].sum())
        encoder.end_pass()
        n = int(count.sum())
        check_labelled(n)
        mean = total.sum(dim=0) / n
        covariance = (products - n * mean[:, None] * mean) / max(n - 1, 1)
        each = count.clamp_min(1)[:, None]
        class_mean = total / each
        class_variance = (squares - each * class_mean**2) / (each - 1).clamp_min(1)
        origin = torch.zeros_like(mean) if shift is None else shift
        tensors = {
            "features/mean": mean + origin,
            "features/covariance": covariance,
            "features/class_count": count,
            "features/class_mean": (class_mean + origin) * (count > 0)[:, None],
            "features/class_variance": class_variance.clamp_min(0),
            "predictions/mean": mean_prediction / n_rows,
            "predictions/entropy": entropy_sum / n_rows,
        }
        single = {name: value.float() for name, value in tensors.items()}
        return single, {"n_samples": n_images, "error": n_errors / max(n_labelled, 1)}
