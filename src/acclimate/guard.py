"""The guard: an estimate of accuracy without labels, and what follows from it.

Adaptation can hurt. Statistics of small batches, or of batches with few classes, are wrong in every
layer, although nothing was learned; entropy minimisation can collapse to few classes. Neither shows
in a confidence. So the guard runs the source model beside the adapted one and estimates the
accuracy of both from their predictions on the same images (`acclimate.functional.signals`), by maps
that `prepare` fitted under synthetic shifts (the part `accuracy`).

A stream may mix images of several kinds, such as clean and noisy ones. So the guard tells styles of
images apart (`acclimate.functional.styles`), estimates by the images of each, and decides for each.

With each batch the guard

* answers with the source model's predictions for images of each style, unless the adapted model is
  estimated to be better on that style;
* remembers what the method has learned while that is so;
* goes back to it, weights and statistics alike, if the adapted model becomes worse, and halves the
  learning rate;
* stops learning for a while if that happens again, and for longer each time.

Nothing here depends on the method. One that combines predictions of the image and of its mirror
image, and corrects them, is judged by the predictions before that: the maps know no others. Costs,
in forward passes per batch besides the method's own: one of the source model, and with one batch in
two one of each model on mirrored images and one of the source model with statistics of the batch;
with `Guard(artifact, answers=False)`, which only estimates, these four with one batch in four.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.errors import AcclimateWarning, InvalidConfig, warn
from acclimate.forward import Forward, run
from acclimate.functional.across import active, everywhere
from acclimate.functional.norm import Statistics, batch_norm_layers, use_statistics
from acclimate.functional.signals import (
    RECORD,
    AccuracyMap,
    Estimate,
    Interval,
    describe_predictions,
    is_correlated,
    measure_signals,
    mirror_back,
    pick_rows,
)
from acclimate.functional.styles import (
    MOST,
    N_NUMBERS,
    assign_styles,
    describe_styles,
    has_style,
    update_styles,
)
from acclimate.schema import Fields, Items, Maybe, Number, Schema, TensorOf, Where, like
from acclimate.snapshot import Tree, copy_tree

if TYPE_CHECKING:
    from acclimate.methods.method import Method

#: Fewer images than this give no estimate.
_FEWEST = 32
#: Number of images from which an estimate is trusted.
_ENOUGH = 128
#: Margins in standard errors of the estimated gain: usual; of small windows and correlated streams;
#: of unstable streams and of signals outside what was calibrated.
_MARGIN, _LARGE_MARGIN, _WIDE_MARGIN = 0.25, 1.0, 2.5
#: The newest images are compared with those before them in blocks of at least this many.
_BLOCK = 64
#: Images after which those before count half when the estimates of all styles are averaged.
_RECENT = 128.0
#: Share of the images below which a style is left out of that average, and answered by the source.
_RARE = 0.01
_CHANGE = 5.0  # standard errors
#: More changes than this, of which each counts half after a window, make a stream unstable.
_UNSTABLE = 2.0
#: The records of so many earlier conditions are kept, of each style of images.
_CONDITIONS = 7
_GOLDEN = (5**0.5 - 1) / 2  # its multiples are spread evenly, without a period
_LOWEST_RATE = 1 / 16
_BROKEN = "its logits are not finite"


@dataclass(frozen=True)
class GuardReport:
    """What the guard has seen and done since the last reset.

    Attributes:
        estimate: The estimate on the recent window; None if there are too few images.
        answers: Which model answered most images of the last batch: `"source"` or `"adapted"`.
        n_samples: Number of images.
        n_by_source: Number of images that the source model answered.
        n_restored: How many times an earlier state was restored.
        n_rests: How many times learning was stopped for a while.
        is_resting: Whether learning is stopped now.
        rate: Share of the learning rate in use.
        n_forwards: Number of forward passes of the guard.
        reasons: For how many images each reason decided for the source model, by reason.
    """

    estimate: Estimate | None
    answers: str
    n_samples: int
    n_by_source: int
    n_restored: int
    n_rests: int
    is_resting: bool
    rate: float
    n_forwards: int
    reasons: dict[str, int]

    def __str__(self) -> str:
        lines = [
            f"{self.n_samples} images, {self.n_by_source} answered by the source model; now "
            f"answering: {self.answers}",
            f"estimated accuracy: {self.estimate or 'not yet known'}",
            f"states restored: {self.n_restored}, rests: {self.n_rests}"
            + (", resting now" if self.is_resting else "")
            + f", learning rate × {self.rate:g}",
        ]
        lines += [
            f"images answered by the source model because {why}: {n}"
            for why, n in self.reasons.items()
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Verdict:
    """What the guard found on one batch; see `Guard.judge`.

    Attributes:
        state: The guard's next state.
        chosen: The predictions to answer with.
        n: Number of images.
        estimate: The estimate on the recent window, if there is one.
        is_broken: Whether the adapted model's logits are not finite.
        by_source: Whether the source model answers most of the images.
        is_judged: Whether the batch was compared with the source model.
    """

    state: Tree
    chosen: Forward
    n: int
    estimate: Estimate | None = None
    is_broken: bool = False
    by_source: bool = False
    is_judged: bool = False


class Guard:
    """Estimates whether adaptation helps, and answers with the source model where it does not.

    Args:
        artifact: An artifact with the part `accuracy`.
        answers: Whether the guard may answer with the source model, restore states and stop
            learning. If False, it only estimates and warns.
        window: Number of images that an estimate covers at most.
        every: A mirrored view is predicted with one in so many batches on average; None for 2, or 4
            if the guard only estimates.
        patience: Number of images for which the adapted model must be estimated worse before a
            state is restored.
        rest: Number of images without learning after the second time; it doubles each time.
    """

    def __init__(
        self,
        artifact: Artifact,
        *,
        answers: bool = True,
        window: int = 1000,
        every: int | None = None,
        patience: int = 256,
        rest: int = 1024,
    ) -> None:
        found = artifact.part("accuracy")
        sizes = sorted({int(name.split("/")[0]) for name in found if "/" in name})
        self._maps = [
            AccuracyMap.from_tensors(
                size,
                {
                    name.split("/")[1]: tensor
                    for name, tensor in found.items()
                    if name.startswith(f"{size}/")
                },
            )
            for size in sizes
        ]
        self._n_classes = artifact.info.known_classes
        every = (2 if answers else 4) if every is None else every
        values = {"window": window, "every": every, "patience": patience, "rest": rest}
        lowest = {"window": _ENOUGH, "every": 1, "patience": 1, "rest": 1}
        problems = {
            name: f"expected at least {lowest[name]}, found {value}"
            for name, value in values.items()
            if value < lowest[name]
        }
        if problems:
            raise InvalidConfig(
                "invalid_options",
                "The options of the guard are out of range: "
                + "; ".join(f"{name}: {problem}" for name, problem in problems.items())
                + ".",
                problems=problems,
            )
        self.answers, self.window, self.every = answers, window, every
        self.patience, self.rest = patience, rest
        self._source: nn.Module | None = None
        self._has_batch_norm = False
        self._state: Tree = _fresh()
        self._has_warned = False

    def bind(self, model: nn.Module) -> None:
        """Copy the source model and start anew. A guard is used for one adapted model at a time."""
        self._source = copy.deepcopy(model).requires_grad_(False)
        self._has_batch_norm = bool(batch_norm_layers(model))
        self._state = _fresh()
        self._has_warned = False

    def to_dict(self) -> dict[str, Any]:
        """Return the options."""
        names = ("answers", "window", "every", "patience", "rest")
        return {name: getattr(self, name) for name in names}

    @property
    def source(self) -> nn.Module | None:
        """The copy of the source model, if the guard is bound to one."""
        return self._source

    @property
    def rate(self) -> float:
        """The share of the learning rate that is in use."""
        return float(self._state["rate"])

    # One batch ----------------------------------------------------------------------------------

    @property
    def lets_learn(self) -> bool:
        """Whether the method may learn from the next batch."""
        return not self._state["resting"]

    def judge(self, method: Method, x: Tensor, adapted: Forward) -> Verdict:
        """Watch one batch and choose the predictions to answer with; nothing is changed.

        Args:
            method: The method, which has not learned from the batch yet, unless it predicts after
                its update.
            x: The batch.
            adapted: The predictions of the adapted model.
        """
        plain, own_views = method.plain_logits, method.view_logits
        state = dict(self._state)
        is_probed = is_probed_batch(state["n_batches"], self.every)
        state["n_batches"] += 1
        state["n_samples"] += _count(x)
        if not (is_probed or self.answers):
            return Verdict(state, adapted, _count(x))
        source = self._run_source(method, x)
        state["n_forwards"] += 1
        norm: Tensor | None = None
        views: tuple[Tensor | None, Tensor | None] = (None, None)
        if is_probed:
            mirrored = x.flip(-1)
            seen = mirror_back(self._run_source(method, mirrored).logits, source.grid)
            state["n_forwards"] += 1
            if own_views is None:
                own = mirror_back(method.predict_view(mirrored).logits, source.grid)
                state["n_forwards"] += 1
            else:
                own = own_views[1]
            norm = source.logits
            if self._has_batch_norm and _count(x) > 1:
                norm = self._run_source(method, x, "batch").logits
                state["n_forwards"] += 1
            views = seen, own
        is_broken = not everywhere(adapted.logits.isfinite().all())
        if is_broken:
            reasons, estimate = {_BROKEN: _count(x)}, None
            chosen = source
        else:
            judged = adapted if own_views is None else replace(adapted, logits=own_views[0])
            records = _record(source, judged, norm, views, plain if own_views is None else None)
            styles = self._remember(state, x, records)
            estimates = self._estimate_styles(state)
            reasons = _judge_styles(state, styles, estimates)
            estimate = _pool(state, estimates)
            chosen = _choose(state, _own_rows(styles, x), source, adapted)
        n_by_source = sum(reasons.values())
        state["by_source"] = by_source = 2 * n_by_source > _count(x)
        if self.answers:
            state["n_by_source"] += n_by_source
            total = Counter(state["reasons"])
            total.update(reasons)
            state["reasons"] = dict(total)
        else:
            chosen = adapted
        return Verdict(state, chosen, _count(x), estimate, is_broken, by_source, is_judged=True)

    def settle(self, method: Method, verdict: Verdict) -> None:
        """Remember, restore or rest as a verdict requires, once the method has learned."""
        if verdict.is_judged and self.answers:
            self._decide(method, verdict)
        self._state = verdict.state
        if verdict.is_judged:
            self._warn(verdict.estimate)

    def answer(self, method: Method, x: Tensor, adapted: Forward) -> Forward:
        """Return the predictions to answer with, without watching: in eval mode or paused."""
        if not self.answers:
            return adapted
        styles = torch.zeros(len(x), dtype=torch.long)
        if self._state["styles"] is not None and has_style(x):
            styles = assign_styles(self._state["styles"], describe_styles(x)).cpu()
        return _choose(self._state, styles, self._run_source(method, x), adapted)

    def _run_source(self, method: Method, x: Tensor, statistics: Statistics = "source") -> Forward:
        if self._source is None:
            self.bind(method.model)
        source: Any = self._source
        with torch.no_grad(), use_statistics(source, statistics):
            return run(source, x, None, method.logits_at, method.call)

    def _remember(self, state: Tree, x: Tensor, records: Tensor) -> Tensor:
        """Add the records of a batch to those of each style; return the style of each image."""
        records = _gather(records, x.device)
        windows = [dict(each) for each in state["windows"]]
        styles = torch.zeros(len(records), dtype=torch.long)
        if has_style(x):
            described = describe_styles(x).cpu()
            described = described.masked_fill(~described.isfinite(), torch.nan)
            described = _gather(described, x.device)
            state["styles"], replaced = update_styles(state["styles"], described)
            for number in replaced:
                windows[number] = _fresh_window()
            styles = assign_styles(state["styles"], described)
            windows += [_fresh_window() for _ in state["styles"]["counts"][len(windows) :]]
        windows = windows or [_fresh_window()]
        for number, window in enumerate(windows):
            new = records[styles == number]
            window["share"] = window["share"] * 0.5 ** (len(records) / _RECENT) + len(new)
            if len(new) > 0:
                self._extend(window, new)
        state["windows"] = windows
        return styles

    def _extend(self, window: Tree, new: Tensor) -> None:
        """Add records to a window, (images, rows, 8).

        If the newest images differ from those before, the window goes on from the records of
        earlier conditions that resemble them, or else starts anew.
        """
        records = new if window["records"] is None else torch.cat([window["records"], new])
        n_new = max(len(new), _BLOCK)
        records = records[-max(self.window, n_new) :]
        before, newest = records[:-n_new], records[-n_new:]
        # On a correlated stream, the next class looks like another condition.
        in_order = len(records) > 1 and is_correlated(records[:, 0, 0].long())
        is_new = not in_order and _differ(before, newest)
        if is_new:
            earlier = list(window["earlier"])
            alike = [place for place, each in enumerate(earlier) if not _differ(each, newest)]
            known = [earlier.pop(alike[-1])] if alike else []
            window["earlier"] = [*earlier, before][-_CONDITIONS:]
            records = torch.cat([*known, newest])[-max(self.window, n_new) :]
            is_new = not known
        window["records"] = records
        window["changes"] = window["changes"] * 0.5 ** (len(new) / self.window) + is_new

    def _estimate_styles(self, state: Tree) -> list[Estimate | None]:
        """Estimate accuracies on the images of each style; None for styles that hardly occur."""
        windows = state["windows"]
        least = _RARE * sum(window["share"] for window in windows)
        return [
            self._estimate(window["records"]) if window["share"] > least else None
            for window in windows
        ]

    def _estimate(self, records: Tensor | None) -> Estimate | None:
        """Estimate accuracies on the window with the map for its size."""
        if records is None or len(records) < _FEWEST:
            return None
        signals = measure_signals(records.flatten(0, 1), self._n_classes)
        if not bool(signals.isfinite().all()):
            return None
        usable = [each for each in self._maps if each.size <= len(records)] or self._maps[:1]
        return usable[-1].estimate(signals, len(records))

    def _decide(self, method: Method, verdict: Verdict) -> None:
        """Remember, restore or stop learning."""
        state, estimate, n = verdict.state, verdict.estimate, verdict.n
        state["until"] = max(0, state["until"] - n)
        if state["resting"] and state["until"] == 0:
            state.update(resting=False, windows=_forget(state), worse=0)
        error = _standard_error(estimate)
        is_broken = verdict.is_broken
        is_worse = is_broken or (estimate is not None and estimate.gain.value + _MARGIN * error < 0)
        is_better = estimate is not None and estimate.n_samples >= _ENOUGH and not verdict.by_source
        state["worse"] = state["worse"] + n if is_worse else 0
        state["better"] = state["better"] + n if is_better else 0
        if is_broken or state["worse"] >= self.patience:
            if not state["resting"]:
                self._retreat(method, state)
        elif is_better and state["better"] >= state["saved_after"]:
            state["good"] = copy_tree(method.learned())
            state["saved_after"] = state["better"] + self.patience
            if state["better"] >= 4 * self.patience:
                state["retreats"] = 0
                state["rate"] = min(1.0, 2 * state["rate"])
                method.scale_rate(state["rate"])

    def _retreat(self, method: Method, state: Tree) -> None:
        """Restore a good state; if that did not help last time, the source model, and rest."""
        has_failed = state["retreats"] > 0
        good = None if has_failed else state["good"]
        method.load_learned(copy_tree(method.initial() if good is None else good))
        method.counts.restored += 1
        if has_failed:
            state["resting"] = True
            state["until"] = self.rest * 2 ** min(state["n_rests"], 6)
            state["n_rests"] += 1
            state["good"] = None
        state["n_restored"] += 1
        state["retreats"] += 1
        state["rate"] = max(_LOWEST_RATE, state["rate"] / 2)
        method.scale_rate(state["rate"])
        state.update(worse=0, better=0, saved_after=self.patience)
        if not has_failed:
            state["windows"] = _forget(state)

    def _warn(self, estimate: Estimate | None) -> None:
        if self._has_warned or estimate is None or estimate.n_samples < _ENOUGH:
            return
        if estimate.gain.high >= 0:
            return
        self._has_warned = True
        what = (
            "The guard answers with the source model while that is so."
            if self.answers
            else "Adapt with guard=True, which answers with the source model while that is so."
        )
        cause = (
            "The stream seems to show few classes at a time."
            if estimate.correlation > 0.5
            else "Batches may be too small, or the learning rate too high."
        )
        warn(
            AcclimateWarning(
                "adaptation_hurts",
                f"Adaptation seems to hurt on this stream: estimated accuracy of the source model "
                f"{estimate.source}, of the adapted model {estimate.adapted}. {cause} {what}",
            )
        )

    # State --------------------------------------------------------------------------------------

    def estimate(self) -> Estimate | None:
        """Return the estimate on the recent window; None if it has too few images."""
        return _pool(self._state, self._estimate_styles(self._state))

    def report(self) -> GuardReport:
        """Return what the guard has seen and done since the last reset."""
        state = self._state
        names = ("n_samples", "n_by_source", "n_restored", "n_rests", "n_forwards", "rate")
        return GuardReport(
            estimate=self.estimate(),
            answers="source" if self.answers and state["by_source"] else "adapted",
            is_resting=state["resting"],
            reasons=dict(state["reasons"]),
            **{name: state[name] for name in names},
        )

    def tree(self) -> Tree:
        """Return the guard's state."""
        return self._state

    def schema(self, learned: Schema) -> Schema:
        """Return what a saved state must look like, given that of what a method has learned."""
        count, share = Number(int, low=0), Number(float, low=0)
        fields: dict[str, Schema] = {
            name: like(value) if isinstance(value, bool) else count
            for name, value in _fresh().items()
        }
        of_images = TensorOf((None, None, len(RECORD)), torch.float32, finite=True, nan=True)
        records = Where(of_images, self._are_records, "no records of predictions")
        window = {
            "records": Maybe(records),
            "earlier": Items(records, list, _CONDITIONS),
            "changes": share,
            "share": share,
            "by_source": like(True),
        }
        styles = {"centres": TensorOf((None, N_NUMBERS)), "counts": TensorOf((None,), low=0)}
        whole = Fields(
            {
                **fields,
                "styles": Maybe(Fields(styles)),
                "windows": Items(Fields(window), list, MOST),
                "good": Maybe(learned),
                "reasons": Items(count),
                "rate": Number(float, low=0, high=1),
            }
        )
        return Where(whole, _has_windows, "windows that do not fit the styles")

    def _are_records(self, records: Tensor) -> bool:
        """Return whether all classes exist."""
        classes = records[..., ::3]  # of the source, of the adapted model, and of norm
        exist = (classes >= 0) & (classes < self._n_classes) & (classes == classes.round())
        exist[..., 2] |= classes[..., 2].isnan()
        return records.numel() > 0 and bool(exist.all())

    def load_tree(self, tree: Tree) -> None:
        """Load a state."""
        self._state = dict(tree)

    def move(self, function: Callable[[Tensor], Tensor]) -> None:
        """Apply a function that moves or casts tensors to the copy of the source model."""
        if self._source is not None:
            self._source._apply(function)  # type: ignore[no-untyped-call]


