"""A random search trains every model once, and goes on where it was cut."""

from __future__ import annotations

from pathlib import Path

import torch

from acclimate.storage import read_file
from acclimate.training import DomainResult, DomainSettings
from acclimate.training.domains.search import file_name, list_runs, train_all
from acclimate.training.settings import get_hparams
from tests.codes import raises
from tests.training.domains.samples import make_set, make_settings

BASE = make_settings(
    objective="erm", lr=None, batch_size=None, weight_decay=None, dropout=None, steps=2
)


def test_every_model_is_trained_once() -> None:
    held_out = [("shore",), ("shore", "farm"), ("farm", "shore"), ("shore",), ("city", "shore")]
    runs = list_runs(BASE, held_out, n_trials=2, seeds=(0, 4))
    assert len(runs) == 3 * 2 * 2
    assert len({file_name(run) for run in runs}) == len(runs)
    assert {run.held_out for run in runs} == {("shore",), ("farm", "shore"), ("city", "shore")}


def test_the_first_trial_has_the_defaults_and_others_are_draws_of_domainbed() -> None:
    runs = list_runs(BASE, [("shore",)], n_trials=5, seeds=(0, 1, 2))
    assert len(runs) == 15
    for run in runs:
        assert run.hparams == get_hparams(run.hparams_seed, run.seed)
        assert run.trial_seed == run.seed
    drawn = {run.hparams.lr for run in runs}
    assert len(drawn) == 1 + 4 * 3
    changed = list_runs(BASE, [("shore",)], n_trials=2, defaults={"lr": 0.25})
    assert [run.hparams.lr for run in changed] == [0.25, get_hparams(1, 0).lr]


def test_nothing_to_train_is_refused() -> None:
    with raises("out_of_range", option="n_trials", found=0):
        list_runs(BASE, [("shore",)], n_trials=0, seeds=(0,))
    with raises("missing_option", option="seeds"):
        list_runs(BASE, [("shore",)], n_trials=1, seeds=())


def test_what_is_there_is_not_trained_again(tmp_path: Path) -> None:
    runs = list_runs(BASE, [("shore",), ("farm", "shore")], defaults={"batch_size": 4})
    data = make_set()
    told: list[tuple[str, bool]] = []

    def record(run: DomainSettings, result: DomainResult) -> None:
        told.append((file_name(run), result.was_done))

    first = train_all(runs[:1], tmp_path / "models", data=data, device="cpu", on_result=record)
    both = train_all(runs, tmp_path / "models", data=data, device="cpu", on_result=record)
    assert told == [
        (file_name(runs[0]), False),
        (file_name(runs[0]), True),
        (file_name(runs[1]), False),
    ]
    assert first[runs[0]].validation == both[runs[0]].validation
    assert list(both[runs[1]].validation) == ["city"]
    files = [read_file(tmp_path / "models" / file_name(run), "zoo")[0] for run in runs]
    assert any(not torch.equal(files[0][name], files[1][name]) for name in files[0])
