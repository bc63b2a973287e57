"""The base of all methods: an adapted model that is still a module, and a borrowed one.

Two decisions every method states, because they change results:

* *Which logits are returned.* `predicts = "before"`: those of the forward made before the update
  on that batch; `"after"`: those of a forward made after it.
* *What a batch costs.* `forwards` and `backwards` a batch, counted as they happen in `counts`.

The wrapped model is touched only while a batch is processed: modes, flags and hooks are what they
were as soon as the call returns, and weights go back bit for bit by `reset()` and `unwrap()`.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.errors import NotAdapted
from acclimate.functional.across import batch_size
from acclimate.functional.checkpointing import forget_activations
from acclimate.functional.inputs import Normalization
from acclimate.functional.norm import Statistics, use_statistics
from acclimate.functional.pixels import Grid, to_maps
from acclimate.functional.precision import fast_autocast
from acclimate.methods.composition import Composition
from acclimate.methods.config import Config
from acclimate.methods.dense import check_dense
from acclimate.methods.guard import Guard
from acclimate.methods.intake import Intake
from acclimate.methods.speed import Speed
from acclimate.methods.state import Counts, Snapshot
from acclimate.snapshot import copy_tree, fingerprint, load_tensors
from acclimate.storage import digest
from acclimate.taps import Forward, LogitsAt, replace_logits, run

__all__ = ["Counts", "Method", "Problem", "Snapshot"]


@dataclass(frozen=True)
class Problem:
    """Why a method cannot work on a model: where, what, and what to do."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} {self.remedy}"


# Which living method has borrowed a model; an attribute on the model would be a trace.
_borrowers: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Method]] = weakref.WeakKeyDictionary()


