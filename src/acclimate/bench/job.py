"""A job as plain data: all that decides its numbers, and a key made from that."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

from torch import nn

from acclimate.adaptation import check_terms
from acclimate.bench.protocol import OWN_ORDERS, Protocol, check_types, hints_of
from acclimate.bench.provenance import file_sha256, folder_id, model_code_sha256
from acclimate.data import SETS
from acclimate.data.domain_choice import DomainChoice
from acclimate.data.request import Request
from acclimate.errors import (
    BadInput,
    InvalidConfig,
    check_name,
    check_options,
    refuse_value,
)
from acclimate.functional.pixels import IGNORE_LABEL
from acclimate.functional.precision import SpeedName
from acclimate.introspect import ModelInfo
from acclimate.methods import get_method
from acclimate.methods.compute import Speed
from acclimate.methods.config import Config
from acclimate.parts import Accuracy, Contrast, FisherInformation, Part, Penalty, Prototypes
from acclimate.snapshot import fingerprint
from acclimate.streams.folder import read_classes
from acclimate.streams.images import Size, as_size, parse_size
from acclimate.terms import Term, get_term_class

#: Characters of a key: enough for a hundred thousand jobs in a folder, short enough for a path.
_KEY_LENGTH = 12
# What the name of a model begins with that was given as a Python object.
_OBJECT = "object:"

_PARTS: dict[str, type[Part]] = {
    kind.name: kind for kind in (Penalty, Prototypes, FisherInformation, Contrast, Accuracy)
}

#: The part of an artifact that the guard needs.
GUARDED = "accuracy"
#: What a job can keep of the last images of each domain, besides its records.
KEPT = ("predictions", "features")

#: Whether there is a guard; `"watch"` for one that only estimates accuracy.
Guarded = bool | Literal["watch"]

Made = TypeVar("Made")


def _once(make: Callable[[JobSpec], Made]) -> Callable[[JobSpec], Made]:
    """Keep what is made of the fields of a job, which never change."""
    name = f"_{make.__name__}"

    @wraps(make)
    def get(spec: JobSpec) -> Made:
        known = vars(spec)
        if name not in known:
            known[name] = make(spec)
        made: Made = known[name]
        return made

    return get


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
        artifact: A file that `acclimate prepare` wrote for the model. Then nothing is prepared.
    """

    source: str | None = None
    images: int | None = None
    seed: int | None = None
    speed: str = "exact"
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    contrast_head: str | None = None
    domains: DomainChoice | None = None
    artifact: str | None = None

    def __post_init__(self) -> None:
        _check_types(self, "prepare.")
        check_name(self.speed, get_args(SpeedName), "speed of preparation", InvalidConfig)
        for name in self.parts:
            check_name(name, _PARTS, "part", InvalidConfig)
        self.options()

    def options(self) -> dict[str, Part]:
        """Return the parts that options are given for, by name."""
        found: dict[str, Part] = {
            name: _build(_PARTS[name], given, name) for name, given in self.parts.items()
        }
        if self.contrast_head is not None:
            contrast = found.get("contrast", Contrast())
            found["contrast"] = dataclasses.replace(contrast, head=self.contrast_head)  # type: ignore[call-arg]
        return found


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One method on one stream: all that decides what comes out, as JSON types.

    Attributes:
        model: `package.module:function`, a name of the zoo, `timm:NAME`, `torchvision:NAME`, or
            `builtin`. In Python also a model itself, which must not be changed afterwards; such a
            job can only be run in this process.
        weights: A file; None keeps those of the model.
        normalization: How the model wants its images: a name, such as `"imagenet"`, or a table of
            `mean` and `std`; None for images in [0, 1], as the models of the zoo take them.
        head: Name of the module that makes the logits, if it cannot be found.
        logits_at: Where the logits are in the model's output, if they are not found automatically.
        data: A key of `acclimate.data.SETS`, or a folder; see `acclimate.data.loading.load_data`.
        corruptions: Names; None for the fifteen of the benchmark, or for the images of a clean set
            as they are.
        severities: From 1 to 5.
        images: Of each domain; None for all.
        domains: Which images of a set of several domains; None for all of all domains.
        size: What images of a folder are brought to: one side, or height and width as `"48x64"`;
            None if all have one size.
        ignore_label: The value in masks of a folder that stands for no label.
        classes: The names of the classes in the order of the logits, or a file with one on each
            line, for folders that lack some or have them in another order.
        protocol: Fields of `acclimate.bench.protocol.Protocol` other than the defaults. Files come
            class after class, or frame after frame, so that the default of their order is
            `"shuffled"`.
        method: Name of the method.
        options: Its hyper-parameters other than the defaults.
        preset: Take the values published for a benchmark instead of the defaults.
        terms: Terms that are added to the method, by name, with their options:
            `{"swr": {"strength": 100}, "nsp": {}}`.
        prepare: How the artifact is prepared, where one is needed.
        guard: True: the job runs under the guard, which answers with the source model where
            adaptation does not help. `"watch"`: accuracy is only estimated.
        speed: Of adaptation: `"exact"`, `"fast"` or `"fastest"`.
        reveal_labels: Whether an oracle is shown the labels.
        keep: What to keep of the last images of each unit of the stream, besides records:
            `{"predictions": 4}` keeps predicted classes, `{"features": 2000}` the features of the
            adapted model at the end of the first unit; see `acclimate.bench.execute.read_kept`. It
            changes no numbers, and is not part of the key.
        seed: Of a shuffled order and of the method's draws.
    """

    model: str | nn.Module = "builtin"
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
    classes: str | tuple[str, ...] | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)
    method: str = "source"
    options: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    terms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prepare: Preparing = field(default_factory=Preparing)
    guard: Guarded = False
    speed: str = "exact"
    reveal_labels: bool = False
    keep: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        _check_types(self)
        check_options(self.keep, KEPT, "The table keep")
        if get_method(self.method).card.is_oracle and not self.reveal_labels:
            raise BadInput(
                "oracle_method",
                f"{self.method} learns from the test labels, which makes it an upper bound and "
                "not a method to deploy. To run it anyway, set reveal_labels = true.",
                methods=(self.method,),
            )
        check_terms(get_method(self.method), self.get_config(), self.get_terms())
        self.get_protocol()
        self.get_info()
        Speed.of(self.speed)
        self.get_request()

    @_once
    def get_config(self) -> Config:
        """Return all hyper-parameters of the method."""
        kind = get_method(self.method).config_class
        if self.preset is None:
            return kind.from_dict(self.options)
        return kind.from_preset(self.preset, self.options)

    @_once
    def get_protocol(self) -> Protocol:
        """Return how the stream is run."""
        usual = {"order": "shuffled"} if is_folder(self.data) else {}
        if "order" in self.protocol and self.protocol.get("stream") in OWN_ORDERS:
            raise BadInput(
                "not_applicable",
                f"The stream {self.protocol['stream']} defines its own order. Remove the option "
                "order.",
                option="order",
            )
        protocol: Protocol = _build(Protocol, {**usual, **self.protocol}, "protocol")
        return protocol

    def get_request(self, **more: Any) -> Request:
        """Return what is asked for of the data, but for the classes."""
        return Request(
            corruptions=self.corruptions,
            severities=self.severities,
            n=self.images,
            size=self.get_size(),
            domains=self.domains,
            ignore_label=self.ignore_label,
            **more,
        )

    def get_classes(self) -> tuple[str, ...] | None:
        """Return the names of the classes if they are given; a file of them is read."""
        return tuple(read_classes(self.classes)) if isinstance(self.classes, str) else self.classes

    def get_size(self) -> int | Size | None:
        """Return what images of a folder are brought to."""
        size = None if self.size is None else parse_size(str(self.size))
        if size is not None:
            as_size(size)  # refuses none
        return size

    @_once
    def get_info(self) -> ModelInfo:
        """Return what is stated about the model."""
        return ModelInfo(head=self.head, logits_at=self.logits_at, normalization=self.normalization)

    @_once
    def get_terms(self) -> tuple[Term, ...]:
        """Return the terms that are added to the method, with their options."""
        return tuple(get_term_class(name).from_dict(given) for name, given in self.terms.items())

    @_once
    def get_needs(self) -> tuple[str, ...]:
        """Return the parts of an artifact that the job needs."""
        own = [*get_method(self.method).needed_parts(), *([GUARDED] if self.guard else ())]
        terms = [part.name for term in self.get_terms() for part in term.needs]
        return tuple(dict.fromkeys([*own, *terms]))

    @property
    def label(self) -> str:
        """The method with its terms."""
        return " + ".join((self.method, *(name.upper() for name in self.terms)))

    @cached_property
    def model_name(self) -> str:
        """The name of the model; of a Python object, one made from its weights."""
        if isinstance(self.model, nn.Module):
            return f"{_OBJECT}{fingerprint(self.model)['weights_sha256'][:_KEY_LENGTH]}"
        return self.model

    @property
    def key(self) -> str:
        """A short name that changes with anything that could change the numbers."""
        return _hash(self._identity())

    @property
    def prepare_seed(self) -> int:
        """The seed that the artifact is prepared with."""
        return self.seed if self.prepare.seed is None else self.prepare.seed

    @property
    def data_key(self) -> tuple[Any, ...]:
        """What the data of a job depends on; jobs that share it follow each other."""
        asked = (self.corruptions, self.severities, self.images, self.domains)
        return (self.data, *asked, self.size, self.ignore_label, self.classes)

    @property
    def artifact_key(self) -> str | None:
        """The same for the artifact, which jobs of one model share; None if none is needed."""
        needs = self.get_needs()
        if needs and self.prepare.artifact is not None:
            return _hash({"file": file_sha256(self.prepare.artifact)})
        return self._hash_parts(needs) if needs else None

    def check_portable(self) -> None:
        """Refuse a job that no other process can run: its model is a Python object."""
        if self.model_name.startswith(_OBJECT):
            raise BadInput(
                "model_object",
                f"The model of the job {self.method} is a Python object, which other processes do "
                "not have. Run it in this process (n_workers=0), with the model itself, or name a "
                'function that returns it: model="package.module:function".',
                name=self.model_name,
            )

    def get_pieces(self) -> dict[str, tuple[str, ...]]:
        """Return the files that the artifact is kept in, by key, with the parts of each.

        What the guard needs is in a file of its own: it takes long to prepare, and is the same for
        all methods.
        """
        needs = self.get_needs()
        others = tuple(name for name in needs if name != GUARDED)
        pieces = [others] if others else []
        pieces += [(GUARDED,)] if GUARDED in needs else []
        return {self._hash_parts(names): names for names in pieces}

    def _hash_parts(self, names: Sequence[str]) -> str:
        how = self.prepare
        given = how.options()
        parts: dict[str, dict[str, Any]] = {name: {} for name in names}
        for name in parts.keys() & _PARTS.keys():
            parts[name] = dataclasses.asdict(given.get(name, _PARTS[name]()))
            parts[name].pop("head", None)  # distinguished by its file
        has_head = how.contrast_head is not None and tuple(names) != (GUARDED,)
        head = {"head": file_sha256(str(how.contrast_head))} if has_head else {}
        return _hash(
            {
                **self._model_identity(),
                **self._form_identity(),
                **head,
                **_describe_domains(how.domains),
                "source": _identify(how.source or self.data),
                "images": how.images,
                "seed": self.prepare_seed,
                "speed": how.speed,
                "parts": parts,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types, defaults left out."""
        changed = _changed_fields(self, always="method")
        if "model" in changed:
            changed["model"] = self.model_name
        plain: dict[str, Any] = json.loads(json.dumps(changed, default=_changed_fields))
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_dict` gave, or what somebody wrote; unknown names are refused."""
        job: Self = _build(cls, values, "A job")
        return job

    def _identity(self) -> dict[str, Any]:
        return {
            **self._model_identity(),
            "data": _identify(self.data),
            **_describe_domains(self.domains),
            **self._form_identity(),
            "corruptions": self.corruptions,
            "severities": sorted(self.severities),
            "images": self.images,
            "protocol": self.get_protocol().to_dict(),
            "method": self.method,
            "config": self.get_config().to_dict(),
            **_identify_terms(self.get_terms()),
            "artifact": self.artifact_key,
            "speed": Speed.of(self.speed).to_dict(),
            **({"guard": self.guard} if self.guard else {}),
            "reveal_labels": self.reveal_labels,
            "seed": self.seed,
        }

    def _model_identity(self) -> dict[str, Any]:
        described: dict[str, Any] = {"head": self.head, "logits_at": self.logits_at}
        described["code"] = model_code_sha256(self.model_name)
        if (normal := self.get_info().normalization) is not None:
            described["normalization"] = normal.to_dict()
        return {
            "model": self.model_name,
            "weights": None if self.weights is None else file_sha256(self.weights),
            **{name: value for name, value in described.items() if value is not None},
        }

    def _form_identity(self) -> dict[str, Any]:
        """Return what is not as usual: the names of all other jobs are what they were."""
        described: dict[str, Any] = {}
        if self.ignore_label != IGNORE_LABEL:
            described["ignore_label"] = self.ignore_label
        if self.size is not None:
            described["size"] = self.get_size()
        if (classes := self.get_classes()) is not None:
            described["classes"] = list(classes)
        return described


def _identify(data: str) -> str:
    """Return the name of a set; of a folder, also what distinguishes it from others of that name.

    Not its place: a folder may be moved.
    """
    if data in SETS:
        return data
    return f"{Path(data).name} {folder_id(data)}" if Path(data).is_dir() else Path(data).name


def _identify_terms(terms: Sequence[Term]) -> dict[str, Any]:
    """Return what distinguishes terms, in the form that the names of earlier jobs were made of."""
    values = {term.name: term.to_dict() for term in terms}
    for name, usual in {"weight": 1.0, "predictor": "head"}.items():
        if values.get("nsp", {}).get(name) == usual:
            del values["nsp"][name]
    known = {"regularizer": values.pop("swr", None), "auxiliary": values.pop("nsp", None)}
    return {**known, "terms": values} if values else known


def _describe_domains(choice: DomainChoice | None) -> dict[str, Any]:
    """Return nothing for no choice, so that the names of other jobs are what they were."""
    return {} if choice is None else {"domains": dataclasses.asdict(choice)}


def _hash(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_KEY_LENGTH]


def _build(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    """Return a dataclass made of JSON types, with the dataclasses and tuples in it."""
    hints, made = hints_of(kind), dict(values)
    check_options(values, list(hints), where)
    for name, value in values.items():
        for each in (hints[name], *get_args(hints[name])):
            if dataclasses.is_dataclass(each) and isinstance(value, Mapping):
                made[name] = _build(each, value, f"The table {name}")
            elif get_origin(each) is tuple and isinstance(value, list):
                made[name] = tuple(value)
    return kind(**made)


_default: Callable[[Any], Any] = cache(lambda kind: kind())


def _changed_fields(values: Any, always: str = "") -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults; all of chosen domains."""
    if isinstance(values, DomainChoice):
        return dataclasses.asdict(values)
    own, usual = vars(values), vars(_default(type(values)))
    return {k: own[k] for k in hints_of(type(values)) if own[k] != usual[k] or k == always}


def is_folder(data: str) -> bool:
    """Return whether data are files, whose own order is class after class."""
    return data not in SETS or SETS[data].is_files


# The type of each value, so that a mistake is reported where it was made ------------------------

# What is expected, where the type alone does not show it.
_EXPECTED = {
    **dict.fromkeys(("protocol", "options"), "a table, such as { lr = 1e-3 }"),
    "corruptions": 'a list, such as ["fog"]',
    "severities": "a list of numbers from 1 to 5, such as [5]",
    "size": 'a number of pixels, or height and width, such as "48x64"',
    "classes": "a file, or a list of names",
    "normalization": 'a name or a table, such as "imagenet"',
    "logits_at": "a name, or a position counted from 0",
    "terms": "a table of tables, such as {swr = {}}",
    "domains": 'a table, such as { names = ["photo"] }',
    "guard": 'true, false or "watch"',
    "keep": "a table of numbers, such as { predictions = 4 }",
    "prepare": "a table",
    "parts": "a table of tables",
}


def _check_types(values: Preparing | JobSpec, where: str = "") -> None:
    """Refuse values of another type than their fields declare.

    >>> JobSpec(corruptions="fog")
    Traceback (most recent call last):
    acclimate.errors.InvalidConfig: Expected a list, such as ["fog"], for corruptions, found 'fog'.
    """
    check_types(values, _EXPECTED, where, InvalidConfig)
    if values.seed is not None and values.seed < 0:
        refuse_value(f"{where}seed", values.seed, "an integer of at least 0", InvalidConfig)
