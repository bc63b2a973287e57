"""Turn an adapted model into a plain module that predicts as it does now, and write it to files.

The module is a copy of the model without hooks. BatchNorm normalises with statistics that are
stored in the layers:

* `source`, `running`, `robust`: the layers' own; predictions are the same.
* `auto`: the mixture of the source and the stream so far. The live model adds each batch to the
  stream before it predicts, so its predictions differ a little.
* `batch`, `mixed`: those of probe batches, pooled. The live model uses those of each batch alone.

What a plain module cannot do is listed in the card as `lost`: predictions that depend on the
batches before, or on other samples of a batch.

`write_format` writes a module as safetensors, TorchScript, .pt2 or ONNX, reads the file again and
compares its logits with the module's.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from acclimate.errors import (
    AcclimateWarning,
    InvalidConfig,
    MissingExtra,
    NotAdapted,
    UnsuitableModel,
    check_name,
    how_to_install,
    warn,
)
from acclimate.forward import LogitsAt, get_logits
from acclimate.functional.norm import Statistics, batch_moments, batch_norm_layers, use_statistics
from acclimate.functional.stream_norm import Stream, pool_styles, stream_share
from acclimate.storage import versions, write_atomically

if TYPE_CHECKING:
    from acclimate.methods.method import Method

#: Mean and variance of a BatchNorm layer.
Moments = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """How a method predicts, as far as a plain module can do so.

    Attributes:
        model: The module that predicts: the adapted model, or a teacher.
        statistics: The BatchNorm statistics of the prediction.
        moments: Statistics of single layers that the method keeps itself, by the layer's name.
        is_mirrored: Whether predictions are averaged over the image and its mirror image.
        lost: What the method does to predictions besides, in one sentence each.
    """

    model: nn.Module
    statistics: str
    moments: Mapping[str, Moments] = field(default_factory=dict)
    is_mirrored: bool = False
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exported:
    """A plain module, and what is known about it.

    Attributes:
        module: In evaluation mode; nothing in it learns.
        card: JSON types: method, options, counts, source, statistics, what is lost, and the
            differences from the live model on the probe batches.
    """

    module: nn.Module
    card: dict[str, Any]


class MirrorAverage(nn.Module):
    """Returns the logarithm of the mean probabilities of images and mirror images.

    Args:
        model: A classifier of images that returns logits.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return log-probabilities (batch, classes)."""
        views = torch.stack([self.model(x), self.model(x.flip(-1))]).log_softmax(dim=-1)
        return views.logsumexp(dim=0) - math.log(2)


def export_model(adapted: Method, probe: Tensor | Sequence[Tensor] = ()) -> Exported:
    """Return a plain module that predicts as an adapted model does now, with its card.

    Args:
        adapted: The result of `acclimate.adapt`. It is not changed.
        probe: One or more recent batches of the stream. Statistics of batches are taken from
            them, and the differences from the live predictions are measured on them.

    Raises:
        NotAdapted: A plain module cannot predict as this method does.
        InvalidConfig: The statistics in use are those of batches, and there is no probe.
    """
    kind = type(adapted)
    if _owner(kind, "infer") < _owner(kind, "plan_export"):
        raise refuse_export(adapted.name, "it defines infer() but not plan_export().")
    batches = [probe] if isinstance(probe, Tensor) else list(probe)
    with adapted.settled():
        plan = adapted.plan_export()
        module = copy.deepcopy(plan.model).eval()
        for own, source in zip(module.parameters(), adapted.model.parameters(), strict=True):
            own.requires_grad_(source.requires_grad)
        layers = batch_norm_layers(module)
        moments = _find_moments(adapted, plan, module, batches) if layers else {}
    for name, (mean, variance) in moments.items():
        _set_statistics(layers[name], mean, variance)
    if plan.is_mirrored:
        module = MirrorAverage(module).eval()
    lost = list(plan.lost)
    if adapted.guard is not None and adapted.guard.answers:
        lost.append("The guard answers with the source model where adaptation does not help.")
    card = {
        "method": adapted.name,
        "config": adapted.config.to_dict(),
        "source_sha256": adapted.source_sha256,
        "counts": asdict(adapted.counts),
        "statistics": _describe_statistics(plan, bool(layers), batches),
        "is_mirrored": plan.is_mirrored,
        "lost": lost,
        "differences": _compare(adapted, module, batches),
        "versions": versions(),
    }
    if lost:
        warn(
            AcclimateWarning(
                "export_incomplete",
                f'The exported module does not do all that the method "{adapted.name}" does: '
                f"{' '.join(lost)} Check the differences in its card.",
            )
        )
    return Exported(module, card)


def refuse_export(method: str, reason: str) -> NotAdapted:
    """Return the error for a method whose predictions no plain module can make."""
    return NotAdapted(
        "not_exportable",
        f'The method "{method}" cannot be exported as a plain module: {reason} Serve the adapted '
        "model itself, or adapt with another method.",
        method=method,
    )


def _owner(kind: type, name: str) -> int:
    """Return the place, in the order of resolution, of the class that defines an attribute."""
    return next(place for place, base in enumerate(kind.__mro__) if name in vars(base))


def _find_moments(
    adapted: Method, plan: ExportPlan, module: nn.Module, batches: Sequence[Tensor]
) -> dict[str, Moments]:
    """Return the statistics to store in the layers, by name; those left out stay as they are."""
    if plan.moments:
        return dict(plan.moments)
    if plan.statistics == "auto":
        return _stream_moments(module, adapted.stream, adapted.trust)
    if plan.statistics in ("batch", "mixed"):
        if not batches:
            raise InvalidConfig(
                "missing_option",
                f"The method normalises with {plan.statistics} statistics, which a plain module "
                "does not have. Pass recent batches of the stream to take them from: "
                "adapted.export(batches).",
                option="probe",
            )
        share = adapted.batch_share(len(batches[0]), plan.statistics)
        return _batch_moments(module, plan.statistics, share, batches)
    return {}


def _stream_moments(module: nn.Module, stream: Stream, trusted: float) -> dict[str, Moments]:
    """Return the mixture of the source's statistics and the stream's, over all styles."""
    if stream is None:
        return {}
    n, moments = pool_styles(stream)
    share = stream_share(n) * trusted
    found: dict[str, Moments] = {}
    for name, layer in batch_norm_layers(module).items():
        mean, variance = layer.running_mean, layer.running_var
        if name in moments and mean is not None and variance is not None:
            of_stream = moments[name].to(mean)
            found[name] = (
                torch.lerp(mean, of_stream[0], share),
                torch.lerp(variance, of_stream[1], share),
            )
    return found


@torch.no_grad()
def _batch_moments(
    module: nn.Module, statistics: str, share: float, batches: Sequence[Tensor]
) -> dict[str, Moments]:
    """Return the statistics in use on batches, pooled over all samples."""
    is_mixed = statistics == "mixed"
    sums: dict[str, list[Tensor]] = {}

    def record(name: str, weight: float, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        dtype = torch.promote_types(inputs[0].dtype, torch.float32)
        mean, variance = batch_moments(inputs[0], dtype, correction=int(is_mixed))
        terms = [weight * mean, weight * mean.square(), weight * variance]
        known = sums.get(name, [torch.zeros_like(mean)] * 3)
        sums[name] = [a + b for a, b in zip(known, terms, strict=True)]

    n = sum(len(x) for x in batches)
    for x in batches:
        hooks = [
            layer.register_forward_pre_hook(partial(record, name, len(x) / n))
            for name, layer in batch_norm_layers(module).items()
        ]
        chosen: Statistics = "mixed" if is_mixed else "batch"
        try:
            # Our hooks come first: they see the input before "mixed" changes it.
            with use_statistics(module, chosen, share):
                module(x)
        finally:
            for hook in hooks:
                hook.remove()
    found: dict[str, Moments] = {}
    for name, layer in batch_norm_layers(module).items():
        if name not in sums:
            continue
        mean, square, within = sums[name]
        variance = within + (square - mean.square()).clamp_min(0)
        own_mean, own_variance = layer.running_mean, layer.running_var
        if is_mixed and own_mean is not None and own_variance is not None:
            mean = torch.lerp(own_mean.to(mean), mean, share)
            variance = torch.lerp(own_variance.to(mean), variance, share)
        found[name] = (mean, variance)
    return found


def _set_statistics(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    like = layer.running_mean if layer.running_mean is not None else mean
    layer.running_mean = mean.detach().to(like).clone()
    layer.running_var = variance.detach().to(like).clone()
    layer.track_running_stats = True


def _describe_statistics(
    plan: ExportPlan, has_batch_norm: bool, batches: Sequence[Tensor]
) -> dict[str, Any]:
    if not has_batch_norm:
        return {"kind": "none", "origin": "The model has no BatchNorm layers."}
    origin = {
        "batch": f"Pooled over {sum(map(len, batches))} probe samples.",
        "mixed": f"The source's, mixed with those of {sum(map(len, batches))} probe samples.",
        "auto": "The source's, mixed with those of the stream so far.",
    }.get(plan.statistics, "Those of the layers.")
    return {"kind": plan.statistics, "origin": "Kept by the method." if plan.moments else origin}


@torch.no_grad()
def _compare(
    adapted: Method, module: nn.Module, batches: Sequence[Tensor]
) -> dict[str, Any] | None:
    """Return how far the module's predictions are from the live ones; None without a probe."""
    if not batches:
        return None
    largest, n_equal, n = 0.0, 0, 0
    for x in batches:
        with adapted.paused():
            live = _logits_of(adapted, adapted(x))
        plain = _logits_of(adapted, module(x))
        largest = max(largest, float((live - plain).abs().max()))
        equal = live.argmax(dim=1) == plain.argmax(dim=1)
        n_equal, n = n_equal + int(equal.sum()), n + equal.numel()
    return {
        "n_samples": sum(len(x) for x in batches),
        "n_batches": len(batches),
        "max_abs_logit": largest,
        "class_agreement": n_equal / n,
    }


