"""The label filter against all paths of labels, and on streams of each kind."""

from __future__ import annotations

import pytest
import torch

from acclimate.functional import label_filter
from acclimate.functional.label_filter import filter_labels
from acclimate.snapshot import flatten_tree, unflatten_tree
from tests.functional import label_oracle

N_CLASSES = 5


def random(*shape, seed=0, scale=2.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def state_of(stay, last=(0.25, 0.5, 0.25), mean=(0.6, 0.39, 0.01), n=700.0):
    return {"stay": stay, "last": torch.tensor(last), "mean": torch.tensor(mean), "n": n}


def as_lists(state):
    """Return the state for the oracle, with the values that single precision has."""
    lists = {key: state[key].double().tolist() for key in ("last", "mean")}
    return {**state, **lists}


def check(found, expected, state, expected_state):
    expected = torch.tensor(expected, dtype=torch.float64)
    assert torch.allclose(found.exp(), expected, rtol=0, atol=1e-9)
    assert state["stay"] == pytest.approx(expected_state["stay"], rel=1e-9)
    assert state["n"] == expected_state["n"]
    for key in ("last", "mean"):
        assert state[key].tolist() == pytest.approx(expected_state[key], abs=1e-6)


@pytest.mark.parametrize("stay", [label_filter._LOWEST, 0.3, 0.9, label_filter._HIGHEST])
@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_a_batch_is_that_of_all_paths(stay, n):
    logits, state = random(n, 3, seed=n), state_of(stay)
    found, new = filter_labels(logits, state)
    expected, expected_new = label_oracle.filter_labels(logits.tolist(), as_lists(state))
    check(found, expected, new, expected_new)
    plain = logits.softmax(dim=1)
    assert (found.exp() - plain).abs().max() > 1e-3


def test_several_batches_are_those_of_all_paths():
    state, expected_state = None, None
    for number, n in enumerate([4, 1, 3, 5]):
        logits = random(n, 3, seed=number)
        if number % 2:
            logits[:] = logits[:1]  # repeated
        found, state = filter_labels(logits, state)
        expected, expected_state = label_oracle.filter_labels(logits.tolist(), expected_state)
        expected = torch.tensor(expected, dtype=torch.float64)
        # The state between batches is in single precision.
        assert torch.allclose(found.exp(), expected, rtol=0, atol=1e-6)
        assert state["stay"] == pytest.approx(expected_state["stay"], abs=1e-7)


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[1e4, 0.0, -1e4], [-1e4, 0.0, 1e4], [0.0, 0.0, 0.0]]).double()
    found, new = filter_labels(logits, state_of(label_filter._HIGHEST))
    expected, expected_new = label_oracle.filter_labels(
        logits.tolist(), as_lists(state_of(label_filter._HIGHEST))
    )
    check(found, expected, new, expected_new)
    assert found.isfinite().all()


def test_type_and_rows_are_those_of_the_logits():
    logits = random(4, 3).float()
    found, new = filter_labels(logits.requires_grad_(True), None)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert found.exp().sum(dim=1).tolist() == pytest.approx([1] * 4, abs=1e-5)
    assert isinstance(new["stay"], float)


def test_single_images_are_the_forward_pass():
    """What an image shows later does not count any more; what it showed before still does."""
    logits, state = random(6, 3), state_of(0.7)
    whole, end = filter_labels(logits, state)
    for place in range(6):
        alone, after = filter_labels(logits[place : place + 1], state)
        ahead, _ = filter_labels(logits[: place + 1], state_of(0.7))
        assert torch.allclose(alone[0].exp(), ahead[-1].exp(), rtol=0, atol=1e-6)
        state = after
    # The last image of a batch has nothing after it.
    assert torch.allclose(alone[0].exp(), whole[-1].exp(), rtol=0, atol=1e-6)
    assert not torch.allclose(whole[0].exp(), filter_labels(logits[:1], state_of(0.7))[0].exp())
    assert state["stay"] == pytest.approx(end["stay"], abs=1e-6)
    assert torch.allclose(state["mean"], end["mean"], rtol=0, atol=1e-6)


def test_a_state_survives_its_file():
    logits = random(9, 3)
    _, state = filter_labels(logits[:5], None)
    tensors, skeleton = flatten_tree(state)
    loaded = unflatten_tree(tensors, skeleton)
    found, end = filter_labels(logits[5:], loaded)
    expected, expected_end = filter_labels(logits[5:], state)
    assert torch.equal(found, expected)
    assert end["stay"] == expected_end["stay"]
    assert torch.equal(end["mean"], expected_end["mean"])


