"""What `acclimate adapt` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acclimate.cli.terminal import get_console, show_facts, show_unreadable

if TYPE_CHECKING:
    from acclimate.commands.models import Predicted

_SHOWN_LABELS = 8


def show_predicted(result: Predicted) -> None:
    """Print what was predicted and learned, and the report of the guard."""
    show_unreadable(result.unreadable)
    summary, counts, file = result.summary, result.adapted.counts, result.file
    skipped = ", ".join(f"{n} {reason}" for reason, n in counts.skipped.items())
    resumed = f", {summary.n_resumed} of them taken over" if summary.n_resumed else ""
    top = list(summary.labels.items())[:_SHOWN_LABELS]
    labels = ", ".join(f"{label}: {100 * n / summary.n_images:.0f} %" for label, n in top)
    rest = len(summary.labels) - len(top)
    restored = f"{counts.restored} times, by the guard or the method"
    facts = {
        "predictions": str(file.out),
        "images": f"{summary.n_images:,} in {summary.n_batches:,} batches{resumed}",
        "speed": f"{summary.images_per_second:,.0f} images/s",
        "updates": f"{counts.updates:,}" + (f"; skipped: {skipped}" if skipped else ""),
        "restored": restored if counts.restored else "",
        "most pixels" if file.holds_masks else "labels": labels
        + (f", {rest} more" if rest else ""),
        "state": "" if file.state is None else str(file.state),
    }
    show_facts("Predicted", facts)
    if result.adapted.guard is not None:
        console = get_console()
        console.print("\nGuard", style="bold")
        console.print(str(result.adapted.report()), soft_wrap=True)
