"""A job as plain data: all that decides its numbers, and a name made from that."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

from acclimate.adaptation import compose
from acclimate.bench.hashes import file_sha256, model_code_sha256, tell_folder
from acclimate.bench.kinds import check_kinds
from acclimate.comparison import OWN_ORDERS, Protocol, Request, Wrapping, find_needs
from acclimate.data import SETS
from acclimate.data.domain_pool import DomainChoice
from acclimate.errors import BadInput, InvalidConfig, did_you_mean
from acclimate.functional.normalization import Normalization
from acclimate.functional.pixels import IGNORE_LABEL
from acclimate.functional.precision import SpeedName
from acclimate.methods import get_method
from acclimate.methods.composition import NspOptions, SwrOptions
from acclimate.methods.config import Config
from acclimate.methods.speed import Speed
from acclimate.parts.options import (
    ContrastOptions,
    FisherOptions,
    PenaltyOptions,
    PrototypeOptions,
)
from acclimate.streams.folder import read_classes
from acclimate.streams.images import Size, as_size, parse_size

#: Characters of a key: enough for a hundred thousand jobs in a folder, short enough for a path.
_KEY_LENGTH = 12

_PARTS: dict[str, type] = {
    "penalty": PenaltyOptions,
    "prototypes": PrototypeOptions,
    "fisher": FisherOptions,
    "contrast": ContrastOptions,
}


@dataclass(frozen=True, kw_only=True)
class Preparing:
    """How the artifact of a job is prepared, where its method needs one.

    Attributes:
        source: A key of `acclimate.data.SETS`, or a folder; None for the training split of the set
            that the data was made from.
        images: Only so many source images; None for all.
        seed: Of the order and of all draws; None for the seed of the job.
        speed: `"exact"` or `"fast"`.
        parts: Options by part, such as `{"penalty": {"n_samples": 64}}`; what is not named has the
            paper's value.
        contrast_head: A file with the projection head of a model that was trained jointly, which
            `ttt_pp` needs.
        domains: Which images of a set of several domains, pooled: those the model was trained on.
    """

    source: str | None = None
    images: int | None = None
    seed: int | None = None
    speed: str = "exact"
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    contrast_head: str | None = None
    domains: DomainChoice | None = None

    def __post_init__(self) -> None:
        check_kinds(vars(self), "prepare.")
        if self.speed not in get_args(SpeedName):
            hint = did_you_mean(self.speed, get_args(SpeedName))
            raise InvalidConfig(
                "unknown_name",
                f'there is no speed of preparation "{self.speed}". {hint}',
                kind="speed of preparation",
                name=self.speed,
                known=get_args(SpeedName),
            )
        for name in self.parts:
            if name not in _PARTS:
                raise InvalidConfig(
                    "unknown_name",
                    f'the part "{name}" has no options. {did_you_mean(name, _PARTS)}',
                    kind="part",
                    name=name,
                    known=tuple(_PARTS),
                )
        self.options()

    def options(self) -> dict[str, Any]:
        """Return the options of those parts that any are given for, as `prepare` takes them."""
        return {name: _build(_PARTS[name], given, name) for name, given in self.parts.items()}


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One method on one stream: all that decides what comes out, as JSON types.

    Attributes:
        model: `package.module:function`, a name of the zoo, `timm:NAME`, `torchvision:NAME`, or
            `builtin`.
        weights: A file; None keeps those of the model.
        normalization: How the model wants its images: a name, such as `"imagenet"`, or a table of
            `mean` and `std`; None for images in [0, 1], as the models of the zoo take them.
        head: Name of the module that makes the logits, if it cannot be found.
        logits_at: Where the logits are in the model's output, if that cannot be told.
        data: A key of `acclimate.data.SETS`, or a folder; see `acclimate.comparison.load_data`.
        corruptions: Names; None for the fifteen of the benchmark, or for the images of a clean set
            as they are.
        severities: From 1 to 5.
        images: Of each domain; None for all.
        domains: Which images of a set of several domains; None for all of all domains.
        size: What images of a folder are brought to: one side, or height and width as `"48x64"`;
            None if all have one size.
        ignore_label: The value in masks of a folder that stands for no label.
        classes: A file with the names of the classes in the order of the logits, one a line, for
            folders that lack some or have them in another order.
        protocol: Fields of `acclimate.comparison.Protocol` other than the defaults. Files come
            class after class, or frame after frame, so that the default of their order is
            `"shuffled"`.
        method: Name of the method.
        options: Its hyper-parameters other than the defaults.
        preset: Take the values published for a benchmark instead of the defaults.
        regularizer: Options of SWR laid over the method; None for no such thing, {} for defaults.
        auxiliary: Options of NSP added to the method; None for no such thing, {} for defaults.
        prepare: How the artifact is prepared, where one is needed.
        guard: Whether the last good state is restored when predictions collapse.
        speed: Of adaptation: `"exact"`, `"fast"` or `"fastest"`.
        reveal_labels: Whether an oracle is shown the labels.
        seed: Of a shuffled order and of the method's draws.

    Raises:
        AcclimateError: Something in it cannot be, with what to do.
    """

    model: str = "builtin"
    weights: str | None = None
    normalization: str | Mapping[str, Any] | None = None
    head: str | None = None
    logits_at: str | int | None = None
    data: str = "builtin"
    corruptions: tuple[str, ...] | None = None
    severities: tuple[int, ...] = (5,)
    images: int | None = None
    domains: DomainChoice | None = None
    size: int | str | None = None
    ignore_label: int = IGNORE_LABEL
    classes: str | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)
    method: str = "source"
    options: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    regularizer: Mapping[str, Any] | None = None
    auxiliary: Mapping[str, Any] | None = None
    prepare: Preparing = field(default_factory=Preparing)
    guard: bool = False
    speed: str = "exact"
    reveal_labels: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_kinds(vars(self))
        if get_method(self.method).is_oracle and not self.reveal_labels:
            raise BadInput(
                "oracle_method",
                f"{self.method} learns from labels: it is an upper bound, not a method to deploy. "
                "If that is what you want, say reveal_labels = true.",
                methods=(self.method,),
            )
        added = (self.get_regularizer(), self.get_auxiliary())
        compose(get_method(self.method), self.get_config(), *added)
        self.get_protocol()
        self.get_wrapping()
        self._ask()

    def get_config(self) -> Config:
        """Return all hyper-parameters of the method."""
        kind = get_method(self.method).config_class
        if self.preset is None:
            return kind.from_dict(self.options)
        return kind.from_preset(self.preset, self.options)

    def get_protocol(self) -> Protocol:
        """Return how the stream is run."""
        is_folder = self.data not in SETS or SETS[self.data].kind in ("folder", "domains", "masks")
        usual = {"order": "shuffled"} if is_folder else {}
        if "order" in self.protocol and self.protocol.get("stream") in OWN_ORDERS:
            raise BadInput(
                "not_applicable",
                f"the stream {self.protocol['stream']} has an order of its own: leave order out.",
                option="order",
            )
        protocol: Protocol = _build(Protocol, {**usual, **self.protocol}, "protocol")
        return protocol

    def get_request(self) -> Request:
        """Return what is asked for of the data; the file of the classes is read."""
        if self.classes is None:
            return self._ask()
        return dataclasses.replace(self._ask(), classes=read_classes(self.classes))

    def _ask(self) -> Request:
        return Request(
            corruptions=self.corruptions,
            severities=self.severities,
            n=self.images,
            size=self.get_size(),
            domains=self.domains,
            ignore_label=self.ignore_label,
        )

    def get_size(self) -> int | Size | None:
        """Return what images of a folder are brought to."""
        if self.size is None:
            return None
        size = parse_size(str(self.size))
        as_size(size)  # refuses none
        return size

    def get_wrapping(self) -> Wrapping:
        """Return how the model is wrapped, but for the artifact."""
        return Wrapping(
            speed=Speed.of(self.speed),
            normalization=Normalization.of(self.normalization),
            head=self.head,
            logits_at=self.logits_at,
            guard=self.guard,
        )

    def get_regularizer(self) -> SwrOptions | None:
        """Return the options of SWR, if it is laid over the method."""
        return None if self.regularizer is None else SwrOptions.from_dict(self.regularizer)

    def get_auxiliary(self) -> NspOptions | None:
        """Return the options of NSP, if it is added to the method."""
        return None if self.auxiliary is None else NspOptions.from_dict(self.auxiliary)

    def get_needs(self) -> tuple[str, ...]:
        """Return the parts of an artifact that the job needs."""
        needs = dict.fromkeys(find_needs([self.method], self.guard))
        if self.regularizer is not None:
            needs["penalty"] = None
        if self.auxiliary is not None:
            needs["prototypes"] = None
        return tuple(needs)

    @property
    def key(self) -> str:
        """A short name that changes with anything that could change the numbers."""
        return _hash(self._identity())

    @property
    def data_key(self) -> tuple[Any, ...]:
        """What the data of a job depends on; jobs that share it follow each other."""
        asked = (self.corruptions, self.severities, self.images, self.domains)
        return (self.data, *asked, self.size, self.ignore_label, self.classes)

    @property
    def artifact_key(self) -> str | None:
        """The same for the artifact, which jobs of one model share; None if none is needed."""
        needs = self.get_needs()
        if not needs:
            return None
        how = self.prepare
        given = how.options()
        parts = {name: dataclasses.asdict(given.get(name, _PARTS[name]())) for name in _PARTS}
        head = {} if how.contrast_head is None else {"head": file_sha256(how.contrast_head)}
        return _hash(
            {
                **self._model_identity(),
                **self._form_identity(),
                **head,
                **_describe_domains(how.domains),
                "source": _identify(how.source or self.data),
                "images": how.images,
                "seed": self.seed if how.seed is None else how.seed,
                "speed": how.speed,
                "parts": {name: parts.get(name, {}) for name in needs},
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, defaults left out."""
        blank, values = JobSpec(), dataclasses.asdict(self)
        known = {**dataclasses.asdict(blank), "method": None}
        spec = {name: value for name, value in values.items() if value != known[name]}
        if "prepare" in spec:
            spec["prepare"] = {
                name: value
                for name, value in spec["prepare"].items()
                if value != known["prepare"][name]
            }
        plain: dict[str, Any] = json.loads(json.dumps(spec))
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_dict` gave, or what somebody wrote; unknown names are refused."""
        known = [spec.name for spec in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise InvalidConfig(
                    "unknown_option",
                    f'a job has no "{name}". {did_you_mean(name, known)}',
                    option=name,
                    known=tuple(known),
                )
        made = dict(values)
        for name in ("corruptions", "severities"):
            if isinstance(made.get(name), list):
                made[name] = tuple(made[name])
        if isinstance(made.get("prepare"), Mapping):
            made["prepare"] = _build(Preparing, _with_domains(made["prepare"]), "prepare")
        return cls(**_with_domains(made))

    def _identity(self) -> dict[str, Any]:
        how = Speed.of(self.speed)
        return {
            **self._model_identity(),
            "data": _identify(self.data),
            **_describe_domains(self.domains),
            **self._form_identity(),
            "corruptions": self.corruptions,
            "severities": sorted(self.severities),
            "images": self.images,
            "protocol": dataclasses.asdict(self.get_protocol()),
            "method": self.method,
            "config": self.get_config().to_dict(),
            "regularizer": _to_dict(self.get_regularizer()),
            "auxiliary": _to_dict(self.get_auxiliary()),
            "artifact": self.artifact_key,
            "speed": how.to_dict(),
            **({"guard": True} if self.guard else {}),
            "reveal_labels": self.reveal_labels,
            "seed": self.seed,
        }

    def _model_identity(self) -> dict[str, Any]:
        how = self.get_wrapping()
        told: dict[str, Any] = {"head": self.head, "logits_at": self.logits_at}
        told["code"] = model_code_sha256(self.model)
        if how.normalization is not None:
            told["normalization"] = how.normalization.to_dict()
        return {
            "model": self.model,
            "weights": None if self.weights is None else file_sha256(self.weights),
            **{name: value for name, value in told.items() if value is not None},
        }

    def _form_identity(self) -> dict[str, Any]:
        """Return what is not as usual: the names of all other jobs are what they were."""
        told: dict[str, Any] = {}
        if self.ignore_label != IGNORE_LABEL:
            told["ignore_label"] = self.ignore_label
        if self.size is not None:
            told["size"] = self.get_size()
        if self.classes is not None:
            told["classes"] = list(read_classes(self.classes))
        return told


def _identify(data: str) -> str:
    """Return the name of a set; of a folder, its name and what tells it from others of that name.

    Not its place: a folder may be moved.
    """
    if data in SETS:
        return data
    return f"{Path(data).name} {tell_folder(data)}" if Path(data).is_dir() else Path(data).name


def _to_dict(values: Any) -> dict[str, Any] | None:
    return None if values is None else dataclasses.asdict(values)


def _describe_domains(choice: DomainChoice | None) -> dict[str, Any]:
    """Return nothing for no choice, so that the names of other jobs are what they were."""
    return {} if choice is None else {"domains": dataclasses.asdict(choice)}


def _with_domains(values: Mapping[str, Any]) -> dict[str, Any]:
    given = values.get("domains")
    if given is None or isinstance(given, DomainChoice):
        return dict(values)
    if not isinstance(given, Mapping):
        raise InvalidConfig(
            "wrong_type",
            f'expected a table for domains, such as {{ names = ["photo"] }}, found {given!r}.',
            option="domains",
            found=given,
        )
    return {**values, "domains": _build(DomainChoice, given, "domains")}


def _hash(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]


def _build(kind: type, values: Mapping[str, Any], where: str) -> Any:
    known = [spec.name for spec in dataclasses.fields(kind)]
    for name in values:
        if name not in known:
            raise InvalidConfig(
                "unknown_option",
                f'{where} has no "{name}". {did_you_mean(name, known)}',
                option=name,
                known=tuple(known),
            )
    return kind(**values)
