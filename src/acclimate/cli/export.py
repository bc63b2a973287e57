"""What `acclimate export` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acclimate.cli.terminal import show_facts, show_unreadable

if TYPE_CHECKING:
    from acclimate.commands.files import ExportedFiles


def show_exported(result: ExportedFiles) -> None:
    """Print the files, and how far their predictions are from the live model's."""
    show_unreadable(result.unreadable)
    card = result.card
    facts = {
        "method": f"{card['method']}, after {card['counts']['batches']:,} batches",
        "statistics": f"{card['statistics']['kind']}. {card['statistics']['origin']}",
    }
    if (found := card["differences"]) is not None:
        facts["live model"] = (
            f"logits differ by up to {found['max_abs_logit']:.3g}, the class agrees on "
            f"{100 * found['class_agreement']:.2f} % of {found['n_samples']:,} images"
        )
    for kind, path in result.files.items():
        differ = card["files"][path.name]["max_abs_logit"]
        facts[kind] = f"{path} (logits differ by up to {differ:.2g})"
    show_facts("Exported", {**facts, "card": str(result.card_file)})
