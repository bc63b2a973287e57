"""Made-up outcomes of jobs for the tests of the reports."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from acclimate.bench.job import JobSpec
from acclimate.bench.suite import Entry, Outcome
from acclimate.metrics import Record, Result

HOSTILE = '<script>alert("x")</script>&\'é|_*$#~^{}\\[%'


def make_record(domain: str, index: int, n: int, n_errors: int, ms: float = 10.0, **more: Any):
    return Record(
        domain=domain,
        index=index,
        n=n,
        n_errors=n_errors,
        entropy=0.5,
        nll=0.7,
        ms=ms,
        n_skipped=0,
        n_restored=0,
        predictions=None,
        **{"by_domain": {domain: (n, n_errors)}, "peak_memory": 400_000_000, **more},
    )


def make_outcome(
    label: str,
    counts: Mapping[str, Sequence[int]],
    *,
    method: str = "norm",
    seed: int = 0,
    group: str = "",
    n: int = 100,
    ms: float = 10.0,
    memory: int | None = 400_000_000,
    axes: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Outcome:
    """An outcome whose batches have exactly so many errors, by domain."""
    records = []
    for domain, errors in counts.items():
        for wrong in errors:
            records.append(make_record(domain, len(records), n, wrong, ms, peak_memory=memory))
    oracle = {"reveal_labels": True} if method == "supervised" else {}
    job = JobSpec(method=method, seed=seed, **oracle, **spec)
    about = make_provenance(counts) if provenance is None else provenance
    number = zlib.crc32(f"{label}{seed}{group}".encode())
    folder = f"jobs/{method}-{number:08x}"
    entry = Entry(job, label, group, axes or {})
    return Outcome(entry, Result(tuple(records)), about, folder)


def make_provenance(domains: Sequence[str] | Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "command": "acclimate bench run suite.toml --out results/suite",
        "date": "2020-01-01T00:00:00+00:00",
        "protocol_line": "reset_each",
        "data_source": "generated",
        "data": {
            name: {"sha256": f"{ord(name[0]):02x}" * 32, "n": 100, "severity": 5}
            for name in domains
        },
        "model": {"name": "builtin", "weights_sha256": "ab" * 32, "n_parameters": 272_474},
        "versions": {"acclimate": "0.1.0", "torch": "2.3.0", "python": "3.11.2"},
        "machine": {"processor": "A processor", "n_cores": 2, "device": "cpu"},
        **more,
    }


def exact(label: str, *wrong: int, **more: Any) -> Outcome:
    """An outcome of one batch of 100 images for each shift, with that many errors."""
    return make_outcome(label, {f"shift{i}": [count] for i, count in enumerate(wrong)}, **more)


def random_outcome(
    label: str, shares: Mapping[str, float], n_batches: int = 10, n: int = 100, **more: Any
) -> Outcome:
    """An outcome of random errors around given shares, the same for the same arguments."""
    seed = more.get("seed", 0)
    code = sum(ord(letter) * (i + 1) for i, letter in enumerate(label)) + 7919 * seed
    draws = np.random.default_rng(code)
    counts = {
        domain: [
            int(draws.binomial(n, share * (1 + 0.6 * np.exp(-i / 5)) / 1.1))
            for i in range(n_batches)
        ]
        for domain, share in shares.items()
    }
    return make_outcome(label, counts, n=n, **more)
