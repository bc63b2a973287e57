"""Answers and learning of a server: batches of requests, one thread each for both.

Requests of a stream are answered together (`max_batch`, `max_wait_ms`) by a replica of the model
that has the newest published state of the stream. The images then wait for learning, in a queue of
limited length, and another thread learns from them in batches of `learn_batch`. So an answer never
waits for an update, and a queue never grows beyond its limit.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from acclimate.artifact import Artifact
from acclimate.errors import AcclimateError, BadInput, ServerBusy
from acclimate.forward import get_logits, run
from acclimate.functional.inputs import Normalization, check_images
from acclimate.functional.norm import use_statistics
from acclimate.methods.method import Counts
from acclimate.metrics.batch import BatchMetrics
from acclimate.metrics.sums import to_plain
from acclimate.serve.bodies import check_count
from acclimate.serve.history import History
from acclimate.serve.settings import EngineSettings
from acclimate.sessions import (
    Replica,
    Sessions,
    SessionStatus,
    check_id,
    check_room,
    unknown_stream,
)
from acclimate.snapshot import Tree

if TYPE_CHECKING:
    from acclimate.serve.telemetry import Telemetry

_log = logging.getLogger("acclimate.serve")
#: Seconds between two comparisons of both models on recent images.
_COMPARE_EVERY = 1.0
#: Answers whose mean latency is shown.
_LATENCIES = 256
#: How much more the learning thread yields to others than the server does, as of `nice`.
_NICE = 5
#: Longest wait of the learning thread before a layer while requests are answered, in seconds.
_LONGEST_WAIT = 0.005


@dataclass(frozen=True)
class Answer:
    """The answer to a request.

    Attributes:
        logits: (images, classes).
        answered_by: `"adapted"` or `"source"`.
        estimate: The estimated accuracies, if they are known.
    """

    logits: Tensor
    answered_by: str
    estimate: dict[str, Any] | None


@dataclass
class _Request:
    images: Tensor
    future: Future[Answer]
    received: float


@dataclass
class _Published:
    """A state of a stream for answers."""

    version: int
    state: Tree
    answered_by: str
    estimate: dict[str, Any] | None


@dataclass
class _Stream:
    """What the engine knows of a stream besides its session."""

    id: str
    status: SessionStatus
    history: History = field(default_factory=History)
    requests: deque[_Request] = field(default_factory=deque)
    n_waiting: int = 0
    n_answering: int = 0
    to_learn: deque[Tensor] = field(default_factory=deque)
    n_to_learn: int = 0
    metrics: BatchMetrics | None = None
    last_seen: float = 0.0
    unsaved: int = 0
    compared: float = 0.0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))
    is_leaving: bool = False
    n_busy: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for an answer, or for learning."""
        return not (self.requests or self.n_busy or self.n_to_learn >= 2)


