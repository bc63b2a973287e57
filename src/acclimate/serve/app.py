"""The HTTP interface of `acclimate serve`, as an ASGI application."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from acclimate._version import __version__
from acclimate.errors import AcclimateError, BadInput, ServerBusy, UnreadableImage
from acclimate.serve.bodies import (
    JSON,
    MULTIPART,
    NPY,
    check_count,
    read_body,
    read_files,
    read_tensor,
    split_parts,
)
from acclimate.serve.engine import Engine
from acclimate.serve.settings import AppSettings
from acclimate.serve.telemetry import Telemetry
from acclimate.sessions import check_id

#: Status codes of errors; all other errors of a request are 400.
_STATUS = {
    "queue_full": 429,
    "shutting_down": 503,
    "stream_elsewhere": 503,
    "replica_lost": 503,
    "too_large": 413,
    "image_too_large": 413,
    "too_many_images": 413,
    "too_many_streams": 409,
    "no_snapshot": 409,
}
#: Bodies above this size are decoded in another thread, so that they do not delay other requests.
_LARGE = 32_768
_OPEN = ("/", "/healthz", "/readyz", "/docs", "/openapi.json")


def make_app(
    make_engine: Callable[[Telemetry], Engine],
    *,
    token: str | None = None,
    settings: AppSettings | None = None,
) -> FastAPI:
    """Return the application.

    Args:
        make_engine: Called when the application starts; the engine is closed, and all streams are
            saved, when it stops.
        token: What clients must present as `Authorization: Bearer TOKEN`; None for no token.
        settings: Limits of single requests.
    """
    limits, telemetry = settings or AppSettings(), Telemetry()
    page = (files("acclimate.serve") / "page.html").read_text(encoding="utf-8")

    @asynccontextmanager
    async def live(app: FastAPI) -> AsyncIterator[None]:
        engine = await run_in_threadpool(make_engine, telemetry)
        engine.telemetry = telemetry
        app.state.engine = engine
        try:
            yield
        finally:
            app.state.engine = None
            await run_in_threadpool(engine.close)

    app = FastAPI(
        title="acclimate serve",
        version=__version__,
        description="Predictions of a model that adapts to each stream of images.",
        lifespan=live,
        redoc_url=None,
    )
    app.state.engine = None

    def get_engine() -> Engine:
        engine: Engine | None = app.state.engine
        if engine is None:
            raise ServerBusy("shutting_down", "The server starts or shuts down.")
        return engine

    @app.middleware("http")
    async def protect(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        refused = refuse(request, token)
        response = refused if refused is not None else await call_next(request)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    @app.exception_handler(AcclimateError)
    async def explain(request: Request, error: AcclimateError) -> Response:
        return explain_error(error)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def show_page() -> str:
        return page

    @app.get("/healthz")
    async def healthz() -> Response:
        """Return whether the process works."""
        engine: Engine | None = app.state.engine
        is_well = engine is None or engine.problem is None
        return JSONResponse({"status": "ok" if is_well else "failed"}, 200 if is_well else 500)

    @app.get("/readyz")
    async def readyz() -> Response:
        """Return whether requests are accepted."""
        engine: Engine | None = app.state.engine
        is_ready = engine is not None and engine.is_ready
        return JSONResponse(
            {"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the metrics for Prometheus."""
        for stream in get_engine().list_streams():
            telemetry.waiting.labels(stream["id"]).set(stream["queue"])
        return Response(telemetry.write(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def answer(request: Request, stream: str) -> dict[str, Any]:
        engine = get_engine()
        check_id(stream)
        body = await read_body(
            request.stream(), request.headers.get("Content-Length"), limits.max_body
        )
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind in (NPY, JSON):
            images = await _call(len(body), read_tensor, body, kind)
        else:
            parts = [body]
            if kind == MULTIPART:
                parts = await split_parts(request.headers, body, limits.max_images)
            images = await _call(
                len(body),
                read_files,
                parts,
                engine.shape,
                engine.normalization,
                max_pixels=limits.max_pixels,
            )
        check_count(len(images), limits.max_images)
        found = await asyncio.wrap_future(engine.submit(stream, images))
        predictions = engine.describe_logits(found.logits)
        return {
            "stream": stream,
            "predictions": [{**each, "answered_by": found.answered_by} for each in predictions],
            "estimate": found.estimate,
        }

    @app.post("/predict")
    async def predict(
        request: Request, x_stream_id: Annotated[str, Header()] = "default"
    ) -> Response:
        """Predict images of a stream; the stream learns from them afterwards.

        The body is an image file, several as multipart/form-data, or a tensor: application/x-npy,
        or application/json with the field inputs. Tensors are passed to the model as they are.
        """
        start, status = time.perf_counter(), 500
        try:
            content = await answer(request, x_stream_id)
            status = 200
            return JSONResponse(content)
        except AcclimateError as error:
            response = explain_error(error)
            status = response.status_code
            return response
        except (ClientDisconnect, asyncio.CancelledError):
            status = 499
            raise
        finally:
            telemetry.requests.labels(str(status)).inc()
            telemetry.seconds.observe(time.perf_counter() - start)

    @app.get("/streams")
    async def list_streams() -> dict[str, Any]:
        """Return the status of all streams."""
        return {"streams": get_engine().list_streams()}

    @app.get("/streams/{stream:path}/history")
    async def get_history(stream: str) -> dict[str, Any]:
        """Return what a stream has shown since the server was started."""
        return get_engine().get_history(stream)

    @app.get("/streams/{stream:path}")
    async def get_stream(stream: str) -> dict[str, Any]:
        """Return the status of a stream."""
        return get_engine().get_stream(stream)

    @app.post("/streams/{stream:path}/{action}")
    async def act(stream: str, action: str) -> dict[str, Any]:
        """Pause, resume, reset, snapshot or rollback a stream."""
        return await run_in_threadpool(get_engine().act, stream, action)

    return app


async def _call(size: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, in another thread if it has much to do."""
    if size > _LARGE:
        return await run_in_threadpool(function, *args, **kwargs)
    return function(*args, **kwargs)


def explain_error(error: AcclimateError) -> Response:
    """Return the response to a request that an error has ended."""
    status = _STATUS.get(error.code, 400)
    if error.code == "unknown_name":
        status = 404
    elif not isinstance(error, BadInput | UnreadableImage | ServerBusy):
        status = 500
    headers = {"Retry-After": "0.2" if status == 429 else "1"} if status in (429, 503) else {}
    return JSONResponse({"error": error.code, "message": str(error)}, status, headers)


def refuse(request: Request, token: str | None) -> Response | None:
    """Return the refusal of a request without the token, or from a page of another site."""
    origin = request.headers.get("Origin")
    is_foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    is_foreign |= request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
    if is_foreign and request.method != "GET":
        message = "Requests from pages of other sites are refused."
        return JSONResponse({"error": "cross_site", "message": message}, 403)
    if token is None or request.url.path in _OPEN:
        return None
    given = request.headers.get("Authorization", "")
    if hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        return None
    message = "Expected the header Authorization: Bearer TOKEN with the token of this server."
    headers = {"WWW-Authenticate": "Bearer"}
    return JSONResponse({"error": "unauthorized", "message": message}, 401, headers)
