"""Functions that are called when an adapted model has processed a batch, learned or gone back."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from acclimate.methods.method import Method

#: Takes the adapted model and the logits of the batch.
Observer = Callable[["Method", Tensor], object]

_log = logging.getLogger("acclimate.adaptation")


class Observers:
    """Observers of one adapted model. A copy of the model has none."""

    def __init__(self) -> None:
        self._by_event: dict[str, OrderedDict[int, Observer]] = {
            event: OrderedDict() for event in ("batch", "update", "restore")
        }

    def __deepcopy__(self, memo: object) -> Observers:
        return Observers()

    def __reduce__(self) -> tuple[type[Observers], tuple[()]]:
        return Observers, ()

    def add(self, event: str, observer: Observer) -> RemovableHandle:
        """Call a function at each event; `handle.remove()` ends that."""
        known = self._by_event[event]
        handle = RemovableHandle(known)
        known[handle.id] = observer
        return handle

    def notify(self, method: Method, logits: Tensor, updated: bool, restored: bool) -> None:
        """Report a batch that is complete, to the log and to all observers."""
        counts = method.counts
        _log.debug(
            "%s: batch %d, %d predictions, %s",
            method.name,
            counts.batches,
            len(logits),
            "updated" if updated else "not updated",
        )
        if restored:
            _log.info("%s: an earlier state was restored (%d so far)", method.name, counts.restored)
        events = {"batch": True, "update": updated, "restore": restored}
        for event, has_happened in events.items():
            for observer in tuple(self._by_event[event].values()) if has_happened else ():
                observer(method, logits)
