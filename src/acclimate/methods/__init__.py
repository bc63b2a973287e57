"""All methods, by name."""

from __future__ import annotations

from acclimate.errors import UnknownMethod, did_you_mean
from acclimate.methods.alpha_bn import AlphaBn
from acclimate.methods.bn_ema import BnEma
from acclimate.methods.cmf import Cmf
from acclimate.methods.core import Core
from acclimate.methods.cotta import Cotta
from acclimate.methods.deyo import Deyo
from acclimate.methods.eata import Eata
from acclimate.methods.entropy import Entropy
from acclimate.methods.eta import Eta
from acclimate.methods.infomax import Infomax
from acclimate.methods.lame import Lame
from acclimate.methods.memo import Memo
from acclimate.methods.method import Method
from acclimate.methods.norm import Norm
from acclimate.methods.note import Note
from acclimate.methods.nsp import NspMethod
from acclimate.methods.petta import Petta
from acclimate.methods.rdumb import Rdumb
from acclimate.methods.roid import Roid
from acclimate.methods.rotta import Rotta
from acclimate.methods.rpl import Rpl
from acclimate.methods.sar import Sar
from acclimate.methods.shot import Shot
from acclimate.methods.source import Source
from acclimate.methods.steady import Steady
from acclimate.methods.supervised import Supervised
from acclimate.methods.swr import SwrMethod
from acclimate.methods.swr_fixmatch import SwrFixmatch
from acclimate.methods.swr_nsp import SwrNsp
from acclimate.methods.t3a import T3a
from acclimate.methods.tent import Tent
from acclimate.methods.tfa import Tfa
from acclimate.methods.tribe import Tribe
from acclimate.methods.ttt_pp import TttPp
from acclimate.options import Registry

#: The registered methods by name, baselines first.
METHODS: Registry[Method] = Registry(
    Method,
    (
        Source,
        Norm,
        AlphaBn,
        BnEma,
        Tent,
        Core,
        Entropy,
        Infomax,
        Shot,
        Tfa,
        TttPp,
        T3a,
        SwrMethod,
        NspMethod,
        SwrNsp,
        Steady,
        SwrFixmatch,
        Eta,
        Eata,
        Sar,
        Deyo,
        Rpl,
        Rdumb,
        Cotta,
        Rotta,
        Petta,
        Tribe,
        Roid,
        Cmf,
        Note,
        Lame,
        Memo,
        Supervised,
    ),
)


def list_methods() -> list[str]:
    """Return the names of all methods, baselines first."""
    return list(METHODS)


def get_method(name: str) -> type[Method]:
    """Return the method of that name.

    Raises:
        UnknownMethod: With the nearest known name.
    """
    if name not in METHODS:
        raise UnknownMethod(
            "unknown_method",
            f'there is no method "{name}". {did_you_mean(name, METHODS)}',
            name=name,
            known=tuple(METHODS),
        )
    return METHODS[name]


def register_method(name: str, method: type[Method]) -> None:
    """Add a method of one's own, so that `adapt` and the command line know it.

    Raises:
        InvalidConfig: The name is taken, or is not the class's own.
    """
    METHODS.register(method, name)
