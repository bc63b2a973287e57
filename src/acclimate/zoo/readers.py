"""Published checkpoints: reading the file, and translating the names of its tensors.

Nothing that is read can execute code, and no tensor is left out silently: `fit` lists the known
extras of a layout, and every other tensor must fit the model.
"""

from __future__ import annotations

import argparse
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from acclimate.errors import ArtifactMismatch, BadInput, CorruptFile, list_lines, name_some
from acclimate.storage import digest

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "model.")  # added to every name by DataParallel and other wrappers
_NORMALIZATION = ("mean", "std")
_DEEPEST = 8  # levels of dictionaries around a state dict
_COUNT = ".num_batches_tracked"

# Training scripts put their options and NumPy figures beside the weights. These types hold plain
# values only; PyTorch's restricted reader refuses them unless they are named.
_HARMLESS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    *(type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64, np.bool_)),
    *(
        (np.float64(0).__reduce__()[0], f"numpy.{core}.multiarray.scalar")
        for core in ("core", "_core")
    ),
]


@dataclass(frozen=True)
class Layout:
    """How the names in a published checkpoint become ours, by regular expressions.

    Attributes:
        renames: patterns and their replacements, applied in order.
        extras: patterns of tensors in the file that are not part of the model.
    """

    renames: tuple[tuple[str, str], ...] = ()
    extras: tuple[str, ...] = ()

    def rename(self, name: str) -> str:
        """Return our name of a tensor."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name

    def is_extra(self, name: str) -> bool:
        """Return whether a tensor in the file is not part of the model."""
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


def content_digest(model: nn.Module) -> str:
    """Return a SHA-256 over the weights and running statistics of a model, by our names.

    The normalisation of inputs and the counts of batches are left out: some files lack them.
    """
    return digest(
        {
            name: tensor
            for name, tensor in model.state_dict().items()
            if name not in _NORMALIZATION and not name.endswith(_COUNT)
        }
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file or of a PyTorch checkpoint, by name.

    A state dict may lie inside a training checkpoint, under one of the usual keys.

    Raises:
        CorruptFile: when it is damaged, holds something else, or could execute code.
    """
    if not path.is_file():
        raise BadInput(
            "not_found",
            f"The file {path} does not exist. Pass the weights of the model.",
            path=path,
        )
    if path.suffix == ".safetensors":
        try:
            tensors = load_file(path)
        except Exception as error:  # a damaged file can fail in any way
            raise CorruptFile(
                "unreadable_file",
                f"{path} cannot be read as safetensors ({error}). Copy or download it again.",
                path=path,
            ) from error
        return _check_tensors(path, tensors)
    _check_records(path)
    return _unwrap(path, _load(path))


def fit(
    model: nn.Module, tensors: Mapping[str, Tensor], layout: str | None, origin: str | Path
) -> list[str]:
    """Load tensors into a model; return the names of known extras, which were left out.

    With a layout, the file may have the published names or ours, and may lack the normalisation of
    inputs, which is compared otherwise. Without a layout, the names must be those of the model.

    Raises:
        ArtifactMismatch: when tensors are missing, too many or of another shape, or the file
            normalises differently; all are listed.
        CorruptFile: when values are infinite or undefined, variances are negative, or fractions
            stand in place of integers. The model is not changed.
    """
    own = dict(model.state_dict())
    given = _strip_prefixes(tensors, own)
    rules = Layout() if layout is None else LAYOUTS[layout]
    if {name for name, _ in model.named_parameters()} <= given.keys():
        rules = Layout()
    left_out = [name for name in given if rules.is_extra(name)]
    sources = {name: rules.rename(name) for name in given if name not in left_out}
    state = {ours: given[theirs] for theirs, ours in sources.items()}
    lines = _twice(sources)
    if layout is not None:
        lines += _check_normalization(own, state)
        state = {**{name: own[name] for name in _NORMALIZATION}, **state}
    for name in own:
        # Files from before PyTorch 0.4.1 have no such count; nothing but its growth is used.
        if name.endswith(_COUNT):
            state.setdefault(name, own[name])
    lines += _differences(own, state, {ours: theirs for theirs, ours in sources.items()})
    if lines:
        raise ArtifactMismatch(
            "other_weights",
            f"{origin} does not match the model, {len(lines)} difference(s):{list_lines(lines)}\n"
            "Pass weights of exactly this architecture.",
            differences=tuple(lines),
        )
    _refuse(origin, _impossible_values(own, state))
    model.load_state_dict(state)
    return sorted(left_out)


def _check_records(path: Path) -> None:
    """Refuse compressed records: torch.load fills their tensors with whatever is in memory."""
    try:
        with zipfile.ZipFile(path) as file:
            wrong = [each.filename for each in file.infolist() if each.compress_type]
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
        return  # another format, or a file that torch.load refuses
    if wrong:
        raise CorruptFile(
            "unreadable_file",
            f"{path} has the compressed record {wrong[0]}; torch.save writes plain ones. The file "
            "was altered or damaged. Copy it again, or save the state dict again.",
            path=path,
        )


