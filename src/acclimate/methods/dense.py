"""Which methods make sense pixel by pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acclimate.errors import UnsuitableModel

if TYPE_CHECKING:
    from acclimate.methods.base import Method


def is_dense(kind: type[Method]) -> bool:
    """Say whether a method adapts models that predict every pixel."""
    # Not inherited: a subclass may do with whole images what its base does not.
    return bool(vars(kind).get("dense", False))


def check_dense(kind: type[Method], is_shared: bool = False) -> None:
    """Refuse a method for a model that predicts every pixel, unless it makes sense there.

    Args:
        kind: The method.
        is_shared: Whether several processes share a batch.

    Raises:
        UnsuitableModel: With the methods that do.
    """
    if is_dense(kind) and is_shared:
        raise UnsuitableModel(
            "dense_unsupported",
            "a model that predicts every pixel cannot be spread over processes: what they exchange "
            "is counted in samples. Run it in one process.",
            what="shard",
        )
    if is_dense(kind):
        return
    from acclimate.methods import METHODS  # not above: it imports this module

    able = ", ".join(name for name, other in METHODS.items() if is_dense(other))
    raise UnsuitableModel(
        "dense_unsupported",
        f"this model predicts every pixel, and {kind.name} is made for predictions of whole "
        "images: it selects, keeps, moves or contrasts them, or leans on a linear head. Use one of "
        f"{able}; SWR can be laid over those that learn.",
        what=kind.name,
    )
