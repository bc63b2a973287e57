"""Make the artifact of the built-in model that comes with the package, for `acclimate serve`.

    python benchmarks/prepare_builtin.py

Writes src/acclimate/builtin/source.acclimate; takes about 5 minutes on one core.
"""

from __future__ import annotations

from pathlib import Path

from acclimate import prepare
from acclimate.builtin import CLASSES, load_model, load_split

PATH = Path(__file__).parents[1] / "src/acclimate/builtin/source.acclimate"
N_IMAGES, BATCH = 1024, 128


def main() -> None:
    """Prepare and write."""
    x, y = load_split("train", N_IMAGES)
    source = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    parts = ["penalty", "prototypes", "mirror", "confidence", "accuracy"]
    prepare(load_model(), source, parts=parts, classes=list(CLASSES), progress=True).save(PATH)


if __name__ == "__main__":
    main()
