"""`acclimate serve`: an HTTP server for a model that adapts to each stream of images."""

from __future__ import annotations

import ipaddress
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.adapt import parse_settings
from acclimate.cli.models import load_model
from acclimate.cli.options import (
    ClassesOption,
    DeviceOption,
    GuardOption,
    HeadOption,
    LogitsAtOption,
    MeanOption,
    MethodOption,
    ModelOption,
    NormalizationOption,
    PresetOption,
    SettingsOption,
    SizeOption,
    StdOption,
    WeightsOption,
    get_guard,
    get_logits_at,
    get_normalization,
    get_size,
    make_config,
    parse_size,
)
from acclimate.cli.terminal import get_console, make_facts
from acclimate.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from acclimate.serve.engine import Engine
    from acclimate.serve.telemetry import Telemetry

#: Longest time that a thread keeps the interpreter while others wait, in seconds.
_SWITCH_SECONDS = 0.0005


def serve(
    model: ModelOption = "builtin",
    weights: WeightsOption = None,
    artifact: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="What acclimate prepare wrote; default: that of builtin."
        ),
    ] = None,
    method: MethodOption = "steady",
    settings: SettingsOption = None,
    preset: PresetOption = None,
    guard: GuardOption = None,
    size: SizeOption = None,
    normalization: NormalizationOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    head: HeadOption = None,
    logits_at: LogitsAtOption = None,
    classes: ClassesOption = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ACCLIMATE_TOKEN",
            show_envvar=True,
            help="Bearer token that clients must present. Needed unless --host is this machine.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the states of streams are kept, so that a restart resumes them; default: "
            "they are deleted at the end.",
        ),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Images answered together, at most.")] = 32,
    max_wait_ms: Annotated[
        float, typer.Option(help="Longest wait of a request for others to join its batch.")
    ] = 4.0,
    max_queue: Annotated[
        int, typer.Option(help="Images of a stream that wait for an answer; beyond it: status 429.")
    ] = 256,
    learn_batch: Annotated[int, typer.Option(help="Images learned from together.")] = 64,
    learn_queue: Annotated[
        int, typer.Option(help="Images of a stream that wait for learning, at most.")
    ] = 512,
    when_behind: Annotated[
        str,
        typer.Option(
            metavar="skip|refuse",
            help="If learning does not keep up: skip images, or refuse requests with status 429.",
        ),
    ] = "skip",
    save_every: Annotated[
        int, typer.Option(help="Learned batches between two saved states of a stream.")
    ] = 10,
    max_streams: Annotated[int, typer.Option(help="Streams, at most.")] = 256,
    sessions: Annotated[int, typer.Option(help="Streams in memory, at most.")] = 32,
    max_body: Annotated[int, typer.Option(help="Bytes of a request, at most.")] = 16_000_000,
    max_images: Annotated[int, typer.Option(help="Images of a request, at most.")] = 64,
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image, at most.")] = 25_000_000,
    seed: Annotated[int, typer.Option(help="Of all random draws.")] = 0,
    device: DeviceOption = "auto",
) -> None:
    """Serve a model that adapts to each stream of images.

    Clients send images to **/predict**; the header X-Stream-Id names the stream. The answer comes
    first, and the stream learns in the background. A live page is at **/**, metrics for Prometheus
    are at **/metrics**, and the interface is described at **/docs**.

    Without options, the built-in model is served, with a guard. Try it in a second terminal:
    `acclimate send --builtin fog`

    Example: `acclimate serve --model my_models:resnet --weights resnet.safetensors --artifact
    resnet.acclimate --guard --folder streams`
    """
    import torch

    try:
        import uvicorn

        from acclimate.serve.app import AppSettings, make_app
        from acclimate.serve.engine import Engine, EngineSettings
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "acclimate":
            raise
        raise MissingExtra(
            "missing_extra",
            f"Serving requires {error.name}, which is not installed. Run: pip install "
            "'acclimate[serve]'",
            package=str(error.name),
        ) from error
    from acclimate.artifact import Artifact
    from acclimate.builtin import load_artifact
    from acclimate.introspect import ModelInfo
    from acclimate.methods import get_method
    from acclimate.streams.folder import read_classes
    from acclimate.streams.images import as_size

    _check_host(host, token)
    engine_settings = EngineSettings.from_dict(
        {
            "max_batch": max_batch,
            "max_wait_ms": max_wait_ms,
            "max_queue": max_queue,
            "learn_batch": learn_batch,
            "learn_queue": learn_queue,
            "when_behind": when_behind,
            "save_every": save_every,
            "max_streams": max_streams,
            "sessions": sessions,
        }
    )
    app_settings = AppSettings(max_body=max_body, max_images=max_images, max_pixels=max_pixels)
    config = make_config(get_method(method).config_class, preset, parse_settings(settings or []))
    is_builtin = model == "builtin" and weights is None and artifact is None
    if is_builtin:
        prepared: Artifact | None = load_artifact()
        is_guarded: Any = True if guard is None else get_guard(guard)
    else:
        prepared = None if artifact is None else Artifact.load(artifact)
        is_guarded = get_guard(guard)
    normal = get_normalization(normalization, mean, std)
    if prepared is not None:
        normal = normal or prepared.normalization
    wanted = get_size(parse_size(size), prepared)
    if wanted is None:
        raise BadInput(
            "missing_option",
            "The size of the model's images is not known. Pass --artifact, or --size.",
            option="size",
        )
    names = None if prepared is None else prepared.classes
    if classes is not None:
        names = read_classes(classes)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    # Answers and learning run in two threads; each computes with its share of the cores.
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    # A thread that learns must not keep the interpreter from those that answer.
    sys.setswitchinterval(_SWITCH_SECONDS)

    def make_engine(telemetry: Telemetry) -> Engine:
        return Engine(
            load_model(model, weights, device),
            method,
            prepared,
            shape=(3, *as_size(wanted)),
            settings=engine_settings,
            folder=folder,
            classes=names,
            config=config,
            info=ModelInfo(head=head, logits_at=get_logits_at(logits_at), normalization=normal),
            guard=is_guarded,
            seed=seed,
        )

    address = f"http://{host}:{port}"
    facts = {
        "page": f"{address}/",
        "predictions": f"POST {address}/predict",
        "model": f"{model}, adapted by {method}" + (" with a guard" if is_guarded else ""),
        "states": "deleted at the end; keep them with --folder" if folder is None else str(folder),
        "try": f"acclimate send --builtin fog --to {address}" if is_builtin else "",
    }
    shown = {name: value for name, value in facts.items() if value}
    get_console().print(make_facts("acclimate serve", shown))
    app = make_app(make_engine, token=token, settings=app_settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            server_header=False,
            timeout_keep_alive=30,
            limit_concurrency=1024,
        )
    )
    server.run()
    if not server.started:
        raise typer.Exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
