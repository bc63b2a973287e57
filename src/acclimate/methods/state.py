"""Saved states of adapted models: what they must look like, and the settings they belong to."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from acclimate.errors import ArtifactMismatch, StateError
from acclimate.forward import run
from acclimate.functional.norm import use_statistics
from acclimate.schema import Fields, Items, Maybe, Nothing, Number, Schema, TensorOf, Where
from acclimate.snapshot import Tree, copy_tree, flatten_tree, model_tensors, unflatten_tree

if TYPE_CHECKING:
    from acclimate.methods.method import Method

#: What the shape of an input must look like.
SHAPE = Maybe(Items(Number(int, low=1, high=2**31), list, longest=8))
#: Numbers of an input that is made up to count the classes of a model, at most.
_LARGEST_PROBE = 2**26
_STATE_DICT = "the state_dict"


def pack_extra_state(method: Method) -> dict[str, Any]:
    """Return everything but the module's own tensors, for `state_dict()`."""
    tree = {key: value for key, value in method._tree().items() if key != "modules"}
    tensors, skeleton = flatten_tree(tree)
    identity = json.dumps(method._identity())
    return {"tensors": copy_tree(tensors), "tree": json.dumps(skeleton), "identity": identity}


def unpack_extra_state(method: Method, state: Any) -> Tree:
    """Return the tree that `pack_extra_state` packed, if it fits the adapted model."""
    try:
        tensors, skeleton = dict(state["tensors"]), json.loads(state["tree"])
        identity = dict(json.loads(state["identity"]))
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise _wrong_state(
            _STATE_DICT, [f"_extra_state: {type(error).__name__}: {error}"]
        ) from error
    check_identity(method, _STATE_DICT, identity)
    return check_tree(method, _STATE_DICT, tensors, skeleton, with_modules=False)


def check_state_dict(method: Method, state: Mapping[str, Any], strict: bool) -> None:
    """Check everything in a `state_dict()` before any of it is copied."""
    given = dict(state)
    extra = given.pop("_extra_state", None)
    own = {key: t for key, t in method.state_dict().items() if key != "_extra_state"}
    found = given if strict else {key: t for key, t in given.items() if key in own}
    problems = _module_schema(method, own, partial=not strict).find_problems(found)
    if extra is None and strict:
        problems.append("_extra_state: missing")
    if problems:
        raise _wrong_state(_STATE_DICT, problems)
    if extra is not None:
        unpack_extra_state(method, extra)


def check_identity(method: Method, origin: str, saved: Mapping[str, Any]) -> None:
    """Refuse a state that was saved with other settings."""
    own = method._identity()
    differences = {k: (saved.get(k), now) for k, now in own.items() if saved.get(k) != now}
    if differences:
        lines = "".join(
            f"\n  {key}: saved {before!r}, here {now!r}"
            for key, (before, now) in differences.items()
        )
        raise ArtifactMismatch(
            "other_settings",
            f"Expected a state saved with the same settings, but {origin} differs:{lines}\n"
            "Adapt the same source model with the same method, options and artifact.",
            differences=differences,
        )


def check_tree(
    method: Method,
    origin: str,
    tensors: Mapping[str, Tensor],
    skeleton: Any,
    with_modules: bool = True,
) -> Tree:
    """Return the tree of a saved state, if it fits the adapted model."""
    try:
        tree = unflatten_tree(dict(tensors), skeleton)
        again, _ = flatten_tree(tree)
        shape = tree["method"].get("input_shape")
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _wrong_state(origin, [f"tree: {type(error).__name__}: {error}"]) from error
    problems = [
        f"{name}: not where it belongs"
        for name in dict.fromkeys([*tensors, *again])
        if again.get(name) is not tensors.get(name)
    ]
    sizes: dict[str, Any] = {}
    if isinstance(shape, list) and not method._is_dense:
        sizes["..."] = tuple(shape)
    n_classes = method.info.n_classes
    if n_classes is None and not SHAPE.find_problems(shape):
        n_classes = _count_classes(method, shape)
    if n_classes is not None:
        sizes["classes"] = n_classes
    problems += _schema(method, with_modules).find_problems(tree, sizes)
    if problems:
        raise _wrong_state(origin, problems)
    return tree


def _schema(method: Method, with_modules: bool) -> Schema:
    """Return what a saved state must look like."""
    learned: dict[str, Schema] = {
        "modules": _module_schema(method, model_tensors(method)),
        "method": Fields(method._state_schemas()),
        "optimizer": method._optimizer_schema(),
    }
    count, guard = Number(int, low=0), method.guard
    counts = {name: Items(count) if name == "skipped" else count for name in asdict(method.counts)}
    fields: dict[str, Schema] = {
        **learned,
        "generator": Where(
            TensorOf(tuple(method.generator.get_state().shape), torch.uint8),
            _is_generator_state,
            "not a state of a random number generator",
        ),
        "counts": Fields(counts),
        "guard": Nothing() if guard is None else guard.schema(Fields(learned)),
    }
    if not with_modules:
        del fields["modules"]
    return Fields(fields)


def _module_schema(method: Method, tensors: Mapping[str, Tensor], partial: bool = False) -> Fields:
    """Return what values of these tensors must look like; finite where the source is."""
    source = method.initial()["modules"]

    def leaf(name: str, tensor: Tensor) -> Schema:
        low = 0 if name.endswith((".running_var", ".num_batches_tracked")) else None
        is_finite = bool(source.get(name, tensor).isfinite().all())
        shape = tuple(tensor.shape)
        return TensorOf(shape, tensor.dtype, low, finite=is_finite, nan=not is_finite)

    return Fields({name: leaf(name, t) for name, t in tensors.items()}, partial)


def _count_classes(method: Method, shape: list[int] | None) -> int | None:
    """Return the number of logits for an input of this shape; None if it cannot be found."""
    like = next((p for p in method.model.parameters() if p.is_floating_point()), None)
    if shape is None or like is None or math.prod(shape) > _LARGEST_PROBE:
        return None
    try:
        with torch.no_grad(), use_statistics(method.model, "source"):
            found = run(method.model, like.new_zeros(1, *shape), None, method.logits_at, None)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        return None  # a model that needs more than images
    return found.logits.shape[1]


def _is_generator_state(state: Tensor) -> bool:
    generator = torch.Generator()
    try:
        generator.set_state(state.cpu())
    except RuntimeError:
        return False
    return torch.equal(generator.get_state(), state.cpu())


def _wrong_state(origin: str, problems: list[str], shown: int = 12) -> StateError:
    lines = "".join(f"\n  {line}" for line in problems[:shown])
    more = f"\n  (+ {len(problems) - shown} more)" if len(problems) > shown else ""
    return StateError(
        "wrong_state",
        f"Expected a state of this adapted model, but {origin} has {len(problems)} "
        f"problem(s):{lines}{more}\nNothing was loaded. Save the state again, or start anew.",
        path=origin,
        problems=tuple(problems),
    )