class Engine:
    """Answers requests of many streams, and learns from their images in the background.

    Args:
        model: The model. It is borrowed until `close`; two copies of it are made.
        method: As of `Sessions`, and so are `artifact` and `options`.
        artifact: See `method`.
        settings: Batching, queues and saving.
        folder: Where the states of streams are kept. Those found there go on.
        shape: Shape of an image as the model takes it: channels, height, width.
        classes: Names of the classes, if they are known.
        telemetry: What counts requests, answers and learned batches.
        shared: Whether several servers share the folder. Requests are then accepted for streams
            that were opened by `open`, and no other server can open them until `release`.
        **options: See `method`.
    """

    def __init__(
        self,
        model: nn.Module,
        method: str | None,
        artifact: Artifact | None,
        *,
        shape: Sequence[int],
        settings: EngineSettings | None = None,
        folder: str | Path | None = None,
        classes: Sequence[str] | None = None,
        telemetry: Telemetry | None = None,
        shared: bool = False,
        **options: Any,
    ) -> None:
        self.settings = settings or EngineSettings()
        self._leases: dict[str, FileLock] | None = {} if shared else None
        self.shape, self.classes = tuple(shape), None if classes is None else list(classes)
        self.telemetry = telemetry
        self._source = copy.deepcopy(model).eval()
        second = copy.deepcopy(model)
        self._is_idle = threading.Event()  # no request waits for its answer
        self._is_idle.set()
        self._handles = _wait_before_layers(model, self._is_idle)
        self._sessions = Sessions(
            model,
            method,
            artifact,
            limit=self.settings.sessions,
            max_streams=self.settings.max_streams,
            folder=folder,
            **options,
        )
        self._replica = Replica(self._sessions, second, method, artifact, **options)
        self._device = next((p.device for p in second.parameters()), torch.device("cpu"))
        self._changed = threading.Condition()
        self._published: OrderedDict[str, _Published] = OrderedDict()
        found = [] if shared else list(self._sessions)
        self._streams = {name: _Stream(name, self._sessions.status(name)) for name in found}
        self._is_draining = False
        self._is_answering = True
        self.problem: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"acclimate-{name}", daemon=True)
            for name, work in (("answer", self._answer_loop), ("learn", self._learn_loop))
        ]
        for thread in self._threads:
            thread.start()

    # Requests -----------------------------------------------------------------------------------

    @property
    def normalization(self) -> Normalization | None:
        """The normalisation of the model's inputs."""
        return self._replica.adapted.normalization

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted."""
        return not self._is_draining and self.problem is None

    def submit(self, stream: str, images: Tensor) -> Future[Answer]:
        """Queue images of a stream; the result is their answer.

        Raises:
            BadInput: The images or the id cannot be used, or there are too many streams.
            ServerBusy: A queue is full, or the server shuts down.
        """
        check_id(stream)
        check_images(images, self.normalization, self.shape)
        n, settings = len(images), self.settings
        check_count(n, settings.max_queue)
        request = _Request(images, Future(), time.monotonic())
        with self._changed:
            if not self.is_ready:
                raise ServerBusy("shutting_down", "The server shuts down, or has failed.")
            known = self._streams.get(stream)
            is_ours = self._leases is None or stream in self._leases
            if not is_ours or (known is not None and known.is_leaving):
                raise _elsewhere(stream)
            if known is None:
                check_room(stream, len(self._streams), settings.max_streams)
                known = _Stream(stream, SessionStatus(stream, False, Counts()))
                self._streams[stream] = known
            is_behind = (
                settings.when_behind == "refuse"
                and not known.status.is_paused
                and known.n_to_learn + known.n_answering + known.n_waiting + n
                > settings.learn_queue
            )
            if known.n_waiting + n > settings.max_queue or is_behind:
                raise ServerBusy(
                    "queue_full",
                    f'The queue of the stream "{stream}" is full. Send the request again later.',
                    stream=stream,
                )
            self._is_idle.clear()
            known.requests.append(request)
            known.n_waiting += n
            known.last_seen = time.time()
            self._changed.notify_all()
        return request.future

    def open(self, stream: str) -> None:
        """Accept requests of a stream of a shared folder, and continue with its saved state.

        Raises:
            ServerBusy: Another server has it.
        """
        check_id(stream)
        lease = FileLock(self._sessions.path(stream).with_suffix(".lock"), thread_local=False)
        try:
            lease.acquire(timeout=0)
        except Timeout as error:
            raise _elsewhere(stream) from error
        status = self._sessions.status(stream) if stream in self._sessions else None
        with self._changed:
            if status is not None:
                self._streams[stream] = _Stream(stream, status)
            if self._leases is not None:
                self._leases[stream] = lease

    def release(self, stream: str) -> None:
        """Answer and learn what waits, save a stream, and let other servers open it."""
        with self._changed:
            if self._leases is None or stream not in self._leases:
                return
            known = self._streams.get(stream)
            if known is not None:
                known.is_leaving = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.problem is not None or known.is_idle)
                del self._streams[stream]
            self._published.pop(stream, None)
            lease = self._leases.pop(stream)
        if stream in self._sessions:
            self._sessions.release(stream)
        lease.release()

    # Streams ------------------------------------------------------------------------------------

    def list_streams(self) -> list[dict[str, Any]]:
        """Return the status of every stream, the last used one first."""
        with self._changed:
            names = sorted(self._streams, key=lambda name: -self._streams[name].last_seen)
            return [self._describe(self._streams[name]) for name in names]

    def get_stream(self, stream: str) -> dict[str, Any]:
        """Return the status of a stream.

        Raises:
            BadInput: There is no such stream.
        """
        with self._changed:
            return self._describe(self._known(stream))

    def get_history(self, stream: str) -> dict[str, Any]:
        """Return what a stream has shown over time: points, events, images, predicted classes."""
        with self._changed:
            return self._known(stream).history.to_dict()

    def act(self, stream: str, action: str) -> dict[str, Any]:
        """Pause, resume, reset, snapshot or roll back a stream, save it, and return its status.

        Raises:
            BadInput: There is no such stream or action, or no snapshot to roll back to.
        """
        if action not in ("pause", "resume", "reset", "snapshot", "rollback"):
            raise BadInput(
                "unknown_name", f'Unknown action "{action}".', kind="action", name=action, known=()
            )
        with self._changed:
            known = self._known(stream)
            if action == "rollback" and not known.status.has_snapshot:
                raise BadInput(
                    "no_snapshot",
                    f'There is no snapshot of the stream "{stream}" to roll back to. Take one '
                    "first, or reset the stream.",
                    stream=stream,
                )
            if action != "snapshot":  # what waits belongs to the state that is left
                known.to_learn.clear()
                known.n_to_learn = 0
        getattr(self._sessions, action)(stream)
        self._sessions.save(stream)
        text = {"snapshot": f"after {known.status.counts.batches} batches"}.get(action, "")
        self._publish(known)
        with self._changed:
            known.unsaved = 0
            known.history.add_event(action, text)
            return self._describe(known)

    def _known(self, stream: str) -> _Stream:
        if stream not in self._streams:
            raise unknown_stream(stream)
        return self._streams[stream]

    def _describe(self, stream: _Stream) -> dict[str, Any]:
        status, metrics = stream.status, stream.metrics
        report, counts = status.report, status.counts
        resting = report is not None and report.is_resting
        return {
            "id": stream.id,
            "state": "paused" if status.is_paused else "resting" if resting else "learning",
            "batches": counts.batches,
            "samples": counts.samples,
            "updates": counts.updates,
            "skipped": dict(counts.skipped),
            "restored": counts.restored,
            "queue": stream.n_to_learn,
            "answers": "adapted" if report is None else report.answers,
            "estimate": _describe_estimate(status),
            "entropy": None if metrics is None else to_plain(metrics.entropy),
            "effective_classes": None if metrics is None else to_plain(metrics.effective_classes),
            "drift": None if metrics is None else to_plain(metrics.drift),
            "has_snapshot": status.has_snapshot,
            "last_seen": stream.last_seen,
        }

    # Threads ------------------------------------------------------------------------------------

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - reported by /healthz and by every request
            _log.exception("A thread of the server has failed")
            with self._changed:
                self.problem = error
                self._is_answering = False
                for stream in self._streams.values():
                    while stream.requests:
                        stream.requests.popleft().future.set_exception(
                            ServerBusy("shutting_down", "The server has failed.")
                        )
                self._changed.notify_all()

    def _answer_loop(self) -> None:
        while (taken := self._take_requests()) is not None:
            with self._at_work(taken[0]):
                self._answer(*taken)

    def _answer(self, stream: _Stream, requests: Sequence[_Request]) -> None:
        # A request whose client has gone is not answered, and so not learned from.
        wanted = [each for each in requests if each.future.set_running_or_notify_cancel()]
        if not wanted:
            return
        images = torch.cat([each.images for each in wanted])
        try:
            published = self._get_published(stream)
            self._replica.load(published.version, published.state)
            output = self._replica.predict(images.to(self._device))
            logits = get_logits(output, self._replica.adapted.logits_at).float().cpu()
        except (AcclimateError, RuntimeError, OSError) as error:
            _log.exception("A batch of the stream %r cannot be answered", stream.id)
            for each in wanted:
                each.future.set_exception(error)
            return
        self._queue_learning(stream, images)
        self._note_answers(stream, logits, published.answered_by)
        start = 0
        for each in wanted:
            rows = logits[start : start + len(each.images)]
            start += len(rows)
            stream.latencies.append(time.monotonic() - each.received)
            each.future.set_result(Answer(rows, published.answered_by, published.estimate))

    def _take_requests(self) -> tuple[_Stream, list[_Request]] | None:
        """Wait for requests of a stream that are due; None if there will be none any more."""
        settings = self.settings
        with self._changed:
            for stream in self._streams.values():
                stream.n_answering = 0  # also of a batch that failed
            while True:
                waiting = [each for each in self._streams.values() if each.requests]
                if not waiting:
                    self._is_idle.set()
                if not waiting and (self._is_draining or not self._is_answering):
                    self._is_answering = False
                    self._changed.notify_all()
                    return None
                now, soonest = time.monotonic(), None
                for stream in sorted(waiting, key=lambda each: each.requests[0].received):
                    due = stream.requests[0].received + settings.max_wait_ms / 1000
                    is_full = stream.n_waiting >= settings.max_batch
                    if self._is_draining or stream.is_leaving or is_full or due <= now:
                        stream.n_busy += 1
                        return stream, self._pop(stream)
                    soonest = due if soonest is None else min(soonest, due)
                self._changed.wait(None if soonest is None else max(0.0, soonest - now))

    def _pop(self, stream: _Stream) -> list[_Request]:
        taken: list[_Request] = []
        n = 0
        while stream.requests and (
            not taken or n + len(stream.requests[0].images) <= self.settings.max_batch
        ):
            taken.append(stream.requests.popleft())
            n += len(taken[-1].images)
        stream.n_waiting -= n
        stream.n_answering = n
        return taken

    def _queue_learning(self, stream: _Stream, images: Tensor) -> None:
        with self._changed:
            stream.n_answering = 0
            if stream.status.is_paused:
                return
            room = max(0, self.settings.learn_queue - stream.n_to_learn)
            kept = images[:room]
            if len(kept):
                stream.to_learn.append(kept)
                stream.n_to_learn += len(kept)
                if stream.n_to_learn >= self.settings.learn_batch:
                    self._changed.notify_all()
            left_out = len(images) - len(kept)
        if left_out and self.telemetry is not None:
            self.telemetry.note_left_out(stream.id, left_out)

    def _note_answers(self, stream: _Stream, logits: Tensor, answered_by: str) -> None:
        names = Counter(self.name_class(number) for number in logits.argmax(dim=1).tolist())
        with self._changed:
            stream.history.predicted.update(names)
        if self.telemetry is not None:
            self.telemetry.note_answers(stream.id, len(logits), answered_by)

    def _learn_loop(self) -> None:
        with suppress(AttributeError, OSError):  # not on every system
            thread = threading.get_native_id()
            own = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, own + _NICE)
        while (taken := self._take_images()) is not None:
            with self._at_work(taken[0]):
                self._learn(*taken)

    @contextmanager
    def _at_work(self, stream: _Stream) -> Iterator[None]:
        """Count a batch that was taken from a stream as done at the end."""
        yield
        with self._changed:
            stream.n_busy -= 1
            self._changed.notify_all()

    def _take_images(self) -> tuple[_Stream, Tensor] | None:
        """Wait for a batch to learn from; None if there will be none any more.

        The streams take turns.
        """
        with self._changed:
            while True:
                is_over = not self._is_answering
                for name, stream in list(self._streams.items()):
                    is_last = is_over or stream.is_leaving
                    if stream.n_to_learn >= (2 if is_last else self.settings.learn_batch):
                        stream.n_busy += 1
                        self._streams[name] = self._streams.pop(name)
                        return stream, self._pop_images(stream)
                if is_over:
                    return None
                self._changed.wait()

    def _pop_images(self, stream: _Stream) -> Tensor:
        waiting = torch.cat(list(stream.to_learn))
        size = self.settings.learn_batch
        images, rest = waiting[:size], waiting[size:].clone()  # not a view: it keeps all alive
        stream.to_learn = deque([rest] if len(rest) else [])
        stream.n_to_learn = len(rest)
        return images

    def _learn(self, stream: _Stream, images: Tensor) -> None:
        before = stream.status
        x = images.to(self._device)
        try:
            _, metrics = self._sessions.step(stream.id, x)
        except (AcclimateError, RuntimeError) as error:
            _log.exception("A batch of the stream %r cannot be learned from", stream.id)
            with self._changed:
                stream.history.add_event("warning", f"A batch was not learned from: {error}")
            return
        stream.unsaved += 1
        if stream.unsaved >= self.settings.save_every:
            self._save(stream)  # first: a count that was reported is never lost with this batch
        self._publish(stream)
        recent = self._compare(stream, x)
        with self._changed:
            stream.metrics = metrics
            waits = list(stream.latencies)
            latency = 1000 * sum(waits) / len(waits) if waits else None
            stream.history.add_batch(metrics, stream.status.counts.samples, latency)
            stream.history.recent.extendleft(recent)
            for kind, text in _find_events(before, stream.status, metrics):
                stream.history.add_event(kind, text)
        if self.telemetry is not None:
            self.telemetry.observe(stream.id, metrics)

    def _save(self, stream: _Stream) -> None:
        try:
            self._sessions.save(stream.id)
            stream.unsaved = 0
        except (OSError, BadInput) as error:  # a full disk must not stop the answers
            _log.exception("The stream %r cannot be saved", stream.id)
            with self._changed:
                stream.history.add_event("warning", f"The state was not saved: {error}")

    @torch.no_grad()
    def _compare(self, stream: _Stream, x: Tensor) -> list[dict[str, Any]]:
        """Return the last images with the predictions of both models, at most once a second."""
        now = time.monotonic()
        if now - stream.compared < _COMPARE_EVERY or x.dim() != 4 or x.shape[1] != 3:
            return []
        stream.compared = now
        adapted = self._sessions.adapted
        with use_statistics(self._source, "source"):
            source = run(self._source, x[-2:], None, adapted.logits_at, None).logits
        learned = self._sessions.predict_adapted(stream.id, x)[-2:]
        if source.dim() != 2 or learned.dim() != 2:
            return []
        report = stream.status.report
        who = "adapted" if report is None else report.answers
        pixels = (
            x[-2:] if adapted.normalization is None else adapted.normalization.denormalize(x[-2:])
        )
        guesses = [self.describe_logits(logits) for logits in (source, learned)]
        return [
            History.make_recent(pixels[i], guesses[0][i], guesses[1][i], who)
            for i in range(len(pixels))
        ]

    # Answers ------------------------------------------------------------------------------------

    def name_class(self, number: int) -> str:
        """Return the name of a class, or its number if it has none."""
        is_named = self.classes is not None and number < len(self.classes)
        return self.classes[number] if self.classes is not None and is_named else str(number)

    def describe_logits(self, logits: Tensor) -> list[dict[str, Any]]:
        """Return class, label and probability of each row."""
        best = logits.float().softmax(dim=1).max(dim=1)
        return [
            {
                "class": number,
                "label": None if self.classes is None else self.name_class(number),
                "probability": round(share, 6),
            }
            for share, number in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    # States -------------------------------------------------------------------------------------

    def _publish(self, stream: _Stream) -> _Published:
        version, state = self._sessions.publish(stream.id)
        status = self._sessions.status(stream.id)
        answered_by = "adapted" if status.report is None else status.report.answers
        made = _Published(version, state, answered_by, _describe_estimate(status))
        with self._changed:
            stream.status = status
            self._published[stream.id] = made
            self._published.move_to_end(stream.id)
            while len(self._published) > self.settings.sessions:
                self._published.popitem(last=False)
        return made

    def _get_published(self, stream: _Stream) -> _Published:
        with self._changed:
            found = self._published.get(stream.id)
        return self._publish(stream) if found is None else found

    def close(self) -> nn.Module:
        """Answer and learn what waits, save all streams, and return the source model."""
        with self._changed:
            self._is_draining = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        model = self._sessions.close()
        for handle in self._handles:
            handle.remove()
        while self._leases:
            self._leases.popitem()[1].release()
        return model


def _wait_before_layers(model: nn.Module, is_idle: threading.Event) -> list[RemovableHandle]:
    """Make each layer of the model that learns wait while requests are answered.

    Answers and learning share the cores; without this, an answer takes longer during an update.
    """

    def wait(*_: Any) -> None:
        is_idle.wait(_LONGEST_WAIT)

    layers = [module for module in model.modules() if not list(module.children())]
    return [layer.register_forward_pre_hook(wait) for layer in layers]


def _elsewhere(stream: str) -> ServerBusy:
    return ServerBusy(
        "stream_elsewhere",
        f'Another server has the stream "{stream}". Send the request again.',
        stream=stream,
    )


def _describe_estimate(status: SessionStatus) -> dict[str, Any] | None:
    estimate = None if status.report is None else status.report.estimate
    if estimate is None:
        return None
    intervals = {
        name: {end: to_plain(getattr(own, end)) for end in ("value", "low", "high")}
        for name, own in (
            ("source", estimate.source),
            ("adapted", estimate.adapted),
            ("gain", estimate.gain),
        )
    }
    return {**intervals, "n_samples": estimate.n_samples, "is_familiar": estimate.is_familiar}


def _find_events(
    before: SessionStatus, after: SessionStatus, metrics: BatchMetrics
) -> list[tuple[str, str]]:
    """Return what happened with a batch, as kinds and texts."""
    events = []
    if metrics.restored:
        events.append(("restore", "An earlier state was restored."))
    old, new = before.report, after.report
    if new is not None and new.is_resting and not (old is not None and old.is_resting):
        events.append(("rest", "Learning stops for a while."))
    if new is not None and old is not None and old.estimate and new.answers != old.answers:
        events.append(("warning", f"The {new.answers} model answers from now on."))
    return events