def is_probed_batch(number: int, every: int) -> bool:
    """Return whether a mirrored view is predicted with a batch: with one in `every` on average.

    Not with every second batch and the like: conditions may come in turns.
    """
    return number * _GOLDEN % 1 < 1 / every


def _fresh() -> Tree:
    return {
        "styles": None,
        "windows": [],
        "good": None,
        "n_batches": 0,
        "n_samples": 0,
        "n_by_source": 0,
        "n_restored": 0,
        "n_rests": 0,
        "n_forwards": 0,
        "reasons": {},
        "by_source": True,
        "worse": 0,
        "better": 0,
        "saved_after": 0,
        "retreats": 0,
        "rate": 1.0,
        "resting": False,
        "until": 0,
    }


def _fresh_window() -> Tree:
    """Return the window of a style of which nothing was seen."""
    return {"records": None, "earlier": [], "changes": 0.0, "share": 0.0, "by_source": True}


def _forget(state: Tree) -> list[Tree]:
    """Return windows of the same styles without records."""
    return [{**_fresh_window(), "share": window["share"]} for window in state["windows"]]


def _has_windows(state: Tree) -> bool:
    """Return whether there is a window for each style."""
    if state["styles"] is None:
        return len(state["windows"]) <= 1
    n_styles = {len(each) for each in state["styles"].values()}
    return n_styles == {len(state["windows"])}