def _logits_of(adapted: Method, output: Any) -> Tensor:
    return get_logits(output, None if isinstance(output, Tensor) else adapted.logits_at)


# Files --------------------------------------------------------------------------------------------

#: What a writer returns: the content of the file, and the model that was read from it.
_Written = tuple[bytes, Callable[[Tensor], Any]]


class _Logits(nn.Module):
    """A model that returns its logits alone."""

    def __init__(self, model: nn.Module, logits_at: LogitsAt) -> None:
        super().__init__()
        self.model, self.logits_at = model, logits_at

    def forward(self, x: Tensor) -> Tensor:
        output = self.model(x)
        return get_logits(output, None if isinstance(output, Tensor) else self.logits_at)


def check_format(kind: str) -> None:
    """Refuse an unknown format, and one that needs a package that is not installed."""
    check_name(kind, FORMATS, "format")
    for package in FORMATS[kind].packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(
                "missing_extra",
                f"Writing {kind} requires {package}, which is not installed. "
                f"Run: {how_to_install('export')}, or choose other formats.",
                package=package,
            )


def write_format(
    module: nn.Module, x: Tensor, kind: str, path: Path, logits_at: LogitsAt = None
) -> float:
    """Write a module in a format, and return the largest difference of its logits.

    The batch size of the file is free; the other dimensions are those of `x`.

    Args:
        module: A plain module in evaluation mode, on the CPU.
        x: At least two samples, on which the file is compared with the module.
        kind: A name of `FORMATS`.
        path: The file to write.
        logits_at: Where the logits are in the output of the module.

    Raises:
        MissingExtra: A package is not installed.
        UnsuitableModel: The model cannot be written in this format, or its logits differ by more
            than `FORMATS` allows. Nothing was written.
    """
    check_format(kind)
    allowed = FORMATS[kind].tolerance
    model = _Logits(module, logits_at).eval()
    with torch.no_grad():
        expected = model(x)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tracers, about their own internals
            content, again = FORMATS[kind].write(model, x)
            found = again(x)
            again(x[:1])  # another batch size must work, too
    except Exception as error:  # the exporters fail in many ways
        reason = str(error).strip().splitlines()
        raise UnsuitableModel(
            "format_failed",
            f"The model cannot be written as {kind}: {type(error).__name__}: "
            f"{reason[0] if reason else 'no reason given'}. Choose other formats.",
            format=kind,
        ) from error
    difference = float((found - expected).abs().max())
    if not difference <= allowed:
        raise UnsuitableModel(
            "format_failed",
            f"Expected the logits of the {kind} file to equal the model's to {allowed:g}, "
            f"found a difference of {difference:.3g}. Choose other formats.",
            format=kind,
        )
    write_atomically(path, content)
    return difference


