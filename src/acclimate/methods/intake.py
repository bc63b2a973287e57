"""What a batch goes through before a method sees it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from acclimate.artifact import Artifact
from acclimate.errors import BadInput, NotAdapted
from acclimate.functional.inputs import Normalization, check_batch, check_images
from acclimate.functional.norm import batch_norm_layers
from acclimate.functional.processes import Processes
from acclimate.methods.config import Config
from acclimate.methods.guard import Guard
from acclimate.methods.speed import Speed
from acclimate.methods.state import Stateful
from acclimate.taps import LogitsAt, get_logits, suits_channels_last, takes, try_forward


class Intake(Stateful):
    """Looks at the model with the first batch, and checks every batch."""

    #: The processes that share every batch; None if the whole batch is here.
    processes: Processes | None = None

    config: Config
    logits_at: LogitsAt
    normalization: Normalization | None
    speed: Speed
    input_shape: list[int] | None

    def __init__(
        self, model: nn.Module, artifact: Artifact | None, seed: int, guard: Guard | None
    ) -> None:
        super().__init__(model, seed, guard)
        self.artifact = artifact
        self._paused = False
        self._has_batch_norm = bool(batch_norm_layers(model))
        # What the model is like; None until a batch was seen.
        self._channels_last: bool | None = None
        self._is_dense = artifact.anatomy.is_dense if artifact is not None else None
        self._takes_single: bool | None = None

    def needs_several_samples(self) -> bool:
        """Say whether a batch of one cannot be learned from: it has no batch statistics."""
        return self._has_batch_norm and self._statistics == "batch"

    @property
    def _statistics(self) -> str:
        return self.config.statistics

    def _is_single(self, x: Tensor) -> bool:
        """Say whether a batch has too few values for statistics.

        The pixels of one image have statistics, unless the model pools them all into one value
        somewhere, and normalises that.
        """
        if len(x) > 1 or self.processes is not None or not self.needs_several_samples():
            return False
        if self._is_dense and self._takes_single is None:
            self._takes_single = takes(self.model, x, "batch")
        return not (self._is_dense and self._takes_single)

    def _accept(self, x: Tensor) -> Tensor:
        """Return a batch ready for use, or raise; nothing has changed then."""
        self._check_usable()
        if torch.is_inference_mode_enabled():
            raise NotAdapted(
                "inference_mode",
                "an adapted model cannot learn inside torch.inference_mode(), where no gradient "
                "can be had. Use torch.no_grad() instead: it is lifted where it must be.",
            )
        first = next((p for p in self.model.parameters()), x)
        if isinstance(x, Tensor) and x.device != first.device:
            raise BadInput(
                "wrong_device",
                f"expected a batch on {first.device}, where the model is, found {x.device}. "
                "Move one of them.",
                expected=str(first.device),
                found=str(x.device),
            )
        shape = self._expected_shape(x)
        if self.artifact is not None or self.normalization is not None:
            # What pixels mean was said when the model was prepared: the range can be checked.
            check_images(x, self.normalization, shape)
        else:
            check_batch(x, shape)
        if x.dtype != first.dtype and not torch.is_autocast_enabled(x.device.type):
            raise BadInput(
                "wrong_dtype",
                f"expected a batch of {first.dtype}, as the model is, found {x.dtype}. Convert it.",
                found=str(x.dtype).removeprefix("torch."),
            )
        if self._is_dense is None or self.input_shape != list(x.shape[1:]):
            logits = get_logits(try_forward(self.model, x[:2]), self.logits_at)
            self._is_dense = logits.dim() == 4
        if self._is_single(x) and self.counts.batches == 0 and not self._paused:
            raise BadInput(
                "single_sample",
                "expected more than one sample: BatchNorm statistics of a single image mean "
                'nothing. Send larger batches, or adapt with statistics="running" or "source", on '
                "the command line --set statistics=running. "
                "(A single image after larger batches is predicted, but not learned from.)",
            )
        if self._channels_last is None:
            self._channels_last = self._takes_channels_last(x)
        x = x.detach()
        return x.clone() if x.is_inference() else x

    def _expected_shape(self, x: object) -> tuple[int, ...] | None:
        """Return the shape that samples must have; None if nobody has said so yet."""
        if self.input_shape is None:
            return None
        if self._is_dense and isinstance(x, Tensor) and x.dim() == 4:
            # Whoever predicts every pixel was made for images of any size.
            return (self.input_shape[0], *x.shape[2:])
        return tuple(self.input_shape)

    def _takes_channels_last(self, x: Tensor) -> bool:
        """Say whether batches are passed with colour as the last axis in memory."""
        return self.speed.channels_last and suits_channels_last(self.model, x)
