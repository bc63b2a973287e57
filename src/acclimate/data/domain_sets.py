"""What is published of the sets with several domains: names, counts, licences, where they are."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from acclimate.data.download import RemoteFile

_LILA = "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps/"
_DOMAINBED = "https://github.com/facebookresearch/DomainBed"


def normalize_name(name: str) -> str:
    """Return a name without case, spaces and signs, in which copies of a set differ.

    >>> normalize_name("Real World") == normalize_name("real_world") == normalize_name("RealWorld")
    True
    >>> normalize_name("北京"), normalize_name("+")
    ('北京', '+')
    """
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in plain if character.isalnum()) or name


@dataclass(frozen=True, kw_only=True)
class DomainSpec:
    """What is published of a set with several domains.

    Attributes:
        name: On the command line and in Python; also the folder under the data root.
        domains: Number of images by domain, in DomainBed's order; of its own making if empty.
        n_classes: Number of classes.
        classes: Their names, as they are published; empty if they are not compared.
        text: One sentence for people.
        licence: What its makers allow.
        page: Where it is described.
        placing: How to put it in place.
        files: What is downloaded, if anything is.
        size: Height and width DomainBed brings the images to.
    """

    name: str
    domains: Mapping[str, int] = field(default_factory=dict)
    n_classes: int = 0
    classes: tuple[str, ...] = ()
    text: str
    licence: str
    page: str = ""
    placing: str
    files: tuple[RemoteFile, ...] = ()
    size: int | None = 224

    @property
    def n_images(self) -> int:
        """Number of images of all domains."""
        return sum(self.domains.values())


def _place_by_hand(name: str, page: str, terms: str, example: str) -> str:
    return (
        f"The authors permit {terms} and publish no stable address. Download the archive that "
        f"DomainBed uses ({page}; the address is in domainbed/scripts/download.py), then run: "
        f"acclimate data get {name} --from FILE. Or arrange the files as "
        f"{{root}}/{name}/<domain>/<class>/*.jpg, such as {{root}}/{name}/{example}."
    )


_SPECS = (
    DomainSpec(
        name="pacs",
        domains={"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
        n_classes=7,
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        text="9 991 images of 7 classes in 4 styles: art, cartoons, photographs, sketches",
        licence="not stated; for research, cite Li et al., 2017",
        page="https://arxiv.org/abs/1710.03077",
        placing=_place_by_hand("pacs", _DOMAINBED, "research", "sketch/dog/1.jpg"),
    ),
    DomainSpec(
        name="vlcs",
        domains={"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
        n_classes=5,
        classes=("bird", "car", "chair", "dog", "person"),
        text="10 729 photographs of 5 classes from 4 collections",
        licence="that of each collection; for research, cite Fang et al., 2013",
        page="https://openaccess.thecvf.com/content_iccv_2013/papers/"
        "Fang_Unbiased_Metric_Learning_2013_ICCV_paper.pdf",
        placing=_place_by_hand("vlcs", _DOMAINBED, "research", "LabelMe/car/1.jpg"),
    ),
    DomainSpec(
        name="office_home",
        domains={"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},
        n_classes=65,
        text="15 588 images of 65 kinds of things at home and at work, in 4 styles",
        licence="non-commercial research, on its page",
        page="https://www.hemanthdv.org/officeHomeDataset.html",
        placing=_place_by_hand(
            "office_home", _DOMAINBED, "non-commercial research", "Clipart/Mug/00001.jpg"
        ),
    ),
    DomainSpec(
        name="terra_incognita",
        # The authors of SWAD give these counts of the first release, of which DomainBed tells the
        # sum; with the annotations of today there are fewer.
        domains={
            "location_100": 4879,
            "location_38": 9767,
            "location_43": 4020,
            "location_46": 6122,
        },
        n_classes=10,
        classes=(
            *("bird", "bobcat", "cat", "coyote", "dog"),
            *("empty", "opossum", "rabbit", "raccoon", "squirrel"),
        ),
        text="24 788 photographs of 10 classes by the camera traps of 4 places",
        licence="CDLA-Permissive-1.0",
        page="https://lila.science/datasets/caltech-camera-traps",
        placing="Arrange the files as {root}/terra_incognita/location_38/bobcat/*.jpg, or run: "
        "acclimate data get terra_incognita",
        files=(
            # The sizes are the server's; no checksums are published.
            RemoteFile(
                "eccv_18_annotations.tar.gz", (f"{_LILA}eccv_18_annotations.tar.gz",), 2_997_071
            ),
            RemoteFile(
                "eccv_18_all_images_sm.tar.gz",
                (f"{_LILA}eccv_18_all_images_sm.tar.gz",),
                6_492_615_601,
            ),
        ),
    ),
    DomainSpec(
        name="domains-folder",
        text="any labelled images of yours: DIR/<domain>/<class>/<image>",
        licence="yours",
        placing="It is a local folder: pass its path.",
        size=None,
    ),
    DomainSpec(
        name="builtin-domains",
        text="the demo's toys in four styles, 10 classes, made by code",
        licence="Apache-2.0",
        placing="It is generated when it is loaded; there is nothing to download.",
        size=None,
    ),
)

DOMAIN_SETS: dict[str, DomainSpec] = {spec.name: spec for spec in _SPECS}
