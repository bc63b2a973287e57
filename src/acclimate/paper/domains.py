"""Table 6: trained on all domains but one, deployed on that one, adapted there.

1. Every model that any choice or any test needs is trained once: without each domain, and for
   leave-one-domain-out without each two of them.
2. Candidates are tried where the rule of selection looks, and nowhere else.
3. For each test domain the best candidate of each row becomes a job of the table.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from acclimate.bench.job import JobSpec, Preparing
from acclimate.bench.suite import Entry, Suite
from acclimate.data.domain_choice import DomainChoice
from acclimate.data.domains import DomainSet, load_domains
from acclimate.errors import BadInput, check_name
from acclimate.paper.experiment import TOY, PlanContext, overlay
from acclimate.paper.published import load_published
from acclimate.paper.settings import (
    DECLARED,
    SCALES,
    Settings,
    describe_projector,
    describe_stand_in,
)
from acclimate.training import DomainResult, DomainSettings
from acclimate.training.domains.search import file_name, list_runs, train_all
from acclimate.training.domains.selection import (
    DOMAIN_RULES,
    DomainRule,
    Validation,
    choose,
    get_domain_rule,
)
from acclimate.training.domains.task import full_name
from acclimate.training.settings import ALGORITHMS

# What it is run on


@dataclass(frozen=True)
class Candidate:
    """A method with hyper-parameters to be chosen from, and its options of the artifact's parts.

    The option `n_supports` may be "all": as many as there are images.
    """

    row: str
    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_DECLARED = DECLARED["domains"]
_CANDIDATES = tuple(Candidate(**own) for own in _DECLARED["candidates"])


@dataclass(frozen=True, kw_only=True)
class DomainSetup:
    """A set of domains, and all that is done with it.

    Attributes:
        name: As our tables call it; empty for the paper's own setting.
        column: The set of the paper that it is, or stands in for.
        data: A set of domains, or a folder of them.
        model: As `acclimate train --task domains` names it.
        weights: What it begins with, in a few words.
        pretrained: Whether to ask for the published weights.
        size: Height and width of the images; None for that of the set.
        images: Of each domain, before it is split; None for all.
        training: Fields of `DomainSettings`: steps and checks.
        defaults: Hyper-parameters of the first trial other than DomainBed's.
        tests: Domains that are deployed to; empty for all, one after another.
        algorithms: That models are trained with.
        batch_size: Of adaptation.
        tried: Images of each domain that candidates are tried on; None for all.
        tested: Images of each domain that is deployed to; None for all.
        prepare: Fields of `Preparing`: source images and options of the parts.
        candidates: What is chosen from, row by row.
    """

    name: str = ""
    column: str
    data: str
    model: str = "resnet50"
    weights: str = "ImageNet weights"
    pretrained: bool = True
    size: int | None = 224
    images: int | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    tests: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ALGORITHMS
    batch_size: int = 200
    tried: int | None = None
    tested: int | None = None
    prepare: Mapping[str, Any] = field(default_factory=dict)
    candidates: tuple[Candidate, ...] = _CANDIDATES

    def get_group(self, algorithm: str) -> str:
        """Return the heading of the rows of an algorithm."""
        return ", ".join(name for name in (self.name, algorithm.upper()) if name)

    def describe(self) -> str:
        """Return one sentence on what it is, for the notes of the table."""
        text = (
            f"{self.name or f'{self.column}, {self.model}'}: {self.weights}, BatchNorm with the "
            'statistics of these, frozen, in training and (as "source" statistics) in adaptation'
        )
        if self.size is not None:
            text += f"; images of {self.size} × {self.size} pixels"
        if self.tried is not None:
            text += f"; candidates are tried on {self.tried} images of each domain"
        if "images" in self.prepare:
            text += f"; prepared from {self.prepare['images']} images of the training domains"
        text += describe_projector(self.prepare)
        stand_in = describe_stand_in(f"{self.column} with ResNet-50")
        return f"{text}. {stand_in}" if self.name else f"{text}."


def _make_setup(given: Mapping[str, Any]) -> DomainSetup:
    """Return a setup of `settings.toml`."""
    made: dict[str, Any] = dict(given)
    if "candidates" in made:
        kept = made["candidates"]
        made["candidates"] = tuple(own for own in _CANDIDATES if own.label in kept)
    if "tests" in made:
        made["tests"] = tuple(made["tests"])
    return DomainSetup(**{**made, "size": made.get("size", 224) or None})


def find_domain_setups(scale: str, settings: Settings) -> tuple[DomainSetup, ...]:
    """Return the sets of a scale, changed as asked for.

    Raises:
        BadInput: Nothing is left.
    """
    check_name(scale, SCALES, "scale")
    setups = map(_make_setup, _DECLARED[scale])
    made = [(setup, own) for setup in setups for own in setup.algorithms]
    kept = settings.keep([f"{setup.column}, {setup.get_group(own)}" for setup, own in made])
    left: dict[str, DomainSetup] = {}
    for (setup, own), is_kept in zip(made, kept, strict=True):
        if is_kept:
            before = left[setup.column].algorithms if setup.column in left else ()
            left[setup.column] = replace(
                setup,
                algorithms=(*before, own),
                data=settings.data.get(setup.data, setup.data),
                tested=setup.tested if settings.images is None else settings.images,
            )
    return tuple(left.values())


# Train, try, choose

#: A trial of training and a candidate of adaptation.
Option = tuple[int, Candidate]


@dataclass(frozen=True)
class TrainedDomains:
    """One set of domains with the models that one algorithm trained on it.

    `models` are by the domains left out, trial and seed.
    """

    setup: DomainSetup
    algorithm: str
    data: DomainSet
    models: Mapping[tuple[tuple[str, ...], int, int], tuple[DomainSettings, DomainResult]]

    @property
    def place(self) -> str:
        """The set and the algorithm."""
        return f"{self.setup.column}, {self.algorithm.upper()}"

    def make_spec(
        self, seed: int, option: Option, validation: Validation, images: int | None
    ) -> JobSpec:
        """Return the job of an option: a model, and the images that it is adapted to."""
        setup, (trial, candidate) = self.setup, option
        common: dict[str, Any] = {"trial_seed": seed, "size": setup.size, "images": setup.images}
        options = dict(candidate.options)
        if options.get("n_supports") == "all":
            n = len(self.data.domains[validation.domain])
            options["n_supports"] = n if images is None else min(n, images)
        prepare = Preparing()
        if candidate.parts:
            trained_on = tuple(name for name in self.data.domains if name not in validation.without)
            prepare = Preparing(
                source=setup.data,
                images=setup.prepare.get("images"),
                parts=overlay(setup.prepare.get("parts", {}), candidate.parts),
                domains=DomainChoice(names=trained_on, part="train", **common),
            )
        return JobSpec(
            model=full_name(setup.model),
            weights=str(self.models[validation.without, trial, seed][1].path),
            data=setup.data,
            domains=DomainChoice(names=(validation.domain,), part=validation.part, **common),
            images=images,
            protocol={"batch_size": setup.batch_size, "order": "shuffled"},
            method=candidate.method,
            options=options,
            prepare=prepare,
            seed=seed,
        )

    def describe(self) -> str:
        """Return how the models were trained, and how well."""
        runs = [run for run, _ in self.models.values()]
        means = [result.mean for _, result in self.models.values()]
        trials = len({run.hparams_seed for run in runs})
        hparams = runs[0].hparams
        how = f"{trials} trials of hyper-parameters, the first: " if trials > 1 else ""
        return (
            f"{self.place}: {len(runs)} models, {runs[0].steps} steps (DomainBed: 5000) of {how}"
            f"Adam at {hparams.lr:g}, {hparams.batch_size} images of each domain a step "
            "(DomainBed: 5e-05, 32); accuracy on what was held out of the training domains: "
            f"{statistics.fmean(means):.1f} % ({min(means):.1f} to {max(means):.1f})."
        )


@dataclass(frozen=True)
class Choice:
    """What was chosen for a row: a test domain, a seed, and the position among the options.

    `accuracies` are those of each option by what was looked at; empty if there was nothing to
    choose.
    """

    trained: TrainedDomains
    test_domain: str
    seed: int
    options: tuple[Option, ...]
    accuracies: tuple[Mapping[Validation, float], ...]
    chosen: int

    def make_entry(self, rule: DomainRule) -> Entry:
        """Return the job of the table: what was chosen, on the test domain."""
        trained, option = self.trained, self.options[self.chosen]
        trial, candidate = option
        validation = Validation((self.test_domain,), self.test_domain)
        return Entry(
            trained.make_spec(self.seed, option, validation, trained.setup.tested),
            f"{candidate.row} on {self.test_domain}",
            trained.setup.get_group(trained.algorithm),
            {
                "setting": trained.algorithm.upper(),
                "row": candidate.row,
                "column": trained.setup.column,
                "mark": "oracle" if rule.is_oracle and len(self.options) > 1 else "",
                "test_domain": self.test_domain,
                "chosen": candidate.label,
                "trial": trial,
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        trial, candidate = self.options[self.chosen]
        return {
            "data": self.trained.setup.data,
            "algorithm": self.trained.algorithm,
            "test_domain": self.test_domain,
            "seed": self.seed,
            "row": candidate.row,
            "chosen": candidate.label,
            "trial": trial,
            "tried": [
                {
                    "candidate": own.label,
                    "trial": number,
                    "accuracy": {
                        validation.domain: round(value, 4) for validation, value in measured.items()
                    },
                }
                for (number, own), measured in zip(self.options, self.accuracies, strict=False)
            ],
        }


def plan_domains(
    scale: str, seeds: Sequence[int] | None, settings: Settings, context: PlanContext
) -> tuple[Suite, Mapping[str, Any]]:
    """Train, try and choose; return the jobs of the table, and a record of what was done.

    Raises:
        BadInput: Data or rule cannot be had, or a trial failed.
    """
    rule = get_domain_rule(settings.selection or next(iter(DOMAIN_RULES)))
    setups = find_domain_setups(scale, settings)
    seeds = _DECLARED["seeds"][scale] if seeds is None else tuple(seeds)
    n_trials = settings.trials or _DECLARED["trials"][scale]
    sets = [own for setup in setups for own in _train(setup, rule, n_trials, seeds, context)]
    choices = [
        choice
        for trained in sets
        for seed in seeds
        for choice in _choose_all(trained, seed, rule, n_trials, context)
    ]
    entries = tuple(choice.make_entry(rule) for choice in choices)
    notes = [
        *([TOY] if scale == "smoke" else []),
        *dict.fromkeys(trained.setup.describe() for trained in sets),
        *(trained.describe() for trained in sets),
        _describe_statistics(entries),
        *_describe_choices(choices),
        "± is the standard error over seeds. Where a claim is judged, domains are what is paired.",
    ]
    suite = Suite(
        title=f"table-6, {scale}: {load_published()['table-6'].title}",
        entries=entries,
        notes="\n".join(notes),
        selection=rule.name,
    )
    models = [_record_model(*own) for trained in sets for own in trained.models.values()]
    return suite, {"models": models, "choices": [choice.to_dict() for choice in choices]}


def _list_options(setup: DomainSetup, n_trials: int) -> list[tuple[Option, ...]]:
    """Return what there is to choose from in each row: every trial with every candidate."""
    rows = dict.fromkeys(candidate.row for candidate in setup.candidates)
    trials = range(n_trials)
    return [
        tuple((n, own) for n in trials for own in setup.candidates if own.row == r) for r in rows
    ]


def _train(
    setup: DomainSetup,
    rule: DomainRule,
    n_trials: int,
    seeds: Sequence[int],
    context: PlanContext,
) -> list[TrainedDomains]:
    """Return the set of a setup with the models of each algorithm, trained now or before."""
    data = load_domains(setup.data, size=setup.size, n=setup.images)
    tests = tuple(data.find(name) for name in setup.tests or data.domains)
    held_out: list[Sequence[str]] = [(name,) for name in tests]
    if any(len(options) > 1 for options in _list_options(setup, n_trials)):
        validations = (rule.list_validations(name, _list_sources(data, name)) for name in tests)
        held_out += [validation.without for own in validations for validation in own]
    made = []
    for algorithm in setup.algorithms:
        base = DomainSettings(
            objective=algorithm,
            model=setup.model,
            data=setup.data,
            test_domain=tests[:1],
            pretrained=setup.pretrained,
            size=setup.size,
            images=setup.images,
            **setup.training,
        )
        runs = list_runs(base, held_out, n_trials, seeds, setup.defaults)
        numbers = count(1)

        def report(
            run: DomainSettings,
            result: DomainResult,
            numbers: count[int] = numbers,
            n: int = len(runs),
        ) -> None:
            number = next(numbers)
            if context.notify is not None and not result.was_done:
                context.notify(
                    f"trained: {file_name(run)}, {result.mean:.1f} % on what was held out of the "
                    f"training domains, {result.minutes:.1f} min [{number} of {n} models]"
                )

        with context.watch() as progress:
            found = train_all(
                runs,
                context.folder / "models",
                data=data,
                device=context.device,
                progress=progress,
                on_result=report,
            )
        models = {
            (run.held_out, run.hparams_seed, run.seed): (run, own) for run, own in found.items()
        }
        made.append(TrainedDomains(setup, algorithm, data, models))
    return made


def _list_sources(data: DomainSet, test_domain: str) -> list[str]:
    return [name for name in data.domains if name != test_domain]


def _choose_all(
    trained: TrainedDomains, seed: int, rule: DomainRule, n_trials: int, context: PlanContext
) -> list[Choice]:
    """Return what is chosen for each test domain and row, after what that needs was tried."""
    setup, data = trained.setup, trained.data
    images = setup.tested if rule.is_oracle else setup.tried  # the oracle sees the whole test
    cases: list[tuple[str, tuple[Option, ...], list[dict[Validation, Entry]]]] = []
    for test_domain in setup.tests or data.domains:
        validations = rule.list_validations(test_domain, _list_sources(data, test_domain))
        for options in _list_options(setup, n_trials):
            tried = [
                {
                    validation: _make_trial(trained, seed, option, validation, images)
                    for validation in validations
                }
                for option in options
                if len(options) > 1
            ]
            cases.append((test_domain, options, tried))
    entries = [entry for *_, tried in cases for row in tried for entry in row.values()]
    accuracies = _run_trials(entries, trained, seed, rule, context) if entries else {}
    choices = []
    for test_domain, options, tried in cases:
        table = tuple(
            {validation: accuracies[e.spec.key] for validation, e in row.items()} for row in tried
        )
        sources = _list_sources(data, test_domain)
        chosen = choose(rule, test_domain, sources, table) if table else 0
        choices.append(Choice(trained, test_domain, seed, options, table, chosen))
    return choices


def _make_trial(
    trained: TrainedDomains, seed: int, option: Option, validation: Validation, images: int | None
) -> Entry:
    """Return the job that tries an option where a rule looks."""
    trial, candidate = option
    label = ", ".join(name for name in (candidate.label, f"trial {trial}") if name)
    group = trained.setup.get_group(trained.algorithm)
    return Entry(
        trained.make_spec(seed, option, validation, images),
        f"{candidate.row} ({label})",
        f"{group}: trained without {' and '.join(validation.without)}, on {validation.domain}",
    )


def _run_trials(
    entries: Sequence[Entry],
    trained: TrainedDomains,
    seed: int,
    rule: DomainRule,
    context: PlanContext,
) -> dict[str, float]:
    """Return the accuracy of every trial by the name of its job."""
    name = f"{trained.data.name}-{trained.algorithm}-seed-{seed}"
    place = context.folder / "trials" / name
    # All of a model together: it is loaded once, and what is prepared for it is at hand.
    ordered = sorted(entries, key=lambda entry: (entry.group, entry.spec.artifact_key or ""))
    suite = Suite(title=f"table-6, trials: {name}", entries=tuple(ordered), selection=rule.name)
    outcomes = context.run(suite, place)
    found = {outcome.entry.spec.key: 100 - outcome.error for outcome in outcomes}
    failed = [entry for entry in entries if entry.spec.key not in found]
    if failed:
        raise BadInput(
            "unfinished_job",
            f'{len(failed)} of {len(entries)} trials did not finish, such as "{failed[0].label}" '
            f"on {failed[0].group}, so no candidate can be selected. For the reasons, run: "
            f"acclimate bench status {place}",
            path=place,
        )
    return found


def _record_model(run: DomainSettings, result: DomainResult) -> dict[str, Any]:
    return {
        "file": file_name(run),
        "algorithm": run.objective,
        "without": list(run.held_out),
        "trial": run.hparams_seed,
        "seed": run.seed,
        "hparams": asdict(run.hparams),
        "command": run.command,
        "statistics": "frozen",
        "step": result.step,
        "validation": result.validation,
        "minutes": result.minutes,
        "n_unreadable": len(result.unreadable),
    }


def _describe_statistics(entries: Sequence[Entry]) -> str:
    """Return which statistics BatchNorm had, by row."""
    found: dict[str, dict[str, None]] = {}
    for entry in entries:
        policy = str(entry.spec.get_config().to_dict()["statistics"])
        found.setdefault(str(entry.axes["row"]), {})[policy] = None
    described = "; ".join(f"{row}: {' or '.join(own)}" for row, own in found.items())
    return f"Statistics of BatchNorm, {described}."


def _describe_choices(choices: Sequence[Choice]) -> list[str]:
    """Return a line for each algorithm, test domain and seed in which anything was chosen."""
    lines: dict[str, list[str]] = {}
    for own in choices:
        if len(own.options) == 1:
            continue
        trial, candidate = own.options[own.chosen]
        has_trials = len({number for number, _ in own.options}) > 1
        label = " ".join(name for name in (candidate.row, candidate.label) if name)
        place = f"Chosen, {own.trained.place}, {own.test_domain}, seed {own.seed}"
        lines.setdefault(place, []).append(f"{label}, trial {trial}" if has_trials else label)
    return [f"{place}: {'; '.join(described)}." for place, described in lines.items()]
