"""The client that plays images as a stream, against a scripted server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from acclimate.builtin import CLASSES, render
from acclimate.cli.main import app
from acclimate.corruptions import apply
from acclimate.serve.client import SendReport, StreamImage, make_builtin, read_folder, send
from tests.codes import raises
from tests.images import write_images
from tests.serve.fake_api import run_app


@dataclass
class Predictor:
    """A server that answers by the brightness of images, and keeps what it was sent.

    Attributes:
        busy: Answers with 429 that are still to be given.
        status: Of all other answers.
        labels: Class names; None for none.
        token: What clients must present, if anything.
        headers: Of every request that was answered.
        bodies: Raw content of every request.
        images: Pixels of every image that was answered.
    """

    busy: int = 0
    status: int = 200
    labels: tuple[str, ...] | None = ("dark", "light")
    token: str | None = None
    address: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    async def predict(self, request: Request) -> Response:
        body = await request.body()
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return JSONResponse({"error": "unauthorized", "message": "No token."}, 401)
        with self.lock:
            self.bodies.append(body)
            if self.busy:
                self.busy -= 1
                message = {"error": "busy", "message": "The queue is full."}
                return JSONResponse(message, 429, {"Retry-After": "0.01"})
        if self.status != 200:
            return JSONResponse({"error": "bad", "message": "No."}, self.status)
        contents = [body]
        if request.headers["Content-Type"].startswith("multipart/"):
            files = (await request.form()).getlist("files")
            contents = [await file.read() for file in files if isinstance(file, UploadFile)]
        pixels = [np.asarray(Image.open(BytesIO(content))) for content in contents]
        found = [int(image.mean() > 70) for image in pixels]
        with self.lock:
            self.headers.append(dict(request.headers))
            self.images += pixels
        predictions = [
            {
                "class": number,
                "label": self.labels[number] if self.labels else None,
                "probability": 0.9,
                "answered_by": "source" if number else "adapted",
            }
            for number in found
        ]
        return JSONResponse({"stream": "x", "predictions": predictions, "estimate": None})


@contextmanager
def run_predictor(**options: Any) -> Iterator[Predictor]:
    predictor = Predictor(**options)
    routes = [
        Route("/healthz", lambda request: Response("ok")),
        Route("/predict", predictor.predict, methods=["POST"]),
    ]
    with run_app(Starlette(routes=routes)) as predictor.address:
        yield predictor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eight images, of which those in `light` are brighter."""
    return write_images(tmp_path / "secret-place", {"dark": 5, "light": 3})


@pytest.mark.parametrize(("clients", "batch"), [(1, 1), (1, 3), (4, 1), (3, 2)])
def test_every_image_is_sent_once(clients: int, batch: int, folder: Path) -> None:
    with run_predictor() as server:
        steps: list[int] = []
        report = send(
            read_folder(folder),
            server.address,
            stream="cam",
            clients=clients,
            batch=batch,
            progress=lambda stage, done, total: steps.append(done),
        )
    assert len(server.images) == report.n_answered == 8
    means = sorted(image.mean() for image in server.images)
    expected = sorted(np.asarray(Image.open(path)).mean() for path in folder.glob("*/*"))
    assert means == expected
    assert len(server.headers) == len(report.latencies)
    assert {header["x-stream-id"] for header in server.headers} == {"cam"}
    assert report.predicted == {"dark": 5, "light": 3}
    assert report.answered_by == {"adapted": 5, "source": 3}
    assert report.error == 0
    assert report.n_failed == report.n_retries == 0
    assert steps == sorted(steps)
    assert steps[-1] == 8


@pytest.mark.parametrize("batch", [1, 8])
def test_labels_and_names_never_leave_the_client(batch: int, folder: Path) -> None:
    with run_predictor() as server:
        send(read_folder(folder), server.address, batch=batch)
    sent = b"".join(server.bodies) + repr(server.headers).encode()
    for word in (b"dark", b"light", b"secret-place", b"000.png", b"002"):
        assert word not in sent


def test_numbers_are_compared_where_the_server_has_no_class_names(folder: Path) -> None:
    with run_predictor(labels=None) as server:
        report = send(read_folder(folder), server.address)
        assert report.error == 0
        assert report.predicted == {"0": 5, "1": 3}
    with run_predictor(labels=("light", "dark")) as server:
        assert send(read_folder(folder), server.address).error == 1


def test_a_busy_server_is_asked_again(folder: Path) -> None:
    with run_predictor(busy=5) as server:
        report = send(read_folder(folder), server.address, clients=2)
    assert report.n_retries == 5
    assert report.n_answered == 8
    assert report.n_failed == 0


def test_a_request_that_is_never_taken_is_a_failure(folder: Path) -> None:
    with run_predictor(busy=1000) as server:
        report = send(read_folder(folder), server.address, retries=1, batch=8, clients=1)
    assert report.n_retries == len(server.bodies) == 2
    assert report.failures == {"busy: The queue is full.": 8}
    assert report.error is report.quantile(0.5) is None


