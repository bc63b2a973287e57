"""Answer first, learn later; threads; a batch that fails at any moment."""

import copy
import threading

import pytest
import torch

import acclimate
from acclimate.errors import NotAdapted
from acclimate.snapshot import flatten_tree
from acclimate.testing.cases import Case
from acclimate.testing.models import N_CLASSES, tiny_batches, tiny_model
from tests.codes import raises

XS = [x for x, _ in tiny_batches(4, seed=7)]


def build(method, guarded=False):
    model = "instance_aware" if method == "note" else "batch_norm"
    return Case(method, model).build(**({"guard": True} if guarded else {}))


def flat(adapted):
    tensors, skeleton = flatten_tree(adapted._tree())
    return {name: t.clone() for name, t in tensors.items()}, copy.deepcopy(skeleton)


def assert_same(left, right):
    assert left[1] == right[1]
    assert left[0].keys() == right[0].keys()
    for name, tensor in left[0].items():
        assert torch.allclose(tensor, right[0][name], rtol=0, atol=0, equal_nan=True), name


def reveal(adapted, x):
    if adapted.card.is_oracle:
        adapted.reveal(torch.arange(len(x)) % N_CLASSES)


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("method", acclimate.list_methods())
def test_predict_and_learn_equal_the_call(method, guarded):
    split, whole = build(method, guarded), build(method, guarded)
    for x in XS:
        reveal(split, x)
        reveal(whole, x)
        expected = whole(x)
        answer = split.predict(x)
        had = split.has_pending
        with split.paused():
            split(XS[0])
        assert split.learn() == had
        assert not split.has_pending
        assert torch.equal(answer, expected)
        assert_same(flat(split), flat(whole))


@pytest.mark.parametrize("method", ["tent", "rotta", "sar", "swr_nsp", "steady", "roid"])
def test_a_discarded_batch_leaves_no_trace(method):
    adapted = build(method)
    adapted(XS[0])
    before = flat(adapted)
    adapted.predict(XS[1])
    assert adapted.has_pending
    assert adapted.discard()
    assert not adapted.discard()
    assert_same(flat(adapted), before)


def test_a_pending_batch_must_be_learned_from_first(tmp_path):
    adapted = build("tent")
    adapted.predict(XS[0])
    for call in (
        lambda: adapted(XS[1]),
        lambda: adapted.predict(XS[1]),
        adapted.snapshot,
        lambda: adapted.save(tmp_path / "state"),
        adapted.state_dict,
    ):
        with raises("pending", NotAdapted):
            call()
    adapted.reset()
    assert not adapted.learn()


def test_methods_that_predict_after_the_update_have_learned():
    adapted = build("memo")
    adapted.predict(XS[0])
    assert not adapted.has_pending
    assert not adapted.learn()


def test_the_model_cannot_call_the_adapted_model():
    model = tiny_model("batch_norm")
    adapted = acclimate.adapt(model, "tent")
    adapted(XS[0])
    handle = model.register_forward_hook(lambda *_: adapted(XS[0]))
    before = flat(adapted)
    with raises("reentrant", NotAdapted):
        adapted(XS[1])
    handle.remove()
    assert_same(flat(adapted), before)
    adapted(XS[1])


def test_threads_give_the_results_of_a_serial_order():
    """A learning call is found by its count of batches; a paused one belongs to a state."""
    adapted = build("tent")
    made, errors = [], []

    def work(number):
        try:
            for index in range(250):
                which = (number + index) % len(XS)
                if index % 2:
                    with adapted.paused():
                        made.append((which, False, adapted(XS[which])))
                else:
                    made.append((which, True, adapted(XS[which])))
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert adapted.counts.batches == 1000
    serial = build("tent")
    waiting = {}
    for which, learns, logits in made:
        waiting.setdefault((which, learns), []).append(logits)
    states = []
    for _ in range(1000):
        states.append(take_next(serial, waiting))
    with serial.paused():
        states.append([serial(x) for x in XS])
    paused = {which: [state[which] for state in states] for which in range(len(XS))}
    for which in range(len(XS)):
        known = {digest(logits) for logits in paused[which]}
        assert all(digest(logits) in known for logits in waiting.get((which, False), []))
    assert_same(flat(adapted), flat(serial))


def digest(logits):
    return logits.numpy().tobytes()


def take_next(serial, waiting):
    """Return the paused logits of the state, and learn from the batch that a thread did next."""
    with serial.paused():
        found = [serial(x) for x in XS]
    for which in range(len(XS)):
        queue = waiting[which, True]
        matches = [i for i, logits in enumerate(queue) if torch.equal(logits, found[which])]
        if matches:
            queue.pop(matches[0])
            serial(XS[which])
            return found
    raise AssertionError("no thread made the next call of any serial order")