def _count(x: Tensor) -> int:
    shard = active()
    return len(x) if shard is None else shard.n


def _gather(records: Tensor, device: torch.device) -> Tensor:
    """Return the records of all processes that share the batch, by rank; exchanged on `device`."""
    shard = active()
    if shard is None:
        return records
    whole = records.new_zeros(shard.n, *records.shape[1:])
    whole[shard.rows(len(records))] = records.nan_to_num(-1.0)  # a sum with NaN would be NaN
    whole = shard.sum(whole.to(device)).cpu()
    return whole.masked_fill(whole == -1.0, torch.nan)


def _own_rows(styles: Tensor, x: Tensor) -> Tensor:
    """Return the styles of the images of this process."""
    shard = active()
    return styles if shard is None else styles[shard.rows(len(x))]


def _record(
    source: Forward,
    adapted: Forward,
    norm: Tensor | None,
    views: Sequence[Tensor | None],
    plain: Tensor | None,
) -> Tensor:
    """Return the records of a batch, (images, rows, 8)."""
    described = []
    for number, model in enumerate((source, adapted)):
        own = plain if number == 1 else None
        view, own = (
            None if each is None else pick_rows(each.detach(), source.grid)
            for each in (views[number], own)
        )
        logits = pick_rows(model.logits.detach(), source.grid)
        described.append(describe_predictions(logits, view, own))
    described.append(
        torch.full_like(described[0][:, :2], torch.nan)
        if norm is None
        else describe_predictions(pick_rows(norm.detach(), source.grid), None)[:, :2]
    )
    n_images = len(described[0]) if source.grid is None else source.grid.n_images
    return torch.cat(described, dim=1).reshape(n_images, -1, len(RECORD))


