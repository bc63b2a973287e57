"""Run several methods on the same stream, side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import tee
from typing import Any, Literal

import torch
from torch import nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.evaluation import Collector, Record, Result, Sums, iter_evaluate
from acclimate.introspect import ModelInfo
from acclimate.methods import get_method
from acclimate.methods.compute import Speed
from acclimate.methods.config import Config
from acclimate.methods.method import Method
from acclimate.metrics.groups import Group, merge
from acclimate.streams import Batch

#: Whether there is a guard; `"watch"` for one that only estimates.
Guarded = bool | Literal["watch"]


@dataclass(frozen=True)
class Unit:
    """A stretch of a stream that starts with a reset: it can be run, or run again, alone.

    Attributes:
        name: Unique among the units of a comparison.
        batches: In order; may be gone through several times.
        n_batches: How many there are.
    """

    name: str
    batches: Iterable[Batch]
    n_batches: int


@dataclass(frozen=True)
class Step:
    """One batch that one method was measured on."""

    method: str
    unit: str
    record: Record


@dataclass(frozen=True)
class Finished:
    """A method has reached the end of a unit: the sums over its samples."""

    method: str
    unit: str
    sums: Mapping[Group, Sums]


@dataclass(frozen=True, kw_only=True)
class Wrapping:
    """How a model is wrapped, whatever the method.

    Attributes:
        artifact: What `prepare` returned for this model, if a method needs it.
        info: What must be stated about the model; from the artifact by default. Its normalisation
            is applied to the images of the stream, which are in [0, 1].
        channels_last: Whether the copies of the model keep colour as the last axis in memory. On a
            processor this is half as fast again; numbers differ by rounding only.
        speed: What may be traded for time and memory; the same for all methods.
        guard: Whether the guard answers with the source model where adaptation does not help, or
            only estimates accuracy; see `acclimate.adapt`. It needs the part `accuracy`.
    """

    artifact: Artifact | None = None
    info: ModelInfo = field(default_factory=ModelInfo)
    channels_last: bool = True
    speed: Speed = field(default_factory=Speed)
    guard: Guarded = False


def compare(
    model: nn.Module,
    methods: Sequence[str] | Mapping[str, Config],
    units: Sequence[Unit],
    wrapping: Wrapping | None = None,
    *,
    seed: int = 0,
    keep_predictions: bool = False,
    reveal_labels: bool = False,
    progress: Callable[[], None] | None = None,
) -> dict[str, Result]:
    """Return what each method gives on the same batches; the model itself is not touched.

    Args:
        model: A trained classifier. Each method gets a copy of its own.
        methods: Names, in the order of the table; or by name the options of each.
        units: In the order of the stream.
        wrapping: How the model is wrapped; see there for the defaults.
        seed: Of the draws of methods.
        keep_predictions: Whether the records keep the predicted classes.
        reveal_labels: Whether oracles are shown the labels.
        progress: Called after every batch of every method.
    """
    records: dict[str, list[Record]] = {name: [] for name in methods}
    sums: dict[str, list[tuple[Group, Sums]]] = {name: [] for name in methods}
    for step in iter_compare(
        model, methods, units, wrapping, seed=seed, reveal_labels=reveal_labels
    ):
        if isinstance(step, Finished):
            sums[step.method] += step.sums.items()
            continue
        kept = step.record if keep_predictions else replace(step.record, predictions=None)
        records[step.method].append(kept)
        if progress is not None:
            progress()
    return {name: Result(tuple(own), merge(sums[name])) for name, own in records.items()}


def iter_compare(
    model: nn.Module,
    methods: Sequence[str] | Mapping[str, Config],
    units: Sequence[Unit],
    wrapping: Wrapping | None = None,
    *,
    seed: int = 0,
    done: Iterable[tuple[str, str]] = (),
    side_by_side: bool = True,
    reveal_labels: bool = False,
) -> Iterator[Step | Finished]:
    """Yield every batch that a method was measured on as it happens, and the end of every unit.

    Side by side, because whatever else the machine does then slows all methods alike, each image is
    read once for all of them, and the time that is left can be told from the batches that are done.

    Args:
        model: A trained classifier. Each method gets a copy of its own.
        methods: Names, in the order of the table; or by name the options of each.
        units: In the order of the stream.
        wrapping: How the model is wrapped; see there for the defaults.
        seed: Of the draws of methods.
        done: Methods and units that need not be run.
        side_by_side: Whether all methods meet a batch before the next one comes. If not, one method
            is finished before the next, and only one copy of the model is held.
        reveal_labels: Whether oracles are shown the labels; no other method ever is.
    """
    known = frozenset(done)
    how = wrapping if wrapping is not None else Wrapping()
    groups = [tuple(methods)] if side_by_side else [(name,) for name in methods]
    for group in groups:
        todo = {u.name: [name for name in group if (name, u.name) not in known] for u in units}
        first = next((unit for unit in units if todo[unit.name]), None)
        if first is None:
            continue
        warm_up = next(iter(feed(first.batches, model, how)))
        adapted = {
            name: _wrap(model, name, methods, how, seed, warm_up, reveal_labels)
            for name in group
            if any(name in names for names in todo.values())
        }
        offset = 0
        for unit in units:
            names = todo[unit.name]
            collectors = {name: Collector() for name in names}
            feeds = tee(feed(unit.batches, model, how), len(names))
            runs = [
                iter_evaluate(
                    adapted[name], feed, collector=collectors[name], reveal_labels=reveal_labels
                )
                for name, feed in zip(names, feeds, strict=True)
            ]
            for records in zip(*runs, strict=True):
                for name, record in zip(names, records, strict=True):
                    yield Step(name, unit.name, replace(record, index=offset + record.index))
            for name in names:
                yield Finished(name, unit.name, collectors[name].sums)
            offset += unit.n_batches


def _wrap(
    model: nn.Module,
    name: str,
    methods: Sequence[str] | Mapping[str, Config],
    how: Wrapping,
    seed: int,
    warm_up: Batch,
    reveal_labels: bool,
) -> Method:
    config = methods[name] if isinstance(methods, Mapping) else get_method(name).config_class()
    adapted = wrap(model, name, config, how, seed)
    # The first call of all is slow: it is made before the clock runs, and undone.
    if adapted.card.is_oracle and reveal_labels:
        adapted.reveal(warm_up.y)
    with nullcontext() if warm_up.learns else adapted.paused():
        adapted(warm_up.x)
    return adapted.reset()


def wrap(
    model: nn.Module, name: str, config: Config, how: Wrapping, seed: int, **added: Any
) -> Method:
    """Return a copy of the model, wrapped by a method; `added` is what `adapt` takes besides."""
    return adapt(
        _copy(model, how.channels_last),
        name,
        how.artifact,
        config=config,
        info=how.info,
        seed=seed,
        speed=how.speed,
        guard=how.guard,
        **added,
    )


def _copy(model: nn.Module, channels_last: bool) -> nn.Module:
    own = copy.deepcopy(model)
    if channels_last:
        own = own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return own


def feed(batches: Iterable[Batch], model: nn.Module, how: Wrapping) -> Iterator[Batch]:
    """Give the batches as the model takes them: normalised, in its precision, on its device."""
    like: Any = next(model.parameters(), torch.empty(0))
    normal = how.info.normalization
    for batch in batches:
        x = batch.x if normal is None else normal.normalize(batch.x)
        yield replace(batch, x=x.to(like))
