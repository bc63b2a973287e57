"""What a report is made of: plain records, with nothing of how they are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from acclimate.evaluation import Result


@dataclass(frozen=True)
class Run:
    """One method on one whole stream.

    Attributes:
        method: Name of the method.
        seed: Of the stream's order and of all draws.
        result: What was recorded, batch by batch.
        group: What sets it apart, such as another model or fewer images, in a word or two; runs are
            compared with those of the same group only. Empty for those that nothing sets apart.
    """

    method: str
    seed: int
    result: Result
    group: str = ""

    @property
    def name(self) -> str:
        """The method, with the group if there is one."""
        return name_in_group(self.method, self.group)


def name_in_group(method: str, group: str) -> str:
    """Return what a method is called in a table with several groups.

    >>> name_in_group("tent", ""), name_in_group("tent", "100 images")
    ('tent', 'tent (100 images)')
    """
    return f"{method} ({group})" if group else method


@dataclass(frozen=True)
class MethodNote:
    """What a reader should know of a method: one sentence, its paper, what a batch costs."""

    name: str
    sentence: str
    paper: str
    cost: str


@dataclass(frozen=True)
class Layer:
    """One parameter tensor of the model and how strongly its updates are damped.

    Attributes:
        name: As in `named_parameters()`.
        kind: What it does in the model; layers of one kind look alike in the chart.
        penalties: From 0, free, to 1, damped most; one for each seed.
    """

    name: str
    kind: str
    penalties: tuple[float, ...]


@dataclass(frozen=True)
class Sample:
    """One image before and after corruption, and what was predicted for the corrupted one.

    Attributes:
        domain: Name of the shift.
        clean: The image as a PNG file.
        shifted: The corrupted image as a PNG file.
        truth: Name of its class.
        predictions: Name of the predicted class for each method, as the table names it.
    """

    domain: str
    clean: bytes
    shifted: bytes
    truth: str
    predictions: Mapping[str, str]


@dataclass(frozen=True)
class Report:
    """All that the page shows.

    Attributes:
        task: What the images show, in a few words that can follow "trained on".
        clean_error: Error of the source model on the same images without a shift, as a share.
        runs: Every method with every seed, methods in the order of the table.
        methods: A note on each method.
        layers: In the order of the model.
        samples: Domain by domain.
        protocol: How it was measured: pairs of a short heading and a sentence.
        provenance: Where the numbers come from: pairs of a short heading and a value.
        notes: A sentence on each group of runs that is set apart, to stand below the table.
    """

    task: str
    clean_error: float
    runs: tuple[Run, ...]
    methods: tuple[MethodNote, ...]
    layers: tuple[Layer, ...]
    samples: tuple[Sample, ...]
    protocol: Mapping[str, str]
    provenance: Mapping[str, str]
    notes: tuple[str, ...] = ()