def test_a_refused_request_is_not_repeated(folder: Path) -> None:
    with run_predictor(status=400) as server:
        report = send(read_folder(folder), server.address)
    assert len(server.bodies) == 8
    assert report.failures == {"bad: No.": 8}


def test_a_token_is_sent_and_its_absence_is_one_error(folder: Path) -> None:
    with run_predictor(token="abc") as server:
        assert send(read_folder(folder), server.address, token="abc").n_answered == 8
        with raises("refused", status=401):
            send(read_folder(folder), server.address)


def test_an_address_without_a_server_is_refused(folder: Path) -> None:
    with run_predictor() as server:
        address = server.address
    with raises("unreachable", address=address):
        send(read_folder(folder), address)
    for text in ("127.0.0.1:8000", "ftp://here", "http://"):
        with raises("malformed", option="to"):
            send([], text)


@pytest.mark.parametrize(
    ("options", "option"),
    [({"clients": 0}, "clients"), ({"batch": 0}, "batch"), ({"rate": 0.0}, "rate")],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], option: str) -> None:
    with raises("out_of_range", option=option):
        send([], "http://127.0.0.1:1", **options)


def test_an_image_that_vanishes_is_a_failure_and_not_the_end(folder: Path) -> None:
    images = read_folder(folder)
    (folder / "dark" / "002.png").unlink()
    with run_predictor() as server:
        report = send(images, server.address)
    assert report.n_answered == 7
    assert report.failures == {"FileNotFoundError": 1}


def test_folders_are_played_in_the_order_that_was_asked_for(folder: Path) -> None:
    def play(**options: Any) -> list[bytes]:
        return [image.read() for image in read_folder(folder, **options)]

    files = [path.read_bytes() for path in sorted(folder.glob("*/*"))]
    assert play() == files
    assert play(repeat=2) == files + files
    shuffled = play(shuffle=True, seed=1)
    assert shuffled == play(shuffle=True, seed=1) != files
    assert sorted(shuffled) == sorted(files)
    assert {image.label for image in read_folder(folder / "dark")} == {None}


def test_builtin_images_are_those_of_the_task() -> None:
    images = list(make_builtin("fog", 120, severity=4, seed=3))
    pixels, labels = render(120, 2)
    expected = apply(pixels, "fog", 4, 3)
    assert [image.number for image in images] == labels.tolist()
    assert images[7].label == CLASSES[labels[7]]
    for place in (0, 99, 100, 119):
        found = np.asarray(Image.open(BytesIO(images[place].read())))
        assert np.array_equal(found, expected[place])
    clean = next(make_builtin("clean", 1))
    assert np.array_equal(np.asarray(Image.open(BytesIO(clean.read()))), pixels[0])
    with raises("unknown_name", kind="corruption"):
        next(make_builtin("fogg", 1))


def test_a_problem_while_images_are_made_reaches_the_caller() -> None:
    def fail() -> Iterator[StreamImage]:
        yield from make_builtin("clean", 1)
        raise RuntimeError("no more")

    with run_predictor() as server, pytest.raises(RuntimeError, match="no more"):
        send(fail(), server.address)


def test_a_report_has_quantiles_and_the_error_over_time() -> None:
    wrong = [True, True, True, False, False, False, True, False]
    report = SendReport(
        latencies=[0.001 * n for n in range(100, 0, -1)],
        verdicts=[(place, wrong[place]) for place in (5, 0, 3, 1, 7, 2, 6, 4)],
    )
    assert report.quantile(0.5) == pytest.approx(0.05)
    assert report.quantile(0.99) == pytest.approx(0.099)
    assert report.error == 0.5
    assert report.error_by_part() == [1.0, 0.5, 0.0, 0.5]


def test_the_command_prints_what_came_back(folder: Path) -> None:
    with run_predictor() as server:
        result = CliRunner(env={"COLUMNS": "200"}).invoke(
            app, ["send", str(folder), "--to", server.address, "--stream", "cam", "--repeat", "2"]
        )
    assert result.exit_code == 0, result.output
    assert "Stream cam" in result.output
    assert "16 images" in result.output
    assert "dark 10, light 6" in result.output
    assert "0.0 %; by quarter of the stream: 0.0, 0.0, 0.0, 0.0" in result.output


def test_the_command_fails_if_requests_fail(folder: Path) -> None:
    with run_predictor(status=500) as server:
        result = CliRunner(env={"COLUMNS": "200"}).invoke(
            app, ["send", str(folder), "--to", server.address, "--limit", "3"]
        )
    assert result.exit_code == 1
    assert "3 × bad: No." in result.output


def test_the_command_needs_a_folder_or_a_corruption(folder: Path) -> None:
    for arguments, code in (
        (["send"], "missing_option"),
        (["send", str(folder), "--builtin", "fog"], "conflicting_options"),
        (["send", str(folder), "--limit", "0"], "out_of_range"),
    ):
        error = CliRunner().invoke(app, arguments).exception
        assert getattr(error, "code", None) == code
