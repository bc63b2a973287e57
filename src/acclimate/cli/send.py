"""What `acclimate send` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acclimate.cli.terminal import show_facts

if TYPE_CHECKING:
    from acclimate.serve.client import SendReport

_SHOWN_CLASSES = 10


def show_sent(report: SendReport) -> bool:
    """Print what came back; return whether every image was answered."""
    show_facts(f"Stream {report.stream}", describe_report(report))
    return not report.n_failed


def describe_report(report: SendReport) -> dict[str, str]:
    """Return what came back, as names and values."""
    facts = {
        "answered": f"{report.n_answered} images in {report.seconds:.1f} s, "
        f"{report.throughput:.1f} images/s",
        "by the adapted model": str(report.answered_by["adapted"]),
        "by the source model": str(report.answered_by["source"]),
    }
    marks = [(name, report.quantile(q)) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))]
    shown = [f"{name} {1000 * value:.1f} ms" for name, value in marks if value is not None]
    facts["latency"] = ", ".join(shown) or "none"
    facts["retries"] = str(report.n_retries)
    failures = [f"{n} × {reason}" for reason, n in report.failures.most_common()]
    facts["failed"] = "; ".join(failures) or "0"
    if report.error is not None:
        parts = [f"{100 * error:.1f}" for error in report.error_by_part() if error is not None]
        facts["error"] = f"{100 * report.error:.1f} %; by quarter of the stream: {', '.join(parts)}"
    if report.estimate is not None:
        facts["estimated accuracy"] = ", ".join(
            f"{who} {100 * report.estimate[who]['value']:.1f} %" for who in ("source", "adapted")
        )
    classes = report.predicted.most_common(_SHOWN_CLASSES)
    more = len(report.predicted) - len(classes)
    facts["predicted"] = ", ".join(f"{name} {n}" for name, n in classes)
    facts["predicted"] += f", {more} more classes" if more > 0 else ""
    return facts
