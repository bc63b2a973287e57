"""Small servers for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image

from acclimate.serve.app import AppSettings, make_app
from acclimate.serve.engine import Engine, EngineSettings
from acclimate.serve.telemetry import Telemetry
from acclimate.testing.cases import tiny_artifact
from acclimate.testing.models import INPUT_SHAPE, tiny_model


def make_engine(
    telemetry: Telemetry | None = None,
    *,
    method: str = "tent",
    folder: Path | None = None,
    guard: bool = False,
    shared: bool = False,
    **settings: Any,
) -> Engine:
    """Return an engine with a tiny model that waits for nobody and learns from 8 images."""
    chosen = EngineSettings(**{"max_wait_ms": 0.0, "learn_batch": 8, **settings})
    return Engine(
        tiny_model("batch_norm"),
        method,
        tiny_artifact("batch_norm", guarded=guard),
        shape=INPUT_SHAPE,
        settings=chosen,
        folder=folder,
        guard=guard,
        shared=shared,
    )


@asynccontextmanager
async def open_client(
    token: str | None = None, limits: AppSettings | None = None, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of an application in this process."""
    app = make_app(
        lambda telemetry: make_engine(telemetry, **options), token=token, settings=limits
    )
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
    ):
        yield client


def make_images(n: int, seed: int = 0) -> torch.Tensor:
    """Return images that the tiny model takes."""
    return torch.rand(n, *INPUT_SHAPE, generator=torch.Generator().manual_seed(seed))


def make_png(seed: int = 0, size: tuple[int, int] = (8, 8)) -> bytes:
    """Return an image file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def make_npy(x: torch.Tensor) -> bytes:
    """Return a tensor as an npy file."""
    file = BytesIO()
    np.save(file, x.numpy())
    return file.getvalue()
