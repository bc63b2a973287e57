"""Both sides of every choice the paper leaves open, measured on the built-in task.

    python benchmarks/choices.py --out results/choices.json

Each row changes one option of swr_nsp, at preparation or at test time, and leaves the rest at its
default. Protocol as in the demo: severity 5, batches of 200, reset before each shift, logits before
the update. The task is small and the differences are too: the table is there to show that a default
is not chosen against the evidence, not to prove it right everywhere.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

import acclimate
from acclimate import Penalty, Prototypes
from acclimate.builtin import SPLITS, load_model, load_split, render
from acclimate.corruptions import apply
from acclimate.storage import versions
from acclimate.streams import Domain, reset_each

SHIFTS = ("gaussian_noise", "fog", "pixelate")  # one of each family
N_SOURCE = 2048
TWO_LAYERS = {"depth": 2}

# name: (options of the penalty, options of the prototypes, options at test time)
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}, {}),
    "eq. 9: gradient through the target": ({}, {}, {"detach_target": False}),
    "no self-supervised term": ({}, {}, {"consistency": 0.0}),
    "anchor at the source": ({}, {}, {"anchor": "source"}),
    "no regulariser": ({}, {}, {"strength": 0.0}),
    "penalty by module": ({"granularity": "module"}, {}, {}),
    "penalty by channel": ({"granularity": "channel"}, {}, {}),
    "prototypes from the classifier": ({}, {"source": "classifier"}, {}),
    "projector of 2 layers, batch statistics": ({}, TWO_LAYERS, {}),
    "projector of 2 layers, source statistics": (
        {},
        TWO_LAYERS,
        {"projector_statistics": "source"},
    ),
    "projector of 2 layers, trained by SGD": (
        {},
        {**TWO_LAYERS, "optimizer": "sgd", "lr": 0.01},
        {},
    ),
    "projector of 2 layers, hidden width 128": ({}, {**TWO_LAYERS, "hidden": 128}, {}),
}


def domains(n_images: int, seed: int) -> list[Domain]:
    """Return the shifted test images."""
    images, labels = render(n_images, SPLITS["test"])
    y = torch.from_numpy(labels)
    return [
        Domain(
            name,
            torch.from_numpy(apply(images, name, 5, seed)).permute(0, 3, 1, 2).float() / 255,
            y,
        )
        for name in SHIFTS
    ]


def prepare(penalty: dict[str, Any], prototypes: dict[str, Any], seed: int) -> acclimate.Artifact:
    """Prepare the built-in model with these options."""
    x, y = load_split("train", N_SOURCE)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return acclimate.prepare(
        load_model(),
        [(x[part], y[part]) for part in order.split(128)],
        parts=[Penalty(**penalty), Prototypes(**prototypes), "features"],
        seed=seed,
    )


def main() -> None:
    """Run all rows over all seeds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load_model()
    artifacts: dict[str, acclimate.Artifact] = {}
    errors: dict[str, list[float]] = {name: [] for name in ROWS}
    jobs = [(name, seed) for seed in range(arguments.seeds) for name in ROWS]
    for name, seed in track(jobs, "choices"):
        penalty, prototypes, options = ROWS[name]
        key = json.dumps([penalty, prototypes, seed])
        if key not in artifacts:
            artifacts[key] = prepare(penalty, prototypes, seed)
        adapted = acclimate.adapt(
            copy.deepcopy(model), "swr_nsp", artifacts[key], seed=seed, **options
        )
        stream = reset_each(domains(arguments.images, seed), 200, seed)
        errors[name].append(100 * acclimate.evaluate(adapted, stream).error)
    print(f"mean error (%) over {len(SHIFTS)} shifts, {arguments.seeds} seeds")
    for name, values in errors.items():
        paired = [a - b for a, b in zip(values, errors["default"], strict=True)]
        print(
            f"{name:45} {statistics.mean(values):6.2f}   "
            f"{statistics.mean(paired):+.2f} (seeds {', '.join(f'{d:+.2f}' for d in paired)})"
        )
    if arguments.out:
        card = next(iter(artifacts.values())).card
        content = {
            "provenance": {
                "command": " ".join(["python", *sys.argv]),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "data": f"built-in task, first {arguments.images} test images of each shift",
                "source": f"first {N_SOURCE} training images",
                "shifts": list(SHIFTS),
                "severity": 5,
                "batch_size": 200,
                "order": "shuffled by the seed",
                "reset": "before each shift",
                "predictions": "before the update",
                "model_sha256": card["model"]["weights_sha256"],
                "versions": versions(),
            },
            "rows": {
                name: {
                    "penalty": row[0],
                    "prototypes": row[1],
                    "options": row[2],
                    "error_percent_by_seed": [round(value, 3) for value in errors[name]],
                }
                for name, row in ROWS.items()
            },
        }
        arguments.out.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
