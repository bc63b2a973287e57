"""A page for each method: its card, docstring, formula, options, cost and measured errors."""

from __future__ import annotations

import dataclasses
import inspect
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import acclimate
from acclimate.methods.method import Method

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

FAMILIES = {
    "Baselines": "source norm alpha_bn bn_ema t3a lame",
    "Entropy on normalisation layers": "tent core eta eata sar deyo rpl rdumb roid cmf",
    "All parameters": "entropy infomax shot swr nsp swr_nsp steady swr_fixmatch memo",
    "Teachers and memories": "cotta rotta petta tribe note",
    "With a contrastive task": "tfa ttt_pp",
    "Upper bound": "supervised",
}

SPECIAL = {
    "source": "It never adapts. Use it to see what a shift costs.",
    "lame": "Shuffled streams: samples with like features get like labels, which fails there. On "
    "shuffled CIFAR-10-C it is far worse than the source model (see the table).",
    "memo": "Streams with many images per second: it has forward and backward passes per image.",
    "note": "Models with plain BatchNorm: the source model must be trained with instance-aware "
    "BatchNorm.",
    "ttt_pp": "Source models that were not trained jointly with a contrastive loss "
    "(`acclimate train --objective simclr`).",
    "tfa": "Source models without a projection head that was trained jointly: it then aligns the "
    "encoder's features alone.",
    "steady": "Small streams in another style of pictures, such as sketches, and source models "
    "that are sure and wrong: see [where it is not good](../steady.md#targets).",
    "supervised": "Deployment: it learns from labels, and is an upper bound for evaluations only.",
    "entropy": "The learning rate of TENT: over all parameters, it tends to collapse there.",
}

#: Methods that refuse the built-in model; the demo has models for them.
OWN_MODEL = ("note", "ttt_pp")


def check_families() -> None:
    """Every registered method belongs to one family."""
    named = [name for names in FAMILIES.values() for name in names.split()]
    if sorted(named) != sorted(acclimate.list_methods()):
        raise ValueError(f"FAMILIES differs from {acclimate.list_methods()}")


def make_index() -> str:
    """Return the page that lists all methods."""
    check_families()
    lines = ["# Methods\n", "Which one to take: [Choosing a method](../choosing.md).\n"]
    for family, names in FAMILIES.items():
        lines += [
            f"## {family}\n",
            "| method | what it does | year | cost of a batch |",
            "|---|---|---|---|",
        ]
        for name in names.split():
            method = acclimate.get_method(name)
            first = _docstring(method).split("\n")[0]
            year = method.card.year or "–"
            lines.append(f"| [`{name}`]({name}.md) | {first} | {year} | {method.card.cost} |")
        lines.append("")
    return "\n".join(lines)


def make_page(name: str, board: dict[str, Any]) -> str:
    """Return the page of one method."""
    method = acclimate.get_method(name)
    first, _, rest = _docstring(method).partition("\n")
    formula = tomllib.loads((HERE / "formulas.toml").read_text()).get(name)
    parts = [f"# {name}\n", f"{first}\n"]
    if formula:
        parts.append(f"$$\n{formula}\n$$\n")
    parts += ["## Card\n", *_card(method), ""]
    if rest.strip():
        parts += ["## Details\n", rest.strip(), ""]
    parts += ["## Use\n", *_use(name, method)]
    parts += ["## When not to use it\n", *_warnings(name, method), ""]
    parts += ["## Measured\n", *_measured(name, board)]
    parts += ["## Options\n", *_options(method), ""]
    return "\n".join(parts)


def _docstring(method: type[Method]) -> str:
    """Return the docstring without the facts of the card, which have a table here."""
    text = inspect.getdoc(method) or ""
    return text.replace(method.card.describe(), "").strip()


def _card(method: type[Method]) -> Iterator[str]:
    card = method.card
    needs = ", ".join(f"`{part}`" for part in method.needed_parts()) or "no artifact"
    title = " ".join(str(word) for word in (card.authors, card.year) if word)
    yield "| | |"
    yield "|---|---|"
    if card.paper:
        yield f"| paper | [{title or card.paper}]({card.paper}) |"
    if card.code:
        yield f"| authors' code | [{card.code.partition('://')[2]}]({card.code}) |"
    yield f"| moves | {card.moves} |"
    yield f"| returns logits from | {card.predicts} the update |"
    yield f"| needs from `prepare` | {needs} |"
    yield f"| cost of a batch | {card.cost} |"
    yield f"| segmentation | {'yes' if card.dense else 'no'} |"
    yield f"| processes that share a batch | {'yes' if card.shards else 'no'} |"
    yield f"| stores images of the stream | {'yes' if card.replays else 'no'} |"
    if card.reconstruction:
        yield f"| reconstruction | {card.reconstruction} |"


