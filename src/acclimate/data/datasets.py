"""What a data set is: where it is published, how it is fetched, checked and opened.

Each data set is an object, and all of them are in `SETS`. Another one is a subclass of `DataSet`
with a method `open`, and is added with `register`; see docs/data.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

import numpy as np

from acclimate._version import __version__
from acclimate.corruptions import BENCHMARK, apply, provenance
from acclimate.corruptions.frost import frost_from
from acclimate.data.arrays import CARD, array_sha256, read_card, write_card
from acclimate.data.corruptor import choose_corruptions
from acclimate.data.download import RemoteFile, fetch_all
from acclimate.data.generate import generate
from acclimate.data.places import Notify, Progress, data_root, hold_lock, staged_folder
from acclimate.data.request import Data, Request
from acclimate.data.stores import BATCH, Batches, ImageStore
from acclimate.errors import BadInput, DownloadFailed, did_you_mean
from acclimate.streams.batch import Domain
from acclimate.streams.images import Size, read_ahead, try_read

_GROUP = 64
_SMALL = (32, 32)  # a decoded image is thrown away: small is quick


class Options(TypedDict, total=False):
    """Options of `load`; each data set accepts those that mean something to it.

    Attributes:
        path: The folder of the data set, if it is not under the root.
        domain: One of several domains; all of them by default.
        corruption: A corruption of `acclimate.corruptions`.
        severity: Its severity, 1 to 5.
        seed: Seed of its random draws.
        n: Number of images; of files, at even distances in the sorted listing.
        start: Index of the first image of a generated data set.
        size: Height and width of image files, or one number for both.
        resize: What image files are resized to cover before a crop of `size`.
        classes: Class names of a local folder, in the order of the model's logits.
        ignore_label: The value of unlabelled pixels in the masks of a local folder.
        workers: Number of processes that generate images.
        progress: Called with the stage, the number done and the total.
    """

    path: str | Path | None
    domain: str | None
    corruption: str | None
    severity: int
    seed: int
    n: int | None
    start: int
    size: int | Size | None
    resize: int | Size | None
    classes: Sequence[str] | None
    ignore_label: int
    workers: int
    progress: Progress | None


@dataclass(frozen=True)
class Report:
    """What `check` found.

    Attributes:
        facts: For people, by title.
        problems: One sentence each, with what to do; empty if all is right.
    """

    facts: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set. Subclasses implement `open`, and override other methods where they differ.

    Attributes:
        name: On the command line and in Python; also the folder under the data root.
        text: One sentence for people.
        licence: What its authors allow.
        page: Where it is described.
        classes: Names of the classes; empty if the images themselves give them.
        files: What is downloaded.
        placing: How to put it in place, if it is not downloaded; `{root}` is the data root.
        is_own: Whether it is a layout of local folders, which need a path.
        source: The data set whose training split a model for this one has seen; None for itself.
    """

    name: str
    text: str
    licence: str = "not stated"
    page: str = ""
    classes: tuple[str, ...] = ()
    files: tuple[RemoteFile, ...] = ()
    placing: str = ""
    is_own: bool = False
    source: str | None = None

    #: Whether images are files, whose own order is that of their names.
    is_files: ClassVar[bool] = False
    #: Whether every pixel has a class.
    has_masks: ClassVar[bool] = False
    #: Whether there are several domains.
    has_domains: ClassVar[bool] = False
    #: Whether the images are made by code, as many as are asked for.
    is_generated: ClassVar[bool] = False
    #: Whether a number of training images can be taken by name, to prepare an artifact from.
    can_prepare: ClassVar[bool] = False
    #: Whether there are arrays of training images.
    can_train: ClassVar[bool] = False

    # Open ------------------------------------------------------------------------------------

    def open(self, split: str | None, root: Path) -> ImageStore:
        """Return a split as a store. Subclasses add the keyword options that they accept."""
        raise BadInput(
            "wrong_loader",
            f'The data set "{self.name}" has no labels; it is used to generate other data sets '
            f"({self.text}).",
            name=self.name,
        )

    def to_data(self, asked: Request, path: Path | None = None) -> Data:
        """Return what is measured on: domains by corruption.

        Args:
            asked: What of it.
            path: Where it is, if not under the root.
        """
        root = data_root(asked.root)
        n = {"n": asked.n} if self.is_generated and asked.n else {}
        whole = self.open(None, root, **n)
        images = whole.first(asked.count(self.name, len(whole)))
        clean = images.to_domain("clean")
        about = {self.name: images.description}
        groups: dict[str, tuple[Domain, ...]] = {self.name: (images.to_domain(self.name),)}
        if asked.corruptions is None:
            asked.refuse_severity(self.name, "pass --corruptions as well")
        else:
            with frost_from(root):
                groups, about = corrupt_images(images, asked)
        source = self.source or self.name
        return Data(
            self.name,
            groups,
            images.classes,
            about,
            source=source,
            clean=lambda: clean,
            palette=images.palette,
        )

    def to_batches(
        self,
        root: Path,
        n: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        **options: Any,
    ) -> Batches:
        """Return the training images in labelled batches, to prepare an artifact from.

        Args:
            root: Of all data.
            n: Number of images; None for all.
            seed: Of the order.
            batch_size: Batch size; None for the usual one.
            **options: `normalization` of the batches; `path`, `size`, `classes` and `ignore_label`
                of image files.
        """
        own = {"n": n} if self.is_generated and n is not None else {}
        images = self.open("train", root, **own).first(n)
        return Batches(
            images, BATCH if batch_size is None else batch_size, seed, options.get("normalization")
        )

    # Fetch -----------------------------------------------------------------------------------

    def fetch(
        self,
        root: Path,
        source: Path | None = None,
        force: bool = False,
        progress: Progress | None = None,
        notify: Notify | None = None,
    ) -> Path:
        """Return where the data set is, fetched and checked if it was not there.

        Args:
            root: Of all data.
            source: An archive, folder or file that was brought here by other means.
            force: Fetch it even if it is there.
            progress: Called with megabytes and files.
            notify: Called with the reason why a mirror failed, and with other notes.

        Raises:
            BadInput: It cannot be fetched by a program, or `source` is something else.
            DownloadFailed: No mirror has it.
            CorruptFile: What was fetched or given is not the published data set.
        """
        if type(self).install is DataSet.install or self.is_own or self.is_generated:
            raise self.not_fetchable(root)
        with hold_lock(root, self.name, notify):
            there = self.find(root)
            if there is not None and not force:
                return there
            target = root / self.name
            with (
                self.obtain(root, source, progress, notify) as (place, about),
                staged_folder(target) as folder,
            ):
                about |= self.install(folder, place, progress, notify)
                write_card(folder, {"name": self.name, "version": __version__, **about})
        return target

    def find(self, root: Path) -> Path | None:
        """Return where the whole data set is, or None."""
        folder = root / self.name
        return folder if (folder / CARD).is_file() else None

    @contextmanager
    def obtain(
        self, root: Path, source: Path | None, progress: Progress | None, notify: Notify | None
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Give the published files, and what the card records about their origin."""
        if source is not None:
            yield source, {"source": f"imported from {source.name}"}
            return
        if not self.files:
            raise self.not_fetchable(root)
        with fetch_all(self.files, root, progress, notify) as (place, sums):
            yield place, {"source": "official", "files": sums}

    def install(
        self, folder: Path, place: Path, progress: Progress | None, notify: Notify | None
    ) -> dict[str, Any]:
        """Write the data set into an empty folder; return what the card records about the content.

        Args:
            folder: An empty one, which takes the place of the data set in one step.
            place: An archive, folder or file as published.
            progress: Called with the number of files.
            notify: Called with notes.
        """
        raise NotImplementedError

    def not_fetchable(self, root: Path) -> BadInput:
        """Return the error for a data set that must be put in place by hand."""
        return BadInput(
            "not_fetchable",
            f'The data set "{self.name}" cannot be downloaded automatically. {self.place(root)}',
            name=self.name,
        )

    def not_fetched(self, root: Path) -> BadInput:
        """Return the error for a data set that can be downloaded, and has not been."""
        return BadInput(
            "not_fetched",
            f'The data set "{self.name}" has not been downloaded to {root}. Run: {self.get(root)}',
            name=self.name,
        )

    def get(self, root: Path, option: str = "") -> str:
        """Return the command that fetches the data set."""
        return f"acclimate data get {self.name} {option}--data-dir {root}"

    def remedy(self, root: Path) -> str:
        """Return what to do about a damaged data set."""
        return f"Download it again: {self.get(root, '--force ')}"

    def place(self, root: Path) -> str:
        """Return how to put the data set in place by hand."""
        return self.placing.replace("{root}", str(root))

    def offline(self, failure: DownloadFailed, *more: str) -> DownloadFailed:
        """Return a failed download with what to do on a machine without internet access."""
        names = " and ".join(file.name for file in self.files)
        hint = (
            f"Without internet access, copy {names} from {self.page} to this machine and run: "
            f"acclimate data get {self.name} --from PATH"
        )
        return DownloadFailed(
            failure.code, "\n  ".join([str(failure), hint, *more]), **failure.data
        )

    # Check -----------------------------------------------------------------------------------

    def check(
        self, root: Path, path: Path | None = None, progress: Progress | None = None
    ) -> Report:
        """Read every file of the data set; return facts, and what is wrong.

        Args:
            root: Of all data.
            path: Where it is, if not under the root.
            progress: Called with the number of files.

        Raises:
            BadInput: Nothing of it is on disk.
        """
        return Report({"source": self.placing})

    def state(self, root: Path) -> str:
        """Return in a few words what of it is on disk; empty if nothing."""
        if self.is_generated:
            return "made by code"
        card = root / self.name / CARD
        if not card.is_file():
            return ""
        return str(read_card(card, self.remedy(root), "source")["source"])

    def need_path(self, path: str | Path | None) -> None:
        """Refuse a layout of local folders without a folder."""
        if self.is_own and path is None:
            raise BadInput(
                "missing_option",
                f'The data set "{self.name}" is a local folder. Pass its path as path=, or with '
                "--dir.",
                option="path",
            )

    # Corrupt ---------------------------------------------------------------------------------

    def corrupt(
        self,
        root: Path,
        names: Sequence[str],
        severities: Sequence[int],
        out: Path | None = None,
        seed: int = 0,
        workers: int = 1,
        progress: Progress | None = None,
        notify: Notify | None = None,
    ) -> Any:
        """Write corrupted copies of the test split, as far as they are not there; see subclasses.

        Args:
            root: Of all data.
            names: Corruptions.
            severities: From 1 to 5.
            out: The folder for the copies; None for the place where `load` looks.
            seed: Of the random draws.
            workers: Number of processes; 1 computes in this one.
            progress: Called with the number of images.
            notify: Called with notes.
        """
        twin = next((s for s in SETS.values() if getattr(s, "clean", None) == self.name), None)
        if out is None and twin is None:
            raise missing_out(self.name)
        folder = root / f"{twin.name}-generated" if out is None and twin else Path(str(out))
        images = self.open(None, root)
        with frost_from(root):
            generate(images, folder, names, severities, seed, workers, progress, notify)
        return folder


#: All data sets by name.
SETS: dict[str, DataSet] = {}


def register(entry: DataSet) -> DataSet:
    """Add a data set, and return it.

    Raises:
        BadInput: There is one of that name.
    """
    if entry.name in SETS:
        text = f'There is already a data set "{entry.name}". Choose another name.'
        raise BadInput("duplicate", text, name=entry.name)
    SETS[entry.name] = entry
    return entry


def get_set(name: str) -> DataSet:
    """Return the data set of that name.

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
        raise unknown_set(name, f"{did_you_mean(name, SETS)}{own}")
    return SETS[name]


def unknown_set(name: str, hint: str, known: Mapping[str, Any] | None = None) -> BadInput:
    """Return the error for a name that is no data set's."""
    return BadInput(
        "unknown_name",
        f'"{name}" is neither a data set nor a folder. {hint}',
        kind="data set",
        name=name,
        known=tuple(SETS if known is None else known),
    )


def find_set(name: str) -> tuple[DataSet, Path | None]:
    """Return the data set of a name, or the layout of a folder and the folder.

    Raises:
        BadInput: There is neither.
    """
    from acclimate.data.masks import guess_set

    if name in SETS or not Path(name).is_dir():
        return get_set(name), None
    return SETS[guess_set(Path(name)) or "image-folder"], Path(name)


def load(
    name: str,
    split: str | None = None,
    root: str | Path | None = None,
    **options: Unpack[Options],
) -> ImageStore:
    """Return a split of a data set; nothing is read before it is needed.

    Args:
        name: A key of `SETS`, or a folder of images.
        split: Such as `train`, `test` or `val`; by default the one that is measured on.
        root: Of all data; see `data_root`.
        **options: See `Options`.

    Raises:
        BadInput: There is no such set, split or option, or it is not on disk.
        CorruptFile: What is on disk is damaged.

    >>> images = load("builtin", n=10)
    >>> images[:].shape, images.description["n"]
    ((10, 32, 32, 3), 10)
    """
    entry, path = find_set(name)
    given: dict[str, Any] = dict(options) if path is None else {"path": path, **options}
    parameters = inspect.signature(entry.open).parameters.values()
    known = tuple(each.name for each in parameters if each.kind is each.KEYWORD_ONLY)
    for option in given:
        if option not in known:
            raise BadInput(
                "unknown_option",
                f'The data set "{name}" has no option "{option}". {did_you_mean(option, known)}',
                option=option,
                known=known,
            )
    return entry.open(split, data_root(root), **given)


def get(
    name: str,
    root: str | Path | None = None,
    source: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    notify: Notify | None = None,
) -> Path:
    """Fetch a data set by its name; see `DataSet.fetch`."""
    given = None if source is None else Path(source)
    return get_set(name).fetch(data_root(root), given, force, progress, notify)


def check(
    name: str,
    root: str | Path | None = None,
    path: str | Path | None = None,
    progress: Progress | None = None,
    ignore_label: int | None = None,
) -> Report:
    """Check a data set by its name; see `DataSet.check`.

    Args:
        name: Of the data set.
        root: Of all data; see `data_root`.
        path: Where a set of folders is, if not under the root.
        progress: Called with the number of files.
        ignore_label: The value of masks that stands for no label; None is the set's own, or 255.
    """
    entry, more = get_set(name), {}
    if ignore_label is not None:
        if not entry.has_masks:
            raise BadInput(
                "not_applicable",
                f"The option ignore_label applies only to data sets with masks; {name} has none. "
                "Remove the option.",
                option="ignore_label",
            )
        more = {"ignore_label": ignore_label}
    if entry.is_own and path is None:
        entry.need_path(path)
    place = None if path is None else Path(path)
    return entry.check(data_root(root), place, progress, **more)


def corrupt(
    name: str,
    names: Sequence[str] | None = None,
    severities: Sequence[int] = (5,),
    root: str | Path | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    notify: Notify | None = None,
    **options: Any,
) -> Any:
    """Write corrupted copies of a data set, or of a folder of images.

    Args:
        name: A key of `SETS`, or a folder.
        names: Corruptions; `all` and `extra` stand for all nineteen and for the four held-out ones;
            None makes the fifteen of the benchmark.
        severities: From 1 to 5.
        root: Of all data; see `data_root`.
        out: The folder for the copies; None for the place where `load` looks.
        seed: Of the random draws.
        workers: Number of processes; 1 computes in this one.
        progress: Called with the number of images.
        notify: Called with notes.
        **options: `size` and `resize` of image files; `split` and `ignore_label` of masks.

    Returns:
        The folder, of arrays; of files, how many copies were written.

    Raises:
        BadInput: The set is not on disk or cannot be corrupted; a name or severity is unknown.
    """
    entry, path = find_set(name)
    more = options if path is None else {"path": path, **options}
    folder = None if out is None else Path(out)
    return entry.corrupt(
        data_root(root),
        choose_corruptions(names),
        severities,
        folder,
        seed,
        workers,
        progress,
        notify,
        **more,
    )


def find_state(name: str, root: str | Path | None = None) -> str:
    """Return in a few words what of a data set is on disk; empty if nothing."""
    return get_set(name).state(data_root(root))


def corrupt_images(
    images: ImageStore, request: Request, seed: int = 0
) -> tuple[dict[str, tuple[Domain, ...]], dict[str, dict[str, Any]]]:
    """Make corrupted copies in memory; return the domains by corruption, and their descriptions."""
    groups, about = {}, {}
    for corruption in request.corruptions or BENCHMARK:
        own = []
        for number, (severity, name) in enumerate(request.names(corruption).items()):
            if request.progress is not None:
                request.progress(f"making {corruption}", number, len(request.severities))
            x = apply(np.asarray(images[:]), corruption, severity, seed)
            own.append(Domain(name, x, images.labels))
            about[name] = {
                "name": images.description["name"],
                "source": "generated",
                "sha256": array_sha256(x),
                "n": len(x),
                "corruption": corruption,
                "severity": severity,
                "seed": seed,
                "provenance": provenance(corruption),
                "clean": images.description,
            }
        groups[corruption] = tuple(own)
    return groups, about


def unknown_split(name: str, split: str, known: Sequence[str]) -> BadInput:
    """Return the error for a split that a data set does not have."""
    return BadInput(
        "unknown_name",
        f'The data set "{name}" has no split "{split}". {did_you_mean(split, known)}',
        kind="split",
        name=split,
        known=tuple(known),
    )


def too_many(where: str, total: int, n: int) -> BadInput:
    """Return the error for more images than there are."""
    return BadInput(
        "out_of_range",
        f"Expected 1 to {total} images, the number of images in {where}, found {n}. Pass another "
        "--images (--source-images for a source; n= in Python), or omit it to use all.",
        option="images",
        found=n,
    )


def missing_out(name: str) -> BadInput:
    """Return the error for corrupted copies without a folder."""
    return BadInput(
        "missing_option",
        f"There is no default folder for corrupted copies of {name}. Pass one with --out.",
        option="out",
    )


def fixed_size(name: str, option: str = "size") -> BadInput:
    """Return the error for a size of images that have one."""
    return BadInput(
        "not_applicable",
        f"The images of {name} have a fixed size. Remove --{option}.",
        option=option,
    )


def list_unreadable(paths: Sequence[Path], progress: Progress | None = None) -> dict[Path, str]:
    """Return the images that cannot be read, with the reason; all are read."""
    groups = [paths[start : start + _GROUP] for start in range(0, len(paths), _GROUP)]
    found: dict[Path, str] = {}
    n = 0
    for group, results in zip(
        groups, read_ahead(groups, lambda path: try_read(path, _SMALL)), strict=True
    ):
        n += len(group)
        for path, result in zip(group, results, strict=True):
            if isinstance(result, str):
                found[path] = result
        if progress is not None:
            progress("reading images", n, len(paths))
    return found
