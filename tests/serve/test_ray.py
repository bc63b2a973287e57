"""The Ray Serve application: its parts, and two replicas, one of which is killed under load."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
import torch

from acclimate.builtin import load_split
from acclimate.errors import ServerBusy
from acclimate.serve.app import make_app
from acclimate.serve.engine import EngineSettings
from acclimate.sessions import Sessions
from acclimate.testing.cases import tiny_artifact
from acclimate.testing.models import tiny_model
from tests.bench.processes import wait_until
from tests.codes import raises
from tests.serve.make import make_engine, make_images, make_npy

serve = pytest.importorskip("ray.serve", reason="pip install 'acclimate[serve-ray]'")

from acclimate.serve.ray import (  # noqa: E402
    Builder,
    build,
    call_app,
    find_stream,
    make_application,
)

# A stream of a shared folder ----------------------------------------------------------------------


def test_a_stream_is_open_in_one_server_at_a_time(tmp_path: Path) -> None:
    one, other = (make_engine(folder=tmp_path, shared=True) for _ in range(2))
    with raises("stream_elsewhere", ServerBusy, stream="a"):
        one.submit("a", make_images(2))  # not opened
    one.open("a")
    with raises("stream_elsewhere", ServerBusy, stream="a"):
        other.open("a")
    for seed in range(3):
        one.submit("a", make_images(7, seed)).result(30)
    one.release("a")  # learns from what waits
    with raises("stream_elsewhere", ServerBusy):
        one.submit("a", make_images(2))
    one.release("a")
    other.open("a")
    assert other.get_stream("a")["samples"] == 21
    assert other.get_stream("a")["queue"] == 0
    other.submit("a", make_images(8)).result(30)
    other.close()
    # Closing saves and releases; the state is that of the other server, not the one seen before.
    one.open("a")
    assert one.get_stream("a")["samples"] == 29
    one.close()


def test_a_stream_that_moves_learns_what_it_would_have_learned(tmp_path: Path) -> None:
    engines = [make_engine(folder=tmp_path / "shared", shared=True) for _ in range(2)]
    for seed in range(6):
        engine = engines[seed % 2]
        engine.open("a")
        engine.submit("a", make_images(8, seed)).result(30)
        engine.release("a")
    for engine in engines:
        engine.close()
    alone = make_engine(folder=tmp_path / "alone")
    for seed in range(6):
        alone.submit("a", make_images(8, seed)).result(30)
        while alone.get_stream("a")["batches"] <= seed:
            time.sleep(0.005)
    alone.close()
    found = []
    for name in ("shared", "alone"):
        sessions = Sessions(
            tiny_model("batch_norm"), "tent", tiny_artifact("batch_norm"), folder=tmp_path / name
        )
        found.append(sessions.call("a", make_images(8, 99)))
        sessions.close()
    assert torch.equal(found[0], found[1])


def test_requests_while_a_stream_leaves_are_refused_or_answered(tmp_path: Path) -> None:
    engine = make_engine(folder=tmp_path, shared=True)
    engine.open("a")
    n_answered, n_refused = [0], [0]
    is_over = threading.Event()

    def send() -> None:
        while not is_over.is_set():
            try:
                engine.submit("a", make_images(2)).result(30)
                n_answered[0] += 2
            except ServerBusy as error:
                n_refused[0] += error.code == "stream_elsewhere"
                time.sleep(0.001)

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(5):
        time.sleep(0.05)
        engine.release("a")
        time.sleep(0.01)
        engine.open("a")
    is_over.set()
    thread.join()
    engine.release("a")
    engine.open("a")
    assert engine.get_stream("a")["samples"] == n_answered[0] > 0
    assert n_refused[0] > 0
    engine.close()


# The application ----------------------------------------------------------------------------------


def test_the_stream_of_a_request_is_found() -> None:
    assert find_stream("POST", "/predict", {"X-Stream-Id": "camera"}) == "camera"
    assert find_stream("POST", "/predict", {}) == "default"
    assert find_stream("GET", "/streams/a/b", {}) == "a/b"
    assert find_stream("GET", "/streams/a/b/history", {}) == "a/b"
    assert find_stream("POST", "/streams/a/b/pause", {}) == "a/b"
    for path in ("/", "/streams", "/healthz", "/metrics"):
        assert find_stream("GET", path, {}) == ""


def test_an_application_is_called_in_this_process() -> None:
    app = make_app(lambda telemetry: make_engine())
    headers = [(b"content-type", b"application/x-npy"), (b"x-stream-id", b"a")]
    request = {"method": "POST", "path": "/predict", "query_string": b"", "headers": headers}

    async def work() -> None:
        async with app.router.lifespan_context(app):
            status, found, body = await call_app(app, request, make_npy(make_images(2)))
            assert (status, dict(found)[b"content-type"]) == (200, b"application/json")
            assert b'"stream":"a"' in body
            status, _, _ = await call_app(app, {**request, "path": "/nowhere"}, b"")
            assert status == 404

    asyncio.run(work())


def test_what_cannot_be_built_is_refused(tmp_path: Path) -> None:
    with raises("missing_option", option="folder"):
        build({})
    with raises("unknown_option", option="folde"):
        build({"folde": str(tmp_path)})


# Two replicas -------------------------------------------------------------------------------------


def list_replicas(cluster: Path) -> list[int]:
    """Return the processes of the replicas of a cluster, which is known by its folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_ours = f"RAY_TMPDIR={cluster}\0".encode() in (path / "environ").read_bytes()
            title = (path / "cmdline").read_bytes()
            if is_ours and title.startswith(b"ray::ServeReplica:default:Replica"):
                found.append(int(path.name))
    return found


