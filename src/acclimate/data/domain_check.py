"""Looking at every file of a set of domains: facts, and what is wrong."""

from __future__ import annotations

from pathlib import Path

from acclimate.data.domain_sets import DOMAIN_SETS
from acclimate.data.domain_tree import compare_counts, find_base, find_faults, list_tree
from acclimate.data.places import Progress
from acclimate.errors import BadInput
from acclimate.streams.images import read_ahead

_GROUP = 64
_SMALL = (32, 32)  # a decoded image is thrown away: small is quick


def check_domains(
    name: str, root: Path, path: str | Path | None = None, progress: Progress | None = None
) -> tuple[dict[str, str], list[str]]:
    """Return facts about a set of domains on disk, and what is wrong with it.

    Args:
        name: A key of `DOMAIN_SETS`.
        root: Of all data.
        path: Where the set is, if not under the root.
        progress: Is told of images.

    Raises:
        BadInput: Nothing of it is on disk.
    """
    spec = DOMAIN_SETS[name]
    if name == "builtin-domains":
        return {"source": spec.placing}, []
    if name == "domains-folder" and path is None:
        raise BadInput(
            "missing_option",
            'The data set "domains-folder" is a local folder. Pass its path with --dir.',
            option="path",
        )
    base = find_base(spec, root, path)
    tree = list_tree(base, spec)
    facts, counts = {"folder": str(base)}, tree.counts()
    for domain, classes in tree.domains.items():
        facts[domain] = f"{counts[domain]:,} images, {len(classes)} classes"
    facts["in all"] = f"{sum(counts.values()):,} images, {len(tree.classes)} classes"
    if tree.others:
        facts["not used"] = ", ".join(tree.others)
    problems = find_faults(tree, spec) or compare_counts(counts, spec)
    images = [each for classes in tree.domains.values() for own in classes.values() for each in own]
    unreadable = _list_unreadable(images, progress)
    facts["unreadable"] = f"{len(unreadable):,}"
    return facts, problems + unreadable


def _list_unreadable(images: list[Path], progress: Progress | None) -> list[str]:
    groups = [images[start : start + _GROUP] for start in range(0, len(images), _GROUP)]
    lines = []
    for number, (group, results) in enumerate(zip(groups, read_ahead(groups, _SMALL), strict=True)):
        lines += [
            f"{image} cannot be read ({result})."
            for image, result in zip(group, results, strict=True)
            if isinstance(result, str)
        ]
        if progress is not None:
            progress("reading images", min((number + 1) * _GROUP, len(images)), len(images))
    return lines
