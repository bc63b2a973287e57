"""The paired bootstrap, against resamples that are counted one by one."""

from __future__ import annotations

import itertools
import random
import statistics

import numpy as np
import pytest

from acclimate.paper.claims import decide
from acclimate.report import summarize
from acclimate.report.figures import choose_looks, draw_ranking
from acclimate.report.stats import N_RESAMPLES, compare, most_confidence, pair, rank
from acclimate.report.tables import ranking_note, ranking_table
from tests.report.outcomes import exact, make_outcome


def all_differences(first: list, second: list) -> list[float]:
    """Every resample of seeds and of domains there is, each as likely as any other."""
    apart = [
        [a - b for a, b in zip(*rows, strict=True)] for rows in zip(first, second, strict=True)
    ]
    n_seeds, n_domains = len(apart), len(apart[0])
    return [
        statistics.fmean(apart[s][d] for s in seeds for d in domains)
        for seeds in itertools.product(range(n_seeds), repeat=n_seeds)
        for domains in itertools.product(range(n_domains), repeat=n_domains)
    ]


def exact_quantiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[int(0.025 * len(ordered))], ordered[int(0.975 * len(ordered))]


def test_it_agrees_with_all_resamples_there_are():
    # Three seeds of three domains. What is drawn together must stay together: the third seed is
    # worse for a on all domains, and pairs drawn one by one would call it nine accidents.
    errors = {
        "a": [[10, 22, 30], [18, 30, 12], [31, 40, 50]],
        "b": [[15, 25, 37], [26, 31, 20], [19, 30, 37]],
    }
    made = {
        label: [exact(label, *wrong, seed=seed) for seed, wrong in enumerate(own)]
        for label, own in errors.items()
    }
    found = compare(made["a"], made["b"])
    whole = all_differences(errors["a"], errors["b"])
    assert found.n_units == 9
    assert found.value == pytest.approx(statistics.fmean(whole))
    probability = statistics.fmean((d < 0) + (abs(d) < 1e-9) / 2 for d in whole)
    # Ten thousand draws of a share: three standard deviations.
    margin = 3 * (probability * (1 - probability) / N_RESAMPLES) ** 0.5
    assert found.probability == pytest.approx(probability, abs=margin)
    low, high = exact_quantiles(whole)
    assert found.low == pytest.approx(low, abs=0.35)
    assert found.high == pytest.approx(high, abs=0.35)


def test_resampled_means_are_those_of_a_loop():
    draws = random.Random(3)
    outcomes = {
        label: [exact(label, *(draws.randrange(100) for _ in range(4)), seed=s) for s in (0, 1)]
        for label in "abc"
    }
    units = pair(list(outcomes.values()))
    assert units.kind == "domain × seed pairs"
    assert units.errors.shape[1:] == (2, 4)
    means = units.resample(n_resamples=50, seed=7)
    rng = np.random.default_rng(7)
    seeds = rng.multinomial(2, [1 / 2] * 2, size=50)
    domains = rng.multinomial(4, [1 / 4] * 4, size=50)
    for index, column in itertools.product(range(50), range(3)):
        own = list(outcomes.values())[column]
        drawn = []
        for s, d in itertools.product(range(2), range(4)):
            record = own[s].result.records[d]
            drawn += [float(record.n_errors)] * int(seeds[index][s] * domains[index][d])
        assert means[index, column] == pytest.approx(statistics.fmean(drawn), abs=1e-8)


def test_only_domains_that_every_seed_has_are_drawn():
    first = [exact("a", 10, 20, seed=0), exact("a", 12, seed=1)]
    second = [exact("b", 11, 25, seed=0), exact("b", 16, seed=1)]
    found = compare(first, second)
    assert found.n_units == 2
    assert found.value == pytest.approx(-2.5)


def test_seeds_that_change_nothing_are_not_counted_again():
    first = [exact("a", 10, 20, seed=s) for s in (0, 1, 2)]
    second = [exact("b", 12, 20, seed=s) for s in (0, 1, 2)]
    units = pair([first, second])
    assert (units.kind, units.n) == ("domains", 2)
    second[1] = exact("b", 13, 20, seed=1)
    units = pair([first, second])
    assert (units.kind, units.n) == ("domain × seed pairs", 6)