def count_streams(number: int) -> int:
    """Return how many streams a replica has: it holds the locks of their files."""
    with suppress(OSError):
        links = [path.readlink() for path in Path(f"/proc/{number}/fd").iterdir()]
        return sum(link.suffix == ".lock" for link in links)
    return 0


@pytest.fixture
def cluster() -> Iterator[Path]:
    """A cluster of this machine."""
    import ray

    folder = TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    with folder as place, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "TMPDIR": place,
            "RAY_TMPDIR": place,
            "RAY_AUTH_MODE": "disabled",  # else Ray would make a token in the user's home
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "OMP_NUM_THREADS": "1",
            # Seconds; on a busy machine the proxy takes longer to start than the usual 5.
            "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
            "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
        }.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init("local", num_cpus=4, include_dashboard=False, logging_level="ERROR")
        try:
            yield Path(place)
        finally:
            serve.shutdown()
            ray.shutdown()


class Client(threading.Thread):
    """Sends images of one stream, a request after the other, until it is stopped.

    Attributes:
        answered: Images that were answered.
        failed: Requests that were not, as status codes.
        reported: Most samples that the server has reported for the stream.
    """

    def __init__(self, url: str, stream: str) -> None:
        super().__init__(daemon=True)
        self.answered = self.n_sent = self.reported = 0
        self.failed: list[int] = []
        self.is_over = threading.Event()
        self._stream = stream
        self._client = httpx.Client(base_url=url, timeout=120)
        self._body = make_npy(load_split("test", 4)[0])

    def run(self) -> None:
        headers = {"Content-Type": "application/x-npy", "X-Stream-Id": self._stream}
        while not self.is_over.is_set():
            self.n_sent += 4
            response = self._client.post("/predict", content=self._body, headers=headers)
            if response.status_code == 200:
                assert response.json()["stream"] == self._stream
                self.answered += 4
                self.look()
            else:
                self.failed.append(response.status_code)
                time.sleep(0.1)

    def look(self) -> int:
        """Return how many samples the stream has learned from, by its status; 0 if unknown."""
        response = self._client.get(f"/streams/{self._stream}")
        samples = int(response.json()["samples"]) if response.status_code == 200 else 0
        self.reported = max(self.reported, samples)
        return samples


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="replicas are looked for in /proc")
@pytest.mark.timeout(900)
def test_streams_continue_when_a_replica_is_killed_under_load(
    cluster: Path, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # With 2 streams at once in a replica, streams are also evicted.
    settings = EngineSettings(learn_batch=8, save_every=1, when_behind="refuse", sessions=2)
    application = make_application(
        Builder(method="norm", guard=False),
        tmp_path / "streams",
        engine_settings=settings,
        ray_actor_options={"num_cpus": 0},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(application)
    clients = [Client(f"http://127.0.0.1:{port}", f"camera-{n}") for n in range(3)]
    for client in clients:
        client.start()
    wait_until(lambda: all(client.reported >= 24 for client in clients))
    before = list_replicas(cluster)
    assert len(before) == 2
    victim = max(before, key=count_streams)
    assert count_streams(victim) > 0
    saved = [client.reported for client in clients]
    os.kill(victim, signal.SIGKILL)
    marks = [client.answered for client in clients]
    pairs = list(zip(clients, marks, strict=True))
    wait_until(lambda: all(client.answered >= mark + 40 for client, mark in pairs))
    wait_until(lambda: len(set(list_replicas(cluster)) - {victim}) == 2)
    for client in clients:
        client.is_over.set()
    for client in clients:
        client.join(200)
        assert not client.is_alive()
    for client, n in zip(clients, saved, strict=True):
        # What had been reported was saved; nothing was counted that was not sent.
        assert n <= client.reported
        assert n < client.look() <= client.n_sent
        # Every request was answered, or its client has seen an error that it may repeat.
        assert set(client.failed) <= {429, 503}
        assert client.answered + 4 * len(client.failed) == client.n_sent
    wait_until(lambda: serve.status().applications["default"].status == "RUNNING")