class Method(Intake):
    """An algorithm, and the adapted model it makes.

    A subclass writes `step`, and `setup` for what it needs besides; never `forward`, `reset`,
    `save`, `load`, `unwrap`. State is declared once with `add_state`; saving, resetting and moving
    between devices follow.

    Of a model that predicts every pixel it sees logits and features as rows, one a pixel (`run`),
    and returns rows; the base class makes maps of them again.
    """

    name: ClassVar[str] = ""
    config_class: ClassVar[type[Config]] = Config
    paper: ClassVar[str] = ""
    code: ClassVar[str] = ""
    year: ClassVar[int] = 0
    moves: ClassVar[str] = "nothing"
    predicts: ClassVar[str] = "before"
    needs: ClassVar[tuple[str, ...]] = ()
    forwards: ClassVar[int] = 1
    backwards: ClassVar[int] = 0
    #: Whether these two are declared for each image, by a method that takes a batch apart.
    counts_by_image: ClassVar[bool] = False
    #: Why this may differ from the authors' method, where their text and code leave it open.
    reconstruction: ClassVar[str] = ""
    #: Whether it learns from labels, which only an evaluation can reveal: an upper bound.
    is_oracle: ClassVar[bool] = False
    #: Whether it is right when processes share a batch (`acclimate.distributed`); not inherited.
    shards: ClassVar[bool] = False
    #: Whether it makes sense pixel by pixel, on models that predict every pixel; not inherited.
    dense: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        *,
        artifact: Artifact | None = None,
        head: str | None = None,
        logits_at: LogitsAt = None,
        normalization: Normalization | None = None,
        seed: int = 0,
        guard: Guard | None = None,
        composition: Composition | None = None,
        speed: Speed | None = None,
    ) -> None:
        super().__init__(model, artifact, seed, guard)
        borrower = _borrowers.get(model)
        if borrower is not None and (other := borrower()) is not None:
            raise NotAdapted(
                "already_adapted",
                f'this model is being adapted by "{other.name}" already. Call unwrap() on that one '
                "first, or adapt a copy.deepcopy of the model.",
            )
        self.config = config
        self.head = head
        self.logits_at = logits_at
        self.normalization = normalization
        self.composition = composition or Composition()
        self.speed = speed or Speed()
        self._output: Any = None
        self._grid: Grid | None = None
        self._labels: Tensor | None = None
        self._losses: dict[str, Tensor] = {}
        self._source = fingerprint(model)["weights_sha256"]
        self._prepared = digest(artifact.tensors) if artifact is not None else None
        shape = list(artifact.card["input_shape"]) if artifact is not None else None
        self.add_state("input_shape", shape)
        self.setup()
        self._initial = self.snapshot()
        _borrowers[model] = weakref.ref(self)

    # What a subclass writes ---------------------------------------------------------------------

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        """Return why the method cannot adapt this model; nothing if it can."""
        return []

    def setup(self) -> None:
        """Declare state and take from the artifact what the method needs."""

    def step(self, x: Tensor) -> Tensor:
        """Predict one batch and adapt; return logits. Runs without gradients unless asked for."""
        return self.run(x).logits

    def predict(self, x: Tensor) -> Tensor:
        """Predict one batch without learning anything from it."""
        return self.run(x, moves=False).logits

    # What a subclass uses -----------------------------------------------------------------------

    def run(
        self,
        x: Tensor,
        moves: bool = True,
        statistics: Statistics | None = None,
        model: nn.Module | None = None,
    ) -> Forward:
        """Run the model once under the configured statistics.

        Args:
            x: A batch.
            moves: Whether running statistics may move; off for a second view of the batch.
            statistics: Other than configured.
            model: Another than the one that is adapted, such as a copy of it that teaches it.
        """
        result = self._pass(x, moves, statistics, model)
        if result.grid is not None:
            check_dense(type(self), self.processes is not None)
        if not self._paused:
            self.counts.forwards += 1
        if self._output is None:
            self._output, self._grid = result.output, result.grid
        return result

    def note_loss(self, name: str, value: Tensor) -> None:
        """Keep the value of a loss term of this batch, for records."""
        self._losses[name] = value.detach()

    def _pass(
        self, x: Tensor, moves: bool, statistics: Statistics | None, model: nn.Module | None
    ) -> Forward:
        """Pass a batch through the model; see `run`."""
        chosen: Any = statistics or self._statistics
        model = self.model if model is None else model
        head = model.get_submodule(self.head) if self.head is not None else None
        share = self._batch_share(len(x), chosen)
        if self._channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with use_statistics(model, chosen, share, moves), ExitStack() as stack:
            if self.speed.checkpoint:
                # The second time nothing moves: what moved the first time is in place.
                again = partial(use_statistics, model, chosen, share, moves=False)
                stack.enter_context(forget_activations(model, again))
            return run(model, x, head, self.logits_at)

    # The contract -------------------------------------------------------------------------------

    @final  # type: ignore[misc]
    def forward(self, x: Tensor) -> Any:
        """Predict a batch, then learn from it; return what the model returns.

        Raises:
            BadInput: The batch cannot be used. Nothing has changed.
            NotAdapted: After `unwrap()`, or in inference mode.
        """
        if self.processes is None:
            return self._process(self._accept(x))
        facts = {"paused": self._paused, "counts": asdict(self.counts)}
        with self.processes.share(x, self._accept, facts) as x:
            return self._process(x)

    def _process(self, x: Tensor) -> Any:
        # Autocast keeps low-precision copies of weights while its context lasts, and would go on
        # predicting with those of the first batch.
        torch.clear_autocast_cache()
        self._losses = {}
        before = self._running_statistics()
        # References are enough: declared state is replaced, never changed in place.
        declared = {name: getattr(self, name) for name in self._declared}
        draws, counts = self.generator.get_state(), copy.deepcopy(self.counts)
        n_skipped = self.counts.n_skipped
        try:
            with torch.no_grad(), fast_autocast(x.device, self.speed.bfloat16):
                if self._is_single(x):
                    # One image has no batch statistics; those of the source are what is left.
                    logits = self.run(x, statistics="source").logits
                    if not self._paused:
                        self.counts.skip("single")
                else:
                    logits = self.predict(x) if self._paused else self.step(x)
            made = logits.detach().to(x.dtype)
            if self._grid is not None:
                made = to_maps(made, self._grid).contiguous()
            result = replace_logits(self._output, made, self.logits_at)
        except BaseException:
            load_tensors(self, before)
            for name, value in declared.items():
                setattr(self, name, value)
            self.generator.set_state(draws)
            self.counts = counts
            raise
        finally:
            self._output = self._grid = self._labels = None
        if self.counts.n_skipped > n_skipped:
            load_tensors(self, before)
        if not self._paused:
            self.counts.batches += 1
            self.counts.samples += batch_size(x)
            self.input_shape = list(x.shape[1:])
            if self.guard is not None:
                self.guard.watch(self, logits.detach())
        return result

    @final
    def unwrap(self) -> nn.Module:
        """Give the source model back, bit for bit; the adapted model cannot be used afterwards."""
        self.reset()
        model = self.model
        _borrowers.pop(model, None)
        del self.model
        return model

    @final
    @contextmanager
    def paused(self) -> Iterator[Self]:
        """Predict without learning: inside, calls change nothing at all."""
        was, self._paused = self._paused, True
        try:
            yield self
        finally:
            self._paused = was

    @final
    def reveal(self, y: Tensor) -> None:
        """Show the labels of the next batch to an oracle; an evaluation does it, if asked to.

        Raises:
            NotAdapted: The method is no oracle, and must never see a label.
        """
        if not self.is_oracle:
            raise NotAdapted(
                "labels_refused",
                f"{self.name} adapts without labels, and none may be shown to it.",
                method=self.name,
            )
        self._labels = y

    @property
    def losses(self) -> dict[str, float]:
        """The loss on the last batch and the terms it is the sum of, as far as they were noted."""
        # Read here only: to ask a device for a number makes it wait.
        return {name: float(value) for name, value in self._losses.items()}

    # nn.Module ----------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Set the wrapper's flag only: how the model runs is the method's business."""
        self.training = mode
        return self

    def extra_repr(self) -> str:
        """Name the method in the module's representation."""
        return f"method={self.name}"

    # Inside -------------------------------------------------------------------------------------

    def _batch_share(self, n: int, statistics: str) -> float:
        """Return what the statistics of a batch of n samples weigh, where they are mixed."""
        return self.config.statistics_momentum

    def _moved(self) -> str:
        """Return what tells apart two choices of the parameters that move."""
        return "nothing"

    def _running_statistics(self) -> dict[str, Tensor]:
        """Copy the buffers if this batch can move them: a failing batch changes nothing."""
        if self._statistics not in ("running", "robust") or self._paused:
            return {}
        return copy_tree(dict(self.named_buffers()))  # type: ignore[no-any-return]

    def _identity(self) -> dict[str, Any]:
        return {
            "method": self.name,
            "config": self.config.to_dict(),
            "source": self._source,
            "artifact": self._prepared,
            "guard": self.guard is not None,
            "composition": self.composition.to_dict(),
            "moves": self._moved(),
            "speed": self.speed.to_dict(),
        }
