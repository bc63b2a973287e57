"""What the page shows beside the numbers: a few images, and the penalties."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import torch
from PIL import Image
from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.bench.outcome import Outcome
from acclimate.data.request import Data
from acclimate.demo.settings import DemoSettings
from acclimate.functional.norm import norm_parameters
from acclimate.report import Layer, Sample
from acclimate.streams import Domain, reset_each

#: Images of each shift that are kept to be shown.
N_SAMPLES = 4


def get_samples(
    data: Data,
    clean: Domain,
    predicted: Sequence[tuple[Outcome, Mapping[str, Tensor]]],
    settings: DemoSettings,
) -> tuple[Sample, ...]:
    """Return the first images of the last batch of each shift, with seed 0.

    Args:
        data: The shifts.
        clean: The clean images.
        predicted: Outcomes with seed 0, with their predictions on the last batch of each shift.
        settings: What was run.
    """
    size = settings.batch_size
    seed = None if settings.order == "sorted" else 0
    last_clean = list(reset_each([clean], size, seed=seed))[-1]
    last = {batch.domain: batch for batch in reset_each(data.domains, size, seed=seed)}
    names = {id(own): _name(own) for own, _ in predicted}
    return tuple(
        Sample(
            domain=domain,
            clean=_to_png(last_clean.x[index]),
            shifted=_to_png(batch.x[index]),
            truth=data.classes[int(batch.y[index])],
            predictions={
                names[id(own)]: data.classes[int(found[domain][index])] for own, found in predicted
            },
        )
        for domain, batch in last.items()
        for index in range(min(N_SAMPLES, len(batch.x)))
    )


def _name(outcome: Outcome) -> str:
    """Return the method, with the group if there is one."""
    label, group = outcome.entry.label, outcome.entry.group
    return f"{label} ({group})" if group else label


def get_layers(model: nn.Module, artifacts: Sequence[Artifact]) -> tuple[Layer, ...]:
    """Return the penalty of each parameter, in the order of the model."""
    penalties = [artifact.part("penalty") for artifact in artifacts]
    of_norms = norm_parameters(model)
    return tuple(
        Layer(
            name, _kind(name, parameter, name in of_norms), tuple(float(w[name]) for w in penalties)
        )
        for name, parameter in model.named_parameters()
        if name in penalties[0]
    )


def _kind(name: str, parameter: Tensor, is_norm: bool) -> str:
    if is_norm:
        return "normalisation, scale" if name.endswith("weight") else "normalisation, shift"
    if parameter.dim() == 1:
        return "head, bias"
    return "convolution" if parameter.dim() == 4 else "head, weight"


def _to_png(image: Tensor) -> bytes:
    pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()
