"""A batch that is being processed: what is left to do, how to undo it, and who is told of it.

While a batch is open, its journal has everything that the batch may change, as it was before. An
exception or a signal at any moment rolls back to it; if that is interrupted too, the next call does
so first. The batch is over when the method no longer refers to it, which is one assignment.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from acclimate.forward import Call
from acclimate.guard import Verdict
from acclimate.snapshot import map_tree

if TYPE_CHECKING:
    from acclimate.methods.method import Method

#: Takes the adapted model and the logits of the batch.
Observer = Callable[["Method", Tensor], object]

#: Attributes of a method that are not part of its state.
_KEPT = ("_open", "_lock", "_warned", "copies")
#: Where the files of this package are.
_PACKAGE = str(Path(__file__).parents[1])
#: Containers of a module that are changed in place: tensors, modules and hooks.
_CONTAINERS = (
    "_parameters",
    "_buffers",
    "_modules",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)

_log = logging.getLogger("acclimate.adaptation")


class _NotCopied:
    """Belongs to one adapted model: a copy of the model has a new one."""

    def __deepcopy__(self, memo: object) -> Any:
        return type(self)()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()


class CallLock(_NotCopied, type(threading.RLock())):  # type: ignore[misc]
    """A lock that one thread can take several times."""

    @property
    def is_mine(self) -> bool:
        """Whether this thread holds the lock."""
        return bool(self._is_owned())


class Copies(_NotCopied):
    """Copies of tensors, which are made again only after a tensor has changed.

    PyTorch counts the changes of a tensor (`_version`). A frozen weight is copied once.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Tensor, tuple[int, int], Tensor]] = {}

    def of(self, name: str, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor, which must not be changed."""
        if tensor.is_inference():
            return tensor.detach().clone()
        mark = tensor._version, tensor.data_ptr()
        kept = self._kept.get(name)
        if kept is not None and kept[0] is tensor and kept[1] == mark:
            return kept[2]
        made = tensor.detach().clone()
        self._kept[name] = tensor, mark, made
        return made

    def give(self, name: str, tensor: Tensor, made: Tensor) -> None:
        """Use a copy of a tensor that exists already."""
        if not tensor.is_inference():
            self._kept[name] = tensor, (tensor._version, tensor.data_ptr()), made


class Observers(_NotCopied):
    """Functions that are called when a batch is complete, by event."""

    def __init__(self) -> None:
        self._by_event: dict[str, OrderedDict[int, Observer]] = {
            event: OrderedDict() for event in ("batch", "update", "restore")
        }

    def add(self, event: str, observer: Observer) -> RemovableHandle:
        """Call a function at each event; `handle.remove()` ends that."""
        handle = RemovableHandle(self._by_event[event])
        self._by_event[event][handle.id] = observer
        return handle

    def notify(self, method: Method, logits: Tensor, updated: bool, restored: bool) -> None:
        """Report a complete batch to the log and to all observers."""
        counts, n = method.counts, len(logits)
        what = "updated" if updated else "not updated"
        _log.debug("%s: batch %d, %d predictions, %s", method.name, counts.batches, n, what)
        if restored:
            _log.info("%s: an earlier state was restored (%d so far)", method.name, counts.restored)
        for event, has_happened in (("batch", True), ("update", updated), ("restore", restored)):
            for observer in tuple(self._by_event[event].values()) if has_happened else ():
                observer(method, logits)


class Journal:
    """Everything that a batch or a load may change, as it was before.

    Attributes:
        outer: What was open before: a batch that waits for `learn`.
        is_answered: Whether it is a batch that was answered and waits for `learn`.
    """

    def __init__(self, method: Method, outer: Journal | None) -> None:
        self.outer = outer
        self.is_answered = False
        # What changes in place is copied; everything else is remembered by reference.
        source = None if method.guard is None else method.guard.source
        self._modules = [
            (
                module,
                {name: v for name, v in vars(module).items() if name not in _KEPT},
                {name: dict(vars(module)[name]) for name in _CONTAINERS if name in vars(module)},
            )
            for module in [*method.modules(), *(() if source is None else source.modules())]
        ]
        parameters, buffers = dict(method.named_parameters()), dict(method.named_buffers())
        self._flags = [(p, p.requires_grad, p.grad) for p in parameters.values()]
        copies = method.copies
        self._tensors = [(t, copies.of(n, t)) for n, t in {**parameters, **buffers}.items()]
        self._optimizers = [
            (
                optimizer,
                [dict(group) for group in optimizer.param_groups],
                {
                    parameter: {
                        key: copies.of(f"optimizer.{number}.{key}", value)
                        if isinstance(value, Tensor)
                        else value
                        for key, value in values.items()
                    }
                    for number, (parameter, values) in enumerate(optimizer.state.items())
                },
            )
            for optimizer in vars(method).values()
            if isinstance(optimizer, torch.optim.Optimizer)
        ]
        self._generator = method.generator.get_state()
        self._counts = copy.deepcopy(method.counts)
        self._guard = None if method.guard is None else dict(vars(method.guard))
        self._grad_mode = torch.is_grad_enabled()
        self._autocast = _get_autocast(method)

    @torch.no_grad()
    def _restore_tensors(self) -> None:
        for tensor, value in self._tensors:
            tensor.copy_(value)
        for parameter, flag, gradient in self._flags:
            parameter.requires_grad_(flag)
            parameter.grad = gradient

    def roll_back(self, method: Method) -> None:
        """Return to the state before the batch. It can be interrupted and called again."""
        torch.set_grad_enabled(self._grad_mode)
        _set_autocast(*self._autocast)
        for module, attributes, containers in self._modules:
            _restore_attributes(module, attributes, containers)
        self._restore_tensors()
        for optimizer, groups, state in self._optimizers:
            for group, values in zip(optimizer.param_groups, groups, strict=True):
                group.update(values)
            optimizer.state.clear()
            for parameter, kept in state.items():
                optimizer.state[parameter] = map_tree(kept, Tensor.clone)
        method.generator.set_state(self._generator)
        method.counts = copy.deepcopy(self._counts)
        if method.guard is not None and self._guard is not None:
            vars(method.guard).update(self._guard)
        method.labels = None
        method.weights_changed()


class OpenBatch(Journal):
    """A batch that is being processed, and a journal of the state before it.

    Attributes:
        x: The batch.
        call: How the model is called with it.
        learns: Whether it is learned from.
        rest: The rest of the method's step; None if nothing is left.
        logits: The logits of the answer.
        verdict: What the guard found on it.
        n_refused: The number of batches before that were refused.
        n_updates: The number of updates before.
        n_restored: How often a state was restored before.
        statistics: The running statistics before the batch, if it can move them.
    """

    def __init__(self, method: Method, call: Call, outer: Journal | None) -> None:
        super().__init__(method, outer)
        self.x, self.call = call.images, call
        self.learns = method.is_learning
        self.rest: Iterator[Tensor] | None = None
        self.logits: Tensor | None = None
        self.verdict: Verdict | None = None
        counts = method.counts
        self.n_refused, self.n_updates = counts.n_refused, counts.updates
        self.n_restored = counts.restored
        moves = self.learns and method.statistics in ("running", "robust")
        buffers = method.named_buffers() if moves else ()
        self.statistics = {name: method.copies.of(name, t) for name, t in buffers}

    def finish(self) -> None:
        """Run the rest of the method's step."""
        if self.rest is not None:
            for _ in self.rest:
                pass
            self.rest = None

    def roll_back(self, method: Method) -> None:
        """Return to the state before the batch. It can be interrupted and called again."""
        close = getattr(self.rest, "close", None)
        if close is not None:
            close()
        super().roll_back(method)


def close_contexts(error: BaseException) -> None:
    """Close the contexts that an exception has interrupted while they were entered or left.

    Python does not leave such a context. It is a generator that the traceback keeps alive, and
    whatever it restores would be restored later, when the traceback is gone. Frames of the model
    and of others keep their variables, for debuggers.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        trace = found.__traceback__
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            if name == contextlib.__file__ or name.startswith(_PACKAGE):
                with contextlib.suppress(RuntimeError):  # a frame that is still running
                    trace.tb_frame.clear()
            trace = trace.tb_next
        found = found.__context__


def _get_autocast(method: Method) -> tuple[str, bool, torch.dtype, bool, int]:
    """Return the settings of autocast on the model's device, and how deep it is nested."""
    kind = next((p.device.type for p in method.parameters()), "cpu")
    # The depth can only be read by changing it; no signal handler runs between these two calls.
    counters = torch.autocast_increment_nesting, torch.autocast_decrement_nesting
    _, depth = map(methodcaller("__call__"), counters)
    is_enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return kind, is_enabled, dtype, torch.is_autocast_cache_enabled(), depth


def _set_autocast(
    kind: str, is_enabled: bool, dtype: torch.dtype, is_cached: bool, depth: int
) -> None:
    torch.set_autocast_enabled(kind, is_enabled)
    torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(is_cached)
    while torch.autocast_increment_nesting() <= depth:
        pass
    while torch.autocast_decrement_nesting() > depth:
        pass


def _restore_attributes(
    module: nn.Module, attributes: dict[str, Any], containers: dict[str, dict[Any, Any]]
) -> None:
    own = vars(module)
    for name in [name for name in own if name not in attributes and name not in _KEPT]:
        del own[name]
    own.update(attributes)
    for name, items in containers.items():
        for key in [key for key in own[name] if key not in items]:
            del own[name][key]
        own[name].update(items)
