"""Whole suites of made-up outcomes."""

from __future__ import annotations

from acclimate.bench.suite import Outcome
from acclimate.report import Summary, summarize
from tests.report.outcomes import HOSTILE, exact, random_outcome

DOMAINS = {"gaussian_noise": 0.4, "fog": 0.3, "jpeg_compression": 0.2}


def make_suite(n_seeds: int = 2) -> Summary:
    """Two groups: a hostile name, an oracle, another protocol, and a row that lacks a seed."""
    outcomes: list[Outcome] = []
    rows = (("source", "source", 1.0), ("norm", "norm", 0.6), (HOSTILE, "tent", 0.5))
    for group in ("small", HOSTILE):
        for seed in range(n_seeds):
            for number, (label, method, share) in enumerate(rows):
                shares = {name: own * share for name, own in DOMAINS.items()}
                options = {"method": method, "seed": seed, "group": group, "ms": 50.0 + number}
                outcomes.append(random_outcome(label, shares, **options))
    for seed in range(n_seeds):
        shares = {name: own * 0.2 for name, own in DOMAINS.items()}
        options = {"seed": seed, "group": "small"}
        outcomes.append(random_outcome("bound", shares, method="supervised", **options))
        outcomes.append(random_outcome("fewer", shares, n=50, **options))
    options = {"method": "eta", "seed": 0, "group": "small", "memory": None}
    outcomes.append(random_outcome("partial", DOMAINS, **options))
    return summarize(outcomes, title=f"A suite {HOSTILE}", selection="held-out", notes="A note.")


def make_large(n_methods: int = 24) -> Summary:
    """Many methods on many domains, with several seeds."""
    domains = {f"domain_{index}": 0.1 + 0.03 * index for index in range(8)}
    outcomes = []
    for index in range(n_methods):
        label = "source" if index == 0 else f"method_number_{index}"
        method = "source" if index == 0 else "norm"
        shares = {name: share * (1 - 0.02 * index) for name, share in domains.items()}
        for seed in range(2):
            cost = {"ms": 10.0 + 7 * index, "memory": 300_000_000 + 11_000_000 * (index % 5)}
            outcomes.append(random_outcome(label, shares, 6, method=method, seed=seed, **cost))
    return summarize(outcomes, title="Many methods")


def make_severities() -> Summary:
    """Two methods at three severities."""
    outcomes = []
    for label, method, share in (("source", "source", 0.1), ("norm", "norm", 0.05)):
        shares = {
            f"{name}_{severity}": share * severity
            for name in ("fog", "snow")
            for severity in (1, 3, 5)
        }
        outcomes.append(random_outcome(label, shares, method=method, severities=(1, 3, 5)))
    return summarize(outcomes, title="Severities")


def make_sweep() -> Summary:
    """Two methods along learning rates, and the source model, which has none."""
    outcomes = [exact("source", 50, 60, method="source")]
    for method in ("tent", "entropy"):
        for place, lr in enumerate((1e-5, 1e-4, 1e-3, 1e-2)):
            wrong = 20 + 5 * place + 3 * (method == "tent")
            options = {
                "method": method,
                "options": {"lr": lr},
                "axes": {"lr": lr, "method": method},
            }
            outcomes.append(exact(f"{method} (lr {lr})", wrong, wrong + 10, **options))
    return summarize(outcomes, title="Learning rates", selection="oracle")
