"""The jobs of table 6: candidates on domains that were left out, and the chosen on the test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acclimate.bench.job import JobSpec, Preparing
from acclimate.bench.outcome import Entry
from acclimate.data.domain_choice import DomainChoice
from acclimate.data.domains import DomainSet
from acclimate.paper.domain_setups import ALL, Candidate, DomainSetup
from acclimate.training import DomainResult
from acclimate.training.domains.search import SearchRun
from acclimate.training.domains.selection import DomainRule, Look
from acclimate.training.domains.task import full_name

#: A trial of training and a candidate of adaptation.
Option = tuple[int, Candidate]


@dataclass(frozen=True)
class TrainedDomains:
    """One set of domains with the models that one algorithm trained on it.

    Attributes:
        setup: What is done with it.
        algorithm: `erm` or `coral`.
        data: The set.
        models: What training gave, by the domains left out, trial and seed.
    """

    setup: DomainSetup
    algorithm: str
    data: DomainSet
    models: Mapping[tuple[tuple[str, ...], int, int], tuple[SearchRun, DomainResult]]

    @property
    def tests(self) -> tuple[str, ...]:
        """The domains that are deployed to."""
        return tuple(self.setup.tests or self.data.domains)

    @property
    def group(self) -> str:
        """Heading of its rows."""
        return self.setup.get_group(self.algorithm)

    def sources(self, test_domain: str) -> tuple[str, ...]:
        """Return all domains but one."""
        return tuple(name for name in self.data.domains if name != test_domain)


@dataclass(frozen=True)
class Choice:
    """What was chosen for a row, and from what.

    Attributes:
        trained: Where.
        test_domain: For which.
        seed: Of training and adaptation.
        options: Trials and candidates to choose from.
        accuracies: Of each by what was looked at; empty if there was nothing to choose.
        chosen: Position of the chosen one.
    """

    trained: TrainedDomains
    test_domain: str
    seed: int
    options: tuple[Option, ...]
    accuracies: tuple[Mapping[Look, float], ...]
    chosen: int


def list_options(setup: DomainSetup, n_trials: int) -> dict[str, tuple[Option, ...]]:
    """Return what there is to choose from, by row: every trial with every candidate."""
    rows = dict.fromkeys(candidate.row for candidate in setup.candidates)
    return {
        row: tuple(
            (trial, candidate)
            for trial in range(n_trials)
            for candidate in setup.candidates
            if candidate.row == row
        )
        for row in rows
    }


def make_trial(
    trained: TrainedDomains, seed: int, option: Option, look: Look, rule: DomainRule
) -> Entry:
    """Return the job that tries an option where a rule looks; the oracle sees the whole test."""
    trial, candidate = option
    images = trained.setup.tested if rule.is_oracle else trained.setup.tried
    spec = _make_spec(trained, seed, trial, candidate, look, images)
    left_out = " and ".join(look.without)
    return Entry(
        spec,
        f"{candidate.row} ({', '.join(p for p in (candidate.label, f'trial {trial}') if p)})",
        f"{trained.group}: trained without {left_out}, on {look.domain}",
    )


def make_final(choice: Choice, rule: DomainRule) -> Entry:
    """Return the job of the table: what was chosen, on the test domain."""
    trained = choice.trained
    trial, candidate = choice.options[choice.chosen]
    look = Look((choice.test_domain,), choice.test_domain)
    is_peeking = rule.is_oracle and len(choice.options) > 1
    return Entry(
        _make_spec(trained, choice.seed, trial, candidate, look, trained.setup.tested),
        f"{candidate.row} on {choice.test_domain}",
        trained.group,
        {
            "setting": trained.algorithm.upper(),
            "row": candidate.row,
            "column": trained.setup.column,
            "mark": "oracle" if is_peeking else "",
            "test_domain": choice.test_domain,
            "chosen": candidate.label,
            "trial": trial,
        },
    )


def _make_spec(
    trained: TrainedDomains,
    seed: int,
    trial: int,
    candidate: Candidate,
    look: Look,
    images: int | None,
) -> JobSpec:
    setup, data = trained.setup, trained.data
    _, result = trained.models[look.without, trial, seed]
    common: dict[str, Any] = {"trial_seed": seed, "size": setup.size, "images": setup.images}
    options = dict(candidate.options)
    if options.get("n_supports", 0) is ALL:
        n = len(data.domains[look.domain])
        options["n_supports"] = n if images is None else min(n, images)
    parts = {name: dict(own) for name, own in setup.prepare.get("parts", {}).items()}
    for name, own in candidate.parts.items():
        parts[name] = {**parts.get(name, {}), **own}
    prepare = Preparing()
    if candidate.parts:
        trained_on = tuple(name for name in data.domains if name not in look.without)
        prepare = Preparing(
            source=setup.data,
            images=setup.prepare.get("images"),
            parts=parts,
            domains=DomainChoice(names=trained_on, part="train", **common),
        )
    return JobSpec(
        model=full_name(setup.model),
        weights=str(result.path),
        data=setup.data,
        domains=DomainChoice(names=(look.domain,), part=look.part, **common),
        images=images,
        protocol={"batch_size": setup.batch_size, "order": "shuffled"},
        method=candidate.method,
        options=options,
        prepare=prepare,
        seed=seed,
    )


def record_choice(choice: Choice) -> dict[str, Any]:
    """Return what was chosen and from what, as JSON types."""
    trial, candidate = choice.options[choice.chosen]
    return {
        "data": choice.trained.setup.data,
        "algorithm": choice.trained.algorithm,
        "test_domain": choice.test_domain,
        "seed": choice.seed,
        "row": candidate.row,
        "chosen": candidate.label,
        "trial": trial,
        "tried": [
            {
                "candidate": own.label,
                "trial": number,
                "accuracy": {look.domain: round(value, 4) for look, value in measured.items()},
            }
            for (number, own), measured in zip(choice.options, choice.accuracies, strict=False)
        ],
    }
