"""An exception or a signal at any line of a step leaves the state before the batch or after it."""

import copy
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

import acclimate
from acclimate.methods.batch import Journal
from acclimate.testing.cases import Case
from acclimate.testing.models import tiny_batches
from tests.methods.test_answer_first import assert_same, flat

XS = [x for x, _ in tiny_batches(4, seed=7)]
PACKAGE = str(Path(acclimate.__file__).parent)
#: Functions that hold the lock. After the last line of a `with` block, the tracer sees the line of
#: the `with` again, and a `try:` is a line too. CPython runs no signal handler at either, because
#: neither calls anything, so that no exception can come between and the lock is released.
LOCKED = ("_call_model", "learn")


class Interrupt(BaseException):
    """What is injected."""


class Injector:
    """Counts the lines of the package that run, and acts at one of them."""

    def __init__(self, at, act):
        self.at, self.act, self.n, self.where = at, act, 0, ""
        self._entered = set()

    def _is_safe(self, frame):
        code = frame.f_code
        if code.co_name not in LOCKED or not code.co_filename.endswith("method.py"):
            return False
        line = code.co_firstlineno, frame.f_lineno
        text = Path(code.co_filename).read_text().splitlines()[frame.f_lineno - 1]
        if text.strip() == "try:":
            return True
        if "with self._exclusive" not in text:
            return False
        is_second = line in self._entered
        self._entered.add(line)
        return is_second

    def trace(self, frame, event, _argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line" and not self._is_safe(frame):
            self.n += 1
            if self.n == self.at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                self.act()
        return self.trace

    def run(self, call):
        sys.settrace(self.trace)
        try:
            call()
        finally:
            sys.settrace(None)


def throw():
    raise Interrupt


def look(adapted):
    """Return everything that must not be left between: state, flags, hooks, settings."""
    source = adapted.guard.source.modules() if adapted.guard is not None else ()
    modules = [*adapted.modules(), *source]
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in modules
    ]
    modes = [(m.training, getattr(m, "track_running_stats", None)) for m in modules]
    own = [sorted(k for k in vars(m) if k == "forward") for m in modules]
    parameters = [(p.requires_grad, p.grad is None) for p in adapted.parameters()]
    scratch = (
        adapted._call, adapted._learns, adapted._output, adapted._grid, adapted.labels,
        adapted.plain_logits, adapted.is_learning, adapted.has_pending,
    )  # fmt: skip
    # steady sets the rates anew in each step.
    groups = adapted.optimizer.param_groups if adapted.name != "steady" else ()
    rates = [group["lr"] for group in groups]
    depth = torch.autocast_increment_nesting() - 1  # what is cached stays until it is 0
    torch.autocast_decrement_nesting()
    autocast = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled(), depth
    settings = torch.is_grad_enabled(), autocast, adapted._lock.is_mine
    return flat(adapted), (hooks, modes, own, parameters, scratch, rates, settings)


def is_same(left, right):
    try:
        assert_same(left[0], right[0])
    except AssertionError:
        return False
    return left[1] == right[1]


CASES = {
    "tent": ("tent", {}, 1),
    "tent-guard": ("tent", {"guard": True}, 41),
    "tent-auto": ("tent", {"statistics": "auto"}, 29),
    "tent-running": ("tent", {"statistics": "running"}, 29),
    "swr_nsp": ("swr_nsp", {}, 53),
    "cotta": ("cotta", {}, 101),
    "roid": ("roid", {}, 53),
    "rotta": ("rotta", {}, 101),
    "rotta-guard": ("rotta", {"guard": True}, 149),
    "steady": ("steady", {}, 101),
    "memo": ("memo", {}, 101),
    "sar": ("sar", {}, 53),
}


def states(method, options):
    """Return an adapted model after one batch, the snapshot, and the states to end in."""
    adapted = Case(method, "batch_norm").build(**options)
    adapted(XS[0])
    kept, before = adapted.snapshot(), look(adapted)
    adapted(XS[1])
    after = look(adapted)
    adapted.restore(kept)
    assert is_same(look(adapted), before)
    return adapted, kept, before, after


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_an_exception_at_any_line_leaves_nothing_between(case, later):
    method, options, stride = CASES[case]
    adapted, kept, before, after = states(method, options)

    def call():
        adapted(XS[1])

    def split():
        adapted.predict(XS[1])
        adapted.learn()

    run = split if later else call
    counter = Injector(0, throw)
    counter.run(run)
    assert is_same(look(adapted), after)
    n_lines = counter.n
    assert n_lines > 100
    n_before = 0
    for at in range(1 + later * (stride // 2), n_lines + 1, stride * (1 + 2 * later)):
        adapted.restore(kept)
        injector = Injector(at, throw)
        with pytest.raises(Interrupt):
            injector.run(run)
        assert not adapted._lock.is_mine, injector.where
        if adapted.has_pending:  # between predict and learn
            adapted.discard()
        found = look(adapted)
        was_before = is_same(found, before)
        n_before += was_before
        assert was_before or is_same(found, after), injector.where
    assert n_before > 0
    adapted.restore(kept)
    adapted(XS[1])
    assert is_same(look(adapted), after)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", ["tent", "rotta", "steady"])
def test_a_signal_in_the_middle_of_a_step(case):
    """The handler runs at the next call or jump, also inside contextlib and torch."""
    method, options, stride = CASES[case]
    adapted, kept, before, after = states(method, options)

    def handler(_number, _frame):
        raise Interrupt

    was = signal.signal(signal.SIGUSR1, handler)
    try:
        counter = Injector(0, throw)
        counter.run(lambda: adapted(XS[1]))
        for at in range(1, counter.n - 20, max(7, stride)):
            adapted.restore(kept)
            injector = Injector(at, lambda: os.kill(os.getpid(), signal.SIGUSR1))
            with pytest.raises(Interrupt):
                injector.run(lambda: adapted(XS[1]))
            found = look(adapted)
            assert is_same(found, before) or is_same(found, after), injector.where
    finally:
        signal.signal(signal.SIGUSR1, was)


def test_an_interrupted_roll_back_is_repeated_by_the_next_call(monkeypatch):
    adapted, _, before, after = states("tent", {})
    whole = Journal.roll_back

    def half(self, method):
        with torch.no_grad():
            next(method.parameters()).add_(1.0)
        raise Interrupt

    def fail(*_):
        raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "roll_back", half)
        patch.setattr(adapted.optimizer, "step", fail)
        with pytest.raises(Interrupt):
            adapted(XS[1])
    assert Journal.roll_back is whole
    adapted.snapshot()
    assert is_same(look(adapted), before)
    adapted(XS[1])
    assert is_same(look(adapted), after)


def test_an_interrupted_load_changes_nothing():
    adapted, kept, before, after = states("swr_nsp", {})
    adapted(XS[1])
    counter = Injector(0, throw)
    counter.run(lambda: adapted.restore(kept))
    adapted(XS[1])
    for at in range(5, counter.n, 37):
        injector = Injector(at, throw)
        with pytest.raises(Interrupt):
            injector.run(lambda: adapted.restore(kept))
        found = look(adapted)
        if is_same(found, before):
            adapted(XS[1])
        else:
            assert is_same(found, after), injector.where
    assert copy.deepcopy(adapted)._lock is not adapted._lock
