"""The guard: which model answers, what is restored, and that nothing else changes."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

import acclimate
from acclimate import Artifact, Guard
from acclimate.forward import Forward
from acclimate.functional.signals import RECORD, SIGNALS, Estimate, Interval, measure_signals
from acclimate.functional.styles import assign_styles, describe_styles
from acclimate.guard import _fresh_window, _record, is_probed_batch
from acclimate.methods import METHODS
from acclimate.schema import like
from acclimate.snapshot import flatten_tree
from acclimate.testing.cases import METHOD_OPTIONS, Case, tiny_artifact
from acclimate.testing.models import N_CLASSES, tiny_batches, tiny_model
from tests.codes import raises, warns
from tests.guarding import script_gain

pytestmark = pytest.mark.filterwarnings("ignore:Adaptation seems to hurt")

BATCHES = tiny_batches(6, 16, seed=5)
#: The gain is positive where both models almost always agree, so that methods differ.
BY_AGREEMENT = {"gain": -1.9, "by": {"agreement": 2.0}}


def model_of(method):
    return next(m for m in ("batch_norm", "instance_aware") if Case(method, m).suits)


def build(method="tent", gain=0.5, by=None, model=None, guard=None, size=None, **options):
    """Adapt a tiny model under a guard that estimates this gain."""
    name = model or model_of(method)
    artifact = script_gain(tiny_artifact(name), gain, by)
    if size is not None:
        card = {**artifact.card, "input_shape": [3, size, size]}
        artifact = Artifact(artifact.tensors, card)
    made = Guard(artifact, **options) if guard is None else guard
    own = METHOD_OPTIONS.get(method, {})
    return acclimate.adapt(tiny_model(name), method, artifact, guard=made, **own)


def run(adapted, batches):
    found = []
    for x, y in batches:
        if adapted.card.is_oracle:
            adapted.reveal(y)
        found.append(adapted(x))
    return found


def flat(adapted):
    return flatten_tree(copy.deepcopy(adapted._tree()))


def assert_same(first, second):
    assert first[1] == second[1]
    assert first[0].keys() == second[0].keys()
    for name, tensor in first[0].items():
        assert torch.equal(tensor.nan_to_num(-7.0), second[0][name].nan_to_num(-7.0)), name


@torch.no_grad()
def predict(x, name="batch_norm"):
    return tiny_model(name)(x)


# Every method -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", acclimate.list_methods())
def test_the_answer_is_that_of_one_of_the_two_models(method, monkeypatch):
    adapted = build(method, gain=0.5)
    seen = []
    review = Guard.judge
    monkeypatch.setattr(
        Guard, "judge", lambda self, m, x, made: (seen.append(made), review(self, m, x, made))[1]
    )
    answers = run(adapted, BATCHES)
    kinds = set()
    for (x, _), answer, made in zip(BATCHES, answers, seen, strict=True):
        by_source = torch.equal(answer, predict(x, model_of(method)))
        assert by_source or torch.equal(answer, made.logits.to(answer))
        kinds.add("source" if by_source else "adapted")
    assert kinds == {"source", "adapted"} or method == "source"
    assert adapted.report().answers == "adapted"


@pytest.mark.parametrize("method", acclimate.list_methods())
def test_watching_changes_no_answer(method):
    name = model_of(method)
    artifact, own = tiny_artifact(name, guarded=True), METHOD_OPTIONS.get(method, {})
    plain = acclimate.adapt(tiny_model(name), method, artifact, **own)
    watched = acclimate.adapt(tiny_model(name), method, artifact, guard="watch", **own)
    for first, second in zip(run(plain, BATCHES), run(watched, BATCHES), strict=True):
        assert torch.equal(first, second)
    assert plain.counts == watched.counts
    assert watched.report().n_samples == 96
    assert watched.report().n_by_source == 0
    assert watched.report().answers == "adapted"
    assert watched.estimate() is not None


@pytest.mark.parametrize("method", acclimate.list_methods())
def test_a_state_is_resumed_reset_and_given_back(method, tmp_path):
    options = {"patience": 16, "rest": 32, **BY_AGREEMENT}
    uncut = build(method, **options)
    start = flat(uncut)
    expected = run(uncut, BATCHES)
    first = build(method, **options)
    run(first, BATCHES[:3])
    first.save(tmp_path / "state")
    second = build(method, **options).load(tmp_path / "state")
    for found, logits in zip(run(second, BATCHES[3:]), expected[3:], strict=True):
        assert torch.equal(found, logits)
    assert second.report() == uncut.report()
    assert second.counts == uncut.counts
    assert_same(flat(second), flat(uncut))
    uncut.reset()
    assert_same(flat(uncut), start)
    assert all(map(torch.equal, run(uncut, BATCHES), expected))
    given = uncut.unwrap().state_dict()
    for key, tensor in tiny_model(model_of(method)).state_dict().items():
        assert torch.equal(given[key], tensor)


# What is measured ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "batch_size", "answers", "n_forwards"),
    [
        ("batch_norm", 16, True, 9 + 5 * 3),
        ("batch_norm", 16, False, 3 * 4),
        ("group_norm", 16, True, 9 + 5 * 2),  # no statistics of batches
        ("group_norm", 16, False, 3 * 3),
        ("batch_norm", 1, True, 9 + 5 * 2),  # nor of single images
        ("batch_norm", 1, False, 3 * 3),
    ],
)
def test_forwards_are_counted(model, batch_size, answers, n_forwards, monkeypatch):
    adapted = build("source", model=model, answers=answers)
    calls = []
    adapted.guard._source.register_forward_hook(lambda *_: calls.append("source"))
    view = adapted.predict_view
    monkeypatch.setattr(adapted, "predict_view", lambda x: (calls.append("adapted"), view(x))[1])
    run(adapted, tiny_batches(9, batch_size, seed=6))
    assert adapted.guard.every == (2 if answers else 4)
    assert adapted.report().n_forwards == len(calls) == n_forwards
    assert calls.count("adapted") == (5 if answers else 3)


@torch.no_grad()
def predict_by_batch(x):
    """Predict by the source model with statistics of the batch."""
    model = tiny_model("batch_norm")
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.train()
    return model(x)


def watch(method, every, monkeypatch, **options):
    """Return the records of the guard, and the predictions of `norm`, by hand."""
    guard = Guard(script_gain(tiny_artifact("batch_norm")), answers=False, every=every)
    adapted = acclimate.adapt(tiny_model("batch_norm"), method, guard=guard, **options)
    by_batch = []
    review = Guard.judge

    def look(self, method, x, made):
        by_batch.append([float(norm.index(max(norm))) for norm in predict_by_batch(x).tolist()])
        return review(self, method, x, made)

    monkeypatch.setattr(Guard, "judge", look)
    run(adapted, BATCHES)
    # A guard that only watches records what it probes.
    return guard.tree()["windows"][0]["records"][:, 0], [
        value for n, each in enumerate(by_batch) if is_probed_batch(n, every) for value in each
    ]


def norm_agreement(records):
    return float(measure_signals(records, N_CLASSES)[SIGNALS.index("norm_agreement")])


@pytest.mark.parametrize("every", [1, 2])
def test_norm_agrees_with_itself(every, monkeypatch):
    records, expected = watch("norm", every, monkeypatch)
    assert records[:, 6].tolist() == expected
    assert norm_agreement(records) == 1


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    ("method", "options"), [("tent", {"lr": 0.3}), ("entropy", {"lr": 0.1}), ("source", {})]
)
def test_models_that_moved_agree_less_with_norm(method, options, every, monkeypatch):
    """Their weights moved, or their statistics are not those of the batch."""
    records, expected = watch(method, every, monkeypatch, **options)
    assert records[:, 6].tolist() == expected
    equal = [own == norm for own, norm in zip(records[:, 3].tolist(), expected, strict=True)]
    assert norm_agreement(records) == pytest.approx(sum(equal) / len(equal), abs=1e-12)
    assert 0 < norm_agreement(records) < 1


@pytest.mark.parametrize("every", [1, 2, 4, 7])
@pytest.mark.parametrize("period", [1, 2, 3, 5, 8])
def test_probes_are_spread_over_conditions_that_come_in_turns(every, period):
    for phase in range(period):
        probed = [is_probed_batch(n, every) for n in range(phase, 200 * period, period)]
        assert sum(probed) == pytest.approx(200 / every, abs=12)
        assert any(probed[: 8 * every])
    assert is_probed_batch(0, every)


def test_batches_without_a_probe_are_recorded_without_what_it_tells():
    adapted = build("tent", gain=0.5)
    run(adapted, BATCHES)
    records = adapted.guard.tree()["windows"][0]["records"]
    assert records.shape == (96, 1, len(RECORD))
    probed = torch.tensor([is_probed_batch(n // 16, 2) for n in range(96)])
    for column in ("source_steady", "adapted_steady", "norm_class", "norm_confidence"):
        known = ~records[:, 0, RECORD.index(column)].isnan()
        assert torch.equal(known, probed), column


def predictions(n, sureness, seed):
    """Return logits of about the same sureness, for random classes."""
    random = torch.Generator().manual_seed(seed)
    logits = 0.1 * torch.randn(n, N_CLASSES, generator=random)
    classes = torch.randint(N_CLASSES, (n,), generator=random)
    logits[torch.arange(n), classes] += sureness
    return Forward(None, logits, None, None)


def test_each_condition_of_a_stream_has_records_of_its_own():
    guard = build("source").guard
    window = _fresh_window()
    sizes, changes = [], []
    # Bright, dark, bright, dark; then something new.
    for number, sureness in enumerate([4.0, 1.0, 4.0, 4.0, 1.0, 4.0, 2.2]):
        made = predictions(100, sureness, number)
        guard._extend(window, _record(made, made, None, (None, None), None))
        sizes.append(len(window["records"]))
        changes.append(window["changes"])
    assert sizes == [100, 100, 200, 300, 200, 400, 100]
    assert [len(each) for each in window["earlier"]] == [200, 400]
    # Only what was never seen before makes a stream unstable.
    fading = [0.5 ** (100 / 1000 * steps) for steps in range(7)]
    assert changes == pytest.approx([0, 1, *fading[1:5], fading[5] + 1])


def test_the_oldest_conditions_are_forgotten():
    guard = build("source").guard
    window = _fresh_window()
    levels = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0]
    for number, sureness in enumerate(levels):
        for part in range(2):
            made = predictions(500, sureness, 10 * number + part)
            guard._extend(window, _record(made, made, None, (None, None), None))
    found = [float(each[:, 0, 1].mean()) for each in window["earlier"]]
    expected = [math.exp(level) / (math.exp(level) + N_CLASSES - 1) for level in levels[2:-1]]
    assert found == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("model", "batch_size"), [("group_norm", 16), ("batch_norm", 1)])
def test_without_statistics_of_batches_norm_is_the_source_model(model, batch_size):
    guard = Guard(script_gain(tiny_artifact(model), 0.5), every=1)
    adapted = acclimate.adapt(tiny_model(model), "infomax", guard=guard, lr=0.1)
    run(adapted, tiny_batches(6, batch_size, seed=6))
    records = guard.tree()["windows"][0]["records"][:, 0]
    assert len(records) == 6 * batch_size
    assert torch.equal(records[:, 6:], records[:, :2])
    # Single images are not learned from.
    assert torch.equal(records[:, 3], records[:, 0]) == (batch_size == 1)


# Scripted methods ---------------------------------------------------------------------------------


class Scripted(acclimate.GradientMethod):
    """Learns a bias, and returns logits that have nothing to do with it."""

    name = "scripted"

    @classmethod
    def trainable(cls, model, config):
        return {"head.bias": model.head.bias}

    def loss(self, x):
        logits = self.run(x, statistics="source").logits
        return self.spoil(logits), -logits[:, 0].mean()

    def infer(self, x):
        return self.spoil(self.run(x, moves=False, statistics="source").logits)

    def spoil(self, logits):
        return logits.roll(1, dims=1)


class Constant(Scripted):
    """Always sure of one class."""

    name = "scripted"

    def spoil(self, logits):
        return logits * 0 + torch.eye(N_CLASSES)[0] * 20


class Broken(Scripted):
    """Returns logits that are not finite, after some batches."""

    name = "scripted"

    def spoil(self, logits):
        return logits * torch.nan if self.counts.batches >= 3 else logits


class Brightness(Scripted):
    """Predicts whether an image is bright."""

    name = "scripted"

    def loss(self, x):
        _, loss = super().loss(x)
        return self.tell(x), loss

    def tell(self, x):
        self.run(x, moves=False)
        return 9.0 * F.one_hot((x.mean((1, 2, 3)) > 0.5).long(), N_CLASSES).float()


@pytest.fixture(params=[Scripted, Constant])
def wrong(request, monkeypatch):
    monkeypatch.setitem(METHODS, "scripted", request.param)


def run_wrong(n):
    """Return the adapted model, and reports and numbers of updates after each batch."""
    adapted = build("scripted", gain=-0.5, model="batch_norm", patience=32, rest=64)
    start, rate = tiny_model("batch_norm").head.bias, adapted.config.lr
    history = []
    for x, _ in tiny_batches(n, 16, seed=6):
        assert torch.equal(adapted(x), predict(x))
        history.append((adapted.report(), adapted.counts.updates))
        used = adapted.optimizer.param_groups[0]["lr"]
        assert used == pytest.approx(rate * history[-1][0].rate, abs=0)
        if history[-1][0].is_resting:
            assert torch.equal(adapted.model.head.bias, start)
    return adapted, history


def test_wrong_answers_are_replaced_states_restored_and_learning_rests(wrong):
    adapted, history = run_wrong(40)
    reports = [report for report, _ in history]
    first = next(report for report in reports if report.n_restored == 1)
    assert (first.rate, first.n_rests, first.is_resting) == (0.5, 0, False)
    begin = next(n for n, report in enumerate(reports) if report.is_resting)
    assert (reports[begin].n_restored, reports[begin].n_rests) == (2, 1)
    assert reports[begin].rate == 0.25
    assert history[begin][1] == history[begin + 2][1]  # no update while it rests
    assert history[begin][1] > 0
    assert reports[-1].n_by_source == reports[-1].n_samples == 40 * 16
    assert reports[-1].answers == "source"
    assert sum(reports[-1].reasons.values()) == 40 * 16
    assert adapted.counts.restored == reports[-1].n_restored
    assert adapted.counts.skipped["guard"] > 0


def test_learning_is_tried_again_after_a_rest(wrong):
    _, history = run_wrong(80)
    reports = [report for report, _ in history]
    begin = next(n for n, report in enumerate(reports) if report.is_resting)
    end = next((n for n in range(begin, 80) if not reports[n].is_resting), None)
    assert end is not None
    assert history[-1][1] > history[begin][1]


def test_a_helpful_method_is_answered_with_and_left_alone(monkeypatch):
    monkeypatch.setitem(METHODS, "scripted", Scripted)
    adapted = build("scripted", gain=0.5, model="batch_norm", patience=32)
    bias = adapted.model.head.bias.detach().clone()
    answers = run(adapted, tiny_batches(20, 16, seed=6))
    for (x, _), answer in list(zip(tiny_batches(20, 16, seed=6), answers, strict=True))[3:]:
        assert not torch.equal(answer, predict(x))
    report = adapted.report()
    assert (report.answers, report.n_restored, report.n_rests, report.rate) == ("adapted", 0, 0, 1)
    assert report.n_by_source < 64
    assert adapted.counts.updates == 20
    assert not torch.equal(adapted.model.head.bias, bias)


def test_logits_that_are_not_finite_are_never_answered(monkeypatch):
    monkeypatch.setitem(METHODS, "scripted", Broken)
    adapted = build("scripted", gain=0.5, model="batch_norm")
    for n, (x, _) in enumerate(tiny_batches(8, 16, seed=6)):
        answer = adapted(x)
        assert bool(answer.isfinite().all())
        if n >= 3:
            assert torch.equal(answer, predict(x))
    assert adapted.counts.restored > 0
    with adapted.paused():
        assert bool(adapted(x).isfinite().all())


@pytest.mark.parametrize("gain", [-0.5, 0.5])
def test_calls_that_do_not_learn_use_the_decision_and_change_nothing(gain):
    adapted = build("tent", gain=gain)
    x = BATCHES[0][0]
    with adapted.paused():
        assert torch.equal(adapted(x), predict(x))  # nothing is known yet
    run(adapted, BATCHES)
    before = flat(adapted)
    with adapted.paused():
        paused = adapted(x)
    adapted.eval()
    with warns("eval_mode"):
        assert torch.equal(adapted(x), paused)
    assert torch.equal(paused, predict(x)) == (gain < 0)
    assert_same(flat(adapted), before)


def test_single_images():
    artifact = script_gain(tiny_artifact("batch_norm"), 0.5)
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent", artifact, guard=True)
    for x, _ in tiny_batches(40, 1, seed=6):
        assert torch.allclose(adapted(x), predict(x), rtol=0, atol=1e-6)
    assert adapted.counts.skipped == {"single": 40}
    assert adapted.report().n_samples == 40
    with raises("single_sample"):
        acclimate.adapt(tiny_model("batch_norm"), "tent")(x)


def test_another_precision_in_mid_stream():
    adapted = build("tent", gain=-0.5)
    run(adapted, BATCHES[:3])
    adapted.double()
    x = BATCHES[3][0].double()
    with torch.no_grad():
        expected = tiny_model("batch_norm").double()(x)
    assert torch.equal(adapted(x), expected)


def test_a_guard_that_was_used_before_starts_anew():
    guard = Guard(script_gain(tiny_artifact("batch_norm"), 0.5))
    first = build(guard=guard)
    run(first, BATCHES)
    first.unwrap()
    second = build(guard=guard)
    assert second.report().n_samples == 0
    for found, expected in zip(run(second, BATCHES), run(build(), BATCHES), strict=True):
        assert torch.equal(found, expected)


# Failures -----------------------------------------------------------------------------------------


class Failure(Exception):
    pass


@pytest.mark.parametrize("where", ["_run_source", "_remember", "_decide", "_warn"])
@pytest.mark.parametrize("method", ["tent", "infomax", "cotta", "rotta"])
def test_a_review_that_fails_leaves_everything_as_before(method, where, monkeypatch):
    options = {"gain": -0.5, "patience": 16, "rest": 32}
    adapted, twin = build(method, **options), build(method, **options)
    real = getattr(Guard, where)

    def fail(*arguments):
        real(*arguments)
        raise Failure

    for x, _ in BATCHES:
        before = flat(adapted)
        rates = [group["lr"] for group in adapted.optimizer.param_groups]
        with monkeypatch.context() as patch:
            patch.setattr(Guard, where, fail)
            with pytest.raises(Failure):
                adapted(x)
        assert_same(flat(adapted), before)
        assert [group["lr"] for group in adapted.optimizer.param_groups] == rates
        assert torch.equal(adapted(x), twin(x))
    assert adapted.report() == twin.report()
    assert twin.counts.restored > 0


# Warnings and refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize("answers", [True, False])
def test_it_warns_once_if_adaptation_hurts(answers):
    adapted = build("tent", gain=-0.5, answers=answers)
    with warns("adaptation_hurts") as notes:
        run(adapted, tiny_batches(40, 16, seed=6))
    assert len(notes) == 1
    assert ("guard=True" in str(notes[0])) != answers


def test_small_batches_are_warned_of_once():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent")
    with warns("small_batch") as notes:
        run(adapted, tiny_batches(4, 8))
    assert len(notes) == 1


def test_correlated_streams_are_warned_of_once(monkeypatch):
    monkeypatch.setitem(METHODS, "scripted", Brightness)
    adapted = acclimate.adapt(tiny_model("batch_norm"), "scripted")
    random = torch.Generator().manual_seed(0)
    stream = [0.3 * torch.rand(32, 3, 8, 8, generator=random) + 0.6 * (n % 2) for n in range(16)]
    with warns("correlated_stream") as notes:
        for x in stream:
            adapted(x)
    assert len(notes) == 1
    whole = torch.cat(stream)[torch.randperm(512, generator=random)]
    mixed = acclimate.adapt(tiny_model("batch_norm"), "scripted")
    for x in whole.split(32):
        mixed(x)
    assert "correlated_stream" not in mixed._warned


def test_a_guard_needs_its_part():
    plain = tiny_artifact("batch_norm")
    for artifact in (None, plain):
        for guard in (True, "watch"):
            with raises("missing_parts", parts=("accuracy",)):
                acclimate.adapt(tiny_model("batch_norm"), "tent", artifact, guard=guard)
    with raises("missing_parts", parts=("accuracy",)):
        Guard(plain)


def test_an_estimate_needs_a_guard():
    adapted = acclimate.adapt(tiny_model("batch_norm"), "tent")
    with raises("no_guard"):
        adapted.estimate()
    with raises("no_guard"):
        adapted.report()


def test_illegal_options():
    artifact = script_gain(tiny_artifact("batch_norm"))
    illegal = {"window": 1, "every": 0, "patience": 0, "rest": 0}
    with raises("invalid_options", problems=lambda found: set(found) == set(illegal)):
        Guard(artifact, **illegal)


def test_reports_are_readable():
    adapted = build("tent", gain=-0.5, patience=32)
    assert "not yet known" in str(adapted.report())
    run(adapted, tiny_batches(3, 16))
    assert adapted.estimate() == adapted.report().estimate
    lines = str(adapted.report()).splitlines()
    assert lines[0] == "48 images, 48 answered by the source model; now answering: source"
    assert lines[2:] == [
        "states restored: 1, rests: 0, learning rate × 0.5",
        "images answered by the source model because too few images were seen: 16",
        "images answered by the source model because adaptation is estimated to hurt: 32",
    ]


def test_a_method_that_combines_views_is_judged_by_each_of_them(monkeypatch):
    """Averaged and filtered predictions are unlike those that the maps were fitted on."""
    batches = [x for x, _ in tiny_batches(2, seed=3)]
    artifact = script_gain(tiny_artifact("batch_norm"))
    tensors = {**artifact.tensors, "mirror/mirrored": artifact.tensors["mirror/accuracy"].clone()}
    artifact = Artifact(tensors, artifact.card)
    adapted = acclimate.adapt(tiny_model("batch_norm"), "steady", artifact, guard=Guard(artifact))

    def refuse(x):
        raise AssertionError("the mirrored images were predicted already")

    monkeypatch.setattr(adapted, "predict_view", refuse)
    seen = []
    run_views = adapted._run_views

    def note(x, moves=True):
        views = run_views(x, moves)
        seen.append([view.logits.detach().clone() for view in views])
        return views

    monkeypatch.setattr(adapted, "_run_views", note)
    adapted(batches[0])
    (first, second), records = seen[0], adapted.guard.tree()["windows"][0]["records"][:, 0]
    assert torch.equal(records[:, 3], first.argmax(dim=1).float())
    torch.testing.assert_close(records[:, 4], first.softmax(dim=1).amax(dim=1).float())
    assert torch.equal(records[:, 5], (first.argmax(dim=1) == second.argmax(dim=1)).float())
    assert adapted.view_logits is None  # of the batch only


# Styles of images ---------------------------------------------------------------------------------


def of_two_styles(n, seed=0):
    """Return n noisy and n smooth images, shuffled, and which are smooth."""
    random = torch.Generator().manual_seed(seed)
    noisy, smooth = (torch.rand(n, 3, 16, 16, generator=random) for _ in range(2))
    smooth = F.avg_pool2d(smooth, 7, stride=1, padding=3)
    order = torch.randperm(2 * n, generator=random)
    return torch.cat([noisy, smooth])[order], (order >= n)


def estimate_gain(value):
    around = Interval(value, value - 0.01, value + 0.01)
    return Estimate(
        Interval(0.5, 0.4, 0.6), Interval(0.5 + value, 0.4, 0.6), around, 0.0, 200, True
    )


def script_styles(guard, gains, monkeypatch):
    """Let the guard estimate these gains for the styles."""
    found = [estimate_gain(gain) for gain in gains]
    monkeypatch.setattr(guard, "_estimate_styles", lambda state: found[: len(state["windows"])])


@pytest.mark.parametrize("answers", [True, False])
def test_each_style_is_answered_by_the_better_model(answers, monkeypatch):
    adapted = build("norm", size=16, answers=answers, every=1)
    script_styles(adapted.guard, [0.3, -0.3], monkeypatch)
    n_by_source = 0
    for seed in range(3):
        x, is_smooth = of_two_styles(16, seed)
        found = adapted(x)
        styles = assign_styles(adapted.guard.tree()["styles"], describe_styles(x))
        second = styles == 1
        assert torch.equal(second, is_smooth) or torch.equal(second, ~is_smooth)
        n_by_source += answers * int(second.sum())
        by_source = second if answers else torch.zeros(32, dtype=torch.bool)
        expected = torch.where(by_source[:, None], predict(x), predict_by_batch(x))
        assert torch.allclose(found, expected, rtol=0, atol=1e-5)
        if answers:
            with adapted.paused():
                assert torch.equal(adapted(x)[second], found[second])
    report = adapted.report()
    assert (report.n_by_source, report.n_samples) == (n_by_source, 96)
    assert sum(report.reasons.values()) == n_by_source
    assert report.estimate.gain.value == pytest.approx(0.0, abs=1e-6)
    assert report.estimate.n_samples == 400


def test_records_are_kept_by_style():
    adapted = build("norm", size=16, every=1)
    batches = [of_two_styles(16, seed) for seed in range(3)]
    for x, _ in batches:
        adapted(x)
    state = adapted.guard.tree()
    expected = [[], []]
    for x, _ in batches:
        for own, style in zip(
            predict(x), assign_styles(state["styles"], describe_styles(x)), strict=True
        ):
            expected[style].append(float(own.argmax()))
    found = [window["records"][:, 0, 0].tolist() for window in state["windows"]]
    assert found == expected


def test_the_estimate_is_the_mean_over_the_images_of_late(monkeypatch):
    adapted = build("norm", size=16, every=1)
    x, is_smooth = of_two_styles(16)
    script_styles(adapted.guard, [0.2, -0.1], monkeypatch)
    adapted(x)
    first = int(assign_styles(adapted.guard.tree()["styles"], describe_styles(x))[0])
    alone = x[is_smooth == is_smooth[0]]
    # Only the style of the first image from here on: 16 images, of which old ones count less.
    adapted(alone)
    of_first, of_other = 16 * 0.5 ** (1 / 8) + 16, 16 * 0.5 ** (1 / 8)
    gains = [0.2, -0.1] if first == 0 else [-0.1, 0.2]
    expected = (of_first * gains[0] + of_other * gains[1]) / (of_first + of_other)
    assert adapted.estimate().gain.value == pytest.approx(expected)


@pytest.mark.parametrize("method", ["tent", "steady", "rotta"])
def test_a_state_with_several_styles_is_resumed(method, tmp_path):
    batches = [of_two_styles(16, seed)[0] for seed in range(6)]
    options = {"size": 16, "patience": 16, "rest": 32, **BY_AGREEMENT}
    uncut, first = build(method, **options), build(method, **options)
    expected = [uncut(x) for x in batches]
    for x in batches[:3]:
        first(x)
    assert len(first.guard.tree()["windows"]) > 1
    first.save(tmp_path / "state")
    second = build(method, **options).load(tmp_path / "state")
    for x, logits in zip(batches[3:], expected[3:], strict=True):
        assert torch.equal(second(x), logits)
    assert second.report() == uncut.report()
    assert_same(flat(second), flat(uncut))


def test_windows_must_fit_the_styles():
    adapted = build("norm", size=16)
    adapted(of_two_styles(16)[0])
    state = adapted.state_dict()
    adapted.load_state_dict(state)
    broken = copy.deepcopy(adapted.guard.tree())
    broken["windows"] = broken["windows"][:1]
    schema = adapted.guard.schema(like(adapted.learned()))
    assert not schema.find_problems(adapted.guard.tree())
    assert any("styles" in problem for problem in schema.find_problems(broken))