def test_one_domain_and_one_seed_are_resampled_by_batch():
    wrong = {"a": [1, 9, 4, 4, 0], "b": [5, 9, 8, 1, 2]}
    sizes = [10, 10, 10, 10, 5]
    outcomes = []
    for label, own in wrong.items():
        whole = make_outcome(label, {"fog": own[:4]}, n=10)
        last = make_outcome(label, {"fog": own[4:]}, n=5)
        records = (*whole.result.records, *last.result.records)
        numbered = tuple(
            type(record)(**{**vars(record), "index": index}) for index, record in enumerate(records)
        )
        outcomes.append(
            type(whole)(whole.entry, type(whole.result)(numbered), whole.provenance, whole.folder)
        )
    units = pair([[outcome] for outcome in outcomes])
    assert units.kind == "batches"
    assert list(units.weights) == sizes
    found = compare(*[[outcome] for outcome in outcomes])
    assert found.value == pytest.approx(100 * (sum(wrong["a"]) - sum(wrong["b"])) / 45)
    # Every resample there is: errors over images, not a mean of the batches' errors.
    apart = [
        100 * sum(wrong["a"][i] - wrong["b"][i] for i in drawn) / sum(sizes[i] for i in drawn)
        for drawn in itertools.product(range(5), repeat=5)
    ]
    share = statistics.fmean((d < 0) + (d == 0) / 2 for d in apart)
    margin = 3 * (share * (1 - share) / N_RESAMPLES) ** 0.5
    assert found.probability == pytest.approx(share, abs=margin)
    low, high = exact_quantiles(apart)
    assert found.low == pytest.approx(low, abs=1.0)
    assert found.high == pytest.approx(high, abs=1.0)


def test_a_single_batch_has_no_interval():
    assert compare([exact("a", 1)], [exact("b", 2)]) is None
    assert summarize([exact("a", 1), exact("b", 2)]).groups[0].rankings == ()


def test_batches_that_are_not_the_same_are_not_paired():
    first, second = make_outcome("a", {"fog": [1, 2, 3]}), make_outcome("b", {"fog": [1, 2]})
    assert compare([first], [second]) is None


def test_only_what_both_have_is_compared():
    first = [exact("a", 10, 20, seed=0), exact("a", 90, 90, seed=1)]
    found = compare(first, [exact("b", 12, 21, seed=0)])
    assert found.n_units == 2
    assert found.value == pytest.approx(-1.5)
    assert compare([exact("a", 10, 20, seed=0)], [exact("b", 10, 20, seed=1)]) is None


def test_equal_methods_are_a_toss():
    found = compare([exact("a", 10, 20, 30)], [exact("b", 10, 20, 30)])
    assert (found.value, found.low, found.high, found.probability) == (0, 0, 0, 0.5)


def test_pairing_takes_out_what_is_hard_for_both():
    hard = [5, 30, 60, 90, 15, 45]
    first = [exact("a", *hard)]
    second = [exact("b", *(wrong + 2 for wrong in hard))]
    found = compare(first, second)
    assert (found.low, found.high) == pytest.approx((-2, -2))


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_few_units_cannot_be_sure(n):
    first, second = [4] * n, [8] * n
    make = exact if n > 1 else lambda label, wrong: make_outcome(label, {"fog": [wrong, wrong]})
    found = compare([make("a", *first)], [make("b", *second)])
    n_units = max(n, 2)  # one domain is drawn by its two batches
    assert found.n_units == n_units
    assert found.probability == 1 - 0.5**n_units
    assert compare([make("b", *second)], [make("a", *first)]).probability == 0.5**n_units
    # The cap is that of the paper's claims.
    assert decide(np.full(10, 1.0), n_units)[1] == most_confidence(n_units)


@pytest.mark.parametrize(("n", "shown"), [(4, "−2.0 [–]"), (5, "−2.0 [−2.0, −2.0]")])
def test_fewer_than_five_units_have_no_interval(n, shown):
    outcomes = [exact("a", *[10] * n), exact("b", *[12] * n), exact("c", *[20] * n)]
    summary = summarize(outcomes)
    (ranking,) = summary.groups[0].rankings
    cells = [[cell.text for cell in cells] for cells in ranking_table(ranking).rows]
    assert cells[0][4] == shown
    assert [own[2] for own in cells] == (["–"] * 3 if n < 5 else ["1", "2", "3"])
    assert ("no intervals" in ranking_note(ranking)) == (n < 5)
    svg = draw_ranking(ranking, choose_looks(summary)).svg
    assert ('class="range"' in svg) == ("95 % interval" in svg) == (n >= 5)


def test_a_method_the_seed_does_not_change_is_paired_with_every_seed():
    source = [exact("source", 50, 60, method="source", seed=0)]
    tent = [exact("tent", 10 + s, 20, method="tent", seed=s) for s in range(3)]
    units = pair([source, tent])
    assert (units.kind, units.errors.shape[1:]) == ("domain × seed pairs", (3, 2))
    # Of another method nobody knows it from one seed, nor where the seed chooses the images.
    other = [exact("norm", 50, 60, seed=0)]
    assert pair([other, tent]).n == 2
    drawn = {"protocol": {"stream": "imbalanced"}}
    chosen = [exact("source", 50, 60, method="source", seed=0, **drawn)]
    assert pair([chosen, tent]).n == 2


