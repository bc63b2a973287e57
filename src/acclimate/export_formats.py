"""Write a plain module as files that other programs load: safetensors, TorchScript, .pt2, ONNX.

Every file is read again, and its logits are compared with the module's.
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from acclimate.errors import MissingExtra, UnsuitableModel
from acclimate.forward import LogitsAt, get_logits
from acclimate.storage import write_atomically

#: Largest difference of logits that a file may have, by its format.
TOLERANCES: Mapping[str, float] = {
    "safetensors": 0.0,
    "torchscript": 1e-5,
    "pt2": 1e-5,
    "onnx": 1e-4,
}

#: Endings of the files, by format.
SUFFIXES: Mapping[str, str] = {
    "safetensors": ".safetensors",
    "torchscript": ".torchscript.pt",
    "pt2": ".pt2",
    "onnx": ".onnx",
}


class _Logits(nn.Module):
    """A model that returns its logits alone."""

    def __init__(self, model: nn.Module, logits_at: LogitsAt) -> None:
        super().__init__()
        self.model, self.logits_at = model, logits_at

    def forward(self, x: Tensor) -> Tensor:
        output = self.model(x)
        return get_logits(output, None if isinstance(output, Tensor) else self.logits_at)


def check_format(kind: str) -> None:
    """Raise `MissingExtra` if a format needs a package that is not installed."""
    if kind != "onnx":
        return
    for package in ("onnx", "onnxruntime", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(
                "missing_extra",
                f"Writing ONNX needs {package}, which is not installed. "
                "Run pip install 'acclimate[export]', or choose other formats.",
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
        kind: A name of `TOLERANCES`.
        path: The file to write.
        logits_at: Where the logits are in the output of the module.

    Raises:
        MissingExtra: A package is not installed.
        UnsuitableModel: The model cannot be written in this format, or its logits differ by more
            than `TOLERANCES`. Nothing was written.
    """
    check_format(kind)
    model = _Logits(module, logits_at).eval()
    with torch.no_grad():
        expected = model(x)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tracers, about their own internals
            content, again = _WRITERS[kind](model, x)
            found = again(x)
            # Another batch size must work, too.
            again(x[:1])
    except Exception as error:  # the exporters fail in many ways
        reason = str(error).strip().splitlines()
        raise UnsuitableModel(
            "format_failed",
            f"The model cannot be written as {kind}: {type(error).__name__}: "
            f"{reason[0] if reason else 'no reason given'}. Choose other formats.",
            format=kind,
        ) from error
    difference = float((found - expected).abs().max())
    if not difference <= TOLERANCES[kind]:
        raise UnsuitableModel(
            "format_failed",
            f"Expected the logits of the {kind} file to equal the model's to {TOLERANCES[kind]:g}, "
            f"found a difference of {difference:.3g}. Choose other formats.",
            format=kind,
        )
    write_atomically(path, content)
    return difference


_Writer = Callable[[_Logits, Tensor], tuple[bytes, Callable[[Tensor], Tensor]]]


@torch.no_grad()
def _write_safetensors(model: _Logits, x: Tensor) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    # Tied tensors share memory, which safetensors refuses: each gets its own copy.
    state = {name: t.detach().contiguous().clone() for name, t in model.model.state_dict().items()}
    content = save_tensors(state)

    def again(x: Tensor) -> Tensor:
        with torch.no_grad():
            named = {f"model.{name}": t for name, t in load_tensors(content).items()}
            made: Tensor = torch.func.functional_call(model, named, (x,))
            return made

    return content, again


@torch.no_grad()
def _write_torchscript(model: _Logits, x: Tensor) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, x), file)  # type: ignore[no-untyped-call]
    content = file.getvalue()
    loaded = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]

    def again(x: Tensor) -> Tensor:
        with torch.no_grad():
            made: Tensor = loaded(x)
            return made

    return content, again


def _export(model: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


def _write_pt2(model: _Logits, x: Tensor) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    file = io.BytesIO()
    torch.export.save(_export(model, x), file)
    content = file.getvalue()
    loaded = torch.export.load(io.BytesIO(content)).module()

    def again(x: Tensor) -> Tensor:
        with torch.no_grad():
            made: Tensor = loaded(x)
            return made

    return content, again


def _write_onnx(model: _Logits, x: Tensor) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    import onnxruntime

    program: Any = torch.onnx.export(
        _export(model, x),
        (x,),
        input_names=["images"],
        output_names=["logits"],
        dynamo=True,
        verbose=False,
    )
    content: bytes = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def again(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: x.numpy()})[0])

    return content, again


_WRITERS: Mapping[str, _Writer] = {
    "safetensors": _write_safetensors,
    "torchscript": _write_torchscript,
    "pt2": _write_pt2,
    "onnx": _write_onnx,
}
