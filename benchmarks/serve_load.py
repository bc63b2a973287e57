"""Load test of `acclimate serve` with the built-in model: latency, throughput and memory.

    python benchmarks/serve_load.py run --seconds 180 --out results/serve-load.json
    python benchmarks/serve_load.py report results/serve-load.json

`run` also prints the report, and ends with status 1 if a goal is not met. It measures, each with a
new server and 8 clients:

* the saturated throughput with learning off (a paused stream) and on;
* latencies at half of the first rate, with learning off and on;
* the memory of the server with learning on, over the whole run of that rate.

Where learning does not keep up, the server skips images: `share` is the share of answered images
that were learned from. No goal bounds it, so read it beside the throughput.

Run it on an idle machine with two cores. Clients are threads of this process, on the same machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acclimate.serve.client import StreamImage, make_builtin, send
from acclimate.storage import versions, write_atomically

CLIENTS, STREAM = 8, "camera-1"
#: Share of a run after which the memory must not grow, and by how much it may.
WARM_UP, GROWTH = 1 / 3, 0.05
_FIRST = 64  # images that create the stream


@contextmanager
def run_server() -> Iterator[tuple[str, int]]:
    """Give the address and the process id of a new server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-c", "from acclimate.cli.main import main; main()"]
    server = subprocess.Popen([*command, "serve", "--port", str(port)], stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                if urllib.request.urlopen(f"{address}/readyz", timeout=5).status == 200:
                    break
            except OSError:
                time.sleep(0.1)
        else:
            raise SystemExit("The server did not become ready.")
        yield address, server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(120)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def read_memory(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(
    images: list[StreamImage], seconds: float, *, learns: bool, rate: float | None = None
) -> dict[str, Any]:
    """Play images for some seconds to a new server, and return what was measured."""
    memory: list[tuple[float, int]] = []
    is_over = threading.Event()
    with run_server() as (address, pid):
        # The first requests create the stream, which can then be paused.
        send(images[:_FIRST], address, stream=STREAM, clients=1, batch=8)
        action = "resume" if learns else "pause"
        request = urllib.request.Request(f"{address}/streams/{STREAM}/{action}", method="POST")
        urllib.request.urlopen(request, timeout=60).read()

        start = time.monotonic()

        def watch() -> None:
            while not is_over.wait(0.5):
                memory.append((time.monotonic() - start, read_memory(pid)))

        def play() -> Iterator[StreamImage]:
            for image in itertools.cycle(images):
                if time.monotonic() - start > seconds:
                    return
                yield image

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            report = send(play(), address, stream=STREAM, clients=CLIENTS, rate=rate)
        finally:
            is_over.set()
            watcher.join()
        status = json.loads(urllib.request.urlopen(f"{address}/streams/{STREAM}").read())
    return {
        "learns": learns,
        "rate": rate,
        "seconds": report.seconds,
        "answered": report.n_answered,
        "failed": dict(report.failures),
        "retries": report.n_retries,
        "throughput": report.throughput,
        "latency": {f"p{q}": report.quantile(q / 100) for q in (50, 95, 99)},
        "learned_batches": status["batches"],
        "share_learned": status["samples"] / (report.n_answered + _FIRST),
        "memory": [[round(t, 1), n] for t, n in memory],
    }


def judge(runs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each goal with what was found, and whether it is met."""
    off, on = runs["saturated_off"], runs["saturated_on"]
    p99 = [runs[name]["latency"]["p99"] for name in ("half_off", "half_on")]
    warm = [n for t, n in runs["half_on"]["memory"] if t > WARM_UP * runs["half_on"]["seconds"]]
    third = max(1, len(warm) // 3)
    growth = max(warm[-third:]) / max(warm[:third]) - 1
    failed = sum(sum(run["failed"].values()) for run in runs.values())
    return {
        "failed requests": {"found": failed, "goal": "0", "is_met": failed == 0},
        "p99 with learning on / off": {
            "found": p99[1] / p99[0],
            "goal": "at most 2",
            "is_met": p99[1] <= 2 * p99[0],
        },
        "saturated throughput on / off": {
            "found": on["throughput"] / off["throughput"],
            "goal": "at least 0.3",
            "is_met": on["throughput"] >= 0.3 * off["throughput"],
        },
        "growth of memory after warm-up": {
            "found": growth,
            "goal": f"at most {GROWTH}",
            "is_met": growth <= GROWTH,
        },
        "learned batches at half rate": {
            "found": runs["half_on"]["learned_batches"],
            "goal": "more than 1",
            "is_met": runs["half_on"]["learned_batches"] > 1,
        },
    }


def run(seconds: float, saturated: float) -> dict[str, Any]:
    """Make all measurements; the saturated ones take `saturated` seconds each."""
    load = os.getloadavg()
    images = list(make_builtin("fog", 1000))
    runs = {"saturated_off": measure(images, saturated, learns=False)}
    runs["saturated_on"] = measure(images, saturated, learns=True)
    rate = runs["saturated_off"]["throughput"] / 2
    runs["half_off"] = measure(images, seconds, learns=False, rate=rate)
    runs["half_on"] = measure(images, seconds, learns=True, rate=rate)
    return {
        "script": "serve_load.py",
        "seconds": seconds,
        "saturated_seconds": saturated,
        "clients": CLIENTS,
        "machine": {"cores": os.cpu_count(), "processor": platform.processor() or "unknown"},
        "load_average": {"start": load, "end": os.getloadavg()},
        "versions": versions(),
        "goals": judge(runs),
        "runs": runs,
    }


def report(content: dict[str, Any]) -> str:
    """Return the measurements as text."""
    names = ("images/s", "p50 ms", "p99 ms", "failed", "learned", "share")
    widths = (10, 9, 9, 8, 9, 7)
    head = "".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    lines = [f"{'run':<16}{head}"]
    for name, found in content["runs"].items():
        p50, p99 = (1000 * found["latency"][q] for q in ("p50", "p99"))
        failed = sum(found["failed"].values())
        lines.append(
            f"{name:<16}{found['throughput']:>10.1f}{p50:>9.1f}{p99:>9.1f}{failed:>8}"
            f"{found['learned_batches']:>9}{found['share_learned']:>7.2f}"
        )
    lines.append("")
    for name, goal in content["goals"].items():
        mark = "met" if goal["is_met"] else "NOT MET"
        lines.append(f"{name}: {goal['found']:.3g} ({goal['goal']}): {mark}")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="measure, and print the report")
    runs.add_argument("--seconds", type=float, default=180.0, help="of each run at half rate")
    runs.add_argument("--saturated", type=float, default=60.0, help="seconds of each other run")
    runs.add_argument("--out", type=Path, default=Path("results/serve-load.json"))
    shows = commands.add_parser("report", help="print the report of a file")
    shows.add_argument("path", type=Path)
    options = parser.parse_args()
    if options.command == "report":
        print(report(json.loads(options.path.read_text())))
        return
    content = run(options.seconds, options.saturated)
    write_atomically(options.out, (json.dumps(content, indent=1) + "\n").encode())
    print(report(content))
    sys.exit(not all(goal["is_met"] for goal in content["goals"].values()))


if __name__ == "__main__":
    main()
