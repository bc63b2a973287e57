"""Several streams over one model."""

from __future__ import annotations

import copy
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from acclimate.adaptation import adapt
from acclimate.sessions import Replica, Sessions
from acclimate.storage import read_file, write_file
from acclimate.testing.cases import tiny_artifact
from acclimate.testing.models import tiny_model
from tests.codes import raises

METHODS = ["source", "norm", "tent", "eata", "cotta", "t3a", "rotta", "swr_nsp", "steady"]


def _streams(n: int = 4) -> dict[str, list[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: [torch.rand(8, 3, 8, 8, generator=generator) for _ in range(n)] for name in ("a", "b")
    }


def _make(method: str, **options: object) -> Sessions:
    artifact = tiny_artifact("batch_norm", guarded=bool(options.get("guard")))
    return Sessions(tiny_model("batch_norm"), method, artifact, **options)  # type: ignore[arg-type]


def _expect(sessions: Sessions, method: str, **options: object) -> dict[str, list[Tensor]]:
    artifact = tiny_artifact("batch_norm", guarded=bool(options.get("guard")))
    made = {}
    for name, batches in _streams().items():
        seed = sessions.seed_of(name)
        adapted = adapt(tiny_model("batch_norm"), method, artifact, seed=seed, **options)  # type: ignore[arg-type]
        made[name] = [adapted(x) for x in batches]
    return made


def _interleave(sessions: Sessions) -> dict[str, list[Tensor]]:
    streams = _streams()
    found: dict[str, list[Tensor]] = {name: [] for name in streams}
    for step in range(4):
        for name, batches in streams.items():
            found[name].append(sessions[name](batches[step]))
    return found


@pytest.mark.parametrize("limit", [1, 8])
@pytest.mark.parametrize("method", METHODS)
def test_interleaved_streams_equal_separate_models(method: str, limit: int, tmp_path: Path) -> None:
    sessions = _make(method, limit=limit, folder=tmp_path)
    found, expected = _interleave(sessions), _expect(sessions, method)
    for name in expected:
        assert all(map(torch.equal, found[name], expected[name]))


@pytest.mark.parametrize("limit", [1, 8])
def test_interleaved_streams_with_a_guard(limit: int) -> None:
    sessions = _make("tent", limit=limit, guard=True)
    found, expected = _interleave(sessions), _expect(sessions, "tent", guard=True)
    for name in expected:
        assert all(map(torch.equal, found[name], expected[name]))


def test_a_folder_goes_on(tmp_path: Path) -> None:
    first = _make("cotta", folder=tmp_path)
    expected, batches = _expect(first, "cotta")["a"], _streams()["a"]
    for x in batches[:2]:
        first["a"](x)
    first["a"].pause()
    first.close()
    second = _make("cotta", folder=tmp_path)
    assert list(second) == ["a"]
    assert second.is_paused("a")
    second["a"].resume()
    assert torch.equal(second["a"](batches[2]), expected[2])


def test_the_model_comes_back_bit_for_bit() -> None:
    model = tiny_model("batch_norm")
    before = copy.deepcopy(model.state_dict())
    sessions = Sessions(model, "tent")
    _interleave(sessions)
    assert sessions.close() is model
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with raises("unwrapped"):
        sessions.call("a", _streams()["a"][0])


def test_a_session_costs_what_the_method_moves() -> None:
    sessions = _make("tent")
    x = _streams()["a"][0]
    sessions["a"](x)
    moved = sum(p.nbytes for p in sessions.adapted.parameters_moved.values())  # type: ignore[operator, union-attr]
    whole = sum(p.nbytes for p in sessions.adapted.model.parameters())
    # Scale and shift, two moments of Adam and its counter of each, the random generator.
    n = len(sessions.adapted.parameters_moved)  # type: ignore[arg-type]
    generator = sessions.adapted.generator.get_state().nbytes
    assert moved < sessions.n_bytes("a") <= 3 * moved + 4 * n + generator
    assert moved < whole


def test_snapshot_rollback_reset_and_pause(tmp_path: Path) -> None:
    sessions = _make("tent", folder=tmp_path, limit=1)
    batches = _streams()["a"]
    first = sessions["a"](batches[0])
    sessions["a"].snapshot()
    second = sessions["a"](batches[1])
    sessions["a"](batches[2])
    sessions["b"](batches[3])  # a goes to its file, with its snapshot
    sessions["a"].rollback()
    assert sessions["a"].status.counts.batches == 1
    sessions["a"].pause()
    sessions["a"](batches[2])
    assert sessions["a"].status.counts.batches == 1
    sessions["a"].resume()
    assert torch.equal(sessions["a"](batches[1]), second)
    sessions["a"].reset()
    assert torch.equal(sessions["a"](batches[0]), first)
    sessions["a"].rollback()  # reset has removed the snapshot
    assert sessions["a"].status.counts.batches == 0


def test_a_failed_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = _make("tent", folder=tmp_path)
    batches = _streams()["a"]
    sessions["a"](batches[0])
    sessions.save("a")
    second = sessions["a"](batches[1])

    def fail(self: Path, target: Path) -> Path:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with raises("not_writable"):
            sessions.save()
    third = sessions["a"](batches[2])  # the session in memory goes on
    assert not list(tmp_path.glob("*.part"))
    again = _make("tent", folder=tmp_path)  # the file is the one before
    assert torch.equal(again["a"](batches[1]), second)
    assert torch.equal(again["a"](batches[2]), third)


def test_a_stream_moves_between_processes_that_share_a_folder(tmp_path: Path) -> None:
    first, second = _make("tent", folder=tmp_path), _make("tent", folder=tmp_path)
    expected, batches = _expect(first, "tent")["a"], _streams()["a"]
    for step, sessions in enumerate([first, second, first, second]):
        assert torch.equal(sessions["a"](batches[step]), expected[step])
        sessions.release("a")
    assert second.status("a").counts.batches == 4


@pytest.mark.parametrize("field", ["is_paused", "trees"])
def test_incomplete_sessions_are_refused(field: str, tmp_path: Path) -> None:
    sessions = _make("tent", folder=tmp_path)
    sessions["a"](_streams()["a"][0])
    sessions.close()
    path = next(tmp_path.glob("*.session"))
    tensors, card = read_file(path, "session")
    del card[field]
    write_file(path, "session", tensors, card)
    with raises("wrong_content"):
        _make("tent", folder=tmp_path).status("a")


def test_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    sessions = _make("tent", folder=tmp_path)
    sessions["a"](_streams()["a"][0])
    sessions.close()
    path = next(tmp_path.glob("*.session"))
    tensors, card = read_file(path, "session")
    name = next(name for name in tensors if name.endswith(".weight"))
    tensors[name] = torch.full_like(tensors[name], torch.nan)
    write_file(path, "session", tensors, card)
    again = _make("tent", folder=tmp_path)
    with raises("wrong_state"):
        again["a"](_streams()["a"][0])
    again["b"](_streams()["b"][0])  # other streams go on


def test_other_settings_and_damaged_files_are_refused(tmp_path: Path) -> None:
    sessions = _make("tent", folder=tmp_path)
    sessions["a"](_streams()["a"][0])
    sessions.close()
    with raises("other_settings"):
        _make("norm", folder=tmp_path)["a"](_streams()["a"][0])
    file = next(tmp_path.glob("*.session"))
    file.rename(file.with_name("x.session"))
    file.write_bytes(b"no session")
    with raises("unreadable_file"):
        _make("tent", folder=tmp_path)


@pytest.mark.parametrize("stream", ["", "a" * 129, "a\n"])
def test_ids_are_checked(stream: str) -> None:
    with raises("malformed", option="id"):
        _make("norm")[stream]


def test_ids_that_are_no_file_names(tmp_path: Path) -> None:
    sessions = _make("norm", folder=tmp_path / "in", limit=1)
    names = ["../x", "A", "a", "/etc/passwd", "ü"]
    for name in names:
        sessions[name](_streams()["a"][0])
    sessions.close()
    assert sorted(_make("norm", folder=tmp_path / "in")) == sorted(names)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_limits_and_unknown_streams() -> None:
    sessions = _make("norm", max_streams=1)
    sessions["a"](_streams()["a"][0])
    with raises("too_many_streams", limit=1):
        sessions["b"](_streams()["a"][0])
    with raises("unknown_name", kind="stream"):
        sessions.status("b")
    with raises("out_of_range", option="limit"):
        _make("norm", limit=0)


def test_threads(tmp_path: Path) -> None:
    sessions = _make("tent", folder=tmp_path, limit=2)
    batch = _streams()["a"][0]
    expected = _make("tent")
    for _ in range(4):
        expected["s0"](batch)
    names = [f"s{i}" for i in range(4)]

    def work(name: str) -> None:
        for _ in range(4):
            sessions[name](batch)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sessions.status(name).counts.batches for name in names] == [4] * 4
    assert torch.equal(sessions["s0"](batch), expected["s0"](batch))


@pytest.mark.parametrize("method", ["tent", "steady"])
def test_a_replica_predicts_what_the_session_would(method: str) -> None:
    sessions = _make(method)
    replica = Replica(sessions, tiny_model("batch_norm"), method, tiny_artifact("batch_norm"))
    for x in _streams()["a"]:
        replica.load(*sessions.publish("a"))
        answered = replica.predict(x)
        sessions.pause("a")
        assert torch.equal(answered, sessions["a"](x))
        sessions.resume("a")
        sessions["a"](x)