def _write_safetensors(model: _Logits, x: Tensor) -> _Written:
    # Tied tensors share memory, which safetensors refuses: each gets its own copy.
    state = {name: t.detach().contiguous().clone() for name, t in model.model.state_dict().items()}
    content = save_tensors(state)
    named = {f"model.{name}": t for name, t in load_tensors(content).items()}
    return content, lambda x: torch.func.functional_call(model, named, (x,))


def _write_torchscript(model: _Logits, x: Tensor) -> _Written:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, x), file)  # type: ignore[no-untyped-call]
    content = file.getvalue()
    return content, torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]


def _trace(model: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


def _write_pt2(model: _Logits, x: Tensor) -> _Written:
    file = io.BytesIO()
    torch.export.save(_trace(model, x), file)
    content = file.getvalue()
    return content, torch.export.load(io.BytesIO(content)).module()


def _write_onnx(model: _Logits, x: Tensor) -> _Written:
    import onnxruntime

    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["logits"]}
    program: Any = torch.onnx.export(_trace(model, x), (x,), **names, dynamo=True, verbose=False)
    content: bytes = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return content, lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


@dataclass(frozen=True)
class Format:
    """A format of files.

    Attributes:
        suffix: Ending of the files.
        tolerance: Largest difference of logits that a file may have.
        write: Returns the content of a file, and the model that was read from it.
        packages: What must be installed.
    """

    suffix: str
    tolerance: float
    write: Callable[[_Logits, Tensor], _Written]
    packages: tuple[str, ...] = ()


#: All formats by name.
FORMATS: Mapping[str, Format] = {
    "safetensors": Format(".safetensors", 0.0, _write_safetensors),
    "torchscript": Format(".torchscript.pt", 1e-5, _write_torchscript),
    "pt2": Format(".pt2", 1e-5, _write_pt2),
    "onnx": Format(".onnx", 1e-4, _write_onnx, ("onnx", "onnxruntime", "onnxscript")),
}
