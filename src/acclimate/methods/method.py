"""The base class of all methods: an adapted model that is a module and borrows another model.

Every method states two decisions in its card, because they change results:

* *Which logits are returned.* `predicts = "before"`: those of the forward pass before the update on
  that batch; `"after"`: those of a forward pass after it.
* *What a batch costs.* `forwards` and `backwards` per batch. `counts` has the actual numbers.

The wrapped model is changed only while a batch is processed: modes, flags and hooks are restored
when the call returns, and `reset()` and `unwrap()` restore the weights bit for bit.
"""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from acclimate.artifact import Artifact
from acclimate.errors import AcclimateWarning, BadInput, NotAdapted, UnsuitableModel, warn
from acclimate.export import ExportPlan, export_model
from acclimate.forward import Call, Forward, LogitsAt, get_logits, replace_logits, run, run_eagerly
from acclimate.functional.across import Processes, batch_size
from acclimate.functional.checkpointing import forget_activations
from acclimate.functional.inputs import (
    Normalization,
    check_batch,
    check_device,
    check_dtype,
    check_images,
)
from acclimate.functional.norm import Statistics, batch_norm_layers, use_statistics
from acclimate.functional.pixels import Grid, to_maps
from acclimate.functional.precision import fast_autocast
from acclimate.functional.signals import Estimate, is_correlated
from acclimate.guard import Guard, GuardReport
from acclimate.introspect import ModelInfo, check_logits, suits_channels_last, takes, try_forward
from acclimate.methods.batch import (
    CallLock,
    Copies,
    Journal,
    Observer,
    Observers,
    OpenBatch,
    close_contexts,
)
from acclimate.methods.compute import Speed
from acclimate.methods.config import Config, MethodCard, Problem
from acclimate.methods.state import (
    SHAPE,
    check_identity,
    check_state_dict,
    check_tree,
    pack_extra_state,
    unpack_extra_state,
)
from acclimate.methods.stream import probe_stream, stream_schema, trust_of, use_stream_of
from acclimate.parts.part import Part
from acclimate.schema import Fields, Schema, like
from acclimate.snapshot import (
    Tree,
    copy_tree,
    fingerprint,
    flatten_tree,
    load_tensors,
    map_tree,
    model_tensors,
)
from acclimate.storage import digest, read_file, write_file
from acclimate.terms.term import Term

Answer = TypeVar("Answer")


