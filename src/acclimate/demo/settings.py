"""What the demonstration runs; needs no torch, so that the command line can take it from here."""

from __future__ import annotations

from acclimate.options import Values, hp, options, split_names


@options
class DemoChoices(Values):
    """What the command line can choose. The default shifts were fixed in advance."""

    data: str = hp("builtin", help="builtin, which needs no data; or cifar10, fetched once.")
    methods: tuple[str, ...] = hp(
        ("source", "norm", "tent", "swr_nsp"),
        parse=split_names,
        help="Methods, separated by commas; or all.",
    )
    corruptions: tuple[str, ...] = hp(
        ("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate", "jpeg_compression"),
        parse=split_names,
        help="Shifts, separated by commas.",
    )
    images: int = hp(1400, help="Test images of each shift.")
    costly_images: int = hp(
        100, help="Number of these images for methods that take one image at a time; 0: all."
    )
    batch_size: int = hp(200, help="Batch size.")
    severity: int = hp(5, help="Severity of the shifts, from 1 to 5.")
    order: str = hp(
        "shuffled", help="Order of the images of a shift: shuffled, or sorted (by class)."
    )
    seeds: int = hp(1, help="Number of seeds; with several, tables show mean ± spread.")
    reveal_labels: bool = hp(False, help="Let the oracle learn from the labels.")
