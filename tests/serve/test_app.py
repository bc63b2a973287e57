"""The HTTP interface: answers, errors, limits, security."""

from __future__ import annotations

import asyncio
import io
import json
import re
import struct
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from acclimate.serve.app import AppSettings
from acclimate.serve.client import make_builtin
from acclimate.serve.telemetry import Telemetry
from tests.serve.make import make_images, make_npy, make_png, open_client

PNG, NPY = {"Content-Type": "image/png"}, {"Content-Type": "application/x-npy"}


def serve(work: Callable[[httpx.AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    """Run a client against an application in this process."""

    async def run() -> Any:
        async with open_client(**options) as client:
            return await work(client)

    return asyncio.run(run())


async def wait_for(client: httpx.AsyncClient, stream: str, batches: int) -> dict[str, Any]:
    while True:
        status = dict((await client.get(f"/streams/{stream}")).json())
        if status["batches"] >= batches:
            return status
        await asyncio.sleep(0.005)


def test_every_kind_of_body_is_answered() -> None:
    async def work(client: httpx.AsyncClient) -> None:
        x = make_images(2)
        bodies: list[tuple[int, dict[str, Any]]] = [
            (1, {"content": make_png(), "headers": PNG}),
            (1, {"content": make_png(size=(20, 31)), "headers": PNG}),  # resized and cropped
            (3, {"files": [("files", (str(i), make_png(i), "image/png")) for i in range(3)]}),
            (2, {"content": make_npy(x), "headers": NPY}),
            (1, {"content": make_npy(x[0]), "headers": NPY}),
            (2, {"json": {"inputs": x.tolist()}}),
        ]
        for n, body in bodies:
            answer = await client.post("/predict", **body)
            assert answer.status_code == 200, answer.text
            content = answer.json()
            assert content["stream"] == "default"
            assert len(content["predictions"]) == n
            for found in content["predictions"]:
                assert set(found) == {"class", "label", "probability", "answered_by"}
                assert 0 < found["probability"] <= 1
        npy = await client.post("/predict", content=make_npy(x), headers=NPY)
        as_json = await client.post("/predict", json={"inputs": x.tolist()})
        assert npy.json() == as_json.json()

    serve(work, method="source")


def test_streams_are_separate_and_can_be_controlled() -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for stream in ("a", "b/c"):
            headers = {**NPY, "X-Stream-Id": stream}
            await client.post("/predict", content=make_npy(make_images(8)), headers=headers)
            await wait_for(client, stream.replace("/", "%2F"), 1)
        listed = (await client.get("/streams")).json()["streams"]
        assert {each["id"] for each in listed} == {"a", "b/c"}
        assert (await client.post("/streams/a/rollback")).json()["error"] == "no_snapshot"
        for action, status in (("pause", 200), ("snapshot", 200), ("rollback", 200)):
            assert (await client.post(f"/streams/b%2Fc/{action}")).status_code == status
        assert (await client.get("/streams/b%2Fc")).json()["state"] == "paused"
        assert (await client.get("/streams/a")).json()["state"] == "learning"
        history = (await client.get("/streams/a/history")).json()
        assert set(history) == {"points", "events", "recent", "predicted"}
        assert sum(history["predicted"].values()) == 8
        for path in ("/streams/z", "/streams/z/history"):
            assert (await client.get(path)).status_code == 404
        assert (await client.post("/streams/a/destroy")).status_code == 404

    serve(work)


def test_the_other_paths() -> None:
    async def work(client: httpx.AsyncClient) -> None:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert "<title>" in (await client.get("/")).text
        assert (await client.get("/docs")).status_code == 200
        assert "/predict" in (await client.get("/openapi.json")).json()["paths"]
        headers = {**NPY, "X-Stream-Id": "a"}
        await client.post("/predict", content=make_npy(make_images(8)), headers=headers)
        await client.post("/predict", content=b"no image", headers=PNG)
        await wait_for(client, "a", 1)
        text = ""
        while "acclimate_samples_total{" not in text:  # written after the batch was learned from
            text = (await client.get("/metrics")).text
        for line in (
            'acclimate_requests_total{status="200"} 1.0',
            'acclimate_requests_total{status="400"} 1.0',
            'acclimate_answered_total{by="adapted",stream="a"} 8.0',
            'acclimate_samples_total{stream="a"} 8.0',
            'acclimate_learn_queue{stream="a"} 0.0',
            "acclimate_answer_batch_size_sum 8.0",
        ):
            assert line in text
        assert 'acclimate_entropy{stream="a"}' in text

    serve(work)


def _claim(shape: str, dtype: str = "<f4") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)


def _pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


BAD = {
    "text": (b"no image", "image/png", 400, "unreadable_image"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image/png", 400, None),
    "empty": (b"", "image/png", 400, "unreadable_image"),
    "truncated": (make_png()[:60], "image/png", 400, "unreadable_image"),
    "pixels": (make_png(size=(40, 40)), "image/png", 413, "image_too_large"),
    "body": (bytes(9000), "image/png", 413, "too_large"),
    "multipart": (b"--x\r\n", "multipart/form-data; boundary=y", 400, "wrong_body"),
    "no boundary": (b"--x\r\n", "multipart/form-data", 400, "wrong_body"),
    "pickle": (_pickled(), "application/x-npy", 400, "wrong_body"),
    "huge npy": (_claim("(1000000000, 3, 8, 8)"), "application/x-npy", 400, "wrong_body"),
    "negative": (_claim("(-1, 3, 8, 8)"), "application/x-npy", 400, "wrong_body"),
    "code": (_claim("__import__('os')"), "application/x-npy", 400, "wrong_body"),
    "short npy": (b"\x93NUMPY", "application/x-npy", 400, "wrong_body"),
    "json": (b"{", "application/json", 400, "wrong_body"),
    "deep": (b"[" * 5000, "application/json", 400, "wrong_body"),
    "ragged": (b'{"inputs": [[[[1], [1, 2]]]]}', "application/json", 400, "wrong_body"),
    "flat": (b'{"inputs": [1, 2]}', "application/json", 400, "wrong_body"),
    "shape": (make_npy(torch.rand(1, 3, 9, 9)), "application/x-npy", 400, "wrong_shape"),
    "no images": (make_npy(torch.rand(0, 3, 8, 8)), "application/x-npy", 400, "empty_batch"),
    "many": (make_npy(torch.rand(5, 3, 8, 8)), "application/x-npy", 413, "too_many_images"),
    "nan": (make_npy(torch.full((1, 3, 8, 8), torch.nan)), "application/x-npy", 400, "not_finite"),
}


def test_bad_bodies_are_refused_and_the_server_goes_on() -> None:
    limits = AppSettings(max_body=8000, max_images=4, max_pixels=1000)

    async def work(client: httpx.AsyncClient) -> None:
        for name, (body, kind, status, code) in BAD.items():
            answer = await client.post("/predict", content=body, headers={"Content-Type": kind})
            found = (answer.status_code, answer.json()["error"])
            assert found == (status, code or "unreadable_image"), name
            assert answer.json()["message"]
        for stream in ("x" * 129, ""):
            headers = {**PNG, "X-Stream-Id": stream}
            answer = await client.post("/predict", content=make_png(), headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (400, "malformed")
        assert (await client.get("/streams")).json() == {"streams": []}
        assert (await client.post("/predict", content=make_png(), headers=PNG)).status_code == 200

    serve(work, limits=limits)


def test_a_body_of_unknown_length_is_cut_off() -> None:
    sent = 0

    async def work(client: httpx.AsyncClient) -> int:
        async def endless() -> Any:
            nonlocal sent
            for _ in range(100):
                sent += 1
                yield bytes(1000)

        return (await client.post("/predict", content=endless(), headers=PNG)).status_code

    assert serve(work, limits=AppSettings(max_body=5000)) == 413


def test_a_token_protects_everything_but_the_page() -> None:
    async def work(client: httpx.AsyncClient) -> None:
        closed = [("GET", "/streams"), ("GET", "/streams/a"), ("GET", "/metrics")]
        closed += [("POST", "/predict"), ("POST", "/streams/a/reset")]
        for method, path in closed:
            for given in (None, "Bearer wrong", "Basic s3cret", "Bearer s3cret2", "Bearer ä"):
                headers = {} if given is None else {"Authorization": given.encode()}
                answer = await client.request(method, path, headers=headers)
                assert (answer.status_code, answer.json()["error"]) == (401, "unauthorized")
        for path in ("/", "/healthz", "/readyz"):
            assert (await client.get(path)).status_code == 200
        headers = {**PNG, "Authorization": "Bearer s3cret"}
        answer = await client.post("/predict", content=make_png(), headers=headers)
        assert answer.status_code == 200

    serve(work, token="s3cret")


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_pages_of_other_sites_cannot_act(headers: dict[str, str]) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for path in ("/predict", "/streams/default/reset"):
            answer = await client.post(path, content=make_png(), headers={**PNG, **headers})
            assert (answer.status_code, answer.json()["error"]) == (403, "cross_site")
        own = {**PNG, "Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}
        answer = await client.post("/predict", content=make_png(), headers=own)
        assert answer.status_code == 200

    serve(work)


def test_limits_of_streams_and_queues() -> None:
    async def work(client: httpx.AsyncClient) -> None:
        body = make_npy(make_images(4))

        async def post(stream: str) -> httpx.Response:
            headers = {**NPY, "X-Stream-Id": stream}
            return await client.post("/predict", content=body, headers=headers)

        answers = await asyncio.gather(*(post("a") for _ in range(20)))
        refused = [answer for answer in answers if answer.status_code != 200]
        assert refused
        assert all(answer.status_code == 429 for answer in refused)
        assert all(float(answer.headers["Retry-After"]) > 0 for answer in refused)
        answer = await post("b")
        assert (answer.status_code, answer.json()["error"]) == (409, "too_many_streams")

    serve(work, max_streams=1, max_queue=8, max_wait_ms=300.0, max_batch=64)


def test_a_restart_goes_on(tmp_path: Path) -> None:
    async def learn(client: httpx.AsyncClient) -> None:
        headers = {**NPY, "X-Stream-Id": "a"}
        await client.post("/predict", content=make_npy(make_images(8)), headers=headers)

    async def look(client: httpx.AsyncClient) -> Any:
        return (await client.get("/streams/a")).json()["samples"]

    for expected in (8, 16):
        serve(learn, folder=tmp_path)
        assert serve(look, folder=tmp_path) == expected


def test_images_of_the_client_are_understood() -> None:
    image = next(iter(make_builtin("clean", 1)))

    async def work(client: httpx.AsyncClient) -> int:
        headers = {"Content-Type": image.kind}
        return (await client.post("/predict", content=image.read(), headers=headers)).status_code

    assert serve(work) == 200


def test_the_dashboard_shows_metrics_that_exist() -> None:
    dashboard = json.loads((files("acclimate.serve") / "grafana.json").read_text(encoding="utf-8"))
    shown = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"acclimate_\w+", target["expr"])
    }
    known = {family.name for family in Telemetry().registry.collect()}
    assert {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown} <= known
    assert len(shown) > 10
