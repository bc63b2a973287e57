"""The callback for Lightning: `trainer.test` and `trainer.predict` adapt, and nothing stays."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import acclimate
from acclimate.errors import NotAdapted, UnsuitableModel
from acclimate.integrations import watch
from acclimate.testing.models import N_CLASSES, tiny_model
from acclimate.zoo.torchvision_compat import import_library
from tests.codes import raises, warns
from tests.integrations.common import guarded, images, is_as_before, prepare_tiny, state_of

pytest.importorskip("lightning_utilities", reason="needs the extra lightning")
lightning: Any = import_library("pytorch_lightning", "lightning")

from acclimate.integrations.lightning import Acclimate  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pytorch_lightning")


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    """A module as users write it."""

    def __init__(self, direct: bool = False) -> None:
        super().__init__()
        self.net, self.direct = tiny_model("batch_norm"), direct
        self.errors: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def test_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
        x, y = batch
        logits = self.net(x) if self.direct else self(x)
        self.errors.append(int((logits.argmax(dim=1) != y).sum()))
        self.log("error", self.errors[-1] / len(y))

    def predict_step(self, batch: Any, index: int) -> Tensor:
        return self(batch[0])


def make_trainer(*callbacks: Any, **options: Any) -> Any:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    quiet = dict.fromkeys(
        ("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False
    )
    return lightning.Trainer(callbacks=list(callbacks), accelerator="cpu", **quiet, **options)


def make_loader(n: int = 3) -> Any:
    x = torch.cat(images(n))
    return DataLoader(TensorDataset(x, torch.arange(len(x)) % N_CLASSES), batch_size=16)


@pytest.mark.parametrize(
    ("method", "options"), [("tent", {"inference_mode": False}), ("swr_nsp", {}), ("cotta", {})]
)
def test_predictions_are_those_of_the_adapted_model(method: str, options: dict[str, Any]) -> None:
    module = Classifier()
    artifact = prepare_tiny(module)
    adapted = acclimate.adapt(copy.deepcopy(module), method, artifact)
    expected = [adapted(x) for x, _ in make_loader()]
    before = state_of(module)
    callback = Acclimate(method, artifact)
    found = make_trainer(callback, **options).predict(module, make_loader())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert callback.counts == adapted.counts
    assert callback.counts.updates == 3
    assert is_as_before(module, before)
    assert "forward" not in vars(module)
    adapted = acclimate.adapt(module, method, artifact)  # nobody else adapts it any more
    assert torch.equal(adapted(images(1)[0]), expected[0])


def test_testing_counts_the_errors_of_the_adapted_model() -> None:
    module = Classifier()
    modes = [part.training for part in module.modules()]
    trainer = make_trainer(Acclimate("tent", lr=0.1))
    trainer.test(module, make_loader(), verbose=False)
    adapted = acclimate.adapt(Classifier(), "tent", lr=0.1)
    expected = [int((adapted(x).argmax(dim=1) != y).sum()) for x, y in make_loader()]
    assert module.errors == expected
    assert [part.training for part in module.modules()] == modes


def test_a_module_inside_can_be_named_and_is_reset_between_dataloaders() -> None:
    module, log = Classifier(direct=True), []
    callback = Acclimate(
        "tent",
        module="net",
        reset_each=True,
        on_adapt=lambda adapted: watch(adapted, lambda step, values: log.append(values["drift"])),
        lr=0.01,
    )
    make_trainer(callback).test(module, [make_loader(2), make_loader(2)], verbose=False)
    assert len(log) == 4
    assert log[:2] == log[2:]
    assert log[0] < log[1]
    assert callback.counts is not None
    assert callback.counts.batches == 2
    assert module.errors[:2] == module.errors[2:]


def test_a_guard_reports_at_the_end() -> None:
    module = Classifier()
    module.net, artifact = guarded()
    callback = Acclimate("tent", artifact, module="net", guard="watch")
    make_trainer(callback).test(module, make_loader(), verbose=False)
    assert callback.report is not None
    assert callback.report.n_samples == 48
    assert callback.adapted is None


def test_a_module_that_is_not_called_is_warned_of_and_a_wrong_name_refused() -> None:
    module = Classifier(direct=True)
    with warns("nothing_adapted"):
        make_trainer(Acclimate("tent")).test(module, make_loader(), verbose=False)
    with raises("unknown_name", UnsuitableModel, kind="module", name="nett") as caught:
        make_trainer(Acclimate("tent", module="nett")).test(module, make_loader(), verbose=False)
    assert caught.value.known == ("net",)


def test_after_an_error_the_module_is_as_it_was() -> None:
    class Failing(Classifier):
        def test_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
            super().test_step(batch, index)
            if index == 1:
                raise RuntimeError("out of patience")

    module = Failing()
    before = state_of(module)
    callback = Acclimate("tent", lr=0.1)
    with pytest.raises(RuntimeError, match="out of patience"):
        make_trainer(callback).test(module, make_loader(), verbose=False)
    assert is_as_before(module, before)
    assert callback.counts is not None
    assert callback.counts.batches == 2
    kept = acclimate.adapt(module, "tent")
    with raises("already_adapted", NotAdapted):
        make_trainer(callback).test(module, make_loader(), verbose=False)
    assert kept.unwrap() is module


def test_a_fit_is_not_touched() -> None:
    class Trained(Classifier):
        def training_step(self, batch: Any, index: int) -> Tensor:
            return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    results = []
    for callbacks in ([], [Acclimate("tent")]):
        torch.manual_seed(0)
        module = Trained()
        make_trainer(*callbacks, max_epochs=1).fit(module, make_loader())
        results.append(state_of(module))
    assert all(torch.equal(results[0][name], value) for name, value in results[1].items())
