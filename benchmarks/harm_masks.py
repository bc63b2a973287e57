"""Does adaptation hurt a segmentation model on clean and shifted scenes, and does the guard help?

    python benchmarks/harm_masks.py        # writes results/harm-masks.json

The built-in scenes and the built-in model: mean IoU of the source model, and of methods without and
with the guard, on 96 test scenes in small batches.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import acclimate
from acclimate.builtin.scene_model import load_scene_model
from acclimate.data import load
from acclimate.snapshot import fingerprint
from acclimate.storage import versions
from acclimate.streams import Stream, reset_each

OUT = Path(__file__).resolve().parent.parent / "results/harm-masks.json"
SHIFTS = (None, "fog", "gaussian_noise")
N_SOURCE, N_TEST, SEED = 128, 96, 0
#: Method, batch size, hyper-parameters.
CASES = (
    ("norm", 2, {}),
    ("norm", 8, {}),
    ("tent", 2, {}),
    ("tent", 2, {"lr": 1e-2}),
    ("swr", 2, {"preset": "cityscapes"}),
)


def measure(
    stream: Stream, method: str, artifact: acclimate.Artifact, guard: bool, **options: object
) -> float:
    """Return the mean IoU of a method on a stream, in percent."""
    adapted = acclimate.adapt(load_scene_model(), method, artifact, guard=guard, **options)
    return round(100 * acclimate.evaluate(adapted, stream).miou, 2)


def main() -> None:
    """Measure all cases and write the file."""
    warnings.simplefilter("ignore", acclimate.AcclimateWarning)
    source = load("builtin-scenes", "train", n=N_SOURCE).to_domain()
    batches = [(batch.x, batch.y) for batch in reset_each([source], batch_size=8)]
    parts = [acclimate.Penalty(n_samples=32), acclimate.Accuracy()]
    artifact = acclimate.prepare(load_scene_model(), batches, parts=parts, seed=SEED)
    rows = []
    for shift in SHIFTS:
        kind = {} if shift is None else {"corruption": shift}
        domain = load("builtin-scenes", "test", n=N_TEST, **kind).to_domain()
        for method, batch_size, options in CASES:
            stream = reset_each([domain], batch_size=batch_size)
            row = {
                "shift": shift or "clean",
                "method": method,
                "batch_size": batch_size,
                "options": options,
                "source": measure(stream, "source", artifact, False),
                "off": measure(stream, method, artifact, False, **options),
                "on": measure(stream, method, artifact, True, **options),
                "protocol": stream.protocol,
            }
            print({key: row[key] for key in row if key != "protocol"}, flush=True)
            rows.append(row)
    facts = {
        "command": "python benchmarks/harm_masks.py",
        "measure": "mean IoU in percent",
        "data": "builtin-scenes",
        "model_sha256": fingerprint(load_scene_model())["weights_sha256"],
        "n_source": N_SOURCE,
        "n_test": N_TEST,
        "seed": SEED,
        "versions": versions(),
        "rows": rows,
    }
    OUT.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
