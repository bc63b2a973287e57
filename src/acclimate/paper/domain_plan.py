"""The stages of table 6: train, try on domains that were left out, choose, deploy.

1. Every model that any choice or any test needs is trained once: without each domain, and for
   leave-one-domain-out without each two of them.
2. Candidates are tried where the rule of selection looks, and nowhere else.
3. For each test domain the best candidate of each row becomes a job of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from acclimate.bench.outcome import Entry
from acclimate.bench.suite import Suite
from acclimate.data.domains import load_domains
from acclimate.data.places import Notify
from acclimate.errors import BadInput
from acclimate.paper.domain_jobs import (
    Choice,
    TrainedDomains,
    list_options,
    make_final,
    make_trial,
    record_choice,
)
from acclimate.paper.domain_notes import describe_plan, record_model
from acclimate.paper.domain_setups import N_TRIALS, SEEDS, DomainSetup, find_domain_setups
from acclimate.paper.plan import Plan, PlanContext
from acclimate.paper.published import load_published
from acclimate.paper.scales import Settings
from acclimate.training import DomainResult, DomainSettings
from acclimate.training.domains.search import SearchRun, list_runs, train_all
from acclimate.training.domains.selection import (
    DOMAIN_RULES,
    DomainRule,
    choose,
    get_domain_rule,
)

MODELS, TRIALS = "models", "trials"


def plan_domains(
    scale: str, seeds: Sequence[int] | None, settings: Settings, context: PlanContext
) -> Plan:
    """Train, try and choose; return the jobs of the table.

    Raises:
        BadInput: Data or rule cannot be had, or a trial failed.
    """
    rule = get_domain_rule(settings.selection or next(iter(DOMAIN_RULES)))
    setups = find_domain_setups(scale, settings)
    chosen_seeds = SEEDS[scale] if seeds is None else tuple(seeds)
    n_trials = N_TRIALS[scale] if settings.trials is None else settings.trials
    trained_sets = [
        trained
        for setup in setups
        for trained in _train(setup, rule, n_trials, chosen_seeds, context)
    ]
    choices = [
        choice
        for trained in trained_sets
        for seed in chosen_seeds
        for choice in _choose_all(trained, seed, rule, n_trials, context)
    ]
    entries = [make_final(choice, rule) for choice in choices]
    notes = describe_plan(scale, trained_sets, choices, entries)
    suite = Suite(
        title=f"table-6, {scale}: {load_published()['table-6'].title}",
        entries=tuple(entries),
        notes="\n".join(notes),
        selection=rule.name,
    )
    models = [
        record_model(run, own) for trained in trained_sets for run, own in trained.models.values()
    ]
    return Plan(suite, {"models": models, "choices": [record_choice(own) for own in choices]})


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
    if any(len(options) > 1 for options in list_options(setup, n_trials).values()):
        held_out += [
            look.without
            for name in tests
            for look in rule.list_looks(name, [own for own in data.domains if own != name])
        ]
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
        with context.watch() as progress:
            found = train_all(
                runs,
                context.folder / MODELS,
                data=data,
                device=context.device,
                progress=progress,
                on_result=_count(context.notify, len(runs)),
            )
        models = {(run.without, run.trial, run.seed): (run, own) for run, own in found.items()}
        made.append(TrainedDomains(setup, algorithm, data, models))
    return made


def _count(notify: Notify | None, n_all: int) -> Callable[[SearchRun, DomainResult], None]:
    """Return a function that reports which model was trained, and how many there are."""
    numbers = count(1)

    def on_result(run: SearchRun, result: DomainResult) -> None:
        number = next(numbers)
        if notify is not None and not result.was_done:
            notify(
                f"trained: {run.file}, {result.mean:.1f} % on what was held out of the training "
                f"domains, {result.minutes:.1f} min [{number} of {n_all} models]"
            )

    return on_result


def _choose_all(
    trained: TrainedDomains, seed: int, rule: DomainRule, n_trials: int, context: PlanContext
) -> list[Choice]:
    """Return what is chosen for each test domain and row, after what that needs was tried."""
    cases = [
        (test_domain, options)
        for test_domain in trained.tests
        for options in list_options(trained.setup, n_trials).values()
    ]
    tried = [
        [
            {
                look: make_trial(trained, seed, option, look, rule)
                for look in rule.list_looks(test_domain, trained.sources(test_domain))
            }
            for option in (options if len(options) > 1 else ())
        ]
        for test_domain, options in cases
    ]
    entries = [entry for rows in tried for row in rows for entry in row.values()]
    accuracies = _run_trials(entries, trained, seed, rule, context) if entries else {}
    choices = []
    for (test_domain, options), rows in zip(cases, tried, strict=True):
        table = tuple(
            {look: accuracies[entry.spec.key] for look, entry in row.items()} for row in rows
        )
        chosen = choose(rule, test_domain, trained.sources(test_domain), table) if table else 0
        choices.append(Choice(trained, test_domain, seed, options, table, chosen))
    return choices


def _run_trials(
    entries: Sequence[Entry],
    trained: TrainedDomains,
    seed: int,
    rule: DomainRule,
    context: PlanContext,
) -> dict[str, float]:
    """Return the accuracy of every trial by the name of its job."""
    name = f"{trained.data.name}-{trained.algorithm}-seed-{seed}"
    place = context.folder / TRIALS / name
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
