"""Models as they are named on the command line."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.errors import AcclimateError, ArtifactMismatch, BadInput, CorruptFile, did_you_mean

if TYPE_CHECKING:
    import torch
    from torch import nn

_SHOWN_KEYS = 12
_DEVICES = ("auto", "cpu", "cuda", "mps")


def load_model(spec: str, weights: Path | None, device: str = "auto") -> nn.Module:
    """Return the model a command line names, with its weights, on the device.

    Args:
        spec: `package.module:function`, or `builtin`.
        weights: A safetensors file or a PyTorch state dict; None keeps those of the function.
        device: `auto`, `cpu`, `cuda` or `mps`.
    """
    place = get_device(device)
    model = _build(spec)
    if weights is not None:
        load_weights(model, weights)
    return model.to(place)


def get_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is the fastest one there is."""
    import torch

    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(device for device, is_there in there.items() if is_there))
    if name not in there:
        raise BadInput(f'there is no device "{name}". {did_you_mean(name, _DEVICES)}')
    if not there[name]:
        raise BadInput(f'this machine has no device "{name}". Use --device auto or cpu.')
    return torch.device(name)


def _build(spec: str) -> nn.Module:
    from torch import nn

    if spec == "builtin":
        from acclimate.builtin import load_model as load_builtin

        return load_builtin()
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise BadInput(
            f'expected a model as package.module:function, found "{spec}". For a function '
            "make_model in my_models.py say my_models:make_model; for the demo's model: builtin."
        )
    module = _import(module_name)
    if not hasattr(module, name):
        public = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise BadInput(f'{module_name} has no function "{name}". {did_you_mean(name, public)}')
    found = getattr(module, name)
    if not callable(found):
        raise BadInput(
            f"expected {spec} to be a function that returns the model, found a "
            f"{type(found).__name__}."
        )
    try:
        model = found if isinstance(found, nn.Module) else found()
    except AcclimateError:
        raise
    except Exception as error:  # anything may go wrong in a user's function
        raise BadInput(
            f"{spec}() failed{_where(error)}. It is called without arguments."
        ) from error
    if not isinstance(model, nn.Module):
        raise BadInput(
            f"expected {spec}() to return a torch.nn.Module, found {type(model).__name__}."
        )
    return model


def _import(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            file = name.replace(".", "/")
            raise BadInput(
                f'no module "{error.name}" was found; looked for {file}.py in {here} and among the '
                "installed packages. Check the name, or change to the folder it is in."
            ) from error
        raise BadInput(
            f'{name} needs the module "{error.name}", which is not installed. Install it.'
        ) from error
    except Exception as error:  # anything may go wrong in a user's module
        raise BadInput(f"importing {name} failed{_where(error)}.") from error


def _where(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if last.filename == __file__ else f" ({last.filename}, line {last.lineno})"
    return f" with {type(error).__name__}: {error}{place}"


def load_weights(model: nn.Module, path: Path) -> None:
    """Load weights into a model; every tensor must be there, and fit."""
    if not path.is_file():
        raise BadInput(f"there is no file {path}. Give the weights of the model.")
    state = _unwrap(path, _read(path))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        lines = _differences(dict(model.state_dict()), state) or [str(error)]
        more = f"\n  (+ {len(lines) - _SHOWN_KEYS} more)" if len(lines) > _SHOWN_KEYS else ""
        raise ArtifactMismatch(
            f"{path} does not fit the model:\n  " + "\n  ".join(lines[:_SHOWN_KEYS]) + more + "\n"
            "Give the weights of exactly this architecture."
        ) from error


def _read(path: Path) -> Any:
    import pickle

    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise CorruptFile(
                f"{path} cannot be read as safetensors ({error}). Copy it again."
            ) from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "GLOBAL" in str(error) or "global" in str(error):
            raise CorruptFile(
                f"{path} holds Python objects besides tensors, and loading those could execute "
                "code; such files are refused. Where the model is, save a state dict: "
                "torch.save(model.state_dict(), file), or as .safetensors."
            ) from error
        raise CorruptFile(f"{path} is not a PyTorch file. Give a state dict.") from error
    except Exception as error:  # a damaged file can make the reader fail in any way
        raise CorruptFile(
            f"{path} cannot be read as a PyTorch state dict ({type(error).__name__}: {error}). "
            "Copy it again, or save a state dict anew."
        ) from error


def _unwrap(path: Path, loaded: Any) -> dict[str, Any]:
    """Return the state dict in what was loaded, without a wrapper's keys and prefix."""
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise CorruptFile(
            f"expected a state dict in {path}, tensors by name; found {type(loaded).__name__}. "
            "Save model.state_dict()."
        )
    prefix = "module."  # what DataParallel puts before every name
    if loaded and all(key.startswith(prefix) for key in loaded):
        return {key.removeprefix(prefix): value for key, value in loaded.items()}
    return loaded


def _differences(own: dict[str, Any], given: dict[str, Any]) -> list[str]:
    def shape(value: Any) -> str:
        return str(tuple(getattr(value, "shape", ())))

    missing = [
        f"{key}: {shape(own[key])} in the model, not in the file" for key in own.keys() - given
    ]
    extra = [
        f"{key}: {shape(given[key])} in the file, not in the model" for key in given.keys() - own
    ]
    other = [
        f"{key}: {shape(own[key])} in the model, {shape(given[key])} in the file"
        for key in own.keys() & given.keys()
        if shape(own[key]) != shape(given[key])
    ]
    return sorted(other) + sorted(missing) + sorted(extra)
