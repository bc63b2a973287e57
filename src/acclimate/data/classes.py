"""Names of classes, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 8

CIFAR10: tuple[str, ...] = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

CIFAR100: tuple[str, ...] = (
    *("apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle"),
    *("bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle"),
    *("caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch"),
    *("crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox"),
    *("girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion"),
    *("lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom"),
    *("oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree"),
    *("plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road"),
    *("rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake"),
    *("spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone"),
    *("television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale"),
    *("willow_tree", "wolf", "woman", "worm"),
)


def shorten_classes(names: Sequence[str]) -> str:
    """Return how many classes there are, and the first names, for people.

    >>> shorten_classes(["cat", "dog"]), shorten_classes(CIFAR10)
    ('2: cat, dog', '10: airplane, automobile, bird, cat, deer, dog, frog, horse, …')
    """
    more = ", …" if len(names) > _SHOWN else ""
    return f"{len(names):,}: {', '.join(names[:_SHOWN])}{more}"
