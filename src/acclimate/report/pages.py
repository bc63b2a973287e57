"""Pages: one HTML file each, which loads nothing and needs no connection."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.methods import get_method
from acclimate.report import charts, figures, tables
from acclimate.report.charts import Chart, Layer
from acclimate.report.facts import SHORT, data_checksums, origin_facts
from acclimate.report.summary import Group, Summary
from acclimate.report.table import Document, render


@dataclass(frozen=True)
class Sample:
    """An image as PNG files before and after a shift, its class, and the predictions by method."""

    domain: str
    clean: bytes
    shifted: bytes
    truth: str
    predictions: Mapping[str, str]


@dataclass(frozen=True)
class DemoPage:
    """What the page of the demonstration shows.

    `task` can follow "trained on"; `clean_error`, a share, is that of the source model without a
    shift. Protocol and provenance are short headings with sentences or values.
    """

    task: str
    clean_error: float
    summary: Summary
    layers: tuple[Layer, ...]
    samples: tuple[Sample, ...]
    protocol: Mapping[str, str]
    provenance: Mapping[str, str]
    notes: tuple[str, ...] = ()


def render_suite(summary: Summary, records: str | None = "") -> str:
    """Return the page of a suite; the same outcomes give the same text.

    Args:
        summary: What to show.
        records: The folder of the suite as seen from the page, for links to the records: "" if the
            page is in it, None for no links.
    """
    title = summary.title or "Test-time adaptation by method"
    return _render_summary("suite.html", summary, title, kicker="acclimate bench", records=records)


def render_demo(page: DemoPage) -> str:
    """Return the page of the demonstration."""
    title = "A model adapts itself to images it was not trained for"
    return _render_summary("demo.html", page.summary, title, kicker="acclimate demo", page=page)


def render_document(
    document: Document, kicker: str, files: Mapping[str, str | bytes] | None = None
) -> str:
    """Return a page of tables, with their headings, and the pictures among files: SVG or PNG."""
    pictures = [
        (name, to_uri(own) if isinstance(own, bytes) else to_uri(own.encode(), "svg+xml"))
        for name, own in (files or {}).items()
        if name.endswith((".svg", ".png"))
    ]
    return _render("tables.html", **vars(document), kicker=kicker, pictures=pictures)


def render_clouds(title: str, drawn: Sequence[Chart], notes: Sequence[str]) -> str:
    """Return a page of points: classes can be hidden, and a point is found in the other charts.

    Neighbouring charts, first and second, third and fourth, show the same images in one order.
    """
    values = {"title": title, "kicker": "acclimate reproduce", "lead": (), "notes": notes}
    return _render("clouds.html", drawn=drawn, **values)


def _render_summary(name: str, summary: Summary, title: str, **values: Any) -> str:
    """Render a page of a summary; its template makes the tables and charts it shows."""

    def draw_groups(draw: Callable[..., list[Chart]], *more: Any) -> list[tuple[Group, Any]]:
        """Return the charts of each group that has any."""
        return [(group, drawn) for group in summary.groups if (drawn := draw(group, *more))]

    helpers = (describe_methods, describe_protocol, describe_streams, list_left_out, origin_facts)
    own: dict[str, Any] = {helper.__name__: helper for helper in (*helpers, draw_groups)}
    own |= {"summary": summary, "lead": tables.lead_of(summary), "title": title}
    looks = figures.choose_looks(summary)
    return _render(name, looks=looks, tables=tables, figures=figures, **own, **values)


def _render(name: str, **values: Any) -> str:
    page = render(name, palette=charts.PALETTE, charts=charts, to_uri=to_uri, **values)
    return str(page).replace(" %", "\u00a0%")  # a number and its sign stay on one line


def describe_streams(group: Group) -> str:
    """Return what the charts of errors over the stream show."""
    counts = [len(own) for row in group.rows for own in figures.count_batches(row).values()]
    seeds = "; all seeds together" if group.n_seeds > 1 else ""
    return (
        f"Running mean of the error over {figures.window_of(max(counts))} batches{seeds}. Every "
        f"axis starts at zero and has its own scale. {list_left_out(group)}"
    )


def list_left_out(group: Group) -> str:
    """Return which rows are not in the charts, and which are only in part."""
    names = ", ".join(row.label for row in group.rows if row.protocol)
    partial = ", ".join(row.label for row in group.drawn if row.missing)
    texts = [f"Not drawn, as measured under another protocol: {names}."] if names else []
    texts += [f"Drawn from the seeds that are there: {partial}."] if partial else []
    return " ".join(texts)


def describe_methods(summary: Summary) -> list[tuple[str, str, str]]:
    """Return the name of each method, what it does and costs, and its paper."""
    found = []
    for name in dict.fromkeys(row.method for _, row in summary.rows):
        method = get_method(name)
        card, text = method.card, (method.__doc__ or name).partition("\n")[0].strip()
        text += f" A reconstruction: {card.reconstruction}." if card.reconstruction else ""
        passes = {"forward": card.forwards, "backward": card.backwards}
        cost = " and ".join(f"{n} {word}{'s' * (n > 1)}" for word, n in passes.items() if n)
        text += f" {'An image' if card.per_image else 'A batch'} costs {cost}."
        found.append((name, text, card.paper))
    return found


def describe_protocol(group: Group, summary: Summary) -> dict[str, str]:
    """Return the common protocol with seeds, selection and checksums, by name."""
    facts = dict(group.protocols[0])
    facts["seeds"] = ", ".join(map(str, sorted({seed for r in group.rows for seed in r.seeds})))
    facts["selection"] = tables.selection_line(summary)
    sums = {n: text for outcome in group.outcomes for n, text in data_checksums(outcome).items()}
    if sums:
        listed = (f"{name.replace('_', ' ')} {text[:SHORT]}…" for name, text in sums.items())
        facts["checksums of the images (SHA-256)"] = "; ".join(listed)
    return facts


def to_uri(content: bytes, kind: str = "png") -> str:
    """Return a picture as an address that contains it."""
    return f"data:image/{kind};base64,{b64encode(content).decode()}"