@dataclass
class Counts:
    """Counts since the last reset. `skipped` has the batches without an update, by reason."""

    batches: int = 0
    samples: int = 0
    updates: int = 0
    forwards: int = 0
    backwards: int = 0
    restored: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count a batch that was predicted without an update."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    @property
    def n_skipped(self) -> int:
        """Number of batches that were predicted without an update, for any reason."""
        return sum(self.skipped.values())

    @property
    def n_refused(self) -> int:
        """Number of batches without an update, which must not move running statistics.

        An update that happened to change no parameter is not one of these.
        """
        return self.n_skipped - self.skipped.get("unchanged", 0)


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything an adapted model has learned; see `Method.snapshot`."""

    tree: Tree


#: Below this number of images, batch statistics are worth a warning.
SMALL_BATCH = 16
#: Predictions that are compared with the one before, to recognise a correlated stream.
_RECENT = 256

# The adapted models that are paused, by id, in this thread or asyncio task.
_paused: ContextVar[tuple[int, ...]] = ContextVar("acclimate_paused", default=())

# The method that has borrowed each model. An attribute would change the model.
_borrowers: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Method]] = weakref.WeakKeyDictionary()


class Method(nn.Module):
    """An algorithm, and the adapted model it produces.

    A subclass defines `step`, and `setup` if it needs initialisation, but never `forward`, `reset`,
    `save`, `load` or `unwrap`. It declares state once with `add_state`; the base class saves,
    resets and moves it between devices.

    **Train and eval mode.** A new adapted model is in train mode: a call predicts and learns. After
    `eval()` it only predicts, and warns once. This is PyTorch's convention, and the safe one: a
    validation loop that calls `eval()` on a model, or on a larger model that contains it, must not
    train it. `train()` turns learning on again. The mode has no other effect: in both modes dropout
    is off and BatchNorm uses the configured statistics.

    If the model predicts every pixel, `run` returns logits and features as rows, one per pixel, and
    `step` returns rows; the base class converts them back to maps.
    """

    name: ClassVar[str] = ""
    config_class: ClassVar[type[Config]] = Config
    card: ClassVar[MethodCard] = MethodCard()
    #: The parts of an artifact that the method needs.
    needs: ClassVar[tuple[type[Part], ...]] = ()
    #: Whether terms can be added to its loss.
    takes_terms: ClassVar[bool] = False
    #: The processes that share every batch; None if this process has the whole batch.
    processes: Processes | None = None

    model: nn.Module
    config: Config
    #: State of `statistics="auto"`; see `acclimate.functional.stream_norm`.
    stream: dict[str, Any] | None
    input_shape: list[int] | None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "card" not in vars(cls):
            # The changes of a subclass may not work across processes or on pixels, so it has to
            # declare both itself.
            cls.card = dataclasses.replace(cls.card, shards=False, dense=False)
        if "name" in vars(cls) and cls.__doc__:
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{cls.card.describe()}\n"

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        *,
        artifact: Artifact | None = None,
        info: ModelInfo | None = None,
        seed: int = 0,
        guard: Guard | None = None,
        speed: Speed | None = None,
        terms: Iterable[Term] = (),
        given: nn.Module | None = None,
    ) -> None:
        super().__init__()
        borrower = _borrowers.get(model)
        if borrower is not None and (other := borrower()) is not None:
            raise NotAdapted(
                "already_adapted",
                f'This model is already being adapted by the method "{other.name}". Call unwrap() '
                "on that adapted model first, or adapt a copy.deepcopy of the model.",
            )
        self.model, self.config, self.artifact = model, config, artifact
        self.info, self.guard, self.speed = info or ModelInfo(), guard, speed or Speed()
        self.added_terms = tuple(terms)
        self.counts = Counts()
        self.generator = torch.Generator().manual_seed(seed)
        self._given = [model if given is None else given]  # in a list: it must not be a submodule
        self._schemas: dict[str, Schema] = {}  # of declared state, by name
        self._initial = Snapshot({})
        self._lock = CallLock()
        #: Copies of tensors for undoing a batch.
        self.copies = Copies()
        self._open: Journal | None = None
        self._observers = Observers()
        self._warned: set[str] = set()
        # Properties of the model; None until a batch was seen.
        self._has_batch_norm = bool(batch_norm_layers(model))
        self._channels_last: bool | None = None
        self._is_dense = self.info.is_dense if artifact is not None else None
        self._takes_single: bool | None = None
        # State of the current batch.
        self._learns: bool | None = None
        self._call: Call | None = None
        self._output: Any = None
        self._grid: Grid | None = None
        self._losses: dict[str, Tensor] = {}
        self._recent: Tensor | None = None
        self.labels: Tensor | None = None
        #: What `step` sets if it returns scaled logits: those whose softmax is the confidence.
        self.plain_logits: Tensor | None = None
        #: What `step` and `infer` set if they combine predictions of the images and of the mirrored
        #: images: the logits of both, by which the guard judges the model.
        self.view_logits: tuple[Tensor, Tensor] | None = None
        if guard is not None:
            guard.bind(model)
        self._source = fingerprint(model)["weights_sha256"]
        self._prepared = digest(artifact.tensors) if artifact is not None else None
        shape = list(artifact.card["input_shape"]) if artifact is not None else None
        self.add_state("input_shape", shape, SHAPE)
        if config.statistics == "auto":
            self.add_state("stream", None, stream_schema(model))
        self.setup()
        self._initial = self.snapshot()
        for name, tensor in model_tensors(self).items():
            self.copies.give(name, tensor, self._initial.tree["modules"][name])
        _borrowers[model] = weakref.ref(self)

    # Hooks for subclasses -----------------------------------------------------------------------

    @classmethod
    def check(cls, model: nn.Module, config: Config) -> list[Problem]:
        """Return why the method cannot adapt this model; an empty list if it can."""
        return []

    @classmethod
    def needed_parts(cls) -> tuple[str, ...]:
        """Return the names of the artifact parts that the method needs."""
        return tuple(part.name for part in cls.needs)

    def setup(self) -> None:
        """Declare state and read what the method needs from the artifact."""

    def step(self, x: Tensor) -> Tensor | Iterator[Tensor]:
        """Predict one batch, adapt, and return logits. Gradients are disabled by default.

        A method that knows its logits before it learns is a generator: it yields them once and
        learns afterwards, so that `predict` can answer first. It must not yield inside a context
        that changes the model.
        """
        return self.run(x).logits

    def infer(self, x: Tensor) -> Tensor:
        """Predict one batch without learning from it."""
        return self.run(x, moves=False).logits

    def needs_several_samples(self) -> bool:
        """Return whether the method cannot learn from one sample, which has no batch statistics."""
        return self._has_batch_norm and self.statistics == "batch"

    def scale_rate(self, share: float) -> None:
        """Learn at a share of the configured rate; nothing if the method has no rate."""

    def plan_export(self) -> ExportPlan:
        """Return how `infer` predicts, for `export`.

        Override this along with `infer`. Raise `refuse_export` if no plain module can do it.
        """
        return ExportPlan(model=self.model, statistics=self.statistics)

    def batch_share(self, n: int, statistics: str) -> float:
        """Return the weight of the statistics of a batch of n samples when they are mixed."""
        return self.config.statistics_momentum

    # Tools for subclasses -----------------------------------------------------------------------

    def add_state(self, name: str, default: Tree, schema: Schema | None = None) -> None:
        """Declare an attribute that reset, save, load, snapshot and `.to()` handle.

        Replace the value, never change it in place: a batch that fails restores the old value. The
        schema tells what a saved value must look like; without one, it has the names, shapes and
        kinds of the default, and anything where that is None or empty.
        """
        self._schemas[name] = like(default) if schema is None else schema
        setattr(self, name, default)

    def run(
        self,
        x: Tensor,
        moves: bool = True,
        statistics: Statistics | None = None,
        model: nn.Module | None = None,
    ) -> Forward:
        """Run the model once with the configured BatchNorm statistics.

        If the model returns more than logits, the first pass of a batch also decides what else is
        returned; see `return_from`.

        Args:
            x: A batch.
            moves: Whether running statistics may change; False for a second view of the batch.
            statistics: Statistics to use instead of the configured ones.
            model: Model to run instead of the adapted one, such as a teacher.
        """
        result = self._pass(x, moves, statistics, model)
        if result.grid is not None:
            check_dense(type(self), self.processes is not None)
        if self.is_learning:
            self.counts.forwards += 1
        if self._output is None:
            self.return_from(result)
        return result

    def return_from(self, result: Forward) -> None:
        """Make the call return the output of this pass, with the logits that `step` returns."""
        self._output, self._grid = result.output, result.grid

    @property
    def returns_more(self) -> bool:
        """Whether the model returns more than logits, so that a pass must cover the whole batch."""
        return not isinstance(self._output, Tensor)

    def predict_view(self, x: Tensor) -> Forward:
        """Predict another view of the batch, as `infer` does, and leave no trace."""
        kept = self._output, self._grid, self.plain_logits, self.view_logits, self._learns
        generator_state = self.generator.get_state()
        self._output = self._grid = None
        self._learns = False
        try:
            with torch.no_grad():
                single = self.is_single(x)
                found = self.run(x, statistics="source").logits if single else self.infer(x)
            return Forward(self._output, found.detach(), None, self._grid)
        finally:
            self._output, self._grid, self.plain_logits, self.view_logits, self._learns = kept
            self.generator.set_state(generator_state)

    def note_loss(self, name: str, value: Tensor) -> None:
        """Store the value of a loss term of this batch, for records."""
        self._losses[name] = value.detach()

    def is_single(self, x: Tensor) -> bool:
        """Return whether a batch has too few values for batch statistics.

        The pixels of one image have statistics, unless the model pools them into one value per
        channel and normalises it.
        """
        if len(x) > 1 or self.processes is not None or not self.needs_several_samples():
            return False
        if self._is_dense and self._takes_single is None:
            self._takes_single = takes(self.model, x, "batch", self._call)
        return not (self._is_dense and self._takes_single)

    @staticmethod
    def weights_changed() -> None:
        """Clear autocast's cache. Call this after changing weights inside `step`.

        Autocast caches low-precision copies of weights inside its context, and would continue to
        predict with the old ones.
        """
        torch.clear_autocast_cache()

    @property
    def is_learning(self) -> bool:
        """Whether a call learns: in train mode and outside `paused()`.

        While a batch is processed: whether it is learned from.
        """
        if self._learns is not None:
            return self._learns
        return self.training and id(self) not in _paused.get()

    @property
    def call(self) -> Call | None:
        """How the model is called for the current batch."""
        return self._call

    @property
    def statistics(self) -> str:
        """The BatchNorm statistics in use."""
        return self.config.statistics

    @property
    def normalization(self) -> Normalization | None:
        """The normalisation of the inputs."""
        normalization: Normalization | None = self.info.normalization
        return normalization

    @property
    def head(self) -> str | None:
        """The name of the module that returns the logits, if it is known."""
        return self.info.head

    @property
    def logits_at(self) -> LogitsAt:
        """Where the logits are in the output of the model."""
        return self.info.logits_at

    @property
    def trust(self) -> float:
        """How much the statistics of the stream count with `statistics="auto"`, from 0 to 1."""
        return trust_of(self)

    # Processing a batch -------------------------------------------------------------------------

    @final  # type: ignore[misc]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Predict a batch, learn from it, and return the output of the model.

        The arguments are those of the model. One of them is the batch of images: the only tensor,
        the only floating-point tensor of four dimensions, or the one that
        `ModelInfo(images_at=...)` names. The others are passed on unchanged.

        Raises:
            BadInput: The batch cannot be used. Nothing was changed.
            NotAdapted: The model was unwrapped, or inference mode is enabled.
        """
        return self._call_model(args, kwargs, is_later=False)

    @final
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict a batch and return the output of the model, as a call does, but learn later.

        `learn()` completes the update from the same forward pass, later or in another thread. Both
        together equal the ordinary call bit for bit. Until then, another batch that would be
        learned from is refused, and so is a copy of the state. Paused calls are answered. A method
        that predicts after its update, and one whose processes share batches, learns before it
        answers; `has_pending` is then False and `learn()` has nothing left to do.

        Raises:
            BadInput: The batch cannot be used. Nothing was changed.
            NotAdapted: An earlier batch was not learned from yet, the model was unwrapped, or
                inference mode is enabled.
        """
        return self._call_model(args, kwargs, is_later=True)

    @final
    def learn(self) -> bool:
        """Complete the update on the batch of the last `predict`; return whether there was one.

        If this fails, the state is that from before the batch.
        """
        with self._exclusive(outermost=True):
            self._recover()
            batch = self._open
            if not isinstance(batch, OpenBatch):
                return False
            try:
                batch.is_answered = False
                self._call = batch.call
                self._complete(batch)
            except BaseException as error:
                self._undo(batch, error)
                raise
            return True

    @final
    def discard(self) -> bool:
        """Undo the batch of the last `predict`; return whether there was one."""
        with self._exclusive(outermost=True):
            self._recover()
            had = self.has_pending
            self._discard_pending()
            return had

    @property
    def has_pending(self) -> bool:
        """Whether `predict` has answered a batch that `learn` has not learned from yet."""
        batch = self._open
        return batch is not None and batch.is_answered

    @final
    def on_batch(self, observer: Observer) -> RemovableHandle:
        """Call a function with this adapted model and the logits after every batch.

        It is called when the batch is complete: after the update, or in `learn()` if the batch was
        answered by `predict()`. It may read and save the state, but not call the model. If it
        raises, the call raises, and the batch stays learned. `remove()` of the result ends it.
        """
        return self._observers.add("batch", observer)

    @final
    def on_update(self, observer: Observer) -> RemovableHandle:
        """Call a function after every batch that was learned from; see `on_batch`."""
        return self._observers.add("update", observer)

    @final
    def on_restore(self, observer: Observer) -> RemovableHandle:
        """Call a function after every batch in which the guard or the method restored a state.

        See `on_batch`. `restore()` and `reset()`, which you call yourself, are not reported.
        """
        return self._observers.add("restore", observer)

    def _call_model(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_later: bool) -> Any:
        with self._exclusive(outermost=True):
            self._recover()
            call = Call.of(args, kwargs, self.info.images_at)
            if self.card.replays:
                call.check_alone(self.name)
            if not (self.training or id(self) in _paused.get()):
                self._warn(
                    AcclimateWarning(
                        "eval_mode",
                        "This adapted model is in eval mode: it predicts, but does not learn. "
                        "Call train() to let it learn. If this is intended, use "
                        "`with adapted.paused():`, which does not warn.",
                    )
                )
            if self.is_learning:
                self._check_settled()
            batch = OpenBatch(self, call, outer=self._open)
            try:
                self._open = batch
                self._call = call
                if self.processes is None:
                    return self._process(batch, self._accept(call.images), is_later)
                facts = {"learns": batch.learns, "counts": asdict(self.counts)}
                with self.processes.share(call.images, self._accept, facts) as x:
                    return self._process(batch, x, is_later=False)
            except BaseException as error:
                self._undo(batch, error)
                raise

    def _exclusive(self, outermost: bool = False) -> CallLock:
        """Return the lock under which the model is used; call `_recover` first inside it.

        The lock itself is the context manager: an interrupt cannot come between taking it and
        entering the context.
        """
        batch = self._open
        if self._lock.is_mine and (outermost or (batch is not None and not batch.is_answered)):
            raise NotAdapted(
                "reentrant",
                "This adapted model is in use by this thread, and was called again from inside "
                "that call: by the model itself or by a callback. Call it after that call has "
                "returned.",
            )
        return self._lock

    def _check_settled(self) -> None:
        """Refuse what needs a complete state while a batch waits for `learn`."""
        if self.has_pending:
            raise NotAdapted(
                "pending",
                "The batch of the last predict() was not learned from yet. Call learn() to "
                "complete it, or discard() to forget it.",
            )

    def _discard_pending(self) -> None:
        if self._open is not None:
            self._open.is_answered = False
            self._recover()

    def _recover(self) -> None:
        """Return to the state before every batch that was interrupted."""
        while self._open is not None and not self._open.is_answered:
            batch = self._open
            batch.roll_back(self)
            self._open = batch.outer

    def _undo(self, journal: Journal, error: BaseException) -> None:
        """Undo what an exception has interrupted, unless it was complete."""
        if self._open is journal:
            journal.is_answered = False
            close_contexts(error)
            self._recover()

    def _accept(self, x: Tensor) -> Tensor:
        """Validate a batch and return it ready for use. If it raises, nothing was changed."""
        self._check_usable()
        if torch.is_inference_mode_enabled():
            raise NotAdapted(
                "inference_mode",
                "An adapted model cannot learn inside torch.inference_mode(), where no gradient "
                "can be computed. Use torch.no_grad() instead; the method enables gradients where "
                "it needs them.",
            )
        first = next((p for p in self.model.parameters()), x)
        check_device(x, first)
        shape = tuple(self.input_shape) if self.input_shape is not None else None
        if shape is not None and self._is_dense and isinstance(x, Tensor) and x.dim() == 4:
            shape = (shape[0], *x.shape[2:])  # images of any size
        if self.artifact is not None or self.normalization is not None:
            # The normalisation was stated, so the range of pixels can be checked.
            check_images(x, self.normalization, shape)
        else:
            check_batch(x, shape)
        check_dtype(x, first)
        if self._is_dense is None or self.input_shape != list(x.shape[1:]):
            logits = get_logits(try_forward(self.model, x[:2], self._call), self.logits_at)
            check_logits(logits)
            self._is_dense = logits.dim() == 4
        is_first = self.counts.batches == 0 and self.is_learning
        if self.guard is None and is_first and self.is_single(x):
            raise BadInput(
                "single_sample",
                "Expected more than one sample, found one, whose BatchNorm statistics are "
                'meaningless. Pass larger batches, or adapt with statistics="running" or "source" '
                "(on the command line: --set statistics=running). A single image after larger "
                "batches is predicted, but not learned from.",
            )
        if self._channels_last is None:
            self._channels_last = self._takes_channels_last(x)
        x = x.detach()
        return x.clone() if x.is_inference() else x

    def _takes_channels_last(self, x: Tensor) -> bool:
        """Return whether batches are passed in the channels-last memory format."""
        return self.speed.channels_last and suits_channels_last(self.model, x, self._call)

    def _process(self, batch: OpenBatch, x: Tensor, is_later: bool) -> Any:
        batch.x = x
        self._learns = batch.learns
        self.weights_changed()
        self._losses = {}
        output = self._answer_batch(batch)
        if is_later and batch.rest is not None:
            self._forget_batch()
            batch.is_answered = True
        else:
            self._complete(batch)
        return output

    def _forget_batch(self) -> None:
        """Forget what belongs to the batch that is being processed."""
        self._call = self._learns = None
        self._output = self._grid = self.labels = self.plain_logits = self.view_logits = None

    @contextmanager
    def _computing(self, x: Tensor) -> Iterator[None]:
        """Set gradients, compilation and precision for the computations on a batch."""
        with torch.no_grad(), ExitStack() as stack:
            stack.enter_context(run_eagerly(self.model))
            if self.speed.bfloat16:
                stack.enter_context(fast_autocast(x.device, enabled=True))
            yield

    def _answer_batch(self, batch: OpenBatch) -> Any:
        """Predict a batch, choose the answer, and return it as the model would."""
        x = batch.x
        with self._computing(x):
            made = self._step_or_infer(x)
            if isinstance(made, Tensor):
                logits = made
            else:
                logits, batch.rest = next(made), made
                if self.card.predicts == "after":
                    batch.finish()
            if self.guard is not None:
                logits = self._consult(self.guard, batch, logits)
        batch.logits = logits.detach()
        answer = batch.logits.to(x.dtype)
        if self._grid is not None:
            answer = to_maps(answer, self._grid).contiguous()
        return replace_logits(self._output, answer, self.logits_at)

    def _complete(self, batch: OpenBatch) -> None:
        """Make the update on a batch that was answered; then the batch is over."""
        self._learns = batch.learns
        with self._computing(batch.x):
            batch.finish()
            if self.counts.n_refused > batch.n_refused:
                load_tensors(self, batch.statistics)
            if self.guard is not None and batch.verdict is not None:
                self.guard.settle(self, batch.verdict)
        counts = self.counts
        if batch.learns:
            counts.batches += 1
            counts.samples += batch_size(batch.x)
            self.input_shape = list(batch.x.shape[1:])
            if batch.logits is not None:
                self._check_stream(batch.x, batch.logits)
        self._forget_batch()
        self._open = batch.outer  # from here on, an interrupt finds the batch complete
        if batch.logits is not None:
            updated, restored = counts.updates > batch.n_updates, counts.restored > batch.n_restored
            self._observers.notify(self, batch.logits, updated, restored)

    def _step_or_infer(self, x: Tensor) -> Tensor | Iterator[Tensor]:
        if self.is_single(x):
            # One image has no batch statistics: use those of the source.
            if self.is_learning:
                self.counts.skip("single")
            return self.run(x, statistics="source").logits
        if self.is_learning and self.statistics == "auto" and self._has_batch_norm:
            probe_stream(self, x)
        if self.is_learning and (self.guard is None or self.guard.lets_learn):
            return self.step(x)
        if self.is_learning:
            self.counts.skip("guard")
        return self.infer(x)

    def _consult(self, guard: Guard, batch: OpenBatch, logits: Tensor) -> Tensor:
        """Return the logits of the model that the guard answers with."""
        adapted = Forward(self._output, logits, None, self._grid)
        if batch.learns:
            batch.verdict = guard.judge(self, batch.x, adapted)
            chosen = batch.verdict.chosen
        else:
            chosen = guard.answer(self, batch.x, adapted)
        if chosen is not adapted:
            self.return_from(chosen)
        return chosen.logits

    def _check_stream(self, x: Tensor, logits: Tensor) -> None:
        """Warn once of a batch too small for its statistics, and of a correlated stream."""
        is_guarded = self.guard is not None and self.guard.answers
        if not self._has_batch_norm or self.statistics != "batch" or self._is_dense or is_guarded:
            return
        remedy = (
            "Use larger batches, guard=True, which answers with the source model where adaptation "
            'hurts, or statistics="auto" or "source".'
        )
        n = batch_size(x)
        if n < SMALL_BATCH:
            self._warn(
                AcclimateWarning(
                    "small_batch",
                    f"This batch has {n} images, fewer than the {SMALL_BATCH} that BatchNorm "
                    "statistics need: predictions may be much worse than the source model's. "
                    f"{remedy}",
                )
            )
        if "correlated_stream" in self._warned or self.processes is not None:
            return
        predicted = logits.argmax(dim=1)
        recent = predicted if self._recent is None else torch.cat([self._recent, predicted])
        self._recent = recent[-_RECENT:]
        is_enough = self.counts.batches > 1 and len(self._recent) >= _RECENT // 2
        if is_enough and is_correlated(self._recent):
            self._warn(
                AcclimateWarning(
                    "correlated_stream",
                    "Consecutive images seem to be of the same class. Statistics of batches with "
                    "few classes are wrong: predictions may be much worse than the source model's. "
                    f"{remedy}",
                )
            )

    def _warn(self, warning: AcclimateWarning) -> None:
        """Warn, but only once of each kind."""
        if warning.code not in self._warned:
            self._warned.add(warning.code)
            warn(warning)

    def _pass(
        self, x: Tensor, moves: bool, statistics: Statistics | None, model: nn.Module | None
    ) -> Forward:
        """Pass a batch through the model; see `run`."""
        chosen: Any = statistics or self.statistics
        model = self.model if model is None else model
        head = model.get_submodule(self.head) if self.head is not None else None
        share = self.batch_share(len(x), chosen)
        if self._channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with use_statistics(model, chosen, share, moves), ExitStack() as stack:
            if chosen == "auto":
                stack.enter_context(use_stream_of(self, model, x, moves))
            if self.speed.checkpoint:
                # Recomputation must not change running statistics a second time.
                again = partial(use_statistics, model, chosen, share, moves=False)
                stack.enter_context(forget_activations(model, again))
            return run(model, x, head, self.logits_at, self._call)

    # Public interface ---------------------------------------------------------------------------

    @final
    def reset(self) -> Self:
        """Restore the source model and the initial state, bit for bit."""
        self.restore(self._initial)
        return self

    @final
    def unwrap(self) -> nn.Module:
        """Return the source model, bit for bit. The adapted model cannot be used afterwards."""
        with self._exclusive():
            self._recover()
            self.reset()
            _borrowers.pop(self.model, None)
            del self.model
            return self._given.pop()

    @final
    def export(self, probe: Tensor | Sequence[Tensor] = ()) -> nn.Module:
        """Return a plain module that predicts as the adapted model does now, without learning.

        It is a copy: this adapted model goes on. `acclimate.export.export_model` also returns a
        card, with the differences from the live predictions.

        Args:
            probe: One or more recent batches of the stream, which are needed if the statistics of
                batches are in use.

        Raises:
            NotAdapted: A plain module cannot predict as this method does.
            InvalidConfig: A probe is needed.
        """
        return export_model(self, probe).module

    @final
    @contextmanager
    def settled(self) -> Iterator[Self]:
        """Keep other threads from changing the state while it is read.

        Raises:
            NotAdapted: The model was unwrapped, or a batch waits for `learn`.
        """
        with self._exclusive():
            self._recover()
            self._check_usable()
            self._check_settled()
            yield self

    @property
    def source_sha256(self) -> str:
        """The SHA-256 of the source model's weights."""
        return str(self._source)

    @final
    @contextmanager
    def paused(self) -> Iterator[Self]:
        """Predict without learning: calls inside the context change nothing.

        It applies to the thread or asyncio task that entered it. Other threads continue to learn.
        """
        _paused.set((*_paused.get(), id(self)))
        try:
            yield self
        finally:
            others = list(_paused.get())
            if id(self) in others:
                others.remove(id(self))
            _paused.set(tuple(others))

    @final
    def reveal(self, y: Tensor) -> None:
        """Pass the labels of the next batch to an oracle; evaluations do so with `reveal_labels`.

        Raises:
            NotAdapted: The method is not an oracle, and must not see labels.
        """
        if not self.card.is_oracle:
            raise NotAdapted(
                "labels_refused",
                f'The method "{self.name}" adapts without labels and must not receive any. Use an '
                "oracle, or do not call reveal().",
                method=self.name,
            )
        self.labels = y

    @property
    def losses(self) -> dict[str, float]:
        """The loss on the last batch and its terms, if the method noted them."""
        # Converted here only, because reading a number synchronises with the device.
        return {name: float(value) for name, value in self._losses.items()}

    @final
    def estimate(self) -> Estimate | None:
        """Return the estimated accuracy of the source and of the adapted model, without labels.

        It covers the recent images. None if there were too few.

        Raises:
            NotAdapted: The model was adapted without a guard.
        """
        return self._ask_guard(Guard.estimate)

    @final
    def report(self) -> GuardReport:
        """Return what the guard has seen and done since the last reset."""
        return self._ask_guard(Guard.report)

    def _ask_guard(self, question: Callable[[Guard], Answer]) -> Answer:
        with self._exclusive():
            self._recover()
            if self.guard is None:
                raise NotAdapted(
                    "no_guard",
                    "An estimate needs a guard, but this model was adapted without one. Use "
                    'adapt(..., guard=True), or guard="watch" to estimate without changing '
                    'answers. The artifact must contain the part "accuracy".',
                )
            return question(self.guard)

    # State --------------------------------------------------------------------------------------

    @final
    def snapshot(self) -> Snapshot:
        """Return a copy of everything learned, to `restore` later."""
        with self.settled():
            return Snapshot(copy_tree(self._tree()))

    @final
    def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot, bit for bit. A batch that waits for `learn` is discarded."""
        with self._exclusive():
            self._recover()
            self._check_usable()
            self._discard_pending()
            self._load_whole(lambda: self._load_tree(copy_tree(snapshot.tree)))

    @final
    def save(self, path: str | Path, key: bytes | str | None = None) -> None:
        """Write everything learned to one file, atomically; with a key, signed by HMAC-SHA256."""
        with self.settled():
            tensors, skeleton = flatten_tree(copy_tree(self._tree()))
        write_file(path, "state", tensors, {**self._identity(), "tree": skeleton}, key)

    @final
    def load(self, path: str | Path, key: bytes | str | None = None) -> Self:
        """Resume a saved stream: the next logits are those of the uninterrupted stream.

        With a key, the file must be signed with it; without one, it may be signed or not. After an
        error, the adapted model is as it was before.

        Raises:
            ArtifactMismatch: The file was saved with another method, configuration, model or
                artifact.
            StateError: Its content does not fit the adapted model.
            CorruptFile: The file is damaged, or not signed with the key.
        """
        self._check_usable()
        tensors, card = read_file(path, "state", key)
        with self._exclusive():
            self._recover()
            check_identity(self, str(path), card)
            tree = check_tree(self, str(path), tensors, card.get("tree"))
            self._discard_pending()
            self._load_whole(lambda: self._load_tree(tree))
        return self

    def learned(self) -> Tree:
        """Return everything that learning changes: weights, buffers, declared state, optimiser."""
        return {
            "modules": model_tensors(self),
            "method": self._declared_state(),
            "optimizer": self._optimizer_tree(),
        }

    def initial(self) -> Tree:
        """Return what `learned` returned before the first batch."""
        return {key: self._initial.tree[key] for key in ("modules", "method", "optimizer")}

    def load_learned(self, tree: Tree) -> None:
        """Load the tree that `learned` returned. The tree must not be used afterwards."""
        load_tensors(self, tree["modules"])
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        self._set_declared_state(map_tree(tree["method"], lambda t: t.to(device)))
        self._load_optimizer_tree(tree["optimizer"])

    def restore_source(self) -> None:
        """Undo everything learned; counts and random numbers continue."""
        self.load_learned(copy_tree(self.initial()))
        self.counts.restored += 1

    def _declared_state(self) -> dict[str, Tree]:
        return {name: getattr(self, name) for name in self._schemas}

    def _set_declared_state(self, state: dict[str, Tree]) -> None:
        for name in self._schemas:
            setattr(self, name, state[name])

    def _state_schemas(self) -> dict[str, Schema]:
        return dict(self._schemas)

    def _optimizer_tree(self) -> Tree:
        return {}

    def _load_optimizer_tree(self, tree: Tree) -> None:
        pass

    def _optimizer_schema(self) -> Schema:
        return Fields({})

    def _tree(self) -> Tree:
        return {
            **self.learned(),
            "generator": self.generator.get_state(),
            "counts": asdict(self.counts),
            "guard": self.guard.tree() if self.guard is not None else None,
        }

    def _load_tree(self, tree: Tree) -> None:
        self.load_learned(tree)
        self.generator.set_state(tree["generator"].cpu())
        self.counts = Counts(**tree["counts"])
        self._recent = None
        if self.guard is not None:
            self.guard.load_tree(tree["guard"])
            self.scale_rate(self.guard.rate)

    def _load_whole(self, load: Callable[[], Any]) -> Any:
        """Load something; if that fails or is interrupted, everything is as before."""
        journal = Journal(self, outer=self._open)
        try:
            self._open = journal
            made = load()
            self._open = journal.outer
            return made
        except BaseException as error:
            self._undo(journal, error)
            raise

    def _identity(self) -> dict[str, Any]:
        """Return the settings that must equal those of a saved state to load it."""
        return {
            "method": self.name,
            "config": self.config.to_dict(),
            "source": self._source,
            "artifact": self._prepared,
            "guard": self.guard.to_dict() if self.guard is not None else None,
            "speed": self.speed.to_dict(),
        }

    def _check_usable(self) -> None:
        if "model" not in self._modules:
            raise NotAdapted(
                "unwrapped",
                "This adapted model was unwrapped. Adapt the model again: acclimate.adapt(...).",
            )

    # nn.Module ----------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Turn learning on or off. The method decides in which mode the model itself runs."""
        self.training = mode
        return self

    def extra_repr(self) -> str:
        """Return the method's name for the module's representation."""
        return f"method={self.name}"

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a `state_dict()`; values are copied into the model's own tensors."""
        if assign:
            raise NotAdapted(
                "assign_refused",
                "Calling load_state_dict(assign=True) would replace the borrowed model's "
                "parameters. Call it without assign.",
            )
        check_state_dict(self, state_dict, strict)
        with self._exclusive():
            self._recover()
            self._discard_pending()
            return self._load_whole(lambda: super(Method, self).load_state_dict(state_dict, strict))

    def get_extra_state(self) -> dict[str, Any]:
        """Return what `state_dict()` contains besides the model's own tensors."""
        with self._exclusive():
            self._recover()
            self._check_settled()
            return pack_extra_state(self)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load the result of `get_extra_state`."""
        tree = unpack_extra_state(self, state)
        self._load_whole(lambda: self._load_tree(copy_tree({**tree, "modules": {}})))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        tree = self._tree()
        tree["method"] = map_tree(tree["method"], fn)
        if self.guard is not None:
            self.guard.move(fn)
        self._load_tree(tree)  # moves the optimiser's state to the device of its parameters
        return self


def check_dense(kind: type[Method], is_shared: bool = False) -> None:
    """Raise UnsuitableModel unless the method supports models that predict every pixel.

    Args:
        kind: The method.
        is_shared: Whether several processes share a batch.
    """
    if kind.card.dense and not is_shared:
        return
    if kind.card.dense:
        raise UnsuitableModel(
            "dense_unsupported",
            "Processes cannot share the batches of a model that predicts every pixel, because they "
            "exchange counts of samples. Run it in one process.",
            what="shard",
        )
    from acclimate.methods import METHODS  # imported here because it imports this module

    able = ", ".join(name for name, other in METHODS.items() if other.card.dense)
    raise UnsuitableModel(
        "dense_unsupported",
        f'This model predicts every pixel, but the method "{kind.name}" supports only predictions '
        "of whole images: it selects, stores, moves or contrasts them, or uses a linear head. Use "
        f"one of {able}. The term swr can be added to those that learn.",
        what=kind.name,
    )