def test_the_state_given_is_not_changed():
    state = state_of(0.5)
    filter_labels(random(4, 3), state)
    kept = state_of(0.5)
    assert state["stay"] == kept["stay"]
    assert all(torch.equal(state[key], kept[key]) for key in ("last", "mean"))


# Streams -----------------------------------------------------------------------------------------


def predict(labels, seed=1, strength=2.0, prefer=0.0):
    """Return noisy predictions of labels, of a model that prefers class 0."""
    logits = random(len(labels), N_CLASSES, seed=seed, scale=1.0)
    logits[range(len(labels)), labels] += strength
    logits[:, 0] += prefer
    return logits


def run(logits, size=50, state=None):
    found = []
    for part in logits.split(size):
        corrected, state = filter_labels(part, state)
        found.append(corrected)
    return torch.cat(found), state


def shuffled(n):
    return torch.randint(N_CLASSES, (n,), generator=torch.Generator().manual_seed(0))


def accuracy(logits, labels):
    return float((logits.argmax(dim=1) == labels).double().mean())


@pytest.mark.parametrize("size", [1, 50])
@pytest.mark.parametrize("strength", [2.0, 4.0])
def test_a_shuffled_stream_is_left_alone(strength, size):
    labels = shuffled(2000)
    logits = predict(labels, strength=strength)
    even = torch.full((N_CLASSES,), 1 / N_CLASSES)
    state = {"stay": 0.5, "last": even, "mean": even, "n": label_filter._MEAN_START}
    found, state = run(logits, size, state)
    assert state["stay"] < (0.05 if strength > 2 else 0.25)  # sure predictions tell sooner
    found, state = run(logits, size)
    # There is a little chance in it, in both directions.
    assert state["stay"] < 2 * label_filter._FIRST_STAY
    changes = (found.exp() - logits.softmax(dim=1)).abs().amax(dim=1)
    assert changes.mean() < 0.01
    assert accuracy(found, labels) == pytest.approx(accuracy(logits, labels), abs=0.005)


@pytest.mark.parametrize("size", [1, 50])
def test_a_sorted_stream_is_corrected(size):
    labels = torch.arange(N_CLASSES).repeat_interleave(200)
    logits = predict(labels)
    found, state = run(logits, size)
    assert state["stay"] > 0.8
    plain, corrected = accuracy(logits, labels), accuracy(found, labels)
    assert plain < 0.8
    assert 1 - corrected < 0.6 * (1 - plain)  # the first class is corrected late


def test_later_images_correct_earlier_ones():
    labels = torch.arange(N_CLASSES).repeat_interleave(200)
    logits = predict(labels)
    one, several = (accuracy(run(logits, size)[0], labels) for size in (1, 50))
    assert several > one


def test_after_a_sorted_stream_a_shuffled_one_is_left_alone_again():
    labels = torch.cat([torch.arange(N_CLASSES).repeat_interleave(200), shuffled(2000)])
    logits = predict(labels, strength=4.0)
    before = run(logits[:1000])[1]["stay"]
    found, state = run(logits)
    assert before > 0.8
    assert state["stay"] < 0.1
    plain = accuracy(logits[-1000:], labels[-1000:])
    assert accuracy(found[-1000:], labels[-1000:]) > plain - 0.02


@pytest.mark.parametrize(("strength", "prefer"), [(1.0, 3.0), (2.0, 3.0), (4.0, 4.0)])
def test_a_model_that_prefers_a_class_is_not_taken_for_a_correlated_stream(strength, prefer):
    labels = shuffled(2000)
    logits = predict(labels, strength=strength, prefer=prefer)
    assert (logits.argmax(dim=1) == 0).double().mean() > 0.5  # many neighbours seem alike
    even = torch.full((N_CLASSES,), 1 / N_CLASSES)
    known = {"stay": 0.1, "last": even, "mean": logits.softmax(dim=1).mean(dim=0).float()}
    found, state = run(logits, state={**known, "n": label_filter._MEAN_MEMORY})
    assert state["stay"] < 0.1
    assert accuracy(found, labels) > accuracy(logits, labels) - 0.01


def test_what_a_model_prefers_is_learned_in_time():
    """At first a preferred class cannot be told from a stream that begins with that class."""
    labels = shuffled(10_000)
    logits = predict(labels, prefer=3.0)
    found, state = run(logits)
    assert state["stay"] < 0.1
    plain = accuracy(logits[-2000:], labels[-2000:])
    assert accuracy(found[-2000:], labels[-2000:]) > plain - 0.01
