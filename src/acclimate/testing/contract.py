"""The contract of a method as checks. The name of a check states what it verifies.

`check_method("mine")` runs the whole suite. The package's own tests do so for every method.
"""

from __future__ import annotations

import copy
import functools
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acclimate.errors import AcclimateWarning, BadInput, NotAdapted, UnsuitableModel
from acclimate.forward import get_logits
from acclimate.functional.norm import STATISTICS
from acclimate.methods import get_method
from acclimate.methods.gradient import GradientMethod
from acclimate.snapshot import model_tensors
from acclimate.testing.cases import Case, Violation
from acclimate.testing.models import TINY_MODELS, tiny_model
from acclimate.testing.steps import (
    call,
    equal,
    make_stream,
    require,
    run_stream,
    same_state,
    take_state,
)

_MANY = 20


def refuses_with_a_reason(case: Case) -> None:
    """An unsuitable model is refused with the reason."""
    try:
        call(case.build(), make_stream(1)[0])
    except UnsuitableModel as error:
        require(len(str(error)) > 40, "the reason is too short to be helpful")
        return
    raise Violation("check() reports problems, but adapt() accepts the model")


def returns_what_the_model_returns(case: Case) -> None:
    """Type, shape and dtype of the output are those of the model."""
    x = make_stream(1)[0]
    with torch.no_grad():
        plain = tiny_model(case.model)(x)
    adapted = case.build()
    output = call(adapted, x)
    require(type(output) is type(plain), f"returns {type(output)}, the model {type(plain)}")
    at = None if isinstance(output, Tensor) else adapted.logits_at
    found, expected = get_logits(output, at), get_logits(plain, at)
    require(found.shape == expected.shape and found.dtype == expected.dtype, "other shape or dtype")
    require(not found.requires_grad, "the logits have a graph")


def leaves_the_input_alone(case: Case) -> None:
    """The caller's tensor is not changed."""
    x = make_stream(1)[0]
    kept = x.clone()
    call(case.build(), x)
    require(torch.equal(x, kept), "the input was changed")


def learns_under_no_grad(case: Case) -> None:
    """A caller's torch.no_grad() makes no difference."""
    expected = run_stream(case.build(), make_stream())
    with torch.no_grad():
        found = run_stream(case.build(), make_stream())
    require(equal(expected, found), "other logits under torch.no_grad()")


def refuses_inference_mode(case: Case) -> None:
    """Inference mode is refused with an error."""
    adapted = case.build()
    try:
        with torch.inference_mode():
            call(adapted, make_stream(1)[0])
    except NotAdapted:
        return
    raise Violation("a call in inference mode raises no error")


def changes_only_trainable_parameters(case: Case) -> None:
    """Only trainable parameters change."""
    adapted = case.build()
    before = {name: t.clone() for name, t in model_tensors(adapted.model).items()}
    run_stream(adapted, make_stream())
    changed = {
        name for name, t in model_tensors(adapted.model).items() if not torch.equal(t, before[name])
    }
    allowed: set[str] = set()
    if isinstance(adapted, GradientMethod):
        allowed = set(type(adapted).trainable(adapted.model, adapted.config))
        require(bool(changed) != adapted.card.per_image, "three batches changed nothing")
    if adapted.config.statistics in ("running", "robust"):
        allowed |= {name for name, _ in adapted.model.named_buffers()}
    require(changed <= allowed, f"other tensors were changed: {sorted(changed - allowed)}")


def resets_completely(case: Case) -> None:
    """After reset() the same stream gives the same logits and state, bit for bit."""
    adapted = case.build()
    start = take_state(adapted)
    first = run_stream(adapted, make_stream())
    adapted.reset()
    require(same_state(start, take_state(adapted)), "reset() does not restore the first state")
    require(equal(first, run_stream(adapted, make_stream())), "other logits after reset()")


def unwraps_without_a_trace(case: Case) -> None:
    """unwrap() returns the same object with equal tensors, modes, flags, hooks and attributes."""
    model = tiny_model(case.model).train()
    before = _portrait(model)
    values = {name: t.clone() for name, t in model_tensors(model).items()}
    adapted = case.wrap(model)
    run_stream(adapted, make_stream())
    require(_portrait(model) == before, "modes, flags or hooks are changed between two batches")
    require(adapted.unwrap() is model, "unwrap() returns another object")
    require(_portrait(model) == before, "modes, flags, hooks or attributes were left behind")
    require(same_state(values, model_tensors(model)), "weights or buffers differ")
    try:
        call(adapted, make_stream(1)[0])
    except NotAdapted:
        return
    raise Violation("the adapted model can be used after unwrap()")


