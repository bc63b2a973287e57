"""Serve a model that adapts to each stream of images, and send images to it."""

from __future__ import annotations

import ipaddress
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.commands.base import (
    ArtifactOption,
    ClassNames,
    MethodOptions,
    Seed,
    command,
    select_given,
)
from acclimate.errors import BadInput, check_at_least, import_extra
from acclimate.options import changed, hp, options
from acclimate.progress import Progress
from acclimate.serve.settings import AppSettings, EngineSettings

if TYPE_CHECKING:
    from acclimate.serve.client import SendReport, StreamImage
    from acclimate.serve.engine import Engine
    from acclimate.serve.telemetry import Telemetry

#: Longest time that a thread keeps the interpreter while others wait, in seconds.
_SWITCH_SECONDS = 0.0005


def _token(help: str) -> Any:  # noqa: A002
    return hp(None, metavar="TOKEN", envvar="ACCLIMATE_TOKEN", help=help)


@options
class ServeOptions(AppSettings, EngineSettings, ClassNames, MethodOptions):
    model: str = changed(MethodOptions, "model", "builtin")
    artifact: Path | None = changed(
        ArtifactOption,
        "artifact",
        None,
        help="Artifact that `acclimate prepare` wrote; default: that of builtin.",
    )
    classes: Path | None = changed(
        ClassNames,
        "classes",
        None,
        help="Class names, one per line; default: those of the artifact.",
    )
    host: str = hp("127.0.0.1", metavar="HOST", help="Address to listen on.")
    port: int = hp(8000, low=0, high=65535, help="Port to listen on.")
    token: str | None = _token(
        "Bearer token that clients must present. Needed unless --host is this machine."
    )
    folder: Path | None = hp(
        None,
        metavar="DIR",
        help="Folder of the states of streams, which a restart resumes; default: states are "
        "deleted at the end.",
    )


@command(ServeOptions)
def serve(
    o: ServeOptions, *, ready: Callable[[Mapping[str, str]], None] = lambda facts: None
) -> bool:
    """Serve a model that adapts to each stream of images.

    Clients send images to **/predict**; the header X-Stream-Id names the stream. The answer comes
    first, and the stream learns in the background. A live page is at **/**, metrics for Prometheus
    are at **/metrics**, and the interface is described at **/docs**.

    Without options, the built-in model is served, with a guard. Try it in a second terminal:
    `acclimate send --builtin fog`

    Example: `acclimate serve --model my_models:resnet --weights resnet.safetensors --artifact
    resnet.acclimate --guard --folder streams`
    """
    for package in ("fastapi", "prometheus_client", "python_multipart", "uvicorn"):
        import_extra(package, "Serving", "serve", package.replace("_", "-"))
    import torch
    import uvicorn

    from acclimate.builtin import load_artifact
    from acclimate.serve.app import make_app
    from acclimate.serve.engine import Engine
    from acclimate.streams.images import as_size

    _check_host(o.host, o.token)
    config = o.get_config()
    is_builtin = o.model == "builtin" and o.weights is None and o.artifact is None
    artifact = load_artifact() if is_builtin else o.load_artifact()
    guard = True if is_builtin and o.guard is None else o.get_guard()
    info, size = o.get_info(artifact), o.get_size(artifact)
    if size is None:
        raise BadInput(
            "missing_option",
            "The size of the model's images is not known. Pass --artifact, or --size.",
            option="size",
        )
    names = o.read_classes() or (None if artifact is None else artifact.classes)
    if o.folder is not None:
        o.folder.mkdir(parents=True, exist_ok=True)
    # Answers and learning run in two threads; each computes with its share of the cores.
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    # A thread that learns must not keep the interpreter from those that answer.
    sys.setswitchinterval(_SWITCH_SECONDS)

    def make_engine(telemetry: Telemetry) -> Engine:
        return Engine(
            o.load_model(o.device),
            o.method,
            artifact,
            shape=(3, *as_size(size)),
            settings=EngineSettings.taken_from(o),
            folder=o.folder,
            classes=names,
            config=config,
            info=info,
            guard=guard,
            seed=o.seed,
        )

    ready(_describe(o, bool(guard), is_builtin))
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(make_engine, token=o.token, settings=AppSettings.taken_from(o)),
            host=o.host,
            port=o.port,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=30,
            limit_concurrency=1024,
        )
    )
    server.run()
    if server.started:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return server.started


