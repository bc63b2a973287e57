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
import json
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from acclimate.artifact import Artifact
from acclimate.errors import (
    AcclimateWarning,
    ArtifactMismatch,
    BadInput,
    NotAdapted,
    StateError,
    UnsuitableModel,
    warn,
)
from acclimate.export import ExportPlan, export_model
from acclimate.forward import Call, Forward, LogitsAt, get_logits, replace_logits, run, run_eagerly
from acclimate.functional.across import Processes, batch_mean, batch_size
from acclimate.functional.checkpointing import forget_activations
from acclimate.functional.entropy import log_probs
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
from acclimate.functional.stream_norm import (
    PROBE,
    TOLERANCE,
    has_several_styles,
    stream_share,
    trust,
    use_stream,
    use_styles,
    weigh_batch,
    with_benefit,
    with_styles,
)
from acclimate.functional.styles import MOST, N_NUMBERS, has_style
from acclimate.functional.views import spread
from acclimate.guard import Guard, GuardReport
from acclimate.introspect import ModelInfo, check_logits, suits_channels_last, takes, try_forward
from acclimate.methods.batch import CallLock, Copies, Journal, OpenBatch, close_contexts
from acclimate.methods.compute import Speed
from acclimate.methods.config import Config
from acclimate.methods.observers import Observer, Observers
from acclimate.parts.part import Part
from acclimate.schema import Fields, Items, Maybe, Nothing, Number, Schema, TensorOf, Where, like
from acclimate.snapshot import (
    Tree,
    copy_tree,
    fingerprint,
    flatten_tree,
    load_tensors,
    map_tree,
    model_tensors,
    unflatten_tree,
)
from acclimate.storage import digest, read_file, write_file
from acclimate.terms.term import Term