def _use(name: str, method: type[Method]) -> Iterator[str]:
    argument = ", artifact" if method.needs else ""
    presets = ", ".join(f"`{preset}`" for preset in method.config_class.presets)
    if method.card.is_oracle:
        yield "Only evaluations that reveal labels run it: `acclimate eval --reveal-labels`.\n"
        return
    command = "acclimate eval --model builtin --data builtin --method"
    which = ""
    if name in OWN_MODEL:
        command, which = "acclimate demo --methods", ", with a model of the demo that suits it"
    names = name if name == "source" else f"source,{name}"
    yield f'In Python: `acclimate.adapt(model, "{name}"{argument})`. On the command line{which}:\n'
    yield f"```\n{command} {names}\n```\n"
    if presets:
        yield f"Presets with published values: {presets}.\n"


def _warnings(name: str, method: type[Method]) -> Iterator[str]:
    card, found = method.card, False
    if name in SPECIAL:
        found = True
        yield f"- {SPECIAL[name]}"
    statistics = getattr(method.config_class, "statistics", "")
    if statistics == "batch":
        found = True
        yield (
            "- Small batches (fewer than 16 images) and streams that show few classes at a time: "
            "by default it normalises with the statistics of the batch. "
            'Set `statistics="auto"`, or use the [guard](../streams.md#the-guard).'
        )
    if card.forwards + card.backwards > 4 and not card.per_image:
        found = True
        yield f"- Tight budgets: a batch costs {card.cost}."
    if not card.dense:
        found = True
        yield "- Models that predict every pixel: it refuses them."
    if card.replays:
        found = True
        yield "- Where images of the stream must not be kept: it stores some of them in its state."
    worse = [
        cell
        for cell in _cells(name)
        if cell["off"] is not None and cell["off"] - cell["source"] > 1
    ]
    if worse:
        found = True
        streams = "; ".join(
            f"{cell['stream']}, {cell['model']} ({cell['off']:.1f} %, not {cell['source']:.1f} %)"
            for cell in sorted(worse, key=lambda cell: cell["source"] - cell["off"])[:6]
        )
        yield f"- Streams on which it was measured to be worse than the source model: {streams}."
    if not found:
        yield "- No stream was measured on which it is worse than the source model."


def _cells(name: str) -> list[dict[str, Any]]:
    cells = json.loads((ROOT / "results/harm.json").read_text())["cells"]
    return [cell for cell in cells if cell["method"] == name]


def _measured(name: str, board: dict[str, Any]) -> Iterator[str]:
    rows = [(t, r) for t in board["tables"] for r in t["rows"] if r["method"] == name]
    if rows:
        yield "Error in %, from the [leaderboard](../leaderboard.md).\n"
        yield "| model | protocol | error | source model | images/s | file |"
        yield "|---|---|--:|--:|--:|---|"
        for table, row in rows:
            source = "–" if table["source_error"] is None else f"{table['source_error']:.1f}"
            setting = f" ({row['setting']})" if row["setting"] else ""
            file = f"[{Path(row['file']).name}](../{row['file']})"
            yield (
                f"| {table['model']} | {table['data']}; {table['protocol']}{setting} | "
                f"{row['error']:.1f} | {source} | {row['images_per_second']:.0f} | {file} |"
            )
        yield ""
    cells = _cells(name)
    if cells:
        yield "Kinds of streams, error in %; see [Streams](../streams.md) for the protocol.\n"
        yield "| model | stream | source model | without guard | with guard |"
        yield "|---|---|--:|--:|--:|"
        for cell in cells:
            off = "–" if cell["off"] is None else f"{cell['off']:.1f}"
            on = "–" if cell["on"] is None else f"{cell['on']:.1f}"
            yield f"| {cell['model']} | {cell['stream']} | {cell['source']:.1f} | {off} | {on} |"
        yield "\nFile: [harm.json](../results/harm.json).\n"
    if not rows and not cells:
        yield "Not on the leaderboard. [The demo](../demo.md) has it on six shifts.\n"


def _options(method: type[Method]) -> Iterator[str]:
    yield "| option | default | meaning |"
    yield "|---|---|---|"
    for field in dataclasses.fields(method.config_class):
        meaning = field.metadata.get("help", "").replace("|", "\\|")
        choices = field.metadata.get("choices")
        if choices:
            meaning += f" [{', '.join(map(str, choices))}]"
        yield f"| `{field.name}` | `{field.default}` | {meaning} |"