def test_the_ranking_is_over_the_seeds_that_rows_share():
    outcomes = [exact("a", 10, 20, seed=0), exact("a", 90, 90, seed=1)]
    outcomes += [exact("b", 12, 25, seed=0)]
    group = summarize(outcomes, entries=[outcome.entry for outcome in outcomes]).groups[0]
    (ranking,) = group.rankings
    assert [(place.row.label, place.error) for place in ranking.places] == [("a", 15), ("b", 18.5)]
    assert [cells[3].text for cells in ranking_table(ranking).rows] == ["15.0", "18.5"]


def test_the_ranking_is_by_mean_and_compares_neighbours():
    errors = {"b": (20, 30, 41), "a": (10, 20, 30), "c": (21, 29, 41)}
    group = summarize([exact(label, *wrong) for label, wrong in errors.items()]).groups[0]
    (ranking,) = group.rankings
    assert [place.row.label for place in ranking.places] == ["a", "b", "c"]
    assert [place.rank for place in ranking.places] == [
        1,
        2,
        2,
    ]  # b and c are equal on average
    first, second, last = ranking.places
    assert first.to_next.value == pytest.approx(20 - 91 / 3)
    assert first.ranks == (1, 1)
    assert first.to_first is None
    assert last.to_next is None
    assert second.to_next.value == pytest.approx(0)
    assert second.to_next.low < 0 < second.to_next.high
    # b and c are as good as each other: their ranks overlap.
    assert second.ranks[0] == 2
    assert second.ranks[1] == 3
    assert last.to_first.value == pytest.approx(91 / 3 - 20)


def test_ranks_are_those_of_a_loop():
    draws = random.Random(5)
    outcomes = [exact(label, *(draws.randrange(30, 50) for _ in range(6))) for label in "abcd"]
    group = summarize(outcomes).groups[0]
    ranking = rank(group.rows, 400, 1)
    ordered = [place.row.outcomes for place in ranking.places]
    means = pair(ordered).resample(400, 1)
    for index, place in enumerate(ranking.places):
        ranks = []
        for drawn in means.tolist():
            below = sum(other < drawn[index] for other in drawn)
            ranks.append(1 + below)
        low, high = np.percentile(ranks, [2.5, 97.5])
        assert place.ranks == (int(np.floor(low)), int(np.ceil(high)))


def test_errors_of_the_ranking_read_as_in_the_table():
    draws = random.Random(1)
    for _ in range(40):  # some of these lie between two decimals
        outcomes = [
            make_outcome(label, {f"d{i}": [draws.randrange(1000)] for i in range(6)}, n=1000)
            for label in "ab"
        ]
        (ranking,) = summarize(outcomes).groups[0].rankings
        for place, cells in zip(ranking.places, ranking_table(ranking).rows, strict=True):
            assert cells[3].text == str(place.row.mean)


def test_oracles_and_incomplete_rows_are_not_ranked():
    outcomes = [exact(label, 20, 30, seed=s) for label in "ab" for s in (0, 1)]
    outcomes += [exact("bound", 1, 1, seed=s, method="supervised") for s in (0, 1)]
    outcomes += [exact("partial", 1, 1, seed=0)]
    (ranking,) = summarize(outcomes).groups[0].rankings
    assert [place.row.label for place in ranking.places] == ["a", "b"]
    assert ranking.kind == "domains"  # the seeds gave the same numbers
    assert ranking.n_units == 2


def test_each_protocol_has_its_own_ranking():
    outcomes = [exact(label, 20, 30) for label in "abc"]
    outcomes += [exact(label, 5, 6, n=50) for label in "de"]
    rankings = summarize(outcomes).groups[0].rankings
    assert [[place.row.label for place in ranking.places] for ranking in rankings] == [
        ["a", "b", "c"],
        ["d", "e"],
    ]
    assert [ranking.protocol for ranking in rankings] == [0, 1]


def test_the_note_states_how_it_was_made():
    (ranking,) = summarize([exact("a", 20, 30), exact("b", 5, 6)]).groups[0].rankings
    note = ranking_note(ranking)
    assert "(2 domains, 10000 resamples, seed 0)" in note
    (larger,) = summarize([exact("a", *range(5)), exact("b", *range(5))]).groups[0].rankings
    assert "With 5 domains the intervals are rough" in ranking_note(larger)
    again = summarize([exact("a", 20, 30), exact("b", 5, 6)]).groups[0].rankings[0]
    assert again.places[0].to_next == ranking.places[0].to_next
