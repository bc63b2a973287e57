"""How much confidence the statistics of a stream cost where nothing is wrong with the stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from acclimate.forward import run
from acclimate.functional.entropy import log_probs
from acclimate.functional.norm import batch_norm_layers, use_statistics
from acclimate.functional.stream_norm import MEMORY, stream_share, use_stream
from acclimate.options import hp
from acclimate.parts.part import Computed, Context, Part, Saved, register_part
from acclimate.parts.source import iterate_blocks
from acclimate.schema import Schema, TensorOf

#: Effective number of samples of the stream that is simulated.
_N_EFFECTIVE = 4 * MEMORY


@register_part
@dataclass(frozen=True, kw_only=True)
class Confidence(Part):
    """The confidence that mixed statistics of batches cost on source images.

    `statistics="auto"` distrusts the statistics of a stream if they make predictions less
    confident. With many classes they do so on clean, shuffled images, too; that much is allowed.
    Models without BatchNorm have 0.

    The tensor is `confidence/loss`.
    """

    name: ClassVar[str] = "confidence"
    dense: ClassVar[bool] = True
    always_exact: ClassVar[bool] = True

    n_samples: int = hp(512, low=2, help="number of source images, in shuffled batches of 64")

    @classmethod
    def tensor_schemas(cls, saved: Saved) -> Mapping[str, Schema]:
        return {"confidence/loss": TensorOf((), low=-1, high=1)}

    @torch.no_grad()
    def compute(self, context: Context) -> Computed:
        total, n = torch.zeros((), dtype=torch.float64), 0
        if batch_norm_layers(context.model):
            for x, _ in iterate_blocks(context.source, "confidence", self.n_samples, 64):
                with use_statistics(context.model, "source"):
                    own = self._measure(context, x)
                    with use_stream(context.model, None, 1.0, stream_share(_N_EFFECTIVE)):
                        total += len(x) * (own - self._measure(context, x))
                n += len(x)
        loss = (total / max(n, 1)).float()
        card = {**self.to_card(), "n_samples": n, "loss": round(float(loss), 4)}
        return {"confidence/loss": loss}, card

    @staticmethod
    def _measure(context: Context, x: torch.Tensor) -> torch.Tensor:
        logits = run(context.model, x, None, context.info.logits_at, context.call).logits
        return log_probs(logits).exp().amax(dim=1).mean().double().cpu()
