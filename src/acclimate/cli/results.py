"""What commands print when they have ended, one function for each."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from acclimate.cli.terminal import (
    get_console,
    make_facts,
    make_table,
    print_lines,
    printable,
    show_facts,
    show_left_out,
    show_unreadable,
)

if TYPE_CHECKING:
    from acclimate.commands.files import ExportedFiles
    from acclimate.commands.measure import Evaluated
    from acclimate.commands.models import Examined, Predicted, Prepared
    from acclimate.commands.suites import Demonstrated, Reproduced
    from acclimate.serve.client import SendReport

_LEVELS = {"ok": ("✓", "green"), "note": ("•", "yellow"), "problem": ("✗", "bold red")}
_GUARDED = {True: "; every method under guard", "watch": "; every method watched by a guard"}
_MOST_LABELS, _MOST_CLASSES = 8, 10


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


def show_diagnosis(result: Examined) -> bool:
    """Print the findings; return whether there is no problem."""
    from rich.text import Text

    show_unreadable(result.unreadable)
    console, table = get_console(), make_table([("", ""), ("", "bold"), ("", "fold")])
    for finding in result.diagnosis.findings:
        level, text = finding.level, Text(finding.text)
        if result.is_random and finding.topic == "input" and level == "ok":
            level = "note"
            text = Text("random numbers: the range of real images was not checked (--images)")
        if finding.remedy:
            text.append(f"\n{finding.remedy}", style="dim")
        table.add_row(Text(*_LEVELS[level]), Text(finding.topic), text)
    console.print(table)
    n = len(result.diagnosis.problems)
    word = "No problem found." if n == 0 else f"{n} problem{'s' if n > 1 else ''} found."
    console.print(f"\n{word}", style="bold red" if n else "bold green")
    return n == 0


def show_prepared(result: Prepared) -> None:
    """Print what was prepared, and the command that uses it."""
    from acclimate.data.classes import shorten_classes

    show_unreadable(result.unreadable)
    o, info, parts = result.options, result.artifact.info, result.artifact.parts
    features, size = parts["features"], o.out.stat().st_size / 1024
    subject = "whose labelled pixels" if info.is_dense else "which"
    facts = {
        "artifact": f"{o.out} ({size:,.0f} KiB)",
        "model": f"{info.n_classes} classes, {info.n_features} features before the head "
        f'"{info.head}"',
        "classes": printable(shorten_classes(result.artifact.classes or ())),
        "source": f"{features['n_samples']:,} images, of {subject} the model gets "
        f"{100 * features['error']:.1f} % wrong",
    }
    if "penalty" in parts:
        own = parts["penalty"]
        facts["penalty"] = f"{own['n_units']:,} units, measured on {own['n_samples']:,} images"
    if "prototypes" in parts:
        layers = parts["prototypes"]["projector_depth"]
        projector = f"; projector of {layers} layers" if layers else ""
        facts["prototypes"] = f"one per class{projector}"
    for name in ("fisher", "accuracy"):
        if name in parts:
            facts[name] = f"measured on {parts[name]['n_samples']:,} images"
    facts["time"] = f"{result.seconds:.1f} s in {features['precision']}"
    show_facts("Prepared", facts)
    command = ["acclimate", "adapt", "IMAGES_DIR", "--model", o.model]
    command += ["--weights", str(o.weights)] if o.weights is not None else []
    out = "predictions" if info.is_dense else "predictions.csv"
    command += ["--artifact", str(o.out), "--out", out]
    console = get_console()
    console.print("\nNext, where the model is used, with a folder of images:", style="dim")
    console.print(f"  {shlex.join(command)}", soft_wrap=True)


def show_predicted(result: Predicted) -> None:
    """Print what was predicted and learned, and the report of the guard."""
    show_unreadable(result.unreadable)
    summary, counts, file = result.summary, result.adapted.counts, result.file
    skipped = ", ".join(f"{n} {reason}" for reason, n in counts.skipped.items())
    resumed = f", {summary.n_resumed} of them taken over" if summary.n_resumed else ""
    top = list(summary.labels.items())[:_MOST_LABELS]
    labels = ", ".join(f"{label}: {100 * n / summary.n_images:.0f} %" for label, n in top)
    rest = len(summary.labels) - len(top)
    facts = {
        "predictions": str(file.out),
        "images": f"{summary.n_images:,} in {summary.n_batches:,} batches{resumed}",
        "speed": f"{summary.images_per_second:,.0f} images/s",
        "updates": f"{counts.updates:,}" + (f"; skipped: {skipped}" if skipped else ""),
        "restored": f"{counts.restored} times, by the guard or the method" * bool(counts.restored),
        "most pixels" if file.holds_masks else "labels": labels
        + (f", {rest} more" if rest else ""),
        "state": "" if file.state is None else str(file.state),
    }
    show_facts("Predicted", facts)
    if result.adapted.guard is not None:
        console = get_console()
        console.print("\nGuard", style="bold")
        console.print(str(result.adapted.report()), soft_wrap=True)


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


def show_sent(report: SendReport) -> bool:
    """Print what came back; return whether every image was answered."""
    marks = [(name, report.quantile(q)) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))]
    latencies = [f"{name} {1000 * value:.1f} ms" for name, value in marks if value is not None]
    failures = [f"{n} × {reason}" for reason, n in report.failures.most_common()]
    facts = {
        "answered": f"{report.n_answered} images in {report.seconds:.1f} s, "
        f"{report.throughput:.1f} images/s",
        "by the adapted model": str(report.answered_by["adapted"]),
        "by the source model": str(report.answered_by["source"]),
        "latency": ", ".join(latencies) or "none",
        "retries": str(report.n_retries),
        "failed": "; ".join(failures) or "0",
    }
    if report.error is not None:
        parts = [f"{100 * error:.1f}" for error in report.error_by_part() if error is not None]
        facts["error"] = f"{100 * report.error:.1f} %; by quarter of the stream: {', '.join(parts)}"
    if report.estimate is not None:
        facts["estimated accuracy"] = ", ".join(
            f"{who} {100 * report.estimate[who]['value']:.1f} %" for who in ("source", "adapted")
        )
    classes = [f"{name} {n}" for name, n in report.predicted.most_common(_MOST_CLASSES)]
    more = len(report.predicted) - len(classes)
    facts["predicted"] = ", ".join([*classes, *[f"{more} more classes"] * (more > 0)])
    show_facts(f"Stream {report.stream}", facts)
    return not report.n_failed


def show_trained(trained: tuple[Any, Any]) -> None:
    """Print where the weights are, and how good they are."""
    result, settings = trained
    done = "this run had ended before; nothing was done" if result.was_done else ""
    facts = {"weights": str(result.path)}
    if settings.task == "domains":
        first, last = result.checks[0], result.checks[-1]
        facts |= {"": done, "held out": ", ".join(settings.held_out)}
        facts["BatchNorm"] = "statistics of the first weights, frozen"
        facts["training loss"] = f"{first['loss']:.3f} → {last['loss']:.3f}"
        facts["best step"] = f"{result.step} of {settings.steps}"
        for name, accuracy in result.validation.items():
            facts[f"accuracy, {name}"] = f"{accuracy:.2f} % (20 % held out)"
        facts["mean"] = f"{result.mean:.2f} %"
        n = len(result.unreadable)
        facts["unreadable"] = f"{n:,} image(s), left out" if n else ""
    else:
        losses = f"{result.losses[0]:.3f} → {result.losses[-1]:.3f}"
        if settings.task == "segmentation":
            facts |= {"SHA-256": result.sha256, "": done, "training loss": losses}
            for name, iou in result.ious.items():
                facts[f"IoU, {name}"] = "in no image" if iou is None else f"{iou:.2f} %"
            facts["mean IoU"] = f"{result.miou:.2f} %"
        else:
            head = result.path.with_name(f"{result.path.stem}.head.safetensors")
            facts["head"] = str(head) if "simclr" in settings.objective else ""
            facts |= {"": done, "training loss": losses}
            no_split = result.error is None
            facts["test error"] = "no test split" if no_split else f"{result.error:.2f} %"
    facts |= {"time": f"{result.minutes:.1f} min", "again": settings.command}
    show_facts("Trained", facts)


def show_experiment(one: Reproduced) -> None:
    """Print published numbers, ours and the difference, setup by setup, and the claims."""
    from acclimate.paper.tables import make_document

    console, found = get_console(), one.found
    if found is None:
        facts = [] if one.table.rows else ["The text has no numbers of it."]
        make_document(one.table, (), facts).show(console)
        return
    title = f"{one.table.id}, {found.scale}: {one.table.title}"
    replace(make_document(one.table, found.verdicts), title=title).show(console)
    names = ", ".join(path.name for path in found.files)
    console.print(f"{one.folder}: {names}", style="dim", soft_wrap=True)
    for entry in found.failed:
        text = f"failed: {entry.label}, {entry.group}, seed {entry.spec.seed}"
        print_lines([text], "bold red")


def show_experiments(done: list[Reproduced]) -> bool:
    """Print all experiments if none was run; return whether all jobs have finished."""
    if done:
        return not any(one.found is not None and one.found.failed for one in done)
    from acclimate.paper import EXPERIMENTS, SCALES, WHOLES, list_aliases
    from acclimate.report.table import Column, Table, plain

    rows = [
        tuple(map(plain, (name, ", ".join(list_aliases(name)), experiment.shows)))
        for name, experiment in EXPERIMENTS.items()
    ]
    columns = (Column("id", "label"), Column("also", "label"), Column("what", "words"))
    wholes = "; ".join(f"{name} = {', '.join(parts)}" for name, parts in WHOLES.items())
    notes = (f"several at once: {wholes}", f"each at the scales {', '.join(SCALES)}")
    Table(columns, tuple(rows), notes=notes).show(get_console())
    return True
