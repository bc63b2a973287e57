"""What `acclimate demo` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acclimate.cli.terminal import get_console, make_facts, printable, show_left_out

if TYPE_CHECKING:
    from acclimate.commands.suites import Demonstrated


def tell(text: str) -> None:
    """Print what happens besides the work."""
    get_console(stderr=True).print(printable(text), soft_wrap=True)


def show_demo(done: Demonstrated) -> None:
    """Print the tables, what they show, how it was measured, and where the page is."""
    from acclimate.report import error_table

    show_left_out(done.left_out)
    console, result = get_console(), done.result
    for group in result.summary.groups:
        if group.name:
            console.print(group.name, style="bold")
        error_table(group).show(console)
        console.print()
    for text in result.notes:
        console.print(text, style="dim", soft_wrap=not console.is_terminal)
    console.print(result.finding, style="bold")
    console.print()
    console.print(make_facts("How it was measured", {**result.protocol, **result.origin}))
    console.print(f"\nReport: {done.out.resolve()}", soft_wrap=True)
    if done.json is not None:
        console.print(f"Numbers: {done.json.resolve()}", soft_wrap=True)
