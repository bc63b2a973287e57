"""Several processes give what one gives."""

from __future__ import annotations

import numpy as np
import pytest

from acclimate.corruptions import apply, apply_in_parallel, open_pool, parallel
from acclimate.errors import BadInput

PIXELS = np.random.default_rng(0).integers(0, 256, (11, 32, 32, 3)).astype(np.uint8)


@pytest.mark.filterwarnings("ignore:the frost photographs")
def test_parts_and_processes_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_TASK", 3 * 32 * 32)
    told: list[tuple[int, int]] = []
    with open_pool(2) as pool:
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


def test_a_pool_of_its_own_and_nothing_to_do() -> None:
    got = apply_in_parallel(PIXELS[:2], "contrast", workers=1)
    np.testing.assert_array_equal(got, apply(PIXELS[:2], "contrast"))
    assert apply_in_parallel(PIXELS[:0], "contrast", workers=1).shape == (0, 32, 32, 3)


def test_mistakes_are_found_before_any_process_starts() -> None:
    with pytest.raises(BadInput, match="at least 1 worker, found 0"):
        apply_in_parallel(PIXELS, "contrast", workers=0)
    with pytest.raises(BadInput, match="severity"):
        apply_in_parallel(PIXELS, "contrast", 6, workers=0)
