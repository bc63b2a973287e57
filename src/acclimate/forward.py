"""One forward pass of any model: where its images go in, where features and logits come out.

The feature of a sample is the input of the *head*, the module that makes the logits. The model
runs as its author wrote it; a hook that lives for one forward looks at what enters the head.

Of a model that predicts every pixel, logits and features are given as rows, one per pixel, so that
methods need not know: see `acclimate.functional.pixels`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import BadInput, UnsuitableModel
from acclimate.functional.pixels import Grid, to_rows

#: Where the logits are in what the model returns: a key, a position, an attribute or a function.
LogitsAt = str | int | Callable[[Any], Tensor] | None


@dataclass(frozen=True)
class Forward:
    """What one forward gave.

    Attributes:
        output: What the model returned.
        logits: One prediction a row, (rows, K).
        features: Inputs of the head, (rows, d); of pixels they may be fewer than the logits.
        grid: Where the logits are in maps, if the model predicts every pixel; else None.
        feature_grid: The same for the features.
    """

    output: Any
    logits: Tensor
    features: Tensor | None
    grid: Grid | None = None
    feature_grid: Grid | None = None

    @property
    def grids(self) -> tuple[Grid | None, Grid | None]:
        """Both grids."""
        return self.grid, self.feature_grid

    @property
    def known_features(self) -> Tensor:
        """The features; an error if no head was named, so that none could be taken."""
        if self.features is None:
            raise unknown_head()
        return self.features


def unknown_head() -> UnsuitableModel:
    """Return the error where features are needed and no head was named."""
    return UnsuitableModel(
        "missing_option",
        "This needs the model's features, but its head is not known. Name the module that makes "
        "the logits: info=ModelInfo(head=<name>).",
        option="head",
    )


def run(
    model: nn.Module,
    x: Tensor,
    head: nn.Module | None,
    at: LogitsAt = None,
    call: Call | None = None,
) -> Forward:
    """Run the model once and return output, logits and, if a head is given, its input.

    Args:
        model: The model.
        x: A batch of images.
        head: The module whose input are the features; None for no features.
        at: Where the logits are in what the model returns.
        call: The arguments that are passed besides the images; None for none.
    """
    if head is None:
        output = model(x) if call is None else call.make(model, x)
        return _as_rows(output, get_logits(output, at), None)
    taken: list[Any] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: taken.append(inputs[0]))
    try:
        output = model(x) if call is None else call.make(model, x)
    finally:
        hook.remove()
    if len(taken) != 1 or not isinstance(taken[0], Tensor):
        raise UnsuitableModel(
            "wrong_head",
            f"Expected the head to run once in a forward and to take a tensor; it ran {len(taken)} "
            "times. Name the module that makes the logits: info=ModelInfo(head=<name>).",
            head=_name_of(head, model),
        )
    features, logits = taken[0], get_logits(output, at)
    is_dense = logits.dim() == 4
    if not is_dense and features.dim() == 4 and features.shape[2:] == (1, 1):
        features = features.flatten(1)
    if features.dim() != logits.dim() or len(features) != len(x):
        wanted = "(batch, width, rows, columns)" if is_dense else "(batch, width)"
        raise UnsuitableModel(
            "wrong_head",
            f"Expected the head to take one feature vector a {'pixel' if is_dense else 'sample'}, "
            f"{wanted}; found {tuple(features.shape)} for a batch of {len(x)}. Name another "
            "module: info=ModelInfo(head=<name>).",
            head=_name_of(head, model),
        )
    return _as_rows(output, logits, features)


def _name_of(module: nn.Module, model: nn.Module) -> str:
    """Return the name that a module has in a model; that of its class if it is not in there."""
    names = (name for name, other in model.named_modules() if other is module)
    return next(names, type(module).__name__)


def _as_rows(output: Any, logits: Tensor, features: Tensor | None) -> Forward:
    if logits.dim() == 2:
        return Forward(output, logits, features)
    grid = Grid.of(logits)
    if features is None:
        return Forward(output, to_rows(logits), None, grid)
    return Forward(output, to_rows(logits), to_rows(features), grid, Grid.of(features))


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a model: a batch of images, and what is passed along with it.

    Attributes:
        images: The batch of images.
        args: All positional arguments.
        kwargs: All named arguments.
        place: Where the images are: a position, a name, or both, in a dict that is an argument.
    """

    images: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: tuple[int | str, ...]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], at: str | int | None) -> Call:
        """Find the images among the arguments, also inside of dicts.

        `at` is their name or position, if it is known.
        """
        if len(args) == 1 and not kwargs:
            only = args[0]
            if isinstance(only, Tensor) or (at is None and not isinstance(only, Mapping)):
                return cls(only, args, kwargs, (0,))
        places = dict(_walk(args, kwargs))
        if at is not None:
            found = [place for place in places if place[-1] == at]
        else:
            tensors = {p: v for p, v in places.items() if isinstance(v, Tensor)}
            images = [p for p, v in tensors.items() if v.dim() == 4 and v.is_floating_point()]
            found = list(tensors) if len(tensors) == 1 else images
        if len(found) != 1:
            names = tuple(str(place[-1]) for place in places)
            raise BadInput(
                "ambiguous_images",
                f"Expected one argument that is the batch of images, found {len(found)} among: "
                f"{', '.join(names) or 'none'}. Name it: info=ModelInfo(images_at=<name or "
                "position>).",
                candidates=names,
            )
        return cls(places[found[0]], args, kwargs, found[0])

    def make(self, model: nn.Module, x: Tensor) -> Any:
        """Call the model with other images in the same place."""
        if len(self.args) + len(self.kwargs) == 1 and self.place == (0,):
            return model(x)
        self._check_others(x)
        args: list[Any] = list(self.args)
        kwargs = dict(self.kwargs)
        holder: Any = args if isinstance(self.place[0], int) else kwargs
        first = self.place[0]
        inner = self.place[1:]
        holder[first] = {**holder[first], inner[0]: x} if inner else x
        return model(*args, **kwargs)

    def some(self, x: Tensor) -> Tensor:
        """Return the images for a trial: those given, or all if other inputs belong to them."""
        images: Tensor = self.images
        return images if self._companions() else x

    def fit(self, model: nn.Module) -> Call:
        """Return a call that passes the images by position if the model does not know their name.

        The batches of a loader may be dicts with names of the loader's own.
        """
        name = self.place[0]
        if len(self.kwargs) != 1 or self.args or not isinstance(name, str) or len(self.place) > 1:
            return self
        parameters = inspect.signature(model.forward).parameters
        takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        if name in parameters or takes_all:
            return self
        return Call(self.images, (self.images,), {}, (0,))

    def list_others(self) -> list[str]:
        """Return the names or positions of all tensors besides the images."""
        return [str(place[-1]) for place in self._others()]

    def check_alone(self, method: str) -> None:
        """Refuse a method that passes images of several batches, if more belongs to the images."""
        if self._companions():
            raise BadInput(
                "inputs_belong_together",
                f"The model takes other tensors along with the images, and {method} passes images "
                "of earlier batches again. Use a method that keeps no images.",
                expected=len(self.images),
                found=0,
            )

    def _others(self) -> dict[tuple[int | str, ...], Tensor]:
        """Return the tensors besides the images, by where they are."""
        items = _walk(self.args, self.kwargs)
        return {p: v for p, v in items if isinstance(v, Tensor) and p != self.place}

    def _companions(self) -> list[Tensor]:
        """Return the tensors that hold something for each of the images."""
        n = len(self.images) if isinstance(self.images, Tensor) and self.images.dim() else None
        return [value for value in self._others().values() if value.dim() and len(value) == n]

    def _check_others(self, x: Tensor) -> None:
        """Refuse a pass on other samples if something else belongs to these samples."""
        n = len(self.images)
        if len(x) != n and self._companions():
            raise BadInput(
                "inputs_belong_together",
                f"The model takes other tensors along with the {n} images, and this method passes "
                f"{len(x)} images at once. Use a method and a speed that pass whole batches.",
                expected=n,
                found=len(x),
            )


