"""What `acclimate train` prints."""

from __future__ import annotations

from typing import Any

from acclimate.cli.terminal import show_facts


def show_trained(trained: tuple[Any, Any]) -> None:
    """Print where the weights are, and how good they are."""
    result, settings = trained
    done = "this run had ended before; nothing was done" if result.was_done else ""
    facts = {"weights": str(result.path)}
    if settings.task == "domains":
        first, last = result.checks[0], result.checks[-1]
        facts |= {"": done, "held out": ", ".join(settings.held_out)}
        facts["BatchNorm"] = "statistics of the first weights, frozen"
        facts["training loss"] = f"{first['loss']:.3f} → {last['loss']:.3f}"
        facts["best step"] = f"{result.step} of {settings.steps}"
        for name, accuracy in result.validation.items():
            facts[f"accuracy, {name}"] = f"{accuracy:.2f} % (20 % held out)"
        facts["mean"] = f"{result.mean:.2f} %"
        n = len(result.unreadable)
        facts["unreadable"] = f"{n:,} image(s), left out" if n else ""
    else:
        losses = f"{result.losses[0]:.3f} → {result.losses[-1]:.3f}"
        if settings.task == "segmentation":
            facts |= {"SHA-256": result.sha256, "": done, "training loss": losses}
            for name, iou in result.ious.items():
                facts[f"IoU, {name}"] = "in no image" if iou is None else f"{iou:.2f} %"
            facts["mean IoU"] = f"{result.miou:.2f} %"
        else:
            head = result.path.with_name(f"{result.path.stem}.head.safetensors")
            facts["head"] = str(head) if "simclr" in settings.objective else ""
            facts |= {"": done, "training loss": losses}
            no_split = result.error is None
            facts["test error"] = "no test split" if no_split else f"{result.error:.2f} %"
    facts |= {"time": f"{result.minutes:.1f} min", "again": settings.command}
    show_facts("Trained", facts)
