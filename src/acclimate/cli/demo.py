"""`acclimate demo`: the whole thing on a task that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from acclimate.cli.options import check_file, split_names
from acclimate.cli.terminal import (
    get_console,
    make_facts,
    show_left_out,
    show_progress,
    show_warnings,
)


def demo(
    data: Annotated[
        str, typer.Option(help="builtin, which needs no data; or cifar10, which is fetched once.")
    ] = "builtin",
    methods: Annotated[
        str, typer.Option(help="Methods, separated by commas; or all.")
    ] = "source,norm,tent,swr_nsp",
    every: Annotated[
        bool, typer.Option("--all", help="All methods that suit a model of the task; takes long.")
    ] = False,
    reveal_labels: Annotated[
        bool, typer.Option("--reveal-labels", help="Let the oracle learn from the labels.")
    ] = False,
    corruptions: Annotated[
        str, typer.Option(help="Shifts, separated by commas.")
    ] = "gaussian_noise,defocus_blur,fog,contrast,pixelate,jpeg_compression",
    images: Annotated[int, typer.Option(help="Test images of each shift.")] = 1400,
    costly_images: Annotated[
        int,
        typer.Option(
            help="Of these, the first so many for methods that take an image at a time; 0: all."
        ),
    ] = 100,
    batch_size: Annotated[int, typer.Option(help="Batch size.")] = 200,
    severity: Annotated[int, typer.Option(help="Of the shifts, from 1 to 5.")] = 5,
    order: Annotated[
        str, typer.Option(help="Of the images of a shift: shuffled, or sorted by class.")
    ] = "shuffled",
    seeds: Annotated[int, typer.Option(help="How many seeds; with several, mean ± spread.")] = 1,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    json: Annotated[
        Path | None, typer.Option(help="Where to write all numbers, if at all.")
    ] = None,
) -> None:
    """Adapt a model to several shifts and write a report; needs no data.

    A small model for computer-made images comes with the package. Its artifact is prepared, then
    every shift is streamed through every method. Takes minutes on two cores.

    With **--data cifar10** the same is done with photographs, and a small model for them.

    With **--all** a method that needs a model trained in its own way stands on such a model, and
    one that takes an image at a time is measured on fewer images. Their rows are marked, and have
    a source row of their own.

    With **--order sorted** the classes of a shift come one after the other. This is hard for
    methods that expect all classes in each batch.

    Example: `acclimate demo --seeds 3 --json demo.json`
    """
    for path in (out, json):
        check_file(path)
    from acclimate.demo import DemoSettings, fetch_data, run_demo
    from acclimate.report import error_table, render_demo
    from acclimate.storage import write_atomically

    settings = DemoSettings(
        data=data,
        methods=_choose(data, "all" if every else methods, reveal_labels),
        reveal_labels=reveal_labels,
        corruptions=split_names(corruptions),
        images=images,
        costly_images=costly_images,
        batch_size=batch_size,
        severity=severity,
        order=order,
        seeds=seeds,
    )
    with show_warnings(), show_progress() as progress:
        fetch_data(settings.data, progress, lambda line: get_console(stderr=True).print(line))
        result = run_demo(settings, progress)
    write_atomically(out, render_demo(result.page()).encode())
    if json is not None:
        write_atomically(json, result.to_json().encode())
    console = get_console()
    for group in result.summary.groups:
        if group.name:
            console.print(group.name, style="bold")
        error_table(group).show(console)
        console.print()
    for note in result.notes:
        console.print(note, style="dim", soft_wrap=not console.is_terminal)
    console.print(result.finding, style="bold")
    console.print()
    console.print(make_facts("How it was measured", {**result.protocol, **result.origin}))
    console.print(f"\nReport: {out.resolve()}", soft_wrap=True)
    if json is not None:
        console.print(f"Numbers: {json.resolve()}", soft_wrap=True)


def _choose(data: str, methods: str, reveal_labels: bool) -> tuple[str, ...]:
    """Return the methods; of all, those that suit a model, and print what is left out."""
    from acclimate.bench.side_by_side import choose_methods
    from acclimate.demo import assign_models, get_task

    chosen = choose_methods(split_names(methods), reveal_labels)
    if split_names(methods) != ("all",):
        return chosen
    _, left_out = assign_models(get_task(data), chosen)
    show_left_out(left_out)
    return tuple(name for name in chosen if name not in left_out)
