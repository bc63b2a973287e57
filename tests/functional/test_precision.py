"""bfloat16 is used where the device has it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from acclimate.errors import InvalidConfig
from acclimate.functional import precision
from acclimate.functional.precision import (
    check_speed,
    fast_autocast,
    has_fast_bfloat16,
    precision_used,
)
from tests.codes import raises

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def detected(monkeypatch) -> None:
    """Nothing overrides the detection."""
    monkeypatch.delenv(precision.VARIABLE, raising=False)


def multiply() -> torch.Tensor:
    values = torch.linspace(-1, 1, 64).view(8, 8)
    return values @ values


def says(answer):
    return lambda *_, **__: answer


def test_the_answer_agrees_with_the_processor_s_flags() -> None:
    flags = Path("/proc/cpuinfo")
    if not flags.exists() or "flags" not in flags.read_text():
        pytest.skip("the flags of this processor cannot be read (no x86 Linux)")
    words = set(flags.read_text().split())
    assert has_fast_bfloat16(CPU) == bool(words & {"avx512_bf16", "amx_tile"})


@pytest.mark.parametrize(
    ("machine", "avx512", "amx", "arm", "expected"),
    [
        ("x86_64", False, False, True, False),  # mkldnn's answer counts imitation here
        ("x86_64", True, False, False, True),
        ("AMD64", False, True, False, True),
        ("aarch64", True, True, False, False),
        ("arm64", False, False, True, True),
    ],
)
def test_each_kind_of_processor_is_asked_its_own_way(
    monkeypatch, machine, avx512, amx, arm, expected
) -> None:
    monkeypatch.setattr(precision.platform, "machine", says(machine))
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", says(avx512), raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", says(amx), raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", says(True))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", says(arm), raising=False)
    assert has_fast_bfloat16(CPU) is expected


def test_a_torch_that_cannot_be_asked_counts_as_no(monkeypatch) -> None:
    monkeypatch.setattr(precision.platform, "machine", says("x86_64"))
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert not has_fast_bfloat16(CPU)


@pytest.mark.parametrize(("value", "expected"), [("on", True), ("off", False)])
def test_the_environment_overrides_the_detection(monkeypatch, value, expected) -> None:
    monkeypatch.setenv(precision.VARIABLE, value)
    for name in ("cpu", "cuda", "mps"):
        assert has_fast_bfloat16(torch.device(name)) is expected


def test_other_values_in_the_environment_are_refused(monkeypatch) -> None:
    monkeypatch.setenv(precision.VARIABLE, "yes")
    with raises("unknown_name", kind=precision.VARIABLE, name="yes"):
        has_fast_bfloat16(CPU)


@pytest.mark.parametrize("supported", [True, False])
def test_a_cuda_device_is_asked_without_imitation(monkeypatch, supported) -> None:
    asked = []

    def answer(including_emulation=True):
        asked.append(including_emulation)
        return supported

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", answer)
    assert has_fast_bfloat16(torch.device("cuda")) is supported
    assert asked == [False]


def test_devices_that_cannot_be_asked_count_as_no() -> None:
    assert not has_fast_bfloat16(torch.device("mps"))
    assert not has_fast_bfloat16(torch.device("meta"))


@pytest.mark.parametrize(
    ("enabled", "fast", "expected"),
    [
        (True, True, torch.bfloat16),
        (True, False, torch.float32),
        (False, True, torch.float32),
        (False, False, torch.float32),
    ],
)
def test_autocast_needs_the_wish_and_the_device(monkeypatch, enabled, fast, expected) -> None:
    monkeypatch.setattr(precision, "has_fast_bfloat16", says(fast))
    plain = multiply()
    with fast_autocast(CPU, enabled):
        inside = multiply()
    assert inside.dtype == expected
    assert precision_used(torch.float32, CPU, enabled) == str(expected).removeprefix("torch.")
    if expected == torch.float32:
        assert torch.equal(inside, plain)
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_ends_with_an_error(monkeypatch) -> None:
    monkeypatch.setattr(precision, "has_fast_bfloat16", says(True))
    with pytest.raises(KeyError), fast_autocast(CPU, enabled=True):
        raise KeyError("stop")
    assert not torch.is_autocast_enabled("cpu")


def test_a_context_that_does_nothing_leaves_the_caller_s_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16), fast_autocast(CPU, enabled=False):
        assert multiply().dtype == torch.bfloat16


def test_doubles_stay_doubles(monkeypatch) -> None:
    monkeypatch.setattr(precision, "has_fast_bfloat16", says(True))
    with fast_autocast(CPU, enabled=True):
        assert (torch.eye(2).double() @ torch.eye(2).double()).dtype == torch.float64
    assert precision_used(torch.float64, CPU, enabled=True) == "float64"


def test_unknown_speeds_are_answered_with_the_known_ones() -> None:
    check_speed("exact")
    check_speed("fast")
    with raises("unknown_name", InvalidConfig, kind="speed", name="fastt", known=("exact", "fast")):
        check_speed("fastt")