def _portrait(model: nn.Module) -> list[Any]:
    modules = [
        (
            name,
            m.training,
            sorted(m.__dict__),
            getattr(m, "track_running_stats", None),
            [len(hooks) for key, hooks in sorted(m.__dict__.items()) if key.endswith("_hooks")],
        )
        for name, m in model.named_modules()
    ]
    return [*modules, *((n, p.requires_grad, p.grad is None) for n, p in model.named_parameters())]


def resumes_at_every_batch(case: Case) -> None:
    """A stream that is interrupted at any batch, saved and loaded continues with equal logits."""
    xs = make_stream()
    expected = run_stream(case.build(), xs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        for cut in range(1, len(xs)):
            first = case.build(seed=0)
            run_stream(first, xs[:cut])
            first.save(path)
            found = run_stream(case.build(seed=0).load(path), xs[cut:])
            require(equal(expected[cut:], found), f"interrupted after {cut} batches: other logits")


def copies_are_independent(case: Case) -> None:
    """deepcopy and state_dict() contain everything and share nothing."""
    xs = make_stream()
    adapted = case.build()
    run_stream(adapted, xs[:2])
    twin = copy.deepcopy(adapted)
    other = case.build()
    other.load_state_dict(copy.deepcopy(adapted.state_dict()))
    expected = run_stream(adapted, xs[2:])
    require(equal(expected, run_stream(twin, xs[2:])), "a deepcopy continues differently")
    require(equal(expected, run_stream(other, xs[2:])), "a loaded state_dict continues differently")


def restores_snapshots(case: Case) -> None:
    """restore(snapshot()) restores the state bit for bit."""
    xs = make_stream()
    adapted = case.build()
    run_stream(adapted, xs[:1])
    snapshot = adapted.snapshot()
    first = run_stream(adapted, xs[1:])
    adapted.restore(snapshot)
    require(equal(first, run_stream(adapted, xs[1:])), "other logits after restore()")


def pauses(case: Case) -> None:
    """Inside paused() nothing changes."""
    adapted = case.build()
    run_stream(adapted, make_stream(2))
    before, counts = take_state(adapted), copy.deepcopy(adapted.counts)
    with adapted.paused():
        run_stream(adapted, make_stream())
    require(same_state(before, take_state(adapted)), "state changed while paused")
    require(adapted.counts == counts, "counts changed while paused")


def stops_learning_in_eval_mode(case: Case) -> None:
    """After eval() nothing changes, as in paused(); train() resumes. Dropout is always off."""
    expected = run_stream(case.build(), make_stream())
    adapted = case.build().train()
    found = run_stream(adapted, make_stream(2))
    before = take_state(adapted)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        silent = run_stream(adapted.eval(), make_stream())
    require(same_state(before, take_state(adapted)), "learns after eval()")
    ours = [n.message for n in notes if isinstance(n.message, AcclimateWarning)]
    require([note.code for note in ours] == ["eval_mode"], "does not warn once after eval()")
    with adapted.train().paused():
        require(equal(silent, run_stream(adapted, make_stream())), "eval() is not like paused()")
    adapted.model.eval()
    found += run_stream(adapted, make_stream()[2:])
    require(equal(expected, found), "train(), or the mode of the model, changes the logits")
    trained = run_stream(case.wrap(tiny_model(case.model).train()), make_stream())
    require(equal(expected, trained), "a model in train mode gives other logits")


def takes_any_statistics(case: Case) -> None:
    """Every kind of BatchNorm statistics works and is reset."""
    for statistics in STATISTICS:
        adapted = case.build(statistics=statistics)
        first = run_stream(adapted, make_stream(2))
        require(all(bool(logits.isfinite().all()) for logits in first), f"{statistics}: not finite")
        again = run_stream(adapted.reset(), make_stream(2))
        require(equal(first, again), f"{statistics}: reset() is not complete")


def keeps_memory_bounded(case: Case) -> None:
    """The state after many batches is not larger than after a few."""
    adapted = case.build()
    x = make_stream(1)[0]
    for _ in range(5):
        call(adapted, x)
    before = sum(t.numel() for t in take_state(adapted).values())
    for _ in range(_MANY):
        call(adapted, x)
    require(sum(t.numel() for t in take_state(adapted).values()) <= before, "the state grows")


def takes_small_last_batches(case: Case) -> None:
    """Last batches of two samples and of one are predicted."""
    adapted = case.build()
    x = make_stream(1)[0]
    for n in (8, 2, 1):
        logits = run_stream(adapted, [x[:n]])[0]
        require(len(logits) == n and bool(logits.isfinite().all()), f"a batch of {n} fails")


def takes_or_refuses_single_samples(case: Case) -> None:
    """A stream of single samples works, or its first is refused with the reason."""
    adapted = case.build()
    before = take_state(adapted)
    try:
        call(adapted, make_stream(1)[0][:1])
    except BadInput as error:
        require(error.code == "single_sample", f"refused with the code {error.code!r}")
        require(same_state(before, take_state(adapted)), "a refused batch changed the model")


def refuses_bad_batches(case: Case) -> None:
    """Unusable batches give BadInput and change nothing."""
    good = make_stream(1)[0]
    nan, infinite = good.clone(), good.clone()
    nan[0, 0, 0, 0] = torch.nan
    infinite[-1, -1, -1, -1] = torch.inf
    bad = {
        "NaN": nan,
        "infinity": infinite,
        "empty": good[:0],
        "integers": (good * 255).to(torch.uint8),
        "channels": good[:, :2],
        "size": good[..., :5],
        "not a batch": good[0],
    }
    for warm in (0, 1):
        adapted = case.build(statistics="running")
        run_stream(adapted, [good] * warm)
        before = take_state(adapted)
        for name, x in bad.items():
            if name == "size" and (adapted.input_shape is None or case.is_dense):
                continue  # the size is not known yet, or any size is valid
            try:
                call(adapted, x)
            except BadInput as error:
                require(len(str(error)) > 20, f"{name}: the error does not state what is wrong")
            else:
                raise Violation(f"{name}: the batch was accepted")
            require(same_state(before, take_state(adapted)), f"{name}: changed the model")


def survives_strange_batches(case: Case) -> None:
    """Equal samples, black ones and a single class: no crash, and everything stays finite."""
    adapted = case.build()
    x = make_stream(1)[0]
    strange = {
        "all samples equal": x[:1].expand_as(x).contiguous(),
        "black": torch.zeros_like(x),
        "one class": x[:1] * 0.9 + 0.1 * x,
    }
    for name, batch in strange.items():
        with warnings.catch_warnings():
            # Such batches may have no gradient, which is reported.
            warnings.simplefilter("ignore", AcclimateWarning)
            logits = run_stream(adapted, [batch, x])
        require(all(bool(part.isfinite().all()) for part in logits), f"{name}: not finite")
    tensors = [t for t in model_tensors(adapted.model).values() if t.is_floating_point()]
    require(all(bool(t.isfinite().all()) for t in tensors), "the model is not finite")
    # Infinities may be intended, for example as placeholders of future samples.
    state = [t for t in take_state(adapted).values() if t.is_floating_point()]
    require(not any(bool(t.isnan().any()) for t in state), "the state has become NaN")


def skips_updates_that_are_not_finite(case: Case) -> None:
    """An update that would make a parameter non-finite is not applied, and is counted."""
    if not issubclass(get_method(case.method), GradientMethod):
        return
    adapted: Any = case.build(optimizer="sgd", lr=1e30)
    honest = adapted.loss

    def steep(x: Tensor) -> tuple[Tensor, Tensor]:
        logits, loss = honest(x)
        return logits, loss * 1e20  # gradients are finite, but their product with lr is not

    adapted.loss = steep
    before = {name: t.clone() for name, t in model_tensors(adapted.model).items()}
    run_stream(adapted, make_stream(2))
    require(same_state(before, model_tensors(adapted.model)), "the update was applied")
    require(adapted.counts.skipped == {"non_finite": 2}, "the skipped updates were not counted")


def composes_with_swr_and_nsp(case: Case) -> None:
    """SWR and NSP can be added to it, change what it learns, and are reset and saved with it."""
    kind = get_method(case.method)
    if not issubclass(kind, GradientMethod):
        return
    own = {term.name for term in kind.own_terms(kind.config_class())}
    terms = [name for name in ("swr", "nsp") if name not in own]
    if not kind.takes_terms or not terms:
        return
    adapted, xs = case.build(terms=terms), make_stream()
    first = run_stream(adapted, xs)
    require(all(bool(logits.isfinite().all()) for logits in first), "logits are not finite")
    learned = take_state(adapted)
    plain = case.build()
    run_stream(plain, xs)
    alone = take_state(plain)
    require(
        any(not torch.equal(learned[name], alone[name]) for name in alone if name in learned),
        "the terms change nothing",
    )
    require(equal(first, run_stream(adapted.reset(), xs)), "other logits after reset()")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        run_stream(adapted.reset(), xs[:2])
        adapted.save(path)
        found = run_stream(case.build(terms=terms).load(path), xs[2:])
    require(equal(first[2:], found), "other logits after save and load")


def takes_channels_last(case: Case) -> None:
    """The memory format makes no difference except for rounding."""
    expected = run_stream(case.build(), make_stream(1))[0]
    x = make_stream(1)[0].to(memory_format=torch.channels_last)
    found = run_stream(case.build(), [x])[0]
    require(torch.allclose(expected, found, atol=1e-5), "channels-last input gives other logits")


def describes_itself(case: Case) -> None:
    """The docstring starts with one sentence and states paper, parameters, logits and cost."""
    kind = get_method(case.method)
    text = kind.__doc__ or ""
    require(text.split("\n")[0].rstrip().endswith("."), "the first line is not one sentence")
    for word in ("Paper:", "oves", "eturns", "Cost of a batch"):
        require(word in text, f"the docstring does not contain {word!r}")
    own = {"forward", "reset", "save", "load", "unwrap", "snapshot", "restore", "paused"}
    require(not own & set(vars(kind)), "the method overrides final methods of the base class")


#: Checks that can depend on the structure of a model: its outputs, shared and frozen parameters.
STRUCTURE: tuple[Callable[[Case], None], ...] = (
    returns_what_the_model_returns,
    changes_only_trainable_parameters,
    resets_completely,
    unwraps_without_a_trace,
    resumes_at_every_batch,
    composes_with_swr_and_nsp,
)

#: Checks that can depend on the normalisation of a model.
NORMALIZATION: tuple[Callable[[Case], None], ...] = (
    takes_any_statistics,
    takes_small_last_batches,
    takes_or_refuses_single_samples,
    survives_strange_batches,
    takes_channels_last,
)

#: Checks that depend on the method alone.
METHOD: tuple[Callable[[Case], None], ...] = (
    leaves_the_input_alone,
    learns_under_no_grad,
    refuses_inference_mode,
    copies_are_independent,
    restores_snapshots,
    pauses,
    stops_learning_in_eval_mode,
    keeps_memory_bounded,
    refuses_bad_batches,
    skips_updates_that_are_not_finite,
    describes_itself,
)

#: Tiny models that represent a kind of normalisation. The others differ only in structure.
_NORMALIZATIONS = ("batch_norm", "group_norm", "instance_aware", "vit")


def yield_checks(
    method: str, models: Sequence[str] | None = None
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the checks that apply to a method, each with its name.

    All checks run on the first model that the method supports, and on the transformer, which has no
    BatchNorm. On every other model, only those run whose outcome can depend on it.
    """
    is_first = True
    for model in models if models is not None else TINY_MODELS:
        case = Case(method, model)
        checks: tuple[Callable[[Case], None], ...] = (refuses_with_a_reason,)
        if case.suits:
            checks = STRUCTURE
            if is_first or model in _NORMALIZATIONS:
                checks += NORMALIZATION
            if is_first or model == "vit":
                checks += METHOD
            is_first = False
        for check in checks:
            yield f"{model}-{check.__name__}", functools.partial(check, case)


def check_method(method: str, models: Sequence[str] | None = None) -> None:
    """Run the whole suite on one method; raise an error that lists all violations."""
    problems = []
    for name, check in yield_checks(method, models):
        try:
            check()
        except Violation as violation:
            problems.append(f"\n  {name}: {violation}")
    if problems:
        raise Violation(f"{method} does not conform:{''.join(problems)}")
