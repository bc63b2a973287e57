"""`acclimate serve` on several machines: a Ray Serve application.

Each replica is a server of its own, with the engine and the HTTP interface of `acclimate serve`.
The replicas share a folder, in which each stream has a file with its state. A stream is the
multiplexed model of Ray Serve: its requests go to the replica that has it. A replica has a stream
while it holds the lock of its file; it saves the stream and releases the lock when Ray Serve
evicts it, and the operating system releases the lock when the replica is lost. Another replica then
continues from the file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from acclimate.artifact import Artifact
from acclimate.builtin import load_artifact
from acclimate.errors import AcclimateError, BadInput, ServerBusy, check_options
from acclimate.serve.app import explain_error, make_app, refuse
from acclimate.serve.bodies import read_body
from acclimate.serve.engine import Engine
from acclimate.serve.settings import AppSettings, EngineSettings
from acclimate.zoo.named import load_named

#: Status, headers and body of an answer.
Answered = tuple[int, list[tuple[bytes, bytes]], bytes]

# Headers that concern one connection only.
_CONNECTION = (b"connection", b"content-length", b"transfer-encoding")
# Seconds to search for the replica that has a stream, and between two attempts.
_SEARCH, _SEARCH_EVERY = 10.0, 0.1


#: Makes the engine of a replica with `folder=folder, settings=settings, shared=True`.
MakeEngine = Callable[[Path, EngineSettings], Engine]


class Lease:
    """A stream that a replica has; what Ray Serve calls a model."""

    def __init__(self, engine: Engine, stream: str) -> None:
        self._engine: Engine | None = engine
        self._stream = stream

    def __del__(self) -> None:
        """Save the stream and let other replicas open it; called at eviction, and once more."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.release(self._stream)


class StreamServer:
    """A server of streams; see `make_application` for the arguments."""

    def __init__(
        self,
        make_engine: MakeEngine,
        folder: Path,
        engine_settings: EngineSettings,
        app_settings: AppSettings,
    ) -> None:
        self._app = make_app(
            lambda telemetry: make_engine(folder, engine_settings), settings=app_settings
        )
        self._stack, self._starting = AsyncExitStack(), asyncio.Lock()

    async def start(self) -> Engine:
        """Make the engine, once."""
        async with self._starting:
            if self._app.state.engine is None:
                await self._stack.enter_async_context(self._app.router.lifespan_context(self._app))
        engine: Engine = self._app.state.engine
        return engine

    async def check_health(self) -> None:
        """Let Ray Serve replace this replica if a thread of its engine has failed."""
        problem = (await self.start()).problem
        if problem is not None:
            raise RuntimeError("a thread of the server has failed") from problem

    async def open(self, stream: str) -> Lease:
        """Open a stream; called by Ray Serve when it is not among those that are open."""
        engine = await self.start()
        await asyncio.to_thread(engine.open, stream)
        return Lease(engine, stream)

    async def handle(self, fixed: Mapping[str, Any], body: bytes) -> Answered | None:
        """Answer a request of the multiplexed stream; None if another replica has the stream."""
        await self.start()
        stream = serve.get_multiplexed_model_id()
        try:
            if stream:
                await self.open(stream)
        except ServerBusy:
            return None
        except AcclimateError as error:
            response = explain_error(error)
            return response.status_code, list(response.raw_headers), bytes(response.body)
        return await call_app(self._app, fixed, body)

    async def __del__(self) -> None:
        """Save all streams; called when the replica is stopped."""
        await self._stack.aclose()


class Router:
    """Sends each request to the replica that has its stream."""

    def __init__(self, replicas: Any, token: str | None, max_body: int) -> None:
        self._replicas, self._token, self._max_body = replicas, token, max_body

    async def __call__(self, request: Request) -> Response:
        """Return the answer of a replica; status 503 if it was lost meanwhile."""
        refused = refuse(request, self._token)
        if refused is not None:
            return refused
        try:
            length = request.headers.get("Content-Length")
            body = await read_body(request.stream(), length, self._max_body)
            status, headers, content = await self._send(request, body)
        except AcclimateError as error:
            return explain_error(error)
        response = Response(content, status)
        response.raw_headers = [(k, v) for k, v in headers if k not in _CONNECTION]
        response.raw_headers.append((b"content-length", str(len(content)).encode()))
        return response

    async def _send(self, request: Request, body: bytes) -> Answered:
        path, method = request.scope["path"], request.method
        stream = find_stream(method, path, request.headers)
        replicas = self._replicas.options(multiplexed_model_id=stream)
        fixed = {"method": method, "path": path, "query_string": request.scope["query_string"]}
        fixed["headers"] = list(request.headers.raw)
        deadline = time.monotonic() + _SEARCH
        while True:
            try:
                answered: Answered | None = await replicas.handle.remote(fixed, body)
            except RayError as error:
                raise ServerBusy(
                    "replica_lost", "The replica that had the request was lost. Send it again."
                ) from error
            if answered is not None:
                return answered
            if time.monotonic() > deadline:
                raise ServerBusy(
                    "stream_elsewhere",
                    f'The replica that has the stream "{stream}" takes no requests now. Send the '
                    "request again.",
                    stream=stream,
                )
            await asyncio.sleep(_SEARCH_EVERY)


