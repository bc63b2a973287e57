"""Several streams over one model: one adapted state per stream, swapped into the model on use.

A stream, such as one camera, must not learn from another one. `Sessions` keeps what each stream has
learned as a copy of those tensors that differ from the source's, and loads it into the one model
before a batch of that stream. So a session costs the memory of what its method moves, and a change
of the stream costs a copy of it. The least recently used sessions are written to files.

>>> import torch
>>> from acclimate.builtin import load_model, load_split
>>> sessions = Sessions(load_model(), "norm")
>>> logits = sessions["camera-1"](load_split("test", 16)[0])
>>> list(sessions)
['camera-1']
>>> model = sessions.close()
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.errors import BadInput, CorruptFile, NotAdapted, check_at_least
from acclimate.forward import get_logits
from acclimate.guard import GuardReport
from acclimate.methods.method import Counts, Method, Snapshot
from acclimate.methods.state import check_identity, check_tree
from acclimate.metrics.batch import BatchMetrics
from acclimate.snapshot import Tree, flatten_tree, map_tree, unflatten_tree
from acclimate.storage import read_file, tensor_bytes, write_file

#: Marks a tensor that is bit for bit the source's.
_SAME = "$source"
_KIND = "session"
_SUFFIX = ".session"
_LONGEST_ID = 128
_TREES = ("state", "kept")


@dataclass
class _Session:
    """What is stored of a stream that is in memory.

    Attributes:
        state: What it has learned, packed; None while it is loaded into the model.
        kept: The last snapshot, packed; None if there is none.
        is_paused: Whether it only predicts.
        is_saved: Whether its file has this content.
        version: A number that no other content of any session has.
    """

    state: Tree | None
    kept: Tree | None = None
    is_paused: bool = False
    is_saved: bool = False
    version: int = 0


@dataclass(frozen=True)
class SessionStatus:
    """What is known of a stream.

    Attributes:
        id: Its id.
        is_paused: Whether it only predicts.
        counts: Batches, samples and updates.
        report: The guard's report; None without a guard.
        has_snapshot: Whether there is a snapshot to roll back to.
    """

    id: str
    is_paused: bool
    counts: Counts
    report: GuardReport | None = None
    has_snapshot: bool = False


class Session:
    """One stream of `Sessions`, with its methods; calling it is `Sessions.call`."""

    def __init__(self, sessions: Sessions, stream: str) -> None:
        self._sessions, self.id = sessions, stream

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._sessions.call(self.id, *args, **kwargs)

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    def pause(self) -> None:
        self._sessions.pause(self.id)

    def resume(self) -> None:
        self._sessions.resume(self.id)

    def reset(self) -> None:
        self._sessions.reset(self.id)

    def snapshot(self) -> None:
        self._sessions.snapshot(self.id)

    def rollback(self) -> None:
        self._sessions.rollback(self.id)

    def save(self) -> None:
        self._sessions.save(self.id)

    @property
    def status(self) -> SessionStatus:
        return self._sessions.status(self.id)


class Sessions:
    """One adapted state per stream id, over one model in memory.

    All methods can be called from several threads; they are run one after another.

    Args:
        model: The model to adapt. It is borrowed until `close()` returns it.
        method: Name of a method; None for `"source"`, which learns nothing.
        artifact: The result of `prepare` for the same model, if the method needs one.
        limit: Number of sessions in memory. The least recently used ones are written to files.
        folder: Folder of the files, one per stream. Sessions that are found there are resumed. None
            for a temporary folder, which `close()` deletes.
        seed: Together with the id, the seed of the random numbers of a stream.
        max_streams: Largest number of streams, in memory and in files; None for no limit.
        **options: Other arguments of `acclimate.adapt`, such as `guard=True`.

    Raises:
        UnknownMethod, InvalidConfig, UnsuitableModel, ArtifactError: As of `acclimate.adapt`.
    """

    def __init__(
        self,
        model: nn.Module,
        method: str | None = "steady",
        artifact: Artifact | None = None,
        *,
        limit: int = 64,
        folder: str | Path | None = None,
        seed: int = 0,
        max_streams: int | None = None,
        **options: Any,
    ) -> None:
        for option, value in {"limit": limit, "max_streams": max_streams}.items():
            if value is not None:
                check_at_least(option, value, 1)
        self._lock = threading.RLock()
        self._limit, self._max_streams, self._seed = limit, max_streams, seed
        self._adapted: Method | None = adapt(
            model, method or "source", artifact, seed=seed, **options
        )
        self._source: Tree = self._adapted.snapshot().tree
        self._is_temporary = folder is None
        self._folder = Path(tempfile.mkdtemp(prefix="acclimate-") if folder is None else folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._versions = 0
        self._in_memory: OrderedDict[str, _Session] = OrderedDict()
        self._on_disk: dict[str, Path] = {
            _read_id(path): path for path in sorted(self._folder.glob(f"*{_SUFFIX}"))
        }
        self._active: str | None = None

    # Batches ------------------------------------------------------------------------------------

    def __getitem__(self, stream: str) -> Session:
        """Return the session of a stream; it is created by its first use."""
        return Session(self, check_id(stream))

    def call(self, stream: str, *args: Any, **kwargs: Any) -> Any:
        """Predict a batch of a stream and learn from it, unless the session is paused.

        Raises:
            BadInput: The batch or the id cannot be used. Nothing was changed.
        """
        with self._lock:
            session, adapted = self._activate(stream)
            if session.is_paused:
                with adapted.paused():
                    return adapted(*args, **kwargs)
            self._touch(session)
            return adapted(*args, **kwargs)

    def step(self, stream: str, x: Tensor) -> tuple[Any, BatchMetrics]:
        """Predict a batch, learn from it, and return the output and what is watched of it."""
        with self._lock:
            _, adapted = self._activate(stream)
            before = Counts(**asdict(adapted.counts))
            start = time.perf_counter()
            output = self.call(stream, x)
            return output, BatchMetrics.of_call(
                adapted,
                get_logits(output, adapted.logits_at),
                index=before.batches,
                before=before,
                latency_ms=1000 * (time.perf_counter() - start),
            )

    def predict_adapted(self, stream: str, x: Tensor) -> Tensor:
        """Return the logits of what a stream has learned, also where its guard would not answer so.

        Nothing is learned.
        """
        with self._lock:
            _, adapted = self._activate(stream)
            return adapted.predict_view(x).logits

    # One stream ---------------------------------------------------------------------------------

    def pause(self, stream: str) -> None:
        """Predict without learning from now on."""
        self._set_paused(stream, True)

    def resume(self, stream: str) -> None:
        """Learn again."""
        self._set_paused(stream, False)

    def reset(self, stream: str) -> None:
        """Forget everything that a stream has learned, and its snapshot."""
        with self._lock:
            session, adapted = self._activate(stream)
            adapted.restore(self._fresh(stream))
            session.kept = None
            self._touch(session)

    def snapshot(self, stream: str) -> None:
        """Keep a copy of what a stream has learned, for `rollback`; it replaces the one before."""
        with self._lock:
            session, adapted = self._activate(stream)
            session.kept = self._pack(adapted.snapshot().tree)
            self._touch(session)

    def rollback(self, stream: str) -> None:
        """Go back to the last snapshot of a stream, or to its start if there is none."""
        with self._lock:
            session, adapted = self._activate(stream)
            kept = session.kept
            adapted.restore(self._fresh(stream) if kept is None else self.unpack(kept))
            self._touch(session)

    def status(self, stream: str) -> SessionStatus:
        """Return what is known of a stream.

        Raises:
            BadInput: There is no such stream.
        """
        with self._lock:
            self._check_known(stream)
            session, adapted = self._activate(stream)
            report = None if adapted.guard is None else adapted.report()
            counts = Counts(**asdict(adapted.counts))
            has_snapshot = session.kept is not None
            return SessionStatus(stream, session.is_paused, counts, report, has_snapshot)

    def seed_of(self, stream: str) -> int:
        """Return the seed of a stream: `adapt(..., seed=sessions.seed_of(id))` gives the same."""
        digest = hashlib.sha256(f"{self._seed}\0{check_id(stream)}".encode()).digest()
        return int.from_bytes(digest[:7], "little")

    def n_bytes(self, stream: str) -> int:
        """Return the memory that a stream costs, in bytes of tensors; snapshots are included."""
        with self._lock:
            self._check_known(stream)
            session, _ = self._activate(stream)
            self._deactivate()
            trees = {"state": session.state, "kept": session.kept}
            return sum(t.nbytes for t in flatten_tree(trees)[0].values())

    # All streams --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter([*self._in_memory, *(i for i in self._on_disk if i not in self._in_memory)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, stream: object) -> bool:
        with self._lock:
            is_known = stream in self._in_memory or stream in self._on_disk
            return is_known or (isinstance(stream, str) and self.path(stream).is_file())

    def save(self, stream: str | None = None) -> None:
        """Write one session, or all that are in memory, to their files; each file atomically."""
        with self._lock:
            if stream is not None:
                self._check_known(stream)
            names = list(self._in_memory) if stream is None else [stream]
            self._deactivate()
            for name in names:
                if name in self._in_memory:
                    self._write(name, self._in_memory[name])

    def release(self, stream: str) -> None:
        """Write a session to its file and drop it from memory; another process may then resume it.

        Its next use reads the file again, which another process with the same folder may have
        written in the meantime.
        """
        with self._lock:
            self._check_known(stream)
            self.save(stream)
            self._in_memory.pop(stream, None)

    def close(self) -> nn.Module:
        """Write all sessions and return the source model; the sessions cannot be used afterwards.

        Without a folder, everything learned is deleted.
        """
        with self._lock:
            adapted = self._known_adapted()
            if self._is_temporary:
                shutil.rmtree(self._folder, ignore_errors=True)
            else:
                self.save()
            self._active, self._adapted = None, None
            self._in_memory.clear()
            self._on_disk.clear()
            return adapted.unwrap()

    # States -------------------------------------------------------------------------------------

    @property
    def adapted(self) -> Method:
        """The adapted model that all streams share; it has the state of the last one used."""
        return self._known_adapted()

    def publish(self, stream: str) -> tuple[int, Tree]:
        """Return the packed state of a stream and its version, for a `Replica`."""
        with self._lock:
            session, _ = self._activate(stream)
            if session.version == 0:
                self._number(session)
            return session.version, self._take(session)

    def unpack(self, packed: Tree) -> Snapshot:
        """Return a packed state as a snapshot; it shares memory and must not be changed."""
        return Snapshot(self._unpack(packed))

    def is_paused(self, stream: str) -> bool:
        """Return whether a stream only predicts."""
        with self._lock:
            return self._activate(stream)[0].is_paused

    def _set_paused(self, stream: str, is_paused: bool) -> None:
        with self._lock:
            session, _ = self._activate(stream)
            session.is_saved = session.is_saved and session.is_paused == is_paused
            session.is_paused = is_paused

    def _touch(self, session: _Session) -> None:
        """Note that the content of the active session changes."""
        session.state, session.is_saved = None, False
        self._number(session)

    def _number(self, session: _Session) -> None:
        self._versions += 1
        session.version = self._versions

    def _activate(self, stream: str) -> tuple[_Session, Method]:
        """Load the state of a stream into the model; return its session and the model."""
        adapted = self._known_adapted()
        check_id(stream)
        if self._active == stream:
            return self._in_memory[stream], adapted
        session = self._in_memory.get(stream)
        if session is None and (stream in self._on_disk or self.path(stream).is_file()):
            session = self._read(stream)
        if session is None:
            check_room(stream, len(self), self._max_streams)
            session = _Session(self._pack(self._fresh(stream).tree))
        self._deactivate()
        adapted.restore(self.unpack(session.state))
        self._in_memory[stream] = session
        self._in_memory.move_to_end(stream)
        self._active = stream
        self._evict()
        return session, adapted

    def _deactivate(self) -> None:
        """Take the state of the active stream out of the model."""
        if self._active is not None:
            self._take(self._in_memory[self._active])
            self._active = None

    def _take(self, session: _Session) -> Tree:
        """Return what a session has learned, packed, also while it is loaded into the model."""
        if session.state is None:
            session.state = self._pack(self._known_adapted().snapshot().tree)
        return session.state

    def _evict(self) -> None:
        while len(self._in_memory) > self._limit:
            oldest, session = next(iter(self._in_memory.items()))
            self._write(oldest, session)
            del self._in_memory[oldest]

    def _fresh(self, stream: str) -> Snapshot:
        """Return the state of a stream that has seen nothing."""
        generator = torch.Generator().manual_seed(self.seed_of(stream))
        return Snapshot({**self._source, "generator": generator.get_state()})

    def _pack(self, tree: Tree) -> Tree:
        """Return the tree without the tensors that are the source's; those it has are not copied.

        What the guard remembers is another state of the method and is packed in the same way.
        """
        packed = _drop_same(tree, self._source)
        guard = tree["guard"]
        if guard is not None and guard.get("good") is not None:
            good = _drop_same(guard["good"], self._source)
            packed["guard"] = {**packed["guard"], "good": good}
        return packed

    def _unpack(self, packed: Tree) -> Tree:
        tree = _add_same(packed, self._source)
        guard = packed["guard"]
        if guard is not None and guard.get("good") is not None:
            tree["guard"] = {**tree["guard"], "good": _add_same(guard["good"], self._source)}
        return tree

    def _check_known(self, stream: str) -> None:
        if stream not in self:
            raise unknown_stream(stream, tuple(self))

    def _known_adapted(self) -> Method:
        if self._adapted is None:
            raise NotAdapted("unwrapped", "These sessions were closed. Make new ones.")
        return self._adapted

    # Files --------------------------------------------------------------------------------------

    def path(self, stream: str) -> Path:
        """Return the file of a stream, which need not exist."""
        # An id may have characters that file names must not have, or differ in case only.
        return self._folder / f"{hashlib.sha256(stream.encode()).hexdigest()[:40]}{_SUFFIX}"

    def _write(self, stream: str, session: _Session) -> None:
        if session.is_saved:
            return
        self._take(session)
        tensors, skeleton = flatten_tree({name: getattr(session, name) for name in _TREES})
        path = self.path(stream)
        card = {
            **self._known_adapted()._identity(),
            "id": stream,
            "is_paused": session.is_paused,
            "trees": skeleton,
        }
        write_file(path, _KIND, tensors, card)
        session.is_saved = True
        self._on_disk[stream] = path

    def _read(self, stream: str) -> _Session:
        path = self._on_disk.get(stream) or self.path(stream)
        tensors, card = read_file(path, _KIND)
        check_identity(self._known_adapted(), str(path), card)
        if card.get("id") != stream:
            raise CorruptFile(
                "wrong_content",
                f'Expected {path} to be the session "{stream}", found {card.get("id")!r}. It was '
                "renamed or copied. Remove it.",
                path=path,
            )
        trees = self._checked_trees(path, tensors, card)
        self._on_disk[stream] = path
        return _Session(trees["state"], trees["kept"], card["is_paused"], is_saved=True)

    def _checked_trees(
        self, path: Path, tensors: dict[str, Tensor], card: dict[str, Any]
    ) -> dict[str, Tree]:
        """Return the packed states of a file, if they fit the adapted model."""
        adapted = self._known_adapted()
        try:
            trees = unflatten_tree(tensors, {name: card["trees"][name] for name in _TREES})
            states = {
                name: flatten_tree(self._unpack(tree))
                for name, tree in trees.items()
                if tree is not None
            }
            is_complete = "state" in states and isinstance(card["is_paused"], bool)
        except (LookupError, TypeError, AttributeError, RecursionError):
            is_complete = False
        if not is_complete:
            raise CorruptFile(
                "wrong_content",
                f"{path} is not a complete session. Remove it; the stream then starts anew.",
                path=path,
            )
        for found, skeleton in states.values():
            check_tree(adapted, str(path), found, skeleton)
        return dict(trees)


class Replica:
    """A second adapted model that answers with published states, while the first one learns.

    Args:
        sessions: The sessions whose states are loaded.
        model: A copy of their source model.
        method: As of the sessions, and so are `artifact` and `options`.
        artifact: See `method`.
        **options: See `method`.
    """

    def __init__(
        self,
        sessions: Sessions,
        model: nn.Module,
        method: str | None = "steady",
        artifact: Artifact | None = None,
        **options: Any,
    ) -> None:
        self._sessions = sessions
        self.adapted = adapt(model, method or "source", artifact, **options)
        self._loaded = 0

    def load(self, version: int, packed: Tree) -> None:
        """Load a published state, unless it is loaded already. Optimisers are left out."""
        if version != self._loaded:
            self._loaded = 0
            tree = {**self._sessions.unpack(packed).tree, "optimizer": {}}
            self.adapted.restore(Snapshot(tree))
            self._loaded = version

    def predict(self, x: Tensor) -> Any:
        """Predict a batch with the loaded state, without learning."""
        with self.adapted.paused():
            return self.adapted(x)


def unknown_stream(stream: str, known: tuple[str, ...] = ()) -> BadInput:
    """Return the error for a stream that does not exist."""
    text = f'There is no stream "{stream}".'
    return BadInput("unknown_name", text, kind="stream", name=stream, known=known)


def check_room(stream: str, n: int, limit: int | None) -> None:
    """Refuse one stream more than the limit."""
    if limit is not None and n >= limit:
        raise BadInput(
            "too_many_streams",
            f'The stream "{stream}" would be one more than the limit of {limit}. Use an existing '
            "id, or raise the limit.",
            limit=limit,
        )


def check_id(stream: str) -> str:
    """Return the id of a stream.

    Raises:
        BadInput: It is empty, too long, or has characters that cannot be printed.
    """
    is_text = isinstance(stream, str)
    if not (is_text and 0 < len(stream) <= _LONGEST_ID and stream.isprintable()):
        raise BadInput(
            "malformed",
            f"Expected the id of a stream to be 1 to {_LONGEST_ID} printable characters, found "
            f"{str(stream)[:_LONGEST_ID]!r}.",
            option="id",
            found=str(stream)[:_LONGEST_ID],
        )
    return stream


def _read_id(path: Path) -> str:
    """Return the id of the stream that a file belongs to, from its header."""
    try:
        with safe_open(path, framework="pt") as file:
            stream = json.loads((file.metadata() or {})["acclimate"])["id"]
    except (SafetensorError, OSError, ValueError, LookupError, TypeError) as error:
        raise CorruptFile(
            "unreadable_file",
            f"{path} is not a session that acclimate wrote ({error}). Remove it.",
            path=path,
        ) from error
    return str(stream)


def _is_same(tensor: Tensor, source: Any) -> bool:
    return (
        isinstance(source, Tensor)
        and tensor.dtype == source.dtype
        and tensor.shape == source.shape
        and (torch.equal(tensor, source) and tensor_bytes(tensor) == tensor_bytes(source))
    )


def _drop_same(tree: Tree, source: Tree) -> Tree:
    """Replace tensors that are bit for bit those of the source by a mark."""
    if isinstance(tree, Tensor):
        return {_SAME: 1} if _is_same(tree, source) else tree
    if isinstance(tree, dict):
        of = source if isinstance(source, dict) else {}
        return {key: _drop_same(value, of.get(key)) for key, value in tree.items()}
    return map_tree(tree, lambda tensor: tensor)


def _add_same(tree: Tree, source: Tree) -> Tree:
    """Undo `_drop_same`."""
    if isinstance(tree, dict):
        if set(tree) == {_SAME}:
            return source
        of = source if isinstance(source, dict) else {}
        return {key: _add_same(value, of.get(key)) for key, value in tree.items()}
    return tree
