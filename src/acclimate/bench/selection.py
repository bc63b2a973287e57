"""Rules that hyper-parameters are chosen by; their sentence stands under every table.

A rule determines on which jobs candidates are tried, and takes what came out of these jobs only:
given an outcome of any other job, such as one of the test, it refuses. The oracle alone is tried on
the test itself, and is marked.

>>> get_rule("held-out").sentence
'hyper-parameters chosen on held-out corruptions: speckle_noise, gaussian_blur, spatter, saturate'
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from acclimate.bench.job import JobSpec
from acclimate.corruptions import BENCHMARK
from acclimate.data import SETS
from acclimate.errors import BadInput, check_name

if TYPE_CHECKING:
    from acclimate.bench.suite import Entry, Outcome

#: The corruptions of the benchmark's authors that are not for testing.
HELD_OUT = ("speckle_noise", "gaussian_blur", "spatter", "saturate")


@dataclass(frozen=True)
class Rule:
    """A way to choose hyper-parameters.

    Attributes:
        name: In suites.
        sentence: What is printed under a table.
        make_trial: Returns the job that a candidate is tried on; None if nothing is tried.
        is_oracle: Whether it looks at the test: an upper bound, not a result.
    """

    name: str
    sentence: str
    make_trial: Callable[[JobSpec], JobSpec] | None = None
    is_oracle: bool = False

    def make_trials(self, candidates: Sequence[Entry], seeds: Sequence[int] = ()) -> list[Entry]:
        """Return the jobs to run before one of the candidates can be chosen.

        The candidates differ in hyper-parameters. Seeds are theirs by default.

        Raises:
            BadInput: A trial would be on what the candidate is tested on.
        """
        if self.make_trial is None:
            return []
        return [
            replace(entry, spec=replace(self._try(entry.spec), seed=seed))
            for entry in candidates
            for seed in seeds or (entry.spec.seed,)
        ]

    def choose(self, candidates: Sequence[Entry], outcomes: Sequence[Outcome] = ()) -> Entry:
        """Return the candidate with the least error over its trials; of equals, the first.

        Raises:
            BadInput: An outcome is of another job than a trial, or a candidate was not tried.
        """
        if not candidates:
            text = "Expected candidates to choose from, found none."
            raise BadInput("missing_option", text, option="candidates")
        if self.make_trial is None:
            if outcomes:
                text = f'The rule "{self.name}" does not use outcomes. Remove them.'
                raise BadInput("not_applicable", text, option="outcomes")
            return self._choose_default(candidates)
        trials = [_without_seed(self._try(entry.spec)) for entry in candidates]
        errors: list[list[float]] = [[] for _ in candidates]
        for outcome in outcomes:
            described = _without_seed(outcome.entry.spec)
            if described not in trials:
                raise BadInput(
                    "selection_leak",
                    f'The rule "{self.name}" may only use trials, and "{outcome.entry.label}" on '
                    f"{outcome.entry.spec.data} is not a trial. {_RUN_TRIALS}",
                    rule=self.name,
                )
            errors[trials.index(described)].append(outcome.error)
        for entry, own in zip(candidates, errors, strict=True):
            if not own:
                text = f'The candidate "{entry.label}" was not tried. {_RUN_TRIALS}'
                raise BadInput("untried_candidate", text, name=entry.label)
        means = [statistics.fmean(own) for own in errors]
        return candidates[means.index(min(means))]

    def _try(self, spec: JobSpec) -> JobSpec:
        trial = spec if self.make_trial is None else self.make_trial(spec)
        if not self.is_oracle and _without_seed(trial) == _without_seed(spec):
            raise BadInput(
                "selection_leak",
                f'The rule "{self.name}" would tune {spec.method} on its test data. Test on other '
                "data, or use the rule oracle, whose results are marked.",
                rule=self.name,
            )
        return trial

    def _choose_default(self, candidates: Sequence[Entry]) -> Entry:
        for entry in candidates:
            if entry.spec.get_config() == replace(entry.spec, options={}).get_config():
                return entry
        raise BadInput(
            "no_default_candidate",
            f'The rule "{self.name}" selects the published values, which no candidate has. Add a '
            "candidate without options.",
            rule=self.name,
        )


_RUN_TRIALS = "Run the jobs that make_trials(candidates) returns."


def get_rule(name: str) -> Rule:
    """Return the rule of that name."""
    check_name(name, RULES, "selection rule")
    return RULES[name]


def _without_seed(spec: JobSpec) -> dict[str, Any]:
    return {name: value for name, value in spec.to_dict().items() if name != "seed"}


def _hold_out(spec: JobSpec) -> JobSpec:
    tested = BENCHMARK if spec.corruptions is None else spec.corruptions
    both = [name for name in tested if name in HELD_OUT]
    if both:
        raise BadInput(
            "selection_leak",
            f"Held-out corruptions must not be used for testing, found {', '.join(both)} in the "
            f"test of {spec.method}. Remove them from its corruptions.",
            rule="held-out",
        )
    return replace(spec, corruptions=HELD_OUT)


def _stay_at_home(spec: JobSpec) -> JobSpec:
    known = SETS.get(spec.data)
    if known is None or (known.is_files and not (known.has_domains or known.has_masks)):
        raise BadInput(
            "no_clean_images",
            f"No clean images of the training domain are known for {spec.data}. Use another rule, "
            "or a data set of the catalog.",
            name=spec.data,
        )
    return replace(spec, data=getattr(known, "clean", spec.data), corruptions=None, severities=(5,))


def _leave_out(spec: JobSpec) -> JobSpec:
    raise BadInput(
        "not_applicable",
        "The rule leave-one-domain-out needs models that were trained without two domains of "
        f"{spec.data}, and none are defined. acclimate reproduce table-6 trains such models and "
        "uses them.",
        option="selection",
    )


_ALL = (
    Rule("paper", "hyper-parameters as published, or the defaults where none are"),
    Rule(
        "held-out",
        f"hyper-parameters chosen on held-out corruptions: {', '.join(HELD_OUT)}",
        _hold_out,
    ),
    Rule(
        "training-domain",
        "hyper-parameters chosen on clean images of the training domain",
        _stay_at_home,
    ),
    Rule(
        "leave-one-domain-out",
        "hyper-parameters chosen before deployment by leave-one-domain-out cross-validation: each "
        "training domain is adapted to by a model that was trained without it, too",
        _leave_out,
    ),
    Rule(
        "oracle",
        "hyper-parameters chosen on the test itself (oracle): an upper bound, not a result",
        lambda spec: spec,
        is_oracle=True,
    ),
)

#: By name.
RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}
