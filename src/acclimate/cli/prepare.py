"""What `acclimate prepare` prints."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from acclimate.cli.terminal import get_console, printable, show_facts, show_unreadable

if TYPE_CHECKING:
    from acclimate.commands.models import Prepared


def show_prepared(result: Prepared) -> None:
    """Print what was prepared, and the command that uses it."""
    from acclimate.data.classes import shorten_classes

    show_unreadable(result.unreadable)
    o, info, parts = result.options, result.artifact.info, result.artifact.parts
    features, size = parts["features"], o.out.stat().st_size / 1024
    subject = "whose labelled pixels" if info.is_dense else "which"
    facts = {
        "artifact": f"{o.out} ({size:,.0f} KiB)",
        "model": f"{info.n_classes} classes, {info.n_features} features before the head "
        f'"{info.head}"',
        "classes": printable(shorten_classes(result.artifact.classes or ())),
        "source": f"{features['n_samples']:,} images, of {subject} the model gets "
        f"{100 * features['error']:.1f} % wrong",
    }
    if "penalty" in parts:
        own = parts["penalty"]
        facts["penalty"] = f"{own['n_units']:,} units, measured on {own['n_samples']:,} images"
    if "prototypes" in parts:
        layers = parts["prototypes"]["projector_depth"]
        facts["prototypes"] = "one per class" + (
            f"; projector of {layers} layers" if layers else ""
        )
    for name in ("fisher", "accuracy"):
        if name in parts:
            facts[name] = f"measured on {parts[name]['n_samples']:,} images"
    facts["time"] = f"{result.seconds:.1f} s in {features['precision']}"
    show_facts("Prepared", facts)
    command = ["acclimate", "adapt", "IMAGES_DIR", "--model", o.model]
    command += ["--weights", str(o.weights)] if o.weights is not None else []
    out = "predictions" if info.is_dense else "predictions.csv"
    command += ["--artifact", str(o.out), "--out", out]
    console = get_console()
    console.print("\nNext, where the model is used, with a folder of images:", style="dim")
    console.print(f"  {shlex.join(command)}", soft_wrap=True)
