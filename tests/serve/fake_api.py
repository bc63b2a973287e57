"""The HTTP interface of `acclimate serve`, scripted, for tests of its page and of the client."""

from __future__ import annotations

import math
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from io import BytesIO
from typing import Any

import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

#: Noon in universal time.
START = 1_767_614_400.0
LABELS = ("circle", "square", "star", "cross")


def make_interval(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": max(0.0, value - half), "high": min(1.0, value + half)}


def make_picture(level: int) -> str:
    """Return a small picture as a data address."""
    file = BytesIO()
    Image.linear_gradient("L").resize((32, 32)).point(lambda v: (v + level) % 256).save(file, "PNG")
    return "data:image/png;base64," + b64encode(file.getvalue()).decode()


def make_history(n: int, with_source: bool = True) -> dict[str, Any]:
    """Return the history of a stream that recovers, with every kind of event."""
    points = []
    for i in range(n):
        gain = 0.27 * (1 - math.exp(-i / 12))
        source, adapted = 0.64 + 0.01 * math.sin(i), 0.64 + gain + 0.01 * math.sin(1.7 * i)
        known = with_source and i > 2
        points.append(
            {
                "t": START + 2.0 * i + (600.0 if i > 0.7 * n else 0.0),
                "samples": 64 * (i + 1),
                "source": make_interval(source, 0.05) if known else None,
                "adapted": make_interval(adapted, 0.1 - 0.06 * i / n) if known else None,
                "entropy": 0.9 * math.exp(-i / 20) + 0.05 + 0.02 * math.sin(i),
                "effective_classes": 6.5 + 2.5 * (1 - math.exp(-i / 10)),
                "latency_ms": 11.0 + 3.0 * math.sin(i) ** 2 + (40.0 if i % 17 == 5 else 0.0),
            }
        )
    kinds = (
        ("snapshot", "after 20 batches"),
        ("warning", "Consecutive images seem to be of the same class."),
        ("restore", "Entropy rose by 0.4, so an earlier state was restored."),
        ("rest", "Learning stops for 10 batches."),
        ("pause", ""),
        ("resume", ""),
        ("rollback", "to the snapshot of 12:00:38"),
        ("reset", "to the source model"),
    )
    end = points[-1]["t"] if points else START
    span = 0.6 * n * 2.0
    events = [
        {"t": min(end, START + span * (i + 1) / len(kinds)), "kind": kind, "text": text}
        for i, (kind, text) in enumerate(kinds)
    ]
    recent = [
        {
            "t": end - i,
            "image": make_picture(20 * i),
            "source": {"class": i % 4, "label": LABELS[i % 4], "probability": 0.41 + 0.05 * i},
            "adapted": {"class": i // 2 % 4, "label": LABELS[i // 2 % 4], "probability": 0.93},
            "answered_by": "source" if i == 3 else "adapted",
        }
        for i in range(6)
    ]
    predicted = dict(zip(LABELS, (412, 388, 401, 79), strict=True))
    return {"points": points, "events": events, "recent": recent, "predicted": predicted}


def make_status(stream: str, n: int = 50, **changes: Any) -> dict[str, Any]:
    """Return the status of a stream."""
    status = {
        "id": stream,
        "state": "learning",
        "batches": n,
        "samples": 64 * n,
        "updates": n - 3,
        "skipped": {"small_batch": 3},
        "restored": 1,
        "queue": 2,
        "answers": "adapted",
        "estimate": {
            "source": make_interval(0.64, 0.05),
            "adapted": make_interval(0.91, 0.04),
            "gain": {"value": 0.27, "low": 0.21, "high": 0.33},
            "n_samples": 1024,
            "is_familiar": True,
        },
        "entropy": 0.12,
        "effective_classes": 8.9,
        "drift": 0.031,
        "last_seen": START + 2.0 * n,
    }
    return {**status, **changes}


@dataclass
class FakeApi:
    """What the server answers, and what it was asked.

    Attributes:
        address: Where it listens.
        streams: Statuses by stream id.
        histories: Histories by stream id.
        token: What clients must present, if anything.
        posts: Actions that were asked for, as (stream id, action).
        refusal: Status code and message with which actions are refused, if they are.
        is_broken: Whether every request fails.
    """

    address: str = ""
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    histories: dict[str, dict[str, Any]] = field(default_factory=dict)
    token: str | None = None
    posts: list[tuple[str, str]] = field(default_factory=list)
    refusal: tuple[int, str] | None = None
    is_broken: bool = False

    def add(self, stream: str, n: int = 50, **changes: Any) -> None:
        """Add a stream, or replace it."""
        self.streams[stream] = make_status(stream, n, **changes)
        self.histories[stream] = make_history(n)

    def make_app(self) -> Starlette:
        def refuse(request: Request) -> Response | None:
            if self.is_broken:
                return Response("gone", 503)
            if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
                return JSONResponse({"error": "unauthorized", "message": "No token."}, 401)
            return None

        def show_page(request: Request) -> Response:
            text = (files("acclimate.serve") / "page.html").read_text(encoding="utf-8")
            return HTMLResponse(text)

        def list_streams(request: Request) -> Response:
            return refuse(request) or JSONResponse({"streams": list(self.streams.values())})

        def get_history(request: Request) -> Response:
            history = self.histories[request.path_params["stream"]]
            return refuse(request) or JSONResponse(history)

        def act(request: Request) -> Response:
            stream, action = request.path_params["stream"], request.path_params["action"]
            if (refused := refuse(request)) is not None:
                return refused
            self.posts.append((stream, action))
            if self.refusal is not None:
                code, message = self.refusal
                return JSONResponse({"error": "no_snapshot", "message": message}, code)
            if action in ("pause", "resume"):
                state = "paused" if action == "pause" else "learning"
                self.streams[stream] = {**self.streams[stream], "state": state}
            return JSONResponse(self.streams[stream])

        return Starlette(
            routes=[
                Route("/", show_page),
                Route("/streams", list_streams),
                Route("/streams/{stream}/history", get_history),
                Route("/streams/{stream}/{action}", act, methods=["POST"]),
            ]
        )


@contextmanager
def run_app(app: Any) -> Iterator[str]:
    """Serve an ASGI application on a free port of this machine; give its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def run_fake_api() -> Iterator[FakeApi]:
    """Serve a scripted interface, empty at first."""
    api = FakeApi()
    with run_app(api.make_app()) as address:
        api.address = address
        yield api