def _describe(o: ServeOptions, has_guard: bool, is_builtin: bool) -> dict[str, str]:
    address = f"http://{o.host}:{o.port}"
    return {
        "page": f"{address}/",
        "predictions": f"POST {address}/predict",
        "model": f"{o.model}, adapted by {o.method}{' with a guard' if has_guard else ''}",
        "states": str(o.folder or "deleted at the end; keep them with --folder"),
        "try": f"acclimate send --builtin fog --to {address}" if is_builtin else "",
    }


def _check_host(host: str, token: str | None) -> None:
    """Refuse to listen to other machines without a token."""
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local and not token:
        raise BadInput(
            "missing_option",
            f"Expected a token, because other machines can reach {host}: whoever can send images "
            "can change the model. Pass --token, or listen at 127.0.0.1.",
            option="token",
        )


@options
class SendOptions(Seed):
    folder: Path | None = hp(
        None,
        argument=True,
        metavar="FOLDER",
        help="Folder of images, with or without subfolders; with class folders, the error is "
        "shown, too.",
    )
    to: str = hp("http://127.0.0.1:8000", metavar="URL", help="Address of the server.")
    builtin: str | None = hp(
        None,
        metavar="CORRUPTION",
        help="Send images of the built-in task with this corruption, or clean, instead of a "
        "folder.",
    )
    stream: str = hp("default", metavar="ID", help="Id of the stream.")
    clients: int = hp(4, help="Number of clients that send at the same time.")
    batch: int = hp(1, help="Images per request.")
    rate: float | None = hp(
        None, help="Largest number of images per second; default: as fast as the server answers."
    )
    limit: int | None = hp(
        None, help="Largest number of images; default: all, or 3000 of the built-in task."
    )
    repeat: int = hp(1, help="How often the folder is sent.")
    shuffle: bool = hp(False, help="Shuffle the folder; default: sorted by path.")
    severity: int = hp(5, help="Severity of the corruption, from 1 to 5.")
    token: str | None = _token("Bearer token, if the server has one.")
    seed: int = changed(Seed, "seed", 0, help="Seed of the order and of the corruption.")


@command(SendOptions)
def send(o: SendOptions, *, progress: Progress | None = None) -> SendReport:
    """Send a folder of images as a stream to **acclimate serve**.

    Prints which model answered, how fast, and what was predicted; if the folder has class folders,
    also the error over time. Labels and file names are never sent.

    Example: `acclimate send images/ --to http://127.0.0.1:8000 --stream camera-1`
    """
    from acclimate.serve import client

    expected = "Expected either a folder of images or --builtin with the name of a corruption"
    if o.folder is not None and o.builtin is not None:
        raise BadInput(
            "conflicting_options", f"{expected}, found both.", options=("folder", "builtin")
        )
    if o.limit is not None:
        check_at_least("limit", o.limit, 1)
    images: Iterable[StreamImage]
    if o.builtin is not None:
        n = 3000 if o.limit is None else o.limit
        images = client.make_builtin(o.builtin, n, severity=o.severity, seed=o.seed)
    elif o.folder is not None:
        listed = client.read_folder(o.folder, shuffle=o.shuffle, seed=o.seed, repeat=o.repeat)
        n = len(listed) if o.limit is None else min(o.limit, len(listed))
        images = islice(listed, n)
    else:
        raise BadInput("missing_option", f"{expected}, found neither.", option="folder")
    given = select_given(o, client.send)
    return client.send(images, o.to, **given, total=n, progress=progress)
