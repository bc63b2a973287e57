"""Styles of images: noise, blur and the like, told apart without labels and without a model.

A stream may mix images of several kinds: sharp and blurred, clean and noisy. Their BatchNorm
statistics differ, so that the statistics of all of them suit none. A *style* is a group of images
that look alike in four numbers, logarithms that hardly depend on what an image shows: how much
detail there is at one pixel compared with two, and at two compared with four; how colourful the
detail is; and the contrast. Detail is measured by the Laplacian. Numbers that depend on what is
shown, such as how evenly the detail is spread, would make styles of classes.

Groups are found online. An image that is farther than `RADIUS` from all centres opens a new group;
the centres are running means. The state is a dictionary: `centres` (K, 4), and `counts` (K), the
number of images of each, of which old ones count less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: Distance from a centre, in units of `_SPREAD`, from which an image has another style.
RADIUS = 6.0
#: Largest number of styles; a new one replaces that of the fewest images.
MOST = 16
#: Images after which those before count half.
_MEMORY = 1000.0
#: Usual standard deviation of each number among images of one style.
_SPREAD = (0.15, 0.17, 0.5, 0.5)
N_NUMBERS = len(_SPREAD)
_SMALLEST_SIDE = 16
_EPSILON = 1e-3
_N_MOVES = 2


def has_style(x: Any) -> bool:
    """Return whether the inputs are images that are large enough to be described."""
    return (
        isinstance(x, Tensor)
        and x.dim() == 4
        and min(x.shape[2:]) >= _SMALLEST_SIDE
        and x.is_floating_point()
    )


@torch.no_grad()
def describe_styles(x: Tensor) -> Tensor:
    """Return the four numbers of each image (N, 4), in units of their usual spread."""
    x = x.float()
    fine, coarse, coarsest = (
        _laplacian(x if size == 1 else F.avg_pool2d(x, size)) for size in (1, 2, 4)
    )
    energies = [_log(detail.square().mean(dim=1).sqrt()) for detail in (fine, coarse, coarsest)]
    colour = _log(_laplacian(x - x.mean(dim=1, keepdim=True)).square().mean(dim=1).sqrt())
    numbers = [
        energies[0] - energies[1],
        energies[1] - energies[2],
        colour - energies[0],
        _log(x.flatten(2).std(dim=2).mean(dim=1)),
    ]
    return torch.stack(numbers, dim=1) / x.new_tensor(_SPREAD)


def assign_styles(styles: Mapping[str, Tensor], described: Tensor) -> Tensor:
    """Return the number of the style of each image, by its four numbers."""
    described = described.nan_to_num(0.0, 0.0, 0.0)
    return torch.cdist(described, styles["centres"].to(described)).argmin(dim=1)


def update_styles(
    styles: Mapping[str, Tensor] | None, described: Tensor
) -> tuple[dict[str, Tensor], list[int]]:
    """Return the styles after a batch, and which of them were replaced by new ones.

    Images with values that are too large to be described are left out.
    """
    n_images = len(described)
    described = described.cpu()
    described = described[described.isfinite().all(dim=1)]
    if len(described) == 0:
        described = torch.zeros(1, N_NUMBERS) if styles is None else styles["centres"][:1].cpu()
    if styles is None:
        # Not the mean, which may lie between two styles.
        central = (described - described.mean(dim=0)).square().sum(dim=1).argmin()
        centres, counts = described[central][None], torch.zeros(1)
    else:
        centres, counts = styles["centres"].cpu(), styles["counts"].cpu()
        counts = counts * 0.5 ** (n_images / _MEMORY)
    replaced = []
    for _ in range(MOST):
        distances = torch.cdist(described, centres).min(dim=1).values
        farthest = distances.argmax()
        if distances[farthest] <= RADIUS:
            break
        new = described[farthest : farthest + 1]
        if len(centres) < MOST:
            centres, counts = torch.cat([centres, new]), torch.cat([counts, torch.zeros(1)])
        else:
            place = int(counts.argmin())
            if counts[place] == 0:  # all places are taken by this batch
                break
            replaced.append(place)
            centres = centres.index_copy(0, torch.tensor([place]), new)
            counts = counts.index_fill(0, torch.tensor([place]), 0.0)
    start = centres
    for _ in range(_N_MOVES):
        members = F.one_hot(torch.cdist(described, centres).argmin(dim=1), len(centres)).float()
        own = members.sum(dim=0)
        moved = (start * counts[:, None] + members.T @ described) / (counts + own)[:, None]
        centres = torch.where((counts + own > 0)[:, None], moved, start)
    return {"centres": centres, "counts": counts + own}, replaced


def _laplacian(x: Tensor) -> Tensor:
    """Return the second derivatives of all channels, (N, places)."""
    middle = x[..., 1:-1, 1:-1]
    around = x[..., :-2, 1:-1] + x[..., 2:, 1:-1] + x[..., 1:-1, :-2] + x[..., 1:-1, 2:]
    return (around - 4 * middle).flatten(1)


def _log(x: Tensor) -> Tensor:
    return (x + _EPSILON).log()
