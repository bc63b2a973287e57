"""The cells of a table, the same in every format: a text, a number to sort by, and the best."""

from __future__ import annotations

from dataclasses import dataclass

from acclimate.bench.reports.bootstrap import Ranking
from acclimate.bench.reports.notes import format_difference, format_memory, format_ms, signed
from acclimate.bench.reports.tabulate import Group, Row, get_error
from acclimate.report.table import ABSENT

MEAN_HEAD = "mean error, %"


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: To show.
        value: To sort by; None for what was not measured, which comes last.
        is_best: Whether it is the best of its column among the rows of its protocol.
    """

    text: str
    value: float | None = None
    is_best: bool = False


def list_heads(group: Group) -> tuple[str, ...]:
    """Return the headings after the label."""
    overlap = ("mIoU",) if group.has_pixels else ()
    guard = ("estimated error, %", "by source, %") if group.has_guard else ()
    cost = ("time, ms/image", "memory, MB")
    return (*group.columns, MEAN_HEAD, "vs source, points", *guard, *overlap, *cost, "seeds")


def list_cells(group: Group, row: Row) -> tuple[Cell, ...]:
    """Return the cells of a row, in the order of the headings."""
    memory = row.peak_memory
    n_expected = len(row.seeds) + len(row.missing)
    seeds = f"{len(row.seeds)} of {n_expected}" if row.missing else str(len(row.seeds))
    return (
        *(_error_cell(group, row, column) for column in (*group.columns, None)),
        Cell(ABSENT) if row.gain is None else Cell(signed(row.gain), row.gain),
        *(_guard_cells(row) if group.has_guard else ()),
        *((_overlap_cell(group, row),) if group.has_pixels else ()),
        Cell(format_ms(row.ms_per_image), row.ms_per_image),
        Cell(format_memory(memory), None if memory is None else float(memory)),
        Cell(seeds, len(row.seeds)),
    )


RANKING_HEADS = (
    *("rank", "rank, 95 % interval", MEAN_HEAD, "difference to next, points", "P(lower)"),
)


def list_places(ranking: Ranking) -> tuple[tuple[Row, tuple[Cell, ...]], ...]:
    """Return the rows of a ranking, each with its cells in the order of `RANKING_HEADS`."""
    found = []
    for place in ranking.places:
        low, high = place.ranks
        spread = str(low) if low == high else f"{low} to {high}"
        after = place.to_next
        cells = (
            Cell(str(place.rank), place.rank),
            Cell(spread, low) if ranking.has_intervals else Cell(ABSENT),
            Cell(f"{place.error:.1f}", place.error),
            Cell(ABSENT) if after is None else Cell(format_difference(after), after.value),
            Cell(ABSENT) if after is None else Cell(f"{after.probability:.3f}", after.probability),
        )
        found.append((place.row, cells))
    return tuple(found)


def _guard_cells(row: Row) -> tuple[Cell, Cell]:
    guess, share = row.estimated, row.by_source
    return (
        Cell(ABSENT) if guess is None else Cell(str(guess), guess.mean),
        Cell(ABSENT) if share is None else Cell(f"{share:.0f}", share),
    )


def _overlap_cell(group: Group, row: Row) -> Cell:
    if row.miou is None:
        return Cell(ABSENT)
    rivals = group.competing(row.protocol)
    shown = [round(rival.miou.mean, 1) for rival in rivals if rival.miou is not None]
    is_best = row in rivals and len(shown) > 1 and round(row.miou.mean, 1) == max(shown)
    return Cell(str(row.miou), row.miou.mean, is_best)


def _error_cell(group: Group, row: Row, column: str | None) -> Cell:
    error = get_error(row, column)
    if error is None:
        return Cell(ABSENT)
    return Cell(str(error), error.mean, group.is_best(row, column))
