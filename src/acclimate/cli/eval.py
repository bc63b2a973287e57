"""What `acclimate eval` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acclimate.cli.terminal import (
    get_console,
    printable,
    show_facts,
    show_left_out,
    show_unreadable,
)

if TYPE_CHECKING:
    from acclimate.commands.measure import Evaluated

_GUARDED = {True: "; every method under guard", "watch": "; every method watched by a guard"}


def show_evaluated(result: Evaluated) -> None:
    """Print the table of errors, and where the records are."""
    from acclimate.data.classes import shorten_classes
    from acclimate.report import error_table, summarize

    show_left_out(result.left_out)
    show_unreadable(result.data.unreadable)
    console, found = get_console(), result.comparison.provenance
    console.print(f"{found['model']} on {result.data.title}", style="bold")
    guarded = _GUARDED.get(found["settings"].get("guard", False), "")
    console.print(found["protocol_line"] + guarded, style="dim", soft_wrap=True)
    for group in summarize(result.comparison.outcomes).groups:
        error_table(group).show(console)
    facts = {
        "classes": printable(shorten_classes(result.data.classes)),
        "records": str(result.folder / "jobs"),
        "numbers": f"{result.folder / 'result.json'}, with the full protocol",
    }
    show_facts("", facts)
