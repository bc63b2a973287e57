"""The adaptation step as one graph gives what the eager step gives."""

from __future__ import annotations

import io

import pytest
import torch

import acclimate
from acclimate.export_step import export_step
from acclimate.testing.models import tiny_batches, tiny_model
from tests.codes import raises


@pytest.mark.parametrize("statistics", ["batch", "source"])
@pytest.mark.parametrize("name", ["batch_norm", "group_norm", "vit"])
def test_the_graph_learns_as_the_eager_method_does(name: str, statistics: str) -> None:
    options = {"statistics": statistics, "lr": 0.05, "optimizer": "sgd"}
    options |= {"sgd_momentum": 0.0, "nesterov": False}
    adapted = acclimate.adapt(tiny_model(name), "tent", **options)
    batches = [x for x, _ in tiny_batches(4)]
    exported = export_step(adapted, batches[0])
    assert adapted.counts.batches == 0
    file = io.BytesIO()
    torch.export.save(exported.program, file)
    file.seek(0)
    graph = torch.export.load(file).module()
    values = list(exported.parameters)
    for x in batches:
        logits, loss, *gradients = graph(x, *values)
        torch.testing.assert_close(logits, adapted(x), rtol=1e-4, atol=1e-5)
        assert float(loss) == pytest.approx(adapted.losses["loss"], rel=1e-4)
        values = [v - 0.05 * g for v, g in zip(values, gradients, strict=True)]
    for key, value, start in zip(exported.names, values, exported.parameters, strict=True):
        own = adapted.parameters_moved[key].detach()
        torch.testing.assert_close(value, own, rtol=1e-4, atol=1e-5)
        assert not torch.equal(value, start)


def test_other_steps_are_refused() -> None:
    x = tiny_batches(1)[0][0]
    for method, options in (("norm", {}), ("tent", {"statistics": "auto"})):
        adapted = acclimate.adapt(tiny_model("batch_norm"), method, **options)
        with raises("not_exportable", method=method):
            export_step(adapted, x)
