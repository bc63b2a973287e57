"""What `acclimate doctor` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acclimate.cli.terminal import get_console, make_table, show_unreadable

if TYPE_CHECKING:
    from acclimate.commands.models import Examined

_STYLES = {"ok": ("✓", "green"), "note": ("•", "yellow"), "problem": ("✗", "bold red")}


def show_diagnosis(result: Examined) -> bool:
    """Print the findings; return whether there is no problem."""
    from rich.text import Text

    show_unreadable(result.unreadable)
    console, table = get_console(), make_table([("", ""), ("", "bold"), ("", "fold")])
    for finding in result.diagnosis.findings:
        mark, style = _STYLES[finding.level]
        text = Text(finding.text)
        if result.is_random and finding.topic == "input" and finding.level == "ok":
            mark, style = _STYLES["note"]
            text = Text("random numbers: the range of real images was not checked (--images)")
        if finding.remedy:
            text.append(f"\n{finding.remedy}", style="dim")
        table.add_row(Text(mark, style=style), Text(finding.topic), text)
    console.print(table)
    n = len(result.diagnosis.problems)
    word = "No problem found." if n == 0 else f"{n} problem{'s' if n > 1 else ''} found."
    console.print(f"\n{word}", style="bold red" if n else "bold green")
    return n == 0
