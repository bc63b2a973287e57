"""Kill `acclimate serve` under load, again and again, and check what it still knows.

    python benchmarks/serve_kills.py --kills 20 --out results/serve-kills.json

Clients send images without a pause. After each `kill -9` and restart, the stream must go on from
its last saved state:

* it has learned from no more images than were answered, so that none is counted twice;
* it has lost at most the batches since the last save;
* every request was answered or failed at its client.

The script ends with status 1 if one of these does not hold.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from acclimate.serve.client import StreamImage, make_builtin
from acclimate.storage import versions, write_atomically

LEARN_BATCH, SAVE_EVERY = 8, 4
STREAM = "camera-1"


@dataclass
class Life:
    """What was seen of one server, from its start to its end.

    Attributes:
        found: Samples that the stream had learned from when the server was ready.
        sent: Requests that clients had begun when it ended.
        answered: Of these, answered.
        failed: Of these, with an error at the client.
        last: Most samples that it reported before its end.
    """

    found: int
    sent: int = 0
    answered: int = 0
    failed: int = 0
    last: int = 0


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start a server of the built-in model with a cheap method."""
    command = [sys.executable, "-c", "from acclimate.cli.main import main; main()", "serve"]
    options = {
        "--port": port,
        "--folder": folder,
        "--method": "norm",
        "--learn-batch": LEARN_BATCH,
        "--save-every": SAVE_EVERY,
        "--when-behind": "refuse",
    }
    words = [str(word) for pair in options.items() for word in pair]
    return subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL)


def ask(port: int, path: str) -> tuple[int, Any]:
    """Return the status and the JSON of a GET request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def wait_ready(server: subprocess.Popen[bytes], port: int, seconds: float = 60) -> None:
    """Wait until the server accepts requests."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            if ask(port, "/readyz")[0] == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)
    raise SystemExit("The server did not become ready.")


def count_samples(port: int) -> int:
    """Return the samples that the stream has learned from; 0 if there is no such stream."""
    status, content = ask(port, f"/streams/{STREAM}")
    return int(content["samples"]) if status == 200 else 0


class Load:
    """Clients that send one image after another until they are stopped."""

    def __init__(self, port: int, images: list[StreamImage], life: Life, clients: int) -> None:
        self._port, self._images, self._life = port, images, life
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._work, args=(i,)) for i in range(clients)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, when every client has an answer or an error."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _work(self, place: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        headers = {"X-Stream-Id": STREAM, "Content-Type": "image/png"}
        while not self._stopped.is_set():
            body = self._images[place % len(self._images)].read()
            place += 1
            with self._lock:
                self._life.sent += 1
            try:
                connection.request("POST", "/predict", body, headers)
                response = connection.getresponse()
                is_answered = response.status == 200 and bool(json.loads(response.read()))
                if response.status == 429:
                    response.read()
                    time.sleep(0.02)
            except (OSError, http.client.HTTPException, ValueError):
                is_answered = False
                connection.close()
                self._stopped.wait(0.1)
            with self._lock:
                self._life.answered += is_answered
                self._life.failed += not is_answered
        connection.close()


def run(folder: Path, kills: int, seconds: float, clients: int = 4) -> dict[str, Any]:
    """Kill a server so many times under load, then end one properly; return what was found."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    images = list(make_builtin("clean", 64))
    lives, problems = [], []
    for number in range(kills + 1):
        is_last = number == kills
        server = start(folder, port)
        try:
            wait_ready(server, port)
            life = Life(found=count_samples(port))
            lives.append(life)
            load = Load(port, images, life, clients)
            # Until it has saved at least once more, and then a varying time.
            end = time.monotonic() + 60
            enough = life.found + 2 * SAVE_EVERY * LEARN_BATCH
            while count_samples(port) < enough and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(seconds * (number % 5) / 5)
            life.last = count_samples(port)
            server.send_signal(signal.SIGTERM if is_last else signal.SIGKILL)
            server.wait(60)
            load.stop()
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
        problems += check(lives, number)
    server = start(folder, port)
    try:
        wait_ready(server, port)
        final = count_samples(port)
    finally:
        server.kill()
        server.wait()
    # A proper end learns from everything that was answered; at most one image has no batch.
    last = lives[-1]
    kept = final - last.found
    if not last.answered - 1 <= kept <= last.answered:
        problems.append(f"after SIGTERM: {kept} of {last.answered} answered images were learned")
    return {"problems": problems, "final": final, "lives": [asdict(life) for life in lives]}


def check(lives: list[Life], number: int) -> list[str]:
    """Return what is wrong with the state that the server of this number has found."""
    problems = []
    life = lives[number]
    if life.sent != life.answered + life.failed:
        problems.append(f"life {number}: {life.sent} sent, but not all answered or failed")
    if number == 0:
        return problems
    before = lives[number - 1]
    # Clients whose answer was cut off by the kill have an error, but may have been learned from.
    most = before.found + before.answered + before.failed
    least = before.last - SAVE_EVERY * LEARN_BATCH
    if not least < life.found <= most:
        problems.append(f"life {number}: found {life.found}, expected {least} to {most}")
    return problems


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="longest extra time of a life")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), options.kills, options.seconds)
    content = {
        "script": "serve_kills.py",
        "learn_batch": LEARN_BATCH,
        "save_every": SAVE_EVERY,
        "kills": options.kills,
        **found,
        "versions": versions(),
    }
    text = json.dumps(content, indent=1)
    print(text)
    if options.out is not None:
        write_atomically(options.out, (text + "\n").encode())
    sys.exit(bool(found["problems"]))


if __name__ == "__main__":
    main()
