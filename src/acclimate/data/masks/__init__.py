"""Images with a class for every pixel: Cityscapes, CamVid, anybody's, and a built-in set."""

from __future__ import annotations

from acclimate.data.masks.images import LabelledPixels, MaskedImages
from acclimate.data.masks.loading import load_masks
from acclimate.data.masks.shift import Shift
from acclimate.data.masks.specs import IGNORE, MASK_SETS, MaskSpec, make_palette

__all__ = [
    "IGNORE",
    "MASK_SETS",
    "LabelledPixels",
    "MaskSpec",
    "MaskedImages",
    "Shift",
    "load_masks",
    "make_palette",
]
