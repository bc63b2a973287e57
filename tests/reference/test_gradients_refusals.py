"""What gradient cosines refuse to do."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acclimate.functional.per_sample import gradient_cosines
from tests.codes import raises
from tests.reference.gradient_models import N_CLASSES, make_model, make_samples


def test_refuses_batch_statistics_and_active_dropout() -> None:
    model, samples = make_model("batch norm"), make_samples()
    model[1].train()
    with raises("batch_dependent", layers=("1",)):
        gradient_cosines(model, model, *samples)
    model = nn.Sequential(nn.Dropout(0.5), make_model("mlp"))
    with raises("random_layers", layers=("0",)):
        gradient_cosines(model, model, *samples)


def test_refuses_an_input_changed_in_place() -> None:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
            self.head = nn.Linear(4, N_CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            y = self.conv(x)
            return self.head((y + x.mul_(2)).mean((2, 3)))

    model = Changed().double().eval()
    with raises("changed_in_place", layers=("conv",)):
        gradient_cosines(model, model, *make_samples())


def test_the_message_says_why_torch_func_cannot_do_a_model() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Parameter(torch.eye(3)), nn.Linear(3, N_CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = x.mean((2, 3)) @ self.mix
            return self.head(x if x.sum().item() > 0 else -x)

    model = Branching().double().eval()
    with raises("not_differentiable", parameters=("mix",)) as caught:
        gradient_cosines(model, model, *make_samples())
    reason = str(caught.value.__cause__)
    assert ".item()" in reason
    assert reason.strip().splitlines()[0] in str(caught.value)


def test_refuses_what_is_not_logits() -> None:
    model, samples = make_model("mlp"), make_samples()
    with raises("wrong_logits", found=(3,)):
        gradient_cosines(lambda x: model(x).sum(1), model, *samples)


def test_refuses_gradients_that_are_not_finite() -> None:
    model, (x, x_transformed, y) = make_model("mlp"), make_samples()
    x[0, 0, 0, 0] = torch.inf
    with raises("not_finite", found=lambda names: names[0] == "1.weight"):
        gradient_cosines(model, model, x, x_transformed, y)


def test_refuses_bad_arguments() -> None:
    model, (x, x_transformed, y) = make_model("mlp"), make_samples()
    known = ("tensor", "module", "channel", "parameter")
    with raises("unknown_name", kind="granularity", name="tensors", known=known):
        gradient_cosines(model, model, x, x_transformed, y, "tensors")  # type: ignore[arg-type]
    with raises("out_of_range", option="chunk", found=0):
        gradient_cosines(model, model, x, x_transformed, y, chunk=0)
    with raises("out_of_range", option="memory_budget", found=0):
        gradient_cosines(model, model, x, x_transformed, y, memory_budget=0)
    shapes = (tuple(x.shape), tuple(x[1:].shape), tuple(y.shape))
    with raises("wrong_shape", found=shapes):
        gradient_cosines(model, model, x, x_transformed[1:], y)