def _judge_styles(
    state: Tree, styles: Tensor, estimates: Sequence[Estimate | None]
) -> dict[str, int]:
    """Decide for each style; return for how many images each reason decided for the source."""
    reasons: dict[str, int] = {}
    for number, estimate in enumerate(estimates):
        window, n = state["windows"][number], int((styles == number).sum())
        reason = _judge(estimate, window["changes"] > _UNSTABLE)
        window["by_source"] = bool(reason)
        if reason and n:
            reasons[reason] = reasons.get(reason, 0) + n
    return reasons


def _choose(state: Tree, styles: Tensor, source: Forward, adapted: Forward) -> Forward:
    """Return the predictions of the source model for images of the styles that it answers."""
    decided = [window["by_source"] for window in state["windows"]]
    if len(decided) <= 1 or len(set(decided)) == 1:
        return source if all(decided) else adapted
    by_source = torch.tensor(decided)[styles].to(source.logits.device)
    if source.grid is not None:
        by_source = by_source.repeat_interleave(source.grid.height * source.grid.width)
    logits = torch.where(by_source[:, None], source.logits, adapted.logits.to(source.logits))
    return replace(source, logits=logits)


def _pool(state: Tree, estimates: Sequence[Estimate | None]) -> Estimate | None:
    """Return the estimate for the images of all styles that were seen lately."""
    windows = state["windows"]
    known = [(w, each) for w, each in zip(windows, estimates, strict=True) if each is not None]
    total = sum(window["share"] for window, _ in known)
    if total == 0:
        return None
    if len(known) == 1:
        return known[0][1]
    shares = [window["share"] / total for window, _ in known]
    found = [each for _, each in known]

    def mean(values: Sequence[float]) -> float:
        return math.fsum(share * value for share, value in zip(shares, values, strict=True))

    def pool(intervals: Sequence[Interval]) -> Interval:
        # What the maps do not know may err in the same direction for all styles.
        ends = ("value", "low", "high")
        return Interval(*(mean([getattr(each, end) for each in intervals]) for end in ends))

    return Estimate(
        source=pool([each.source for each in found]),
        adapted=pool([each.adapted for each in found]),
        gain=pool([each.gain for each in found]),
        correlation=mean([each.correlation for each in found]),
        n_samples=sum(each.n_samples for each in found),
        is_familiar=all(each.is_familiar for each in found),
    )


