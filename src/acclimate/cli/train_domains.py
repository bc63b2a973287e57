"""`acclimate train --algorithm`: train on several domains, one held out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.options import refuse_same_file
from acclimate.cli.terminal import get_console, make_facts
from acclimate.cli.train_common import Call, find_given, get_side, run_training, to_flag
from acclimate.errors import BadInput

if TYPE_CHECKING:
    from acclimate.training.domains import DomainResult, DomainSettings

_PANEL = "Several domains (with --algorithm)"

AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Train on several domains: erm (cross entropy) or coral (and a penalty where the "
        "features of two domains differ in mean or covariance).",
        rich_help_panel=_PANEL,
    ),
]
TestDomainOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="DOMAIN",
        help="The domain to hold out, such as sketch; may be repeated.",
        rich_help_panel=_PANEL,
    ),
]
PretrainedOption = Annotated[
    bool,
    typer.Option(
        "--pretrained",
        help="Begin with the published weights, and a fresh head.",
        rich_help_panel=_PANEL,
    ),
]
FirstWeightsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Begin with these weights instead, of any number of classes.",
        rich_help_panel=_PANEL,
    ),
]
StepsOption = Annotated[int, typer.Option(help="Steps of Adam.", rich_help_panel=_PANEL)]
CheckEveryOption = Annotated[
    int,
    typer.Option(help="Steps between two looks at the validation splits.", rich_help_panel=_PANEL),
]
HparamsSeedOption = Annotated[
    int,
    typer.Option(
        metavar="K",
        help="Draw of DomainBed's random search; 0 is its defaults. Single options still win.",
        rich_help_panel=_PANEL,
    ),
]
TrialSeedOption = Annotated[
    int, typer.Option(help="Of the splits, and of the draw.", rich_help_panel=_PANEL)
]
GammaOption = Annotated[
    float, typer.Option(help="Weight of CORAL's penalty.", rich_help_panel=_PANEL)
]
DropoutOption = Annotated[
    float, typer.Option(help="Part of the features that is dropped.", rich_help_panel=_PANEL)
]

_ONLY_DOMAINS = (
    *("test_domain", "pretrained", "weights", "steps", "check_every"),
    *("hparams_seed", "trial_seed", "gamma", "dropout"),
)
_NOT_DOMAINS = {
    "epochs": "use --steps",
    "momentum": "Adam defines its own",
    "warmup_epochs": "the learning rate is constant",
    "label_smoothing": "remove it",
    "augmentation": "the augmentation of DomainBed is used",
    "joint": "remove it",
    "joint_weight": "remove it",
}


def refuse_options(context: typer.Context, algorithm: str | None) -> None:
    """Refuse options that would have no effect.

    Raises:
        BadInput: An option of one kind of training was given with the other.
    """
    given = find_given(context)
    if algorithm is None:
        for name in _ONLY_DOMAINS:
            if name in given:
                raise BadInput(
                    "not_applicable",
                    f"The option {to_flag(name)} applies only to training on several domains. Add "
                    "--algorithm erm or --algorithm coral.",
                    option=name,
                )
        return
    for name, hint in _NOT_DOMAINS.items():
        if name in given:
            raise BadInput(
                "conflicting_options",
                f"The option {to_flag(name)} cannot be combined with --algorithm {algorithm}: "
                f"{hint}.",
                options=("algorithm", name),
            )
    if "test_domain" not in given:
        raise BadInput(
            "missing_option",
            "The option --algorithm needs the domain to hold out. Pass --test-domain NAME.",
            option="test_domain",
        )


def train_on_domains(context: typer.Context, call: Call) -> None:
    """Train, and say what came out.

    Args:
        context: Of the command; what was given on the command line becomes the settings, the rest
            is left to the trial.
        call: What else was said.
    """
    from acclimate.training import domains
    from acclimate.training.checkpoint import checkpoint_path
    from acclimate.training.domains.output import last_path
    from acclimate.training.output import log_path

    given = find_given(context)
    written = {"--out": call.out}
    beside = (checkpoint_path(call.out), last_path(call.out), log_path(call.out))
    written |= {f"The file {path.name}, which is written next to --out,": path for path in beside}
    refuse_same_file(written, {"--weights": given.get("weights")})
    settings = _make_settings(given)
    result = run_training(domains.train_domains, settings, call)
    get_console().print(make_facts("Trained", _list_facts(result, settings)))


def _make_settings(given: dict[str, Any]) -> DomainSettings:
    from dataclasses import fields

    from acclimate.training.domains import DomainSettings

    known = {option.name for option in fields(DomainSettings)}
    values = {name: value for name, value in given.items() if name in known}
    if "size" in values:
        values["size"] = get_side(values["size"])
    values["test_domain"] = tuple(values["test_domain"])
    if "weights" in values:
        values["weights"] = str(values["weights"])
    return DomainSettings(**values)


def _list_facts(result: DomainResult, settings: DomainSettings) -> dict[str, str]:
    first, last = result.checks[0], result.checks[-1]
    facts = {
        "weights": str(result.path),
        "": "this run had ended before; nothing was done" if result.was_done else "",
        "held out": ", ".join(settings.held_out),
        "BatchNorm": "statistics of the first weights, frozen",
        "training loss": f"{first['loss']:.3f} → {last['loss']:.3f}",
        "best step": f"{result.step} of {settings.steps}",
    }
    for name, accuracy in result.validation.items():
        facts[f"accuracy, {name}"] = f"{accuracy:.2f} % (20 % held out)"
    facts["mean"] = f"{result.mean:.2f} %"
    if result.unreadable:
        facts["unreadable"] = f"{len(result.unreadable):,} image(s), left out"
    facts |= {"time": f"{result.minutes:.1f} min", "again": settings.command}
    return {name: value for name, value in facts.items() if value}