def _walk(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    """Yield the arguments of a call, also those inside of dicts, with their places."""
    items: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for key, value in items:
        if isinstance(value, Mapping):
            yield from (((key, name), item) for name, item in value.items())
        else:
            yield (key,), value


def split(x: Tensor, size: int, at_least: int) -> tuple[Tensor, ...]:
    """Split a batch into parts of at most `size` samples, as evenly as possible.

    There are fewer and larger parts if a part would otherwise have fewer than `at_least` samples.
    """
    n_parts = -(-len(x) // size)
    while n_parts > 1 and len(x) // n_parts < at_least:
        n_parts -= 1
    return x.tensor_split(n_parts)


@dataclass(frozen=True)
class Pass:
    """One pass of a batch in micro-batches, with its logits and features as leaves of a graph.

    It computes the gradients of a batch whose activations do not fit in memory. A loss such as the
    entropy of the mean prediction depends on all samples of a batch, so the gradients of its parts
    cannot simply be added. Instead the batch is run twice: first in parts without a graph, which
    gives all logits and features, for which the loss is differentiated. Then each part is run again
    with its own graph, and its share of that gradient is propagated back through it.
    """

    parts: tuple[Tensor, ...]
    result: Forward
    again: Callable[[Tensor], Forward]

    @classmethod
    def of(
        cls,
        parts: tuple[Tensor, ...],
        first: Callable[[Tensor], Forward],
        again: Callable[[Tensor], Forward],
    ) -> Pass:
        """Run the parts of a batch without a graph by `first`; `again` must give the same."""
        learns = torch.is_grad_enabled()
        with torch.no_grad():
            found = [first(part) for part in parts]
        logits = torch.cat([part.logits for part in found]).requires_grad_(learns)
        features = None
        if found[0].features is not None:
            features = torch.cat([part.known_features for part in found]).requires_grad_(learns)
        output = join_outputs([part.output for part in found])
        n = sum(len(part) for part in parts)
        grids = [grid and grid._replace(n_images=n) for grid in found[0].grids]
        return cls(parts, Forward(output, logits, features, *grids), again)

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors for which the loss is differentiated."""
        known = (self.result.logits, self.result.features)
        return [leaf for leaf in known if leaf is not None]

    def send_back(
        self, outer: Sequence[Tensor | None], moved: Sequence[Tensor]
    ) -> list[Tensor | None]:
        """Return the gradients of parameters, given those of the leaves."""
        sums: list[Tensor | None] = [None] * len(moved)
        shares = [None if g is None else torch.split(g, self._rows(len(g))) for g in outer]
        for index, part in enumerate(self.parts):
            with torch.enable_grad():
                found = self.again(part)
            made = [value for value in (found.logits, found.features) if value is not None]
            pairs = [
                (value, share[index])
                for value, share in zip(made, shares, strict=True)
                if share is not None and value.requires_grad
            ]
            if not pairs:
                continue
            values, weights = zip(*pairs, strict=True)
            gradients = torch.autograd.grad(values, moved, weights, allow_unused=True)
            sums = sum_gradients(sums, gradients)
        return sums

    def _rows(self, n_rows: int) -> list[int]:
        """Return the number of rows of each part; an image may have one row per pixel."""
        n = sum(len(part) for part in self.parts)
        return [len(part) * (n_rows // n) for part in self.parts]


def sum_gradients(
    first: Sequence[Tensor | None], second: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return sums of gradients; any of them may be None."""
    return [
        b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True)
    ]


def join_outputs(outputs: Sequence[Any]) -> Any:
    """Join the outputs of parts into the model's output for the whole batch."""
    kind = outputs[0]
    if isinstance(kind, Tensor):
        return torch.cat(list(outputs)) if kind.dim() else kind
    if type(kind) in (tuple, list):
        return type(kind)(join_outputs(items) for items in zip(*outputs, strict=True))
    if type(kind) is dict:
        return {key: join_outputs([output[key] for output in outputs]) for key in kind}
    if isinstance(kind, Mapping | tuple | list) or hasattr(kind, "__dict__"):
        raise UnsuitableModel(
            "unsupported_output",
            "Expected a model that returns a tensor, tuple, list or dict, which micro_batch can "
            f"join from parts, found one that returns a {type(kind).__name__}. Remove micro_batch, "
            "or wrap the model so that it returns its logits.",
            found=type(kind).__name__,
        )
    return kind


@contextmanager
def run_eagerly(model: nn.Module) -> Iterator[None]:
    """Run the modules of a model that are compiled (`block.compile()`) as they were before.

    Adapting changes hooks, modes and weights, so that they would be compiled again and again; and
    a compiled module does not run the hooks that look at features.
    """
    is_compiled = any(
        module._compiled_call_impl is not None or hasattr(module, "_orig_mod")
        for module in model.modules()
    )
    if not is_compiled:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def no_gradient(what: str) -> UnsuitableModel:
    """Return the error for a model whose output has no gradient that something needs."""
    return UnsuitableModel(
        "no_gradient",
        f"Expected a differentiable loss for {what}, found one without a graph: the model uses "
        "torch.no_grad() or torch.inference_mode() inside, or detaches its output. Remove that "
        'from its forward(), or use a method without gradients, such as "norm".',
    )


def is_about_inference(error: RuntimeError) -> bool:
    """Return whether PyTorch refuses to compute gradients of tensors made in inference mode."""
    return "inference tensor" in str(error).lower()


def get_logits(output: Any, at: LogitsAt = None) -> Tensor:
    """Return the logits in a model's output: (B, K), or (B, K, h, w) of one that predicts pixels.

    A tensor is the logits itself; a mapping or an object is asked for `logits`. Anything else
    needs `at`.
    """
    found: Any = None
    if callable(at):
        found = at(output)
    elif (
        isinstance(at, int)
        and isinstance(output, tuple | list)
        and -len(output) <= at < len(output)
    ):
        found = output[at]
    elif isinstance(at, str):
        found = output.get(at) if isinstance(output, Mapping) else getattr(output, at, None)
    elif at is None and isinstance(output, Tensor):
        found = output
    elif at is None:
        found = output.get("logits") if isinstance(output, Mapping) else None
        found = getattr(output, "logits", None) if found is None else found
    if not isinstance(found, Tensor):
        raise UnsuitableModel(
            "no_logits",
            f"Expected the model to return logits, or something with logits in it; "
            f"{_describe(output)}{'' if at is None else f', and nothing at {at!r}'}. "
            "Say where they are: info=ModelInfo(logits_at=<key, position, attribute or function>).",
        )
    if found.dim() not in (2, 4):
        raise UnsuitableModel(
            "wrong_logits",
            "Expected logits of shape (batch, classes), or (batch, classes, height, width) of a "
            f"model that predicts every pixel, found {tuple(found.shape)}. Only classifiers of "
            "images or pixels are adapted; ModelInfo(logits_at=<function>) can reshape or select.",
            found=tuple(found.shape),
        )
    return found


def replace_logits(output: Any, logits: Tensor, at: LogitsAt = None) -> Any:
    """Return a model's output, detached, with other logits in the place of its own.

    With a function as `at` the place cannot be written to: the logits themselves are returned.
    """
    if isinstance(output, Tensor) or callable(at):
        return logits
    if isinstance(output, tuple | list):
        items = [_detach(item) for item in output]
        items[at if isinstance(at, int) else 0] = logits
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    key = at if isinstance(at, str) else "logits"
    result = copy.copy(output)
    if isinstance(result, dict):
        for name, value in list(result.items()):
            result[name] = _detach(value)
        result[key] = logits
    elif isinstance(result, Mapping):
        return {**{name: _detach(value) for name, value in output.items()}, key: logits}
    else:
        for name in _attributes(output):
            object.__setattr__(result, name, _detach(getattr(output, name)))
        object.__setattr__(result, key, logits)
    return result


def place_of(made: Any, output: Any) -> LogitsAt:
    """Return the key or position at which the output holds what the head made, if it is plain."""
    if isinstance(output, Mapping):
        items: list[tuple[Any, Any]] = list(output.items())
    elif isinstance(output, tuple | list):
        items = list(enumerate(output))
    else:
        items = list(getattr(output, "__dict__", {}).items())
    places = [place for place, value in items if value is made]
    return places[0] if len(places) == 1 and places[0] != "logits" else None


def list_tensors(output: Any) -> list[Tensor]:
    """Return the tensors in a model's output, inside any nesting of containers."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for value in output.values() for tensor in list_tensors(value)]
    if isinstance(output, tuple | list):
        return [tensor for value in output for tensor in list_tensors(value)]
    return [
        value for value in getattr(output, "__dict__", {}).values() if isinstance(value, Tensor)
    ]


def _detach(value: Any) -> Any:
    """Return a value whose tensors, also in nested containers, carry no graph."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_detach(item) for item in value)
    if type(value) is dict:
        return {key: _detach(item) for key, item in value.items()}
    return value


def _attributes(output: Any) -> list[str]:
    """Return the names of an object's own attributes, in slots or in its dictionary."""
    slots = [name for kind in type(output).__mro__ for name in getattr(kind, "__slots__", ())]
    own = [name for name in slots if hasattr(output, name) and not name.startswith("__")]
    return [*own, *getattr(output, "__dict__", {})]


def _describe(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"it returns a mapping with the keys {sorted(map(str, output))}"
    if isinstance(output, tuple | list):
        return f"it returns a {type(output).__name__} of {len(output)}"
    return f"it returns a {type(output).__name__}"