def _standard_error(estimate: Estimate | None) -> float:
    if estimate is None:
        return 0.0
    return (estimate.gain.high - estimate.gain.low) / 4


def _judge(estimate: Estimate | None, is_unstable: bool) -> str:
    """Return why the source model answers; an empty text if the adapted one does."""
    if estimate is None:
        return "too few images were seen"
    if estimate.gain.value >= _margin(estimate, is_unstable) * _standard_error(estimate):
        return ""
    if estimate.gain.value > 0:
        return "the gain of adaptation is uncertain"
    return "adaptation is estimated to hurt"


def _margin(estimate: Estimate, is_unstable: bool) -> float:
    """Return by how many standard errors the gain must exceed zero for the adapted model."""
    if is_unstable or not estimate.is_familiar:
        return _WIDE_MARGIN
    is_plain = estimate.n_samples >= _ENOUGH and estimate.correlation < 0.5
    return _MARGIN if is_plain else _LARGE_MARGIN


def _differ(old: Tensor, new: Tensor) -> bool:
    """Return whether two groups of records, of which the first is large enough, are unlike."""
    if len(old) < _BLOCK:
        return False
    agreements = [(each[..., 0] == each[..., 3]).float() for each in (old, new)]
    first, second = (
        torch.stack([each[..., 1], each[..., 4], agreement], dim=-1).mean(dim=1).double()
        for each, agreement in zip((old, new), agreements, strict=True)
    )
    variance = first.var(dim=0) / len(first) + second.var(dim=0) / len(second) + 1e-6
    difference = first.mean(dim=0) - second.mean(dim=0)
    return bool((difference.square() / variance > _CHANGE**2).any())
