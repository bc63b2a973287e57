"""Several processes give what one gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from acclimate.corruptions import apply, apply_in_parallel, frost, open_pool, parallel
from acclimate.errors import BadInput
from tests.codes import raises

PIXELS = np.random.default_rng(0).integers(0, 256, (11, 32, 32, 3)).astype(np.uint8)


pytestmark = pytest.mark.usefixtures("quiet_frost")


@pytest.mark.parametrize("workers", ["thread", pytest.param("processes", marks=pytest.mark.slow)])
def test_parts_and_processes_do_not_matter(workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread stands in for the processes; only one, because threads share filters of warnings."""
    monkeypatch.setattr(parallel, "_TASK", 3 * 32 * 32)
    told: list[tuple[int, int]] = []
    # Processes leave warnings to this one; so must the thread.
    quiet = ThreadPoolExecutor(1, initializer=partial(frost._QUIET.set, True))
    with quiet if workers == "thread" else open_pool(2) as pool:
        for name in ("gaussian_noise", "snow", "frost", "motion_blur", "contrast"):
            got = apply_in_parallel(
                *(PIXELS, name, 3, 4, 100),
                workers=pool,
                progress=lambda done, total: told.append((done, total)),
            )
            np.testing.assert_array_equal(got, apply(PIXELS, name, 3, 4, 100))
            assert [total for _, total in told] == [11] * 4
            assert sorted(done for done, _ in told) == [done for done, _ in told]
            assert told.pop()[0] == 11
            told.clear()
        for family, scale in ((224, False), (224, True)):
            got = apply_in_parallel(PIXELS, "fog", family=family, scale=scale, workers=pool)
            np.testing.assert_array_equal(got, apply(PIXELS, "fog", family=family, scale=scale))


def test_nothing_to_do_starts_no_process() -> None:
    assert apply_in_parallel(PIXELS[:0], "contrast", workers=1).shape == (0, 32, 32, 3)


@pytest.mark.slow
def test_a_pool_of_its_own() -> None:
    got = apply_in_parallel(PIXELS[:2], "contrast", workers=1)
    np.testing.assert_array_equal(got, apply(PIXELS[:2], "contrast"))


def test_mistakes_are_found_before_any_process_starts() -> None:
    with raises("out_of_range", BadInput, option="workers", found=0):
        apply_in_parallel(PIXELS, "contrast", workers=0)
    with raises("out_of_range", BadInput, option="severity", found=6):
        apply_in_parallel(PIXELS, "contrast", 6, workers=0)
