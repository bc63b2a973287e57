"""All methods, by name."""

from __future__ import annotations

from importlib import import_module

from acclimate.errors import UnknownMethod, did_you_mean
from acclimate.methods.method import Method
from acclimate.options import Registry

#: The methods of the package, baselines first. Each is in the file of its name.
_NAMES = """
    source norm alpha_bn bn_ema tent core entropy infomax shot tfa ttt_pp t3a
    swr nsp swr_nsp steady swr_fixmatch eta eata sar deyo rpl rdumb
    cotta rotta petta tribe roid cmf note lame memo supervised
"""


def _load(name: str) -> type[Method]:
    """Return the method that a file defines; it has the file's name."""
    found = vars(import_module(f"acclimate.methods.{name}")).values()
    kinds = [c for c in found if isinstance(c, type) and issubclass(c, Method)]
    return next(kind for kind in kinds if kind.name == name)


#: The registered methods by name.
METHODS: Registry[Method] = Registry(Method, map(_load, _NAMES.split()))


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