def _load(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals(_HARMLESS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "global" in str(error).lower():
            raise CorruptFile(
                "unsafe_file",
                f"{path} contains Python objects other than tensors. Loading them could execute "
                "code, so the file is rejected. Save a state dict instead: "
                "torch.save(model.state_dict(), file), or a .safetensors file.",
                path=path,
            ) from error
        raise CorruptFile(
            "unreadable_file", f"{path} is not a PyTorch file. Pass a state dict.", path=path
        ) from error
    except Exception as error:  # a damaged file can make the reader fail in any way
        raise CorruptFile(
            "unreadable_file",
            f"{path} cannot be read as a PyTorch state dict ({type(error).__name__}: {error}). "
            "Copy the file again, or save the state dict again.",
            path=path,
        ) from error


def _unwrap(path: Path, loaded: Any) -> dict[str, Tensor]:
    """Return the state dict in what was loaded."""
    for _ in range(_DEEPEST):  # a dictionary may contain itself
        if not isinstance(loaded, Mapping):
            break
        inner = [loaded[key] for key in _WRAPPERS if isinstance(loaded.get(key), Mapping)]
        if not inner:
            break
        loaded = inner[0]
    found = ""
    if not isinstance(loaded, Mapping):
        found = type(loaded).__name__
    elif not loaded:
        found = "an empty one"
    elif others := [str(key) for key, value in loaded.items() if not isinstance(value, Tensor)]:
        found = f"values other than tensors under {name_some(others)}"
    elif names := [key for key in loaded if not isinstance(key, str)]:
        found = f"the key {names[0]!r}"
    if found:
        raise CorruptFile(
            "wrong_content",
            f"Expected a state dict (tensors by name) in {path}, found {found}. Save "
            "model.state_dict().",
            path=path,
        )
    return _check_tensors(path, dict(loaded))


def _check_tensors(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Refuse tensors without plain values in memory."""
    problems = []
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            problems.append(f"{name}: a sparse tensor")
        elif tensor.device.type == "meta":
            problems.append(f"{name}: a tensor without values (device meta)")
        elif tensor.is_quantized or tensor.is_complex():
            problems.append(f"{name}: {tensor.dtype}")
    _refuse(path, problems)
    return tensors


def _refuse(origin: str | Path, problems: Sequence[str]) -> None:
    if problems:
        raise CorruptFile(
            "wrong_weights",
            f"{origin} has {len(problems)} tensor(s) that cannot be weights:"
            f"{list_lines(problems)}\nTrain or download the model again.",
            path=origin,
            problems=tuple(problems),
        )


def _impossible_values(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """Return a line for each tensor with another kind of number, or with impossible values."""
    lines = []
    first: dict[int, str] = {}  # of tied tensors, by their memory
    for name, tensor in given.items():
        expected = own[name]
        twin = first.setdefault(expected.data_ptr(), name) if expected.numel() else name
        is_tied = twin != name and own[twin].shape == expected.shape
        if is_tied and not torch.equal(tensor, given[twin]):
            lines.append(f"{name}: differs from {twin}, which is the same tensor in the model")
            continue
        if expected.is_floating_point() != tensor.is_floating_point():
            lines.append(f"{name}: {tensor.dtype} in the file, {expected.dtype} in the model")
        elif not bool(tensor.isfinite().all()) and bool(expected.isfinite().all()):
            lines.append(f"{name}: infinite or undefined values")
        elif name.endswith((".running_var", _COUNT)) and bool((tensor < 0).any()):
            lines.append(f"{name}: negative values")
        elif not bool(tensor.to(expected.dtype).isfinite().all() | ~expected.isfinite().all()):
            lines.append(f"{name}: values too large for {expected.dtype}")
    return lines


def _strip_prefixes(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without the prefixes of wrappers, unless the model has them, too."""
    given = dict(tensors)
    for prefix in _PREFIXES:
        if any(name.startswith(prefix) for name in own):
            continue
        if given and all(name.startswith(prefix) for name in given):
            given = {name.removeprefix(prefix): tensor for name, tensor in given.items()}
    return given


def _twice(sources: Mapping[str, str]) -> list[str]:
    """Return a line for each name of ours that several tensors of the file would get."""
    theirs_by_ours: dict[str, list[str]] = {}
    for theirs, ours in sources.items():
        theirs_by_ours.setdefault(ours, []).append(theirs)
    return [
        f"{ours}: several tensors in the file ({', '.join(theirs)})"
        for ours, theirs in sorted(theirs_by_ours.items())
        if len(theirs) > 1
    ]


def _check_normalization(own: Mapping[str, Tensor], state: dict[str, Tensor]) -> list[str]:
    """Take the normalisation out of the state; return a line for each that is not the model's."""
    lines = []
    for name in _NORMALIZATION:
        found = state.pop(name, None)
        if found is None:
            continue
        expected, given = own[name].flatten(), found.flatten().to(own[name].dtype)
        if expected.shape != given.shape or not torch.allclose(expected, given, rtol=0, atol=1e-6):
            lines.append(
                f"{name} of the inputs: {_numbers(expected)} in the model, "
                f"{_numbers(given)} in the file"
            )
    return lines


def _numbers(values: Tensor) -> str:
    return ", ".join(f"{value:.6g}" for value in values.tolist())


def _differences(
    own: Mapping[str, Tensor], given: Mapping[str, Tensor], theirs: Mapping[str, str]
) -> list[str]:
    def shape(tensor: Tensor) -> str:
        return str(tuple(tensor.shape))

    def renamed(name: str) -> str:
        return f" as {theirs[name]}" if theirs.get(name, name) != name else ""

    both = own.keys() & given.keys()
    return [
        *sorted(
            f"{name}: {shape(own[name])} in the model, {shape(given[name])} in the file"
            f"{renamed(name)}"
            for name in both
            if own[name].shape != given[name].shape
        ),
        *sorted(
            f"{name}: {shape(own[name])} in the model, not in the file"
            for name in own.keys() - both
        ),
        *sorted(
            f"{theirs.get(name, name)}: {shape(given[name])} in the file, not in the model"
            for name in given.keys() - both
        ),
    ]
