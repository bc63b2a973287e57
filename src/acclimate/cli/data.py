"""`acclimate data`: which sets there are, getting, checking and corrupting them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acclimate.cli.build import add_command, make_group
from acclimate.cli.terminal import get_console, make_table, printable, show_facts, show_unreadable
from acclimate.commands import sources

if TYPE_CHECKING:
    from acclimate.commands.sources import DataCorruptOptions
    from acclimate.data import Report

data = make_group(
    "data",
    """List, get, check and corrupt data sets.

    Example: `acclimate data get cifar10`
    """,
)

_SHOWN = 10


def _show_list(found: tuple[Path, Mapping[str, str]]) -> None:
    from rich.text import Text

    from acclimate.data import SETS

    root, states = found
    table = make_table([("set", "bold"), ("on disk", "fold"), ("what", "fold")])
    table.columns[-1].ratio = 1
    for name, state in states.items():
        entry = SETS[name]
        total = sum(file.size or 0 for file in entry.files)
        size = f"{total / 1e9:.1f} GB" if total >= 1e9 else f"{total / 1e6:.0f} MB"
        text = Text(entry.text)
        text.append(f"\n{f'{size} · ' if total else ''}licence: {entry.licence}", style="dim")
        table.add_row(name, state or "–", text)
    console = get_console()
    console.print(table)
    console.print(f"\nData is kept in {root}", style="dim", soft_wrap=True)


def _show_report(found: tuple[str, Report]) -> bool:
    name, report = found
    console = get_console()
    show_facts(name, report.facts)
    if not report.problems:
        console.print("Nothing is wrong.", style="green")
        return True
    console.print(f"{len(report.problems)} problem(s):", style="bold red")
    for problem in report.problems[:_SHOWN]:
        console.print(printable(f"  {problem}"), soft_wrap=True)
    if len(report.problems) > _SHOWN:
        console.print(f"  (+ {len(report.problems) - _SHOWN} more)")
    return False


def _show_copies(done: tuple[DataCorruptOptions, Any]) -> None:
    from acclimate.corruptions.frost import PROCEDURAL
    from acclimate.data import data_root
    from acclimate.data.copies import FolderCounts
    from acclimate.data.generate import has_procedural_frost, read_manifest

    asked, made = done
    if isinstance(made, FolderCounts):
        show_unreadable(made.unreadable)
        facts = {
            "place": str(asked.out or data_root(asked.data_dir) / f"{asked.what}c-generated"),
            "written": f"{made.n_written:,}",
            "there already": f"{made.n_present:,}",
            "unreadable": f"{len(made.unreadable):,}",
        }
    else:
        frost = has_procedural_frost(read_manifest(made) or {"blocks": {}})
        facts = {"place": str(made), "source": "generated" + f", {PROCEDURAL}" * frost}
    show_facts(asked.what, facts)


add_command(data, "list", sources.data_list, _show_list)
add_command(data, "get", sources.data_get, lambda found: show_facts(*found))
add_command(data, "check", sources.data_check, _show_report)
add_command(data, "corrupt", sources.data_corrupt, _show_copies)
