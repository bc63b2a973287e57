"""Draw the charts of docs/performance.md from the figures under results/.

    python benchmarks/draw_performance.py

Nothing is measured here, and no number is written by hand: a chart shows what is in the files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WIDTH, LABEL, BAR, GAP = 760, 200, 22, 10
COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb")
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600;font-size:15px}"
    ".small{font-size:11px;fill:#57606a}.grid{stroke:#d0d7de}.spread{stroke:#24292f;fill:none}"
)

#: Names of contenders as a reader knows them.
NAMES = {
    "hand-tent": "TENT, by hand",
    "hand-paper": "the paper's loop, by hand",
    "norm-exact": "norm",
    "tent-exact": "tent",
    "swr_nsp-exact": "swr_nsp, exact",
    "swr_nsp-fast": "swr_nsp, fast",
    "swr_nsp-fastest": "swr_nsp, fastest",
}


@dataclass(frozen=True)
class Bar:
    """A row of a chart: parts laid end to end, and the range of the whole."""

    label: str
    parts: Sequence[float]
    text: str
    spread: tuple[float, float] | None = None


def draw_bars(title: str, note: str, bars: Sequence[Bar], legend: Sequence[str] = ()) -> str:
    """Return horizontal bars as an SVG file."""
    most = max(max(sum(bar.parts), *(bar.spread or (0.0,))) for bar in bars)
    scale = (WIDTH - LABEL - 150) / most
    top = 34 + (24 if legend else 0)
    height = top + len(bars) * (BAR + GAP) + 26
    parts = [f'<text class="title" x="8" y="20">{escape(title)}</text>']
    x = 8.0
    for index, name in enumerate(legend):
        parts.append(
            f'<rect x="{x:.0f}" y="31" width="12" height="12" fill="{COLOURS[index]}"/>'
            f'<text class="small" x="{x + 16:.0f}" y="41">{escape(name)}</text>'
        )
        x += 30 + 6.2 * len(name)
    for row, bar in enumerate(bars):
        y, x = top + row * (BAR + GAP), float(LABEL)
        parts.append(
            f'<text x="{LABEL - 8}" y="{y + 16}" text-anchor="end">{escape(bar.label)}</text>'
        )
        for index, value in enumerate(bar.parts):
            colour = COLOURS[index if legend else 0]
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{value * scale:.1f}" height="{BAR}" '
                f'fill="{colour}"/>'
            )
            x += value * scale
        if bar.spread is not None:
            low, high = (LABEL + value * scale for value in bar.spread)
            parts.append(f'<path class="spread" d="M{low:.1f} {y + 11}H{high:.1f}"/>')
            x = max(x, high)
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 16}">{escape(bar.text)}</text>')
    parts.append(f'<text class="small" x="8" y="{height - 8}">{escape(note)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def draw_levels(found: dict[str, Any], net: str) -> str:
    """Return the time of a batch over that of TENT by hand, by contender."""
    bars = []
    for name, label in NAMES.items():
        row = found["rows"].get(name)
        if row is None:
            continue
        ratio = row["against"]["hand-tent"]["wall"]
        text = f"{ratio['median']:.2f}×  ({row['ms']['median']:,.0f} ms)"
        bars.append(Bar(label, [ratio["median"]], text, (ratio["q1"], ratio["q3"])))
    note = f"median of {found['repeats']} rounds, line: middle half of the rounds"
    return draw_bars(
        f"{net}: time of a batch of {found['batch_size']} over that of TENT", note, bars
    )


def draw_anatomy(content: dict[str, Any]) -> str:
    """Return what the passes of a step are made of, in both layouts."""
    pieces = {name: found["median"] for name, found in content["pieces_ms"].items()}
    legend = ("forward", "backward to activations", "gradients of weights", "all the rest")
    rest = (
        sum(pieces[name] for name in ("transform", "losses", "regulariser, in closed form", "Adam"))
        + pieces["copy of the parameters"]
    )
    bars = []
    for layout, words in (("plain", "plain layout"), ("last", "colour last")):
        forward = pieces[f"forward, {layout}"]
        tent = pieces[f"forward and backward to scale and shift, {layout}"]
        full = pieces[f"forward and backward to all, {layout}"]
        for label, n_views, is_full in (("TENT", 1, False), ("SWR + NSP", 2, True)):
            parts = [n_views * forward, n_views * (tent - forward)]
            parts += [n_views * (full - tent), rest] if is_full else [0.0, 0.0]
            bars.append(Bar(f"{label}, {words}", parts, f"{sum(parts):,.0f} ms"))
    note = "pieces timed one by one; a whole step also shares caches and memory between them"
    title = f"{content['net']}: what a step is made of, batch of {content['batch_size']}"
    return draw_bars(title, note, bars, legend)


def main() -> None:
    """Draw what there are figures of."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    for file in sorted(options.results.glob("speed-*.json")):
        for net, found in json.loads(file.read_text())["results"].items():
            if "hand-tent" in found["rows"] and file.stem != "speed-trained":
                (options.out / f"speed-{net}.svg").write_text(draw_levels(found, net))
    anatomy = options.results / "anatomy.json"
    if anatomy.exists():
        (options.out / "anatomy.svg").write_text(draw_anatomy(json.loads(anatomy.read_text())))


if __name__ == "__main__":
    main()
