"""What a training run on several domains is: everything its weights depend on."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from acclimate.data import SETS
from acclimate.errors import BadInput, InvalidConfig, did_you_mean
from acclimate.training.domains.hparams import Hyperparameters, get_hparams
from acclimate.training.settings import PRECISIONS

ALGORITHMS = ("erm", "coral")

#: What `Hyperparameters` has, and a run may set by itself.
_SEARCHED = tuple(option.name for option in fields(Hyperparameters))


@dataclass(frozen=True, kw_only=True)
class DomainSettings:
    """What a training run on several domains is.

    A hyper-parameter that is None is that of the trial: DomainBed's default for `hparams_seed` 0,
    else a draw of its random search.

    Attributes:
        algorithm: `erm` (cross entropy) or `coral` (and a penalty on features that differ).
        model: `resnet50` or `resnet18` (torchvision's, as in DomainBed), `timm:NAME`, another name
            of the zoo, `torchvision:NAME`, `builtin`, or `package.module:function`.
        data: A set of domains, such as `pacs`; or a folder `DIR/<domain>/<class>/<image>`.
        test_domain: What is held out of training: a domain, or several, such as two for a
            leave-one-domain-out cross-validation.
        pretrained: Whether the model begins with its published weights and a fresh head.
        weights: A file to begin with instead: of the same architecture, with any number of classes.
        steps: Number of steps.
        check_every: Steps between two looks at the validation splits of the training domains.
        lr: Of Adam.
        batch_size: Images of each domain in a step, on all devices together.
        weight_decay: Factor of the weights that is added to their gradient.
        dropout: Probability of dropping a feature before the head.
        gamma: Weight of CORAL's penalty.
        hparams_seed: Number of the draw of hyper-parameters; 0 stands for the defaults.
        trial_seed: Of the split of each domain, and of the draw.
        size: Height and width images are brought to; None is 224 for the published sets.
        images: How many images of each domain; None is all.
        precision: `32-true`, or `bf16-mixed` or `16-mixed` to compute most products in 16 bits.
        devices: How many compute together; each compares the domains of its own images.
        seed: Of the head's first weights, the order of the images and all other draws.
    """

    algorithm: str
    model: str
    data: str
    test_domain: str | tuple[str, ...]
    pretrained: bool = False
    weights: str | None = None
    steps: int = 5000
    check_every: int = 300
    lr: float | None = None
    batch_size: int | None = None
    weight_decay: float | None = None
    dropout: float | None = None
    gamma: float | None = None
    hparams_seed: int = 0
    trial_seed: int = 0
    size: int | None = None
    images: int | None = None
    precision: str = "32-true"
    devices: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        given = self.test_domain
        held_out = (given,) if isinstance(given, str) else tuple(sorted(given))
        object.__setattr__(self, "test_domain", held_out)
        self._check_names()
        if self.pretrained and self.weights is not None:
            raise InvalidConfig(
                "conflicting_options",
                "Expected either --pretrained or --weights FILE, found both. Remove one of them.",
                options=("pretrained", "weights"),
            )
        if self.gamma is not None and self.algorithm != "coral":
            raise InvalidConfig(
                "not_applicable",
                "The option gamma is the weight of the CORAL penalty; the algorithm "
                f"{self.algorithm} has none. Remove it.",
                option="gamma",
            )
        for name in ("steps", "check_every", "size", "images", "devices"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(
                    "out_of_range",
                    f"Expected {name} to be at least 1, found {value}.",
                    option=name,
                    found=value,
                )
        self._check_hparams()

    def _check_names(self) -> None:
        sets = tuple(name for name, entry in SETS.items() if entry.has_domains)
        if self.data not in sets and not Path(self.data).is_dir():
            raise BadInput(
                "unknown_name",
                f'"{self.data}" is neither a data set with domains nor a folder. '
                f"{did_you_mean(self.data, sets)} A folder has one subfolder per domain, "
                "which has one subfolder of images per class.",
                kind="data set",
                name=self.data,
                known=sets,
            )
        for name, known in (("algorithm", ALGORITHMS), ("precision", PRECISIONS)):
            value = getattr(self, name)
            if value not in known:
                raise InvalidConfig(
                    "unknown_name",
                    f'Unknown {name} "{value}". {did_you_mean(value, known)}',
                    kind=name,
                    name=value,
                    known=tuple(known),
                )
        names = self.held_out
        text = (
            f"Expected one or more different test domains, found {', '.join(names) or 'none'}. "
            "Pass --test-domain for each of them."
        )
        if not names:
            raise BadInput("missing_option", text, option="test_domain")
        if len(set(names)) < len(names):
            raise BadInput("duplicate", text, name=max(names, key=names.count))

    def _check_hparams(self) -> None:
        hparams = self.hparams
        for name, usual in (("lr", 5e-5), ("gamma", 1)):
            value = getattr(hparams, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidConfig(
                    "out_of_range",
                    f"Expected {name} to be greater than 0, found {value}. A typical value is "
                    f"{usual}.",
                    option=name,
                    found=value,
                )
        for name, end in (("dropout", 1), ("weight_decay", math.inf)):
            value = getattr(hparams, name)
            if not 0 <= value < end:
                until = "" if end == math.inf else f" and below {end}"
                raise InvalidConfig(
                    "out_of_range",
                    f"Expected {name} to be at least 0{until}, found {value}.",
                    option=name,
                    found=value,
                )
        least = 2 if self.algorithm == "coral" else 1
        if hparams.batch_size < least * self.devices or hparams.batch_size % self.devices:
            raise InvalidConfig(
                "out_of_range",
                f"Expected a batch size that gives each of {self.devices} device(s) the same "
                f"number of images per domain, at least {least}, found {hparams.batch_size}.",
                option="batch_size",
                found=hparams.batch_size,
            )

    @property
    def held_out(self) -> tuple[str, ...]:
        """The domains that are not trained on, as they were named, sorted."""
        return tuple(self.test_domain)

    @property
    def hparams(self) -> Hyperparameters:
        """The hyper-parameters of the run: those that are given, the rest those of the trial."""
        given = {name: getattr(self, name) for name in _SEARCHED}
        own = {name: value for name, value in given.items() if value is not None}
        return replace(get_hparams(self.hparams_seed, self.trial_seed), **own)

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain values, the hyper-parameters as they are used."""
        return {**asdict(self), "test_domain": list(self.held_out), **asdict(self.hparams)}

    @property
    def command(self) -> str:
        """The command line that trains this, without the file it writes.

        >>> DomainSettings(
        ...     algorithm="erm", model="resnet50", data="pacs", test_domain="photo", seed=2
        ... ).command
        'acclimate train --algorithm erm --model resnet50 --data pacs --test-domain photo --seed 2'
        """
        words = ["acclimate", "train"]
        for option in fields(self):
            value = getattr(self, option.name)
            flag = f"--{option.name.replace('_', '-')}"
            if option.name == "test_domain":
                words += [word for name in value for word in (flag, name)]
            elif isinstance(value, bool):
                words += [flag] if value else []
            elif value != option.default:
                words += [flag, str(value)]
        return shlex.join(words)