def find_stream(method: str, path: str, headers: Mapping[str, str]) -> str:
    """Return the stream of a request; empty if it concerns no stream."""
    if path == "/predict":
        return headers.get("X-Stream-Id", "default")
    if not path.startswith("/streams/"):
        return ""
    rest = path.removeprefix("/streams/")
    return rest.rpartition("/")[0] if method == "POST" else rest.removesuffix("/history")


async def call_app(app: ASGIApp, fixed: Mapping[str, Any], body: bytes) -> Answered:
    """Return the answer of an ASGI application in this process."""
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
    }
    scope |= {"root_path": "", "client": None, "server": None, **fixed}
    is_over = asyncio.Event()
    inbox: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    start: Message = {}
    content = bytearray()

    async def receive() -> Message:
        if inbox:
            return inbox.pop()
        await is_over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            content.extend(message.get("body", b""))
            if not message.get("more_body", False):
                is_over.set()

    await app(scope, receive, send)
    return start["status"], list(start["headers"]), bytes(content)


def make_application(
    make_engine: MakeEngine,
    folder: str | Path,
    *,
    replicas: int = 2,
    token: str | None = None,
    engine_settings: EngineSettings | None = None,
    app_settings: AppSettings | None = None,
    **options: Any,
) -> Application:
    """Return the application, for `ray.serve.run`.

    Args:
        make_engine: Makes the engine of a replica.
        folder: Where the states of streams are kept. All nodes must see it, and its file system
            must support locks.
        replicas: How many servers.
        token: What clients must present as `Authorization: Bearer TOKEN`; None for no token.
        engine_settings: Batching, queues and saving; `sessions` is the number of streams that a
            replica has at once.
        app_settings: Limits of single requests.
        **options: Other options of the deployment of replicas, such as `ray_actor_options`.
    """
    engine, limits = engine_settings or EngineSettings(), app_settings or AppSettings()
    place = Path(folder).expanduser().absolute()
    place.mkdir(parents=True, exist_ok=True)

    class Replica(StreamServer):
        open = serve.multiplexed(max_num_models_per_replica=engine.sessions)(StreamServer.open)

    many = {"num_replicas": replicas, "max_ongoing_requests": 256, **options}
    deployment = serve.deployment(name="Replica", **many)(Replica)
    router = serve.deployment(
        name="Router",
        max_ongoing_requests=1024,
        ray_actor_options={"num_cpus": 0},  # it only passes requests on
    )(Router)
    application: Application = router.bind(
        deployment.bind(make_engine, place, engine, limits), token, limits.max_body
    )
    return application


@dataclass(frozen=True)
class Builder:
    """Makes engines of a model by its name, as `acclimate serve` does.

    Attributes:
        model: A name, or `package.module:function`.
        weights: A file; None keeps those of the model.
        artifact: What `acclimate prepare` wrote; None for that of the built-in model.
        method: Name of the method.
        guard: Whether a guard watches it.
    """

    model: str = "builtin"
    weights: str | None = None
    artifact: str | None = None
    method: str = "steady"
    guard: bool = True

    def __call__(self, folder: Path, settings: EngineSettings) -> Engine:
        """Return an engine."""
        artifact = load_artifact() if self.artifact is None else Artifact.load(self.artifact)
        n_classes = None if artifact.classes is None else len(artifact.classes)
        return Engine(
            load_named(self.model, self.weights, n_classes),
            self.method,
            artifact,
            shape=artifact.card["input_shape"],
            settings=settings,
            folder=folder,
            classes=artifact.classes,
            shared=True,
            guard=self.guard,
        )


def build(options: Mapping[str, Any]) -> Application:
    """Return the application of a model: `serve run acclimate.serve.ray:build folder=DIR`.

    Args:
        options: `folder`, `replicas`, `token`, and the fields of `Builder`; all but `folder` have
            defaults.

    Raises:
        BadInput: There is no folder, or an unknown option.
    """
    given = dict(options)
    known = ("folder", "replicas", "token", *(each.name for each in fields(Builder)))
    check_options(given, known, "The application", BadInput)
    if "folder" not in given:
        raise BadInput(
            "missing_option",
            "Expected the folder that all replicas share. Pass folder=DIR.",
            option="folder",
        )
    folder, replicas = given.pop("folder"), int(given.pop("replicas", 2))
    token = given.pop("token", None)
    if "guard" in given:
        given["guard"] = str(given["guard"]).lower() in ("1", "true", "yes")
    return make_application(Builder(**given), folder, replicas=replicas, token=token)
