"""Play images as a stream to a server, and measure what comes back.

Needs nothing but the standard library and, for the images of the built-in task, acclimate itself.

    report = send(read_folder("images"), "http://127.0.0.1:8000", stream="camera-1", clients=8)
    print(report.throughput, report.quantile(0.99), report.error)

Labels, file names and folder names never leave the client.
"""

from __future__ import annotations

import http.client
import itertools
import json
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from acclimate.errors import BadInput, RequestFailed, check_at_least, refuse_value
from acclimate.progress import Progress

#: The corruption name for images of the built-in task as they are.
CLEAN = "clean"
_TYPES = {".jpg": "jpeg", ".jpeg": "jpeg", ".tif": "tiff", ".ppm": "x-portable-pixmap"}
_BOUNDARY = "acclimate-7d1c4e0a95b84f3c"
_LONGEST_WAIT = 5.0  # seconds before a request is tried again
_CHUNK = 100  # images of the built-in task that are made at a time


@dataclass(frozen=True)
class StreamImage:
    """One image of a stream.

    Attributes:
        read: Returns the content of the image file.
        kind: Its media type.
        label: Its class, which is compared with the answer; None if it is not known.
        number: The number of that class, which is compared if the answer has no class name.
    """

    read: Callable[[], bytes]
    kind: str
    label: str | None = None
    number: int | None = None