@dataclass(frozen=True, kw_only=True)
class MethodCard:
    """Facts about a method. They are appended to its docstring.

    Attributes:
        authors: Authors of the paper.
        year: Year of the paper.
        paper: URL of the paper.
        code: URL of the authors' code, if it is public.
        moves: What learning changes.
        predicts: Which logits are returned: those of a forward pass `"before"` or `"after"` the
            update.
        forwards: Forward passes per batch.
        backwards: Backward passes per batch.
        per_image: Whether these two are per image, for a method that processes single images.
        reconstruction: Why this may differ from the authors' method, if their text and code leave
            details open; empty if they do not.
        is_oracle: Whether it learns from labels, which only an evaluation can reveal.
        shards: Whether it is correct when processes share a batch (`acclimate.distributed`).
        dense: Whether it supports models that predict every pixel.
        replays: Whether it stores images of earlier batches and runs them again.
    """

    authors: str = ""
    year: int = 0
    paper: str = ""
    code: str = ""
    moves: str = "nothing"
    predicts: str = "before"
    forwards: int = 1
    backwards: int = 0
    per_image: bool = False
    reconstruction: str = ""
    is_oracle: bool = False
    shards: bool = False
    dense: bool = False
    replays: bool = False

    @property
    def cost(self) -> str:
        """The passes of a batch as text."""
        passes = {"forward": self.forwards, "backward": self.backwards}
        text = ", ".join(f"{n} {word}{'s' * (n > 1)}" for word, n in passes.items() if n)
        return f"{text} for each image" if self.per_image else text

    def variant(self, **facts: Any) -> MethodCard:
        """Return the card of another method that moves the same at the same cost, but for `facts`.

        All other facts are not inherited.
        """
        inherited = {"moves": self.moves, "forwards": self.forwards, "backwards": self.backwards}
        return MethodCard(**{**inherited, **facts})

    def describe(self) -> str:
        """Return the facts as the last paragraph of a docstring."""
        authors = f"{self.authors} {self.year}, " if self.authors else ""
        lines = [f"Paper: {authors}{self.paper or 'none'}."]
        lines += [f"Code: {self.code}."] if self.code else []
        lines += [f"Moves {self.moves}. Returns logits from {self.predicts} the update."]
        lines += [f"Cost of a batch: {self.cost}."]
        lines += [f"Reconstruction: {self.reconstruction}."] if self.reconstruction else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Problem:
    """Why a method cannot adapt a model: where, what, and what to do."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} {self.remedy}"


@dataclass
class Counts:
    """Counts since the last reset."""

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
        """Number of batches that must not move running statistics: no update was made on them.

        An update that happened to change no parameter is not one of these.
        """
        return self.n_skipped - self.skipped.get("unchanged", 0)


@dataclass(frozen=True)
class Snapshot:
    """A copy of everything an adapted model has learned; see `Method.snapshot`."""

    tree: Tree


#: Below this number of images, batch statistics are worth a warning.
SMALL_BATCH = 16
#: What the shape of an input must look like in a saved state.
_SHAPE = Maybe(Items(Number(int, low=1, high=2**31), list, longest=8))
#: Problems of a state that an error shows.
_SHOWN = 12
#: Numbers of an input that is made up to count the classes of a model, at most.
_LARGEST_PROBE = 2**26
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
        self.model = model
        self.config = config
        self.artifact = artifact
        self.info = info or ModelInfo()
        self.guard = guard
        self.speed = speed or Speed()
        self.added_terms = tuple(terms)
        self.counts = Counts()
        self.generator = torch.Generator().manual_seed(seed)
        self._given = [model if given is None else given]  # in a list: it must not be a submodule
        self._declared: list[str] = []
        self._schemas: dict[str, Schema] = {}
        self._initial = Snapshot({})
        self._lock = CallLock()
        #: Copies of tensors for undoing a batch.
        self.copies = Copies()
        self._open: Journal | None = None
        self._observers = Observers()
        self._learns: bool | None = None
        self._has_batch_norm = bool(batch_norm_layers(model))
        # Properties of the model; None until a batch was seen.
        self._channels_last: bool | None = None
        self._is_dense = self.info.is_dense if artifact is not None else None
        self._takes_single: bool | None = None
        # State of the current batch.
        self._call: Call | None = None
        self._output: Any = None
        self._grid: Grid | None = None
        self._losses: dict[str, Tensor] = {}
        self.labels: Tensor | None = None
        #: What `step` sets if it returns scaled logits: those whose softmax is the confidence.
        self.plain_logits: Tensor | None = None
        #: What `step` and `infer` set if they combine predictions of the images and of the mirrored
        #: images: the logits of both, by which the guard judges the model.
        self.view_logits: tuple[Tensor, Tensor] | None = None
        self._recent: Tensor | None = None
        self._warned: set[str] = set()
        if guard is not None:
            guard.bind(model)
        self._source = fingerprint(model)["weights_sha256"]
        self._prepared = digest(artifact.tensors) if artifact is not None else None
        self.add_state(
            "input_shape",
            list(artifact.card["input_shape"]) if artifact is not None else None,
            _SHAPE,
        )
        if config.statistics == "auto":
            self.add_state("stream", None, _stream_schema(model))
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

        Replace the value, never change it in place: a batch that fails restores the old value.

        Args:
            name: Name of the attribute.
            default: Its first value.
            schema: What a saved value must look like to be loaded; None for the names, shapes and
                kinds of the default, and for anything where that is None or empty.
        """
        self._declared.append(name)
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

    def predict_view(self, x: Tensor) -> Forward:
        """Predict another view of the batch, as `infer` does, and leave no trace."""
        kept = self._output, self._grid, self.plain_logits, self.view_logits
        generator_state = self.generator.get_state()
        self._output = self._grid = None
        try:
            with self._without_learning(), torch.no_grad():
                single = self.is_single(x)
                found = self.run(x, statistics="source").logits if single else self.infer(x)
            return Forward(self._output, found.detach(), None, self._grid)
        finally:
            self._output, self._grid, self.plain_logits, self.view_logits = kept
            self.generator.set_state(generator_state)

    def return_from(self, result: Forward) -> None:
        """Make the call return the output of this pass, with the logits that `step` returns."""
        self._output, self._grid = result.output, result.grid

    @property
    def returns_more(self) -> bool:
        """Whether the model returns more than logits, so that a pass must cover the whole batch."""
        return not isinstance(self._output, Tensor)

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
        """Complete the update on the batch of the last `predict`.

        If this fails, the state is that from before the batch.

        Returns:
            Whether there was a batch to learn from.
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
        """Forget the batch of the last `predict`: the state is that from before it.

        Returns:
            Whether there was such a batch.
        """
        with self._exclusive(outermost=True):
            self._recover()
            had = self.has_pending
            self._discard_pending()
            return had

    @final
    def on_batch(self, observer: Observer) -> RemovableHandle:
        """Call a function with this adapted model and the logits after every batch.

        It is called when the batch is complete: after the update, or in `learn()` if the batch was
        answered by `predict()`. It may read and save the state, but not call the model. If it
        raises, the call raises, and the batch stays learned.

        Returns:
            A handle; `handle.remove()` ends it.
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

    @property
    def has_pending(self) -> bool:
        """Whether `predict` has answered a batch that `learn` has not learned from yet."""
        batch = self._open
        return batch is not None and batch.is_answered

    def _call_model(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_later: bool) -> Any:
        with self._exclusive(outermost=True):
            self._recover()
            call = Call.of(args, kwargs, self.info.images_at)
            if self.card.replays:
                call.check_alone(self.name)
            self._warn_of_eval()
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
        shape = self._expected_shape(x)
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
        if (
            self.guard is None
            and self.counts.batches == 0
            and self.is_learning
            and self.is_single(x)
        ):
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
        if batch.learns:
            self.counts.batches += 1
            self.counts.samples += batch_size(batch.x)
            self.input_shape = list(batch.x.shape[1:])
            if batch.logits is not None:
                self._check_stream(batch.x, batch.logits)
        self._forget_batch()
        self._open = batch.outer  # from here on, an interrupt finds the batch complete
        if batch.logits is not None:
            counts = self.counts
            updated, restored = counts.updates > batch.n_updates, counts.restored > batch.n_restored
            self._observers.notify(self, batch.logits, updated, restored)

    def _step_or_infer(self, x: Tensor) -> Tensor | Iterator[Tensor]:
        if self.is_single(x):
            # One image has no batch statistics: use those of the source.
            if self.is_learning:
                self.counts.skip("single")
            return self.run(x, statistics="source").logits
        if self.is_learning and self.statistics == "auto" and self._has_batch_norm:
            self._probe_stream(x)
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
        if not self._has_batch_norm or self.statistics != "batch" or self._is_dense:
            return
        if self.guard is not None and self.guard.answers:
            return
        remedy = (
            "Use larger batches, guard=True, which answers with the source model where adaptation "
            'hurts, or statistics="auto" or "source".'
        )
        n = batch_size(x)
        if n < SMALL_BATCH and "small_batch" not in self._warned:
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
                    "few classes are wrong: predictions may be much worse than the source "
                    f"model's. {remedy}",
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
                stack.enter_context(self._use_stream(model, x, moves))
            if self.speed.checkpoint:
                # Recomputation must not change running statistics a second time.
                again = partial(use_statistics, model, chosen, share, moves=False)
                stack.enter_context(forget_activations(model, again))
            return run(model, x, head, self.logits_at, self._call)

    @property
    def trust(self) -> float:
        """How much the statistics of the stream count with `statistics="auto"`, from 0 to 1."""
        tolerance = TOLERANCE
        if self.artifact is not None and "confidence" in self.artifact.parts:
            tolerance += max(0.0, float(self.artifact.part("confidence")["loss"]))
        return trust(self.stream, tolerance)

    @contextmanager
    def _use_stream(self, model: nn.Module, x: Tensor, moves: bool) -> Iterator[None]:
        """Normalise a pass over a batch with the statistics of the stream; remember them."""
        with self._mixed_by_stream(model, x, batch_size(x), self.trust) as (moved, n):
            yield
        is_finite = all(bool(moments.isfinite().all()) for moments in moved.values())
        if not (moves and self.is_learning and moved and is_finite):
            return
        if isinstance(n, Tensor):
            known = dict(self.stream or {})
            self.stream = {**known, "styles": {**known["styles"], "n": n.cpu(), "moments": moved}}
        else:
            known = dict(self.stream or {"benefit": None, "styles": None})
            self.stream = {**known, "n": n, "moments": moved}

    @contextmanager
    def _mixed_by_stream(
        self, model: nn.Module, x: Tensor, n: int, trusted: float
    ) -> Iterator[tuple[dict[str, Tensor], float | Tensor]]:
        """Normalise by the statistics of a stream in which this batch counts as n samples."""
        if self.stream is not None and has_several_styles(self.stream):
            with use_styles(model, self.stream["styles"], x, trusted) as (moved, numbers):
                yield moved, numbers
        else:
            own, n_effective = weigh_batch(self.stream, n)
            with use_stream(model, self.stream, own, stream_share(n_effective) * trusted) as moved:
                yield moved, n_effective

    def _probe_stream(self, x: Tensor) -> None:
        """Compare the confidence with the source's statistics and with those of the stream."""
        if has_style(x) and self.processes is None:
            self.stream = with_styles(self.stream, x)
        images = x[spread(x, PROBE)]
        with use_statistics(self.model, "source"):
            source = run(self.model, images, None, self.logits_at, self._call).logits
            with self._mixed_by_stream(self.model, images, batch_size(x), 1.0):
                here = run(self.model, images, None, self.logits_at, self._call).logits
        self.counts.forwards += 2
        values = [log_probs(logits).exp().amax(dim=1) for logits in (here, source)]
        difference = float(batch_mean(values[0] - values[1]))
        if math.isfinite(difference):
            self.stream = with_benefit(self.stream, difference, batch_size(images))

    def _expected_shape(self, x: object) -> tuple[int, ...] | None:
        """Return the shape that samples must have; None if it is not known yet."""
        if self.input_shape is None:
            return None
        if self._is_dense and isinstance(x, Tensor) and x.dim() == 4:
            # A model that predicts every pixel accepts images of any size.
            return (self.input_shape[0], *x.shape[2:])
        return tuple(self.input_shape)

    def _takes_channels_last(self, x: Tensor) -> bool:
        """Return whether batches are passed in the channels-last memory format."""
        return self.speed.channels_last and suits_channels_last(self.model, x, self._call)

    def _warn_of_eval(self) -> None:
        if not (self.training or id(self) in _paused.get()):
            self._warn(
                AcclimateWarning(
                    "eval_mode",
                    "This adapted model is in eval mode: it predicts, but does not learn. Call "
                    "train() to let it learn. If this is intended, use `with adapted.paused():`, "
                    "which does not warn.",
                )
            )

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

    @contextmanager
    def _without_learning(self) -> Iterator[None]:
        """Learn nothing from the passes inside, which belong to the batch being processed."""
        was, self._learns = self._learns, False
        try:
            yield
        finally:
            self._learns = was

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
        with self._exclusive():
            self._recover()
            return self._known_guard().estimate()

    @final
    def report(self) -> GuardReport:
        """Return what the guard has seen and done since the last reset."""
        with self._exclusive():
            self._recover()
            return self._known_guard().report()

    def _known_guard(self) -> Guard:
        if self.guard is None:
            raise NotAdapted(
                "no_guard",
                "An estimate needs a guard, but this model was adapted without one. Use "
                'adapt(..., guard=True), or guard="watch" to estimate without changing answers. '
                'The artifact must contain the part "accuracy".',
            )
        return self.guard

    # State --------------------------------------------------------------------------------------

    @final
    def snapshot(self) -> Snapshot:
        """Return a copy of everything learned, to `restore` later."""
        with self._exclusive():
            self._recover()
            self._check_usable()
            self._check_settled()
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
        """Write everything learned to one file, atomically.

        Args:
            path: Path of the file.
            key: Secret to sign the file with (HMAC-SHA256); None for no signature.
        """
        with self._exclusive():
            self._recover()
            self._check_usable()
            self._check_settled()
            tensors, skeleton = flatten_tree(copy_tree(self._tree()))
        write_file(path, "state", tensors, {**self._identity(), "tree": skeleton}, key)

    @final
    def load(self, path: str | Path, key: bytes | str | None = None) -> Self:
        """Resume a saved stream: the next logits are those of the uninterrupted stream.

        Args:
            path: Path of the file.
            key: Secret that the file must be signed with; None accepts signed and unsigned files.

        Raises:
            ArtifactMismatch: The file was saved with another method, configuration, model or
                artifact.
            StateError: Its content does not fit the adapted model.
            CorruptFile: The file is damaged, or not signed with the key.

        After an error, the adapted model is as it was before.
        """
        self._check_usable()
        tensors, card = read_file(path, "state", key)
        with self._exclusive():
            self._recover()
            self._check_identity(str(path), card)
            tree = self._checked_tree(str(path), tensors, card.get("tree"))
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
        return {name: getattr(self, name) for name in self._declared}

    def _set_declared_state(self, state: dict[str, Tree]) -> None:
        for name in self._declared:
            setattr(self, name, state[name])

    def _optimizer_tree(self) -> Tree:
        return {}

    def _load_optimizer_tree(self, tree: Tree) -> None:
        pass

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

    def _schema(self, with_modules: bool = True) -> Schema:
        """Return what a saved state of this adapted model must look like."""
        learned = {
            "modules": self._module_schema(model_tensors(self)),
            "method": Fields(self._state_schemas()),
            "optimizer": self._optimizer_schema(),
        }
        count = Number(int, low=0)
        counts = {name: count for name in asdict(Counts()) if name != "skipped"}
        fields: dict[str, Schema] = {
            **learned,
            "generator": Where(
                TensorOf(tuple(self.generator.get_state().shape), torch.uint8),
                _is_generator_state,
                "not a state of a random number generator",
            ),
            "counts": Fields({**counts, "skipped": Items(count)}),
            "guard": self.guard.schema(Fields(learned)) if self.guard is not None else Nothing(),
        }
        if not with_modules:
            del fields["modules"]
        return Fields(fields)

    def _module_schema(self, tensors: Mapping[str, Tensor], partial: bool = False) -> Fields:
        """Return what values of these tensors must look like; finite where the source is."""
        source = self._initial.tree["modules"]

        def leaf(name: str, tensor: Tensor) -> Schema:
            low = 0 if name.endswith((".running_var", ".num_batches_tracked")) else None
            is_finite = bool(source.get(name, tensor).isfinite().all())
            shape = tuple(tensor.shape)
            return TensorOf(shape, tensor.dtype, low, finite=is_finite, nan=not is_finite)

        return Fields({name: leaf(name, t) for name, t in tensors.items()}, partial)

    def _checked_tree(
        self, origin: str, tensors: Mapping[str, Tensor], skeleton: Any, with_modules: bool = True
    ) -> Tree:
        """Return the tree of a saved state, if it fits this adapted model."""
        try:
            tree = unflatten_tree(dict(tensors), skeleton)
            again, _ = flatten_tree(tree)
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise _wrong_state(origin, [f"tree: {type(error).__name__}: {error}"]) from error
        problems = [
            f"{name}: not where it belongs"
            for name in dict.fromkeys([*tensors, *again])
            if again.get(name) is not tensors.get(name)
        ]
        sizes: dict[str, Any] = {}
        if self.info.n_classes is not None:
            sizes["classes"] = self.info.n_classes
        shape = tree["method"].get("input_shape") if _has_method(tree) else None
        if isinstance(shape, list) and not self._is_dense:
            sizes["..."] = tuple(shape)
        if "classes" not in sizes and not _SHAPE.find_problems(shape):
            n_classes = self._count_classes(shape)
            sizes |= {} if n_classes is None else {"classes": n_classes}
        problems += self._schema(with_modules).find_problems(tree, sizes)
        if problems:
            raise _wrong_state(origin, problems)
        return tree

    def _count_classes(self, shape: list[int] | None) -> int | None:
        """Return the number of logits for an input of this shape; None if it cannot be found."""
        like = next((p for p in self.model.parameters() if p.is_floating_point()), None)
        if shape is None or like is None or math.prod(shape) > _LARGEST_PROBE:
            return None
        try:
            with torch.no_grad(), use_statistics(self.model, "source"):
                found = run(self.model, like.new_zeros(1, *shape), None, self.logits_at, None)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
            return None  # a model that needs more than images
        return found.logits.shape[1]

    def _state_schemas(self) -> dict[str, Schema]:
        return dict(self._schemas)

    def _optimizer_schema(self) -> Schema:
        return Fields({})

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

    def _check_identity(self, origin: str, saved: Mapping[str, Any]) -> None:
        differences = {
            key: (saved.get(key), value)
            for key, value in self._identity().items()
            if saved.get(key) != value
        }
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
        # Everything is checked before any tensor is copied.
        given = dict(state_dict)
        extra = given.pop("_extra_state", None)
        own = {key: t for key, t in self.state_dict().items() if key != "_extra_state"}
        schema = self._module_schema(own, partial=not strict)
        found = given if strict else {key: t for key, t in given.items() if key in own}
        problems = schema.find_problems(found)
        if extra is None and strict:
            problems.append("_extra_state: missing")
        if problems:
            raise _wrong_state("the state_dict", problems)
        if extra is not None:
            self._read_extra_state(extra)
        with self._exclusive():
            self._recover()
            self._discard_pending()
            return self._load_whole(lambda: super(Method, self).load_state_dict(state_dict, strict))

    def get_extra_state(self) -> dict[str, Any]:
        """Return what `state_dict()` contains besides the model's own tensors."""
        with self._exclusive():
            self._recover()
            self._check_settled()
            tree = {key: value for key, value in self._tree().items() if key != "modules"}
        tensors, skeleton = flatten_tree(tree)
        identity = json.dumps(self._identity())
        return {"tensors": copy_tree(tensors), "tree": json.dumps(skeleton), "identity": identity}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Load the result of `get_extra_state`."""
        tree = self._read_extra_state(state)
        self._load_whole(lambda: self._load_tree(copy_tree({**tree, "modules": {}})))

    def _read_extra_state(self, state: Any) -> Tree:
        """Return the tree of `get_extra_state`, if it fits this adapted model."""
        origin = "the state_dict"
        try:
            tensors, text = state["tensors"], state["tree"]
            skeleton, saved = json.loads(text), json.loads(state["identity"])
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            problem = f"_extra_state: {type(error).__name__}: {error}"
            raise _wrong_state(origin, [problem]) from error
        if not isinstance(saved, dict) or not isinstance(tensors, dict):
            raise _wrong_state(origin, ["_extra_state: not what state_dict() returned"])
        self._check_identity(origin, saved)
        return self._checked_tree(origin, tensors, skeleton, with_modules=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        tree = self._tree()
        tree["method"] = map_tree(tree["method"], fn)
        if self.guard is not None:
            self.guard.move(fn)
        self._load_tree(tree)  # moves the optimiser's state to the device of its parameters
        return self


def _wrong_state(origin: str, problems: list[str]) -> StateError:
    shown = "".join(f"\n  {line}" for line in problems[:_SHOWN])
    more = f"\n  (+ {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
    return StateError(
        "wrong_state",
        f"Expected a state of this adapted model, but {origin} has {len(problems)} "
        f"problem(s):{shown}{more}\nNothing was loaded. Save the state again, or start anew.",
        path=origin,
        problems=tuple(problems),
    )


def _has_method(tree: Tree) -> bool:
    return isinstance(tree, dict) and isinstance(tree.get("method"), dict)


def _is_generator_state(state: Tensor) -> bool:
    generator = torch.Generator()
    try:
        generator.set_state(state.cpu())
    except RuntimeError:
        return False
    return torch.equal(generator.get_state(), state.cpu())


def _are_styles(styles: Tree) -> bool:
    """Return whether there is one of everything for each style."""
    sizes = {len(styles[name]) for name in ("centres", "counts", "n")}
    sizes |= {len(each) for each in styles["moments"].values()}
    return len(sizes) == 1 and 0 < max(sizes) <= MOST


def _stream_schema(model: nn.Module) -> Schema:
    """Return what the state of `statistics="auto"` must look like."""
    layers = {
        name: layer.running_mean
        for name, layer in batch_norm_layers(model).items()
        if layer.running_mean is not None
    }
    moments: dict[str, Schema] = {
        name: Where(
            TensorOf((2, len(mean))), lambda t: bool((t[1] >= 0).all()), "negative variances"
        )
        for name, mean in layers.items()
    }
    of_styles: dict[str, Schema] = {
        name: Where(
            TensorOf((None, 2, len(mean))),
            lambda t: bool((t[:, 1] >= 0).all()),
            "negative variances",
        )
        for name, mean in layers.items()
    }
    styles: dict[str, Schema] = {
        "centres": TensorOf((None, N_NUMBERS)),
        "counts": TensorOf((None,), low=0),
        "n": TensorOf((None,), low=0),
        "moments": Fields(of_styles, partial=True),
    }
    fields = {
        "n": Number(float, low=0),
        "moments": Fields(moments, partial=True),
        "benefit": Maybe(Number(float, low=-1, high=1)),
        "styles": Maybe(Where(Fields(styles), _are_styles, "styles that do not fit each other")),
    }
    is_counted = "moments of no samples"
    return Maybe(Where(Fields(fields), lambda s: s["n"] > 0 or not s["moments"], is_counted))


def check_dense(kind: type[Method], is_shared: bool = False) -> None:
    """Refuse a method for a model that predicts every pixel, unless the method supports it.

    Args:
        kind: The method.
        is_shared: Whether several processes share a batch.

    Raises:
        UnsuitableModel: The method does not support it; the message lists those that do.
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
