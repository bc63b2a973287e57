"""The paper's method: shift-agnostic weight regularisation and nearest source prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from acclimate.methods.composition import Composition, NspOptions, SwrOptions
from acclimate.methods.config import Config
from acclimate.methods.nsp import NspConfig, NspMethod
from acclimate.methods.swr import PRESETS


@dataclass(frozen=True, kw_only=True)
class SwrNspConfig(SwrOptions, NspConfig):
    """Options of `swr_nsp`; the defaults are the paper's."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS


class SwrNsp(NspMethod):
    """Trains all parameters, damped by shift-agnostic penalties, towards the source's prototypes.

    Paper: Choi et al. 2022, https://arxiv.org/abs/2207.11707. Official code: none is public.
    Moves all parameters; the auxiliary loss moves the encoder only. Returns the logits before the
    update. On pixels, where the paper leaves NSP to future work, it is ours: see `nsp`.
    Cost of a batch: 2 forwards and 2 backwards, the second ones on a transformed view.
    """

    name: ClassVar[str] = "swr_nsp"
    config_class: ClassVar[type[Config]] = SwrNspConfig
    config: SwrNspConfig
    needs: ClassVar[tuple[str, ...]] = ("penalty", "prototypes")
    shards: ClassVar[bool] = True
    dense: ClassVar[bool] = True

    @classmethod
    def own_terms(cls, config: SwrNspConfig) -> Composition:  # type: ignore[override]
        """Return regulariser and auxiliary loss."""
        return Composition(SwrOptions.taken_from(config), NspOptions.taken_from(config))