@dataclass
class SendReport:
    """What a server answered to the images of a stream.

    Attributes:
        answered_by: Images by who answered: `"adapted"` or `"source"`.
        predicted: Images by predicted class.
        latencies: Seconds of every answered request, without waiting for a retry.
        failures: Images without an answer, by reason.
        n_retries: How often a request was repeated because the server was busy.
        seconds: From the first request to the last answer.
        verdicts: For every labelled image that was answered, its place in the stream, and whether
            the answer was wrong.
        estimate: The last estimate that the server sent; None if it sent none.
        stream: Id of the stream.
    """

    answered_by: Counter[str] = field(default_factory=Counter)
    predicted: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    n_retries: int = 0
    seconds: float = 0.0
    verdicts: list[tuple[int, bool]] = field(default_factory=list)
    estimate: dict[str, Any] | None = None
    stream: str = "default"

    @property
    def n_answered(self) -> int:
        """Number of images that were answered."""
        return sum(self.answered_by.values())

    @property
    def n_failed(self) -> int:
        """Number of images that were not answered."""
        return sum(self.failures.values())

    @property
    def throughput(self) -> float:
        """Answered images per second."""
        return self.n_answered / self.seconds if self.seconds > 0 else 0.0

    @property
    def error(self) -> float | None:
        """Share of wrong answers among labelled images; None if no image has a label."""
        return _mean([wrong for _, wrong in self.verdicts])

    def error_by_part(self, n_parts: int = 4) -> list[float | None]:
        """Return the share of wrong answers in equal parts of the stream, in their order."""
        wrong = [wrong for _, wrong in sorted(self.verdicts)]
        cuts = [len(wrong) * part // n_parts for part in range(n_parts + 1)]
        return [_mean(wrong[low:high]) for low, high in itertools.pairwise(cuts)]

    def quantile(self, q: float) -> float | None:
        """Return a quantile of the latency in seconds; None if nothing was answered."""
        if not self.latencies:
            return None
        order = sorted(self.latencies)
        return order[max(0, math.ceil(q * len(order)) - 1)]


def read_folder(
    root: str | Path, *, shuffle: bool = False, seed: int = 0, repeat: int = 1
) -> list[StreamImage]:
    """Return the images of a folder as a stream.

    If all images are in sub-folders, and there are at least two, these are the classes.

    Args:
        root: The folder, with any nesting.
        shuffle: Whether to shuffle the images, in each pass anew; sorted by path if not.
        seed: Of the order.
        repeat: How often the folder is played.
    """
    from acclimate.streams.images import list_images

    check_at_least("repeat", repeat, 1)
    root = Path(root)
    paths = list_images(root)
    folders = [path.relative_to(root).parts[:-1] for path in paths]
    classes = sorted({parts[0] for parts in folders if parts})
    has_classes = all(folders) and len(classes) > 1
    images = [
        StreamImage(
            path.read_bytes,
            f"image/{_TYPES.get(path.suffix.lower(), path.suffix.lower()[1:])}",
            parts[0] if has_classes else None,
            classes.index(parts[0]) if has_classes else None,
        )
        for path, parts in zip(paths, folders, strict=True)
    ]
    order = random.Random(seed)
    played = []
    for _ in range(repeat):
        played += order.sample(images, len(images)) if shuffle else images
    return played


def make_builtin(
    corruption: str, n: int, *, severity: int = 5, seed: int = 0
) -> Iterator[StreamImage]:
    """Yield test images of the built-in task under a corruption, as PNG files.

    Args:
        corruption: A name of `acclimate.corruptions.CORRUPTIONS`, or `"clean"`.
        n: Number of images.
        severity: From 1 to 5.
        seed: Of the corruption.
    """
    from PIL import Image

    from acclimate.builtin import CLASSES, SPLITS, render
    from acclimate.corruptions import apply

    check_at_least("limit", n, 1)
    for start in range(0, n, _CHUNK):
        pixels, labels = render(min(_CHUNK, n - start), SPLITS["test"], start)
        if corruption != CLEAN:
            pixels = apply(pixels, corruption, severity, seed, start)
        for image, number in zip(pixels, labels.tolist(), strict=True):
            file = BytesIO()
            Image.fromarray(image).save(file, "PNG", compress_level=1)
            yield StreamImage(file.getvalue, "image/png", CLASSES[number], number)


def send(
    images: Iterable[StreamImage],
    address: str,
    *,
    stream: str = "default",
    clients: int = 4,
    batch: int = 1,
    rate: float | None = None,
    token: str | None = None,
    retries: int = 8,
    timeout: float = 30.0,
    total: int | None = None,
    progress: Progress | None = None,
) -> SendReport:
    """Send images to a server and return what it answered.

    Each client has one connection, which it keeps open, and sends the next request when the last
    one was answered. A request that the server cannot take now (429 or 503) is repeated after the
    time that the server asks for, or else after a time that doubles.

    Args:
        images: The images, in the order of the stream; read as they are sent.
        address: Such as `http://127.0.0.1:8000`.
        stream: Id of the stream.
        clients: Number of concurrent clients. With several, requests may overtake one another.
        batch: Images per request.
        rate: Images per second at most, of all clients together; None for as fast as possible.
        token: Bearer token, if the server needs one.
        retries: How often a request is repeated before its images count as failed.
        timeout: Seconds after which a request without an answer counts as failed.
        total: Number of images, for the progress.
        progress: Called with the stage, the number of images done, and `total`.

    Raises:
        RequestFailed: Nothing answers at the address, or the server refuses the token.
    """
    for option, value in (("clients", clients), ("batch", batch)):
        check_at_least(option, value, 1)
    check_at_least("retries", retries, 0)
    if rate is not None and not rate > 0:
        refuse_value("rate", rate, "above 0 images per second")
    server = _Server(address, stream, token, timeout)
    server.check()
    report = SendReport(stream=stream)
    run = _Run(server, iter(images), batch, rate, retries, total, progress, report)
    threads = [threading.Thread(target=run.work, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # such as Ctrl-C: let every client finish its request
        run.stopped.set()
        raise
    if run.problem is not None:
        raise run.problem
    return report


class _Server:
    """Where requests go, and how they are written."""

    def __init__(self, address: str, stream: str, token: str | None, timeout: float) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput(
                "malformed",
                f"Expected the address of a server, such as http://127.0.0.1:8000, found "
                f'"{address}".',
                option="to",
                found=address,
            )
        self.address = address
        self._is_secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._timeout = timeout
        self._headers = {"X-Stream-Id": stream}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=self._timeout)

    def check(self) -> None:
        """Refuse an address where no server answers."""
        connection = self.connect()
        try:
            connection.request("GET", f"{self._path}/healthz", headers=self._headers)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            raise RequestFailed(
                "unreachable",
                f"No server answers at {self.address}: {error}. Start one with acclimate serve, or "
                "check the address.",
                address=self.address,
            ) from error
        finally:
            connection.close()

    def post(
        self, connection: http.client.HTTPConnection, images: Sequence[StreamImage]
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        if len(images) == 1:
            body, kind = images[0].read(), images[0].kind
        else:
            body, kind = _join(images), f"multipart/form-data; boundary={_BOUNDARY}"
        headers = {**self._headers, "Content-Type": kind}
        connection.request("POST", f"{self._path}/predict", body, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()


@dataclass
class _Run:
    """The clients of one call of `send`, and what they share."""

    server: _Server
    images: Iterator[StreamImage]
    batch: int
    rate: float | None
    retries: int
    total: int | None
    progress: Progress | None
    report: SendReport
    taking: threading.Lock = field(default_factory=threading.Lock)
    noting: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)
    n_taken: int = 0
    start: float = field(default_factory=time.perf_counter)
    #: What ended the run early, if anything did.
    problem: BaseException | None = None

    def work(self) -> None:
        """Send requests until there is no image left."""
        connection = self.server.connect()
        try:
            while (taken := self._take()) is not None:
                connection = self._send(connection, *taken)
        except BaseException as error:  # noqa: BLE001 - raised again by `send`
            self.problem = self.problem or error
            self.stopped.set()
        finally:
            connection.close()

    def _take(self) -> tuple[int, list[StreamImage]] | None:
        """Return the next images with the place of the first, when it is their time."""
        with self.taking:
            if self.stopped.is_set():
                return None
            place = self.n_taken
            images = list(itertools.islice(self.images, self.batch))
            self.n_taken += len(images)
        if not images:
            return None
        if self.rate is not None:
            due = self.start + place / self.rate
            self.stopped.wait(max(0.0, due - time.perf_counter()))
        return place, images

    def _send(
        self, connection: http.client.HTTPConnection, place: int, images: list[StreamImage]
    ) -> http.client.HTTPConnection:
        reason = ""
        for attempt in range(self.retries + 1):
            if self.stopped.is_set():
                return connection
            begin = time.perf_counter()
            try:
                status, headers, body = self.server.post(connection, images)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                connection = self.server.connect()
                reason = type(error).__name__
                # Only a request that was never sent, or met a connection that the server had
                # closed, can be repeated: any other may have been answered.
                if not isinstance(error, ConnectionRefusedError | http.client.RemoteDisconnected):
                    break
                wait = _back_off(attempt)
            else:
                answer = _parse(body, len(images)) if status == 200 else None
                if answer is not None:
                    self._note(place, images, answer, time.perf_counter() - begin)
                    return connection
                reason = _explain(status, body)
                if status in (401, 403):
                    raise RequestFailed(
                        "refused",
                        f"The server at {self.server.address} refuses the request with status "
                        f"{status}: {reason}. Pass its token with --token, or token= in Python.",
                        address=self.server.address,
                        status=status,
                    )
                if status not in (429, 503):
                    break
                wait = _read_wait(headers.get("Retry-After")) or _back_off(attempt)
            with self.noting:
                self.report.n_retries += 1
            self.stopped.wait(wait)
        with self.noting:
            self.report.failures[reason] += len(images)
            self._report_progress()
        return connection

    def _note(
        self, place: int, images: Sequence[StreamImage], answer: dict[str, Any], seconds: float
    ) -> None:
        with self.noting:
            report = self.report
            report.seconds = time.perf_counter() - self.start
            report.latencies.append(seconds)
            report.estimate = answer.get("estimate") or report.estimate
            for offset, (image, found) in enumerate(
                zip(images, answer["predictions"], strict=True)
            ):
                label = found.get("label")
                report.answered_by[found["answered_by"]] += 1
                report.predicted[str(found["class"] if label is None else label)] += 1
                if image.label is not None:
                    wrong = (
                        found["class"] != image.number if label is None else label != image.label
                    )
                    report.verdicts.append((place + offset, wrong))
            self._report_progress()

    def _report_progress(self) -> None:
        if self.progress is not None:
            done = self.report.n_answered + self.report.n_failed
            self.progress("send", done, self.total)


def _join(images: Sequence[StreamImage]) -> bytes:
    """Return a multipart body; the files are named by their places in it."""
    parts = []
    for place, image in enumerate(images):
        head = (
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{place}"\r\n'
            f"Content-Type: {image.kind}\r\n\r\n"
        )
        parts += [head.encode(), image.read(), b"\r\n"]
    return b"".join([*parts, f"--{_BOUNDARY}--\r\n".encode()])


def _parse(body: bytes, n: int) -> dict[str, Any] | None:
    """Return an answer of the server; None if it has not one prediction for each of n images."""
    try:
        answer = json.loads(body)
        found = [(one["class"], one["answered_by"]) for one in answer["predictions"]]
    except (ValueError, KeyError, TypeError):
        return None
    return dict(answer) if len(found) == n else None


def _explain(status: int, body: bytes) -> str:
    """Return the code and the message of an error of the server, or its status."""
    try:
        answer = json.loads(body)
        return f"{answer['error']}: {answer['message']}"
    except (ValueError, KeyError, TypeError):
        return "no answer of acclimate serve" if status == 200 else f"status {status}"


def _read_wait(text: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None if there are none."""
    try:
        return min(_LONGEST_WAIT, max(0.0, float(text or "")))
    except ValueError:
        return None


def _back_off(attempt: int) -> float:
    longest = min(_LONGEST_WAIT, 0.05 * 2.0**attempt)
    return random.uniform(longest / 2, longest)


def _mean(wrong: Sequence[bool]) -> float | None:
    return sum(wrong) / len(wrong) if wrong else None
