"""Suites: jobs that belong together, and the folder that they are kept in.

`Suite.load` turns the tables of a TOML file into jobs: defaults, lists that stand for several jobs,
and labels. A `Store` is a folder with one or several suites:

- `suite.json`: title, notes and rows of the suite that was run last, with the folder of each job.
- `suites/`: the same of each suite that was run in the folder.
- `jobs/<method>-<key>/`: see `acclimate.bench.run_folder`.
- `artifacts/<key>.acclimate`: what was prepared, shared by the jobs that need the same.
- `logs/`: what workers printed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import statistics
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Self

from acclimate.bench.job import JobSpec
from acclimate.bench.run_folder import ERROR, RECORDS, SUMS, RunFolder, State, flatten, read_record
from acclimate.bench.selection import RULES
from acclimate.data import SETS
from acclimate.errors import (
    AcclimateError,
    AcclimateWarning,
    BadInput,
    CorruptFile,
    check_name,
    check_options,
    refuse_type,
)
from acclimate.metrics import Result, unpack_sums
from acclimate.metrics.result import merge
from acclimate.storage import make_folder, write_atomically

SUITE, SUITES, JOBS = "suite.json", "suites", "jobs"
ARTIFACTS, LOGS = "artifacts", "logs"

#: Values by the names that lead to them: ("options", "lr").
Flat = dict[tuple[str, ...], Any]

_JOB_FIELDS = tuple(spec.name for spec in dataclasses.fields(JobSpec))
_ROW_FIELDS = ("label", "group", *_JOB_FIELDS)
# Of these a list is one value, and a list of lists stands for several.
_LISTS = ("corruptions", "severities", "shifts", "names", "mean", "std")
_FILES = (("weights",), ("classes",), ("prepare", "contrast_head"))
# A name of a set, or a folder: one beside the suite if there is one.
_FOLDERS = (("data",), ("prepare", "source"))
# What rows are compared under rather than by: it goes to the group, not to the label.
_GROUPS = (("model",), ("weights",), ("data",))

_FIELDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("title", "notes", "selection"), (str, "a string")),
    "job": (dict, "a table"),
    "rows": (list, "tables [[rows]]"),
}


@dataclass(frozen=True)
class Entry:
    """A job of a suite, with what the suite calls it.

    Attributes:
        spec: The job.
        label: Of its row, such as "main + SWR"; jobs that differ in the seed only share it.
        group: Of rows that are compared with each other, such as a backbone; may be empty.
        axes: What varies in the suite and what it is here, such as {"lr": 1e-4}, for columns and
            plots.
    """

    spec: JobSpec
    label: str
    group: str = ""
    axes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A job that has reached its end.

    Attributes:
        entry: The job, and what it is called.
        result: What was recorded, batch by batch.
        provenance: Where the numbers come from, as JSON types.
        folder: Where its records lie, relative to the folder of the suite.
    """

    entry: Entry
    result: Result
    provenance: Mapping[str, Any]
    folder: str = ""

    @property
    def error(self) -> float:
        """Mean error over the domains, in percent."""
        return 100 * self.result.error

    @property
    def miou(self) -> float | None:
        """Mean over the domains of the classes' mean overlap, in percent; None if of no pixels."""
        shares = self.result.miou_by_domain.values()
        return 100 * statistics.fmean(shares) if shares else None


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Jobs that are run together and stand in one report.

    Attributes:
        title: Of the report.
        notes: What a reader must know, such as what a subset leaves out.
        selection: Name of the rule that hyper-parameters were chosen by; see
            `acclimate.bench.selection`.
        entries: The jobs in the order of the tables. Two rows may share a job: it is run once.
    """

    title: str
    notes: str = ""
    selection: str = "paper"
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        check_name(self.selection, RULES, "selection rule")
        if not self.entries:
            text = f'The suite "{self.title}" has no jobs. Add at least one row.'
            raise BadInput("missing_option", text, option="entries")
        seen: list[tuple[str, str, dict[str, Any]]] = []
        for entry in self.entries:
            described = (entry.label, entry.group, entry.spec.to_dict())
            if described in seen:
                raise BadInput(
                    "duplicate",
                    f'The suite "{self.title}" contains the job "{entry.label}" (seed '
                    f"{entry.spec.seed}) twice. Remove one of them, or change its settings.",
                    name=entry.label,
                )
            seen.append(described)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a suite from a TOML file.

        `[job]` has what all jobs share, each `[[rows]]` what differs; both take the fields of
        `JobSpec`, a row also `label` and `group`. A list stands for several jobs, one for each of
        its values (and for the product, if there are several lists); but `corruptions` and
        `severities` are lists themselves, and a list of lists stands for several jobs.
        `terms.swr = true` adds SWR with its defaults, `terms.nsp = true` NSP; `false` adds none.
        Files are looked for beside the suite.
        """
        file = Path(path)
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadInput(
                "unreadable",
                f"Cannot read the suite {file} ({error.strerror}). Pass a TOML file.",
                path=file,
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadInput(
                "malformed_file",
                f"{file} is not a valid TOML file ({error}). Correct it.",
                path=file,
            ) from error
        check_options(content, _FIELDS, f"{file}: a suite", BadInput)
        given = {"title": file.stem, "job": {}, "rows": [], **content}
        for name, value in given.items():
            kind, text = _FIELDS[name]
            if not isinstance(value, kind):
                refuse_type(name, value, text, where=str(file))
        shared, rows = given.pop("job"), given.pop("rows")
        if not all(isinstance(row, Mapping) for row in rows):
            refuse_type("rows", rows, "tables [[rows]]", where=str(file))
        if not rows:
            text = f"{file}: expected at least one table [[rows]], found none."
            raise BadInput("missing_option", text, option="rows")
        return cls(**given, entries=expand_rows(shared, rows, file))

    def to_dict(self) -> dict[str, Any]:
        """Return the suite as JSON types."""
        entries = [
            {
                "label": entry.label,
                "group": entry.group,
                "axes": dict(entry.axes),
                "spec": entry.spec.to_dict(),
            }
            for entry in self.entries
        ]
        return {**vars(self), "entries": entries}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the suite that `to_dict` gave."""
        entries = tuple(
            Entry(JobSpec.from_dict(item["spec"]), item["label"], item["group"], item["axes"])
            for item in content["entries"]
        )
        return cls(**{**content, "entries": entries})


# From tables to jobs ----------------------------------------------------------------------------


def expand_rows(
    shared: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], file: Path
) -> tuple[Entry, ...]:
    """Return the jobs of a suite, from what all rows have unless they override it, and the rows.

    Other files are looked for beside the file of the suite.
    """
    check_options(shared, _JOB_FIELDS, f"{file}, [job]", BadInput)
    made: list[tuple[Mapping[str, Any], Flat, Flat]] = []  # row, all of a job, what varies in it
    for number, row in enumerate(rows, start=1):
        where = f"{file}, row {number}"
        check_options(row, _ROW_FIELDS, where, BadInput)
        for name in ("label", "group"):
            if not isinstance(row.get(name, ""), str):
                refuse_type(name, row[name], "a string", where=where)
        own = {name: value for name, value in row.items() if name in _JOB_FIELDS}
        merged = _merge(shared, own)
        if "method" not in merged:
            raise BadInput(
                "missing_option",
                f'{where}: expected a method, found none. Add one, for example method = "tent".',
                option="method",
            )
        made += [(row, *pair) for pair in _expand(merged, where)]
    differing = _find_differing([values for _, values, _ in made])
    last = [key[-1] for key in differing]
    # The last part of each name, or all of it where that would not distinguish them.
    names = {key: key[-1] if last.count(key[-1]) == 1 else ".".join(key) for key in differing}
    entries: list[Entry] = []
    keys: dict[str, str] = {}
    for row, values, varying in made:
        spec = _build(values, file)
        label = _label(row, values, varying, names)
        grouped = [Path(str(values[key])).name for key in _GROUPS if key in names and key in values]
        group = row.get("group", ", ".join(grouped))
        axes = {names[key]: values[key] for key in differing if key in values}
        entries.append(Entry(spec, label, group, axes))
        if spec.key in keys:
            raise BadInput(
                "duplicate",
                f'{file}: "{keys[spec.key]}" and "{label}" are the same job. Remove one of them, '
                "or change its settings.",
                name=label,
            )
        keys[spec.key] = label
    return tuple(entries)


def _merge(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, table by table; the second takes precedence."""
    merged = dict(shared)
    for name, value in own.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = _merge(before, value) if both else value  # type: ignore[arg-type]
    return merged


def _expand(merged: Mapping[str, Any], where: str) -> Iterator[tuple[Flat, Flat]]:
    """Yield all that the lists of a row stand for: the values, and those of them that vary."""
    flat = flatten(merged)
    lists = {key: value for key, value in flat.items() if _stands_for_several(key, value)}
    # Seeds change fastest: they are looked at together.
    lists = dict(sorted(lists.items(), key=lambda item: item[0] == ("seed",)))
    for key, values in lists.items():
        if not values:
            raise BadInput(
                "out_of_range",
                f"{where}: the list {'.'.join(key)} is empty, which would give no job. Add a "
                "value, or remove the list.",
                option=".".join(key),
                found=values,
            )
    for chosen in product(*lists.values()):
        varying = dict(zip(lists, chosen, strict=True))
        # A table in a list, such as terms.swr = [false, {strength = 10}], has values itself.
        every = {**flat, **varying}.items()
        values = {k: v for key, value in every for k, v in flatten(value, key).items()}
        yield values, {key: value for key, value in varying.items() if len(flat[key]) > 1}


def _stands_for_several(key: tuple[str, ...], value: Any) -> bool:
    if not isinstance(value, list):
        return False
    if not value or isinstance(value[0], list):
        return True
    if key[-1] == "views":  # a table is one transform of several that follow each other
        return not isinstance(value[0], Mapping)
    return key[-1] not in _LISTS


def _build(values: Flat, file: Path) -> JobSpec:
    nested: dict[str, Any] = {}
    for (*path, last), value in values.items():
        place = nested
        for name in path:
            place = place.setdefault(name, {})
        place[last] = value
    if isinstance(terms := nested.get("terms"), dict):  # true: with its defaults, false: without
        nested["terms"] = {k: {} if v is True else v for k, v in terms.items() if v is not False}
    for key in (*_FILES, *_FOLDERS):
        *path, last = key
        place = nested
        for name in path:
            inner = place.get(name, {})
            place = inner if isinstance(inner, dict) else {}
        if isinstance(place.get(last), str):
            found = (file.parent / Path(place[last]).expanduser()).resolve()
            if key in _FILES or (place[last] not in SETS and found.is_dir()):
                place[last] = str(found)
    try:
        return JobSpec.from_dict(nested)
    except AcclimateError as error:
        message = f"{file}, {nested['method']}: {error}"
        raise type(error)(error.code, message, **error.data) from error
    except TypeError as error:
        message = f"{file}, {nested['method']}: a value has the wrong type ({error})."
        raise BadInput("invalid_options", message, problems=(str(error),)) from error


def _find_differing(jobs: Sequence[Flat]) -> list[tuple[str, ...]]:
    """Return what is not the same in all jobs; the seed is none of it: it is averaged over."""
    keys = dict.fromkeys(key for job in jobs for key in job)
    missing = object()
    return [
        key
        for key in keys
        if key != ("seed",)
        and any(job.get(key, missing) != jobs[0].get(key, missing) for job in jobs)
    ]


def _label(
    row: Mapping[str, Any], values: Flat, varying: Flat, names: Mapping[tuple[str, ...], str]
) -> str:
    unnamed = {("seed",), *_GROUPS} | (set() if "label" in row else {("method",)})
    named = [key for key in varying if key not in unnamed]
    label = row["label"] if "label" in row else _name(values, varying)
    described = [_describe(names.get(key, ".".join(key)), varying[key]) for key in named]
    return f"{label} ({', '.join(described)})" if described else str(label)


def _name(values: Flat, varying: Flat) -> str:
    """Return the method, with what else makes it another; what varies is described elsewhere."""
    described = str(values["method",])
    terms = dict.fromkeys(key[1] for key in values if key[0] == "terms" and key[1:])
    for term in terms:
        own = [value for key, value in values.items() if key[:2] == ("terms", term)]
        if own != [False] and not any(key[:2] == ("terms", term) for key in varying):
            described += f" + {term.upper()}"
    if values.get(("guard",)) and ("guard",) not in varying:
        described += ", watched" if values["guard",] == "watch" else ", guarded"
    if values.get(("speed",), "exact") != "exact" and ("speed",) not in varying:
        described += f", {values['speed',]}"
    return described


def _describe(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, list):
        return f"{name} {' + '.join(map(str, value))}"
    if isinstance(value, Mapping):
        return f"{name} {', '.join(_describe(*item) for item in value.items())}".strip()
    return f"{name} {value}"


# The folder of suites -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """What is known of a job while others may work on it.

    Attributes:
        entry: The job, and what it is called.
        state: According to the files.
        done: Batches on record.
        total: Batches of the job; None if it has not begun.
        error: What ended the last try: type, message, remedy, when, traceback.
        folder: Relative to that of the suite.
    """

    entry: Entry
    state: State
    done: int
    total: int | None
    error: Mapping[str, Any] | None
    folder: str


class Store:
    """Suites in a folder, which share the jobs that they have in common.

    Args:
        root: The folder.
        suite: The suite, or its title; None for the one that was run last.
    """

    def __init__(self, root: str | Path, suite: Suite | str | None = None) -> None:
        self.root = Path(root)
        if isinstance(suite, Suite):
            self.suite = suite
            self._names = [name_folder(entry.spec) for entry in suite.entries]
            return
        path = self.root / SUITE
        if not path.is_file():
            raise BadInput(
                "not_found",
                f"{root} is not the folder of a suite: it has no {SUITE}. Create one: acclimate "
                f"bench run SUITE.toml --out {root}",
                path=path,
            )
        if suite is not None:
            known = self.list_suites()
            check_name(suite, known, "suite")
            path = self.root / _name_list(suite)
        content = _read_list(path)
        try:
            self.suite = Suite.from_dict(content)
            self._names = [str(item["folder"]) for item in content["entries"]]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadInput):
                raise
            raise CorruptFile("altered_file", _altered(path, error), path=path) from error

    @classmethod
    def create(cls, root: str | Path, suite: Suite) -> Self:
        """Add a suite to a folder, or replace one of the same title; jobs and other suites stay."""
        place = Path(root)
        for name in ("", JOBS, SUITES):
            make_folder(place / name)
        store = cls(place, suite)
        content = suite.to_dict()
        for item, name in zip(content["entries"], store._names, strict=True):
            item["folder"] = name
        text = (json.dumps(content, indent=1) + "\n").encode()
        write_atomically(place / _name_list(suite.title), text)
        write_atomically(place / SUITE, text)
        return store

    def remove_list(self) -> None:
        """Forget the suite; its jobs stay."""
        (self.root / _name_list(self.suite.title)).unlink(missing_ok=True)

    def list_suites(self) -> list[str]:
        """Return the titles of all suites in the folder."""
        paths = sorted((self.root / SUITES).glob("*.json"))
        return [str(_read_list(path).get("title")) for path in paths]

    @property
    def artifacts(self) -> Path:
        """Where prepared artifacts are kept unless another place is given."""
        return self.root / ARTIFACTS

    def jobs(self) -> dict[str, Entry]:
        """Return the jobs by the name of their folder; of rows that share one, the first."""
        found: dict[str, Entry] = {}
        for name, entry in zip(self._names, self.suite.entries, strict=True):
            found.setdefault(name, entry)
        return found

    def is_done(self, name: str) -> bool:
        """Return whether a job is done, and has kept what it is asked to keep."""
        return self.folder(name).has_finished(self.jobs()[name].spec.keep)

    def folder(self, name: str) -> RunFolder:
        """Return the folder of that name, as `jobs` gives it."""
        return RunFolder(self.root / name)

    def outcome(self, name: str) -> Outcome:
        """Return what came out of a finished job."""
        return read_outcome(self.folder(name), self.jobs()[name], name)

    def outcomes(self) -> list[Outcome]:
        """Return what came out of the jobs that are done, in the order of the suite.

        Jobs whose files were altered are left out with a warning.
        """
        found = []
        for name, entry in zip(self._names, self.suite.entries, strict=True):
            folder = self.folder(name)
            if not folder.is_done:
                continue
            try:
                found.append(read_outcome(folder, entry, name))
            except CorruptFile as error:
                message = f'The job "{entry.label}" is left out: {error}'
                warning = AcclimateWarning("job_left_out", message, name=entry.label)
                warnings.warn(warning, stacklevel=2)
        return found

    def statuses(self) -> list[Status]:
        """Return what is known of every job, in the order of the suite."""
        found = []
        for name, entry in self.jobs().items():
            folder = self.folder(name)
            state = folder.state
            done, total = folder.progress
            error = folder.read(ERROR) if state == "failed" else None
            if state == "done":
                try:
                    folder.read_result()
                except CorruptFile as damage:
                    state, error = "failed", {"type": "CorruptFile", "message": str(damage)}
            found.append(Status(entry, state, done, total, error, name))
        return found


def _name_list(title: str) -> str:
    """Return the file with the list of a suite, relative to the folder."""
    plain = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40]
    return f"{SUITES}/{plain}-{hashlib.sha256(title.encode()).hexdigest()[:8]}.json"


def _read_list(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFile("altered_file", _altered(path, error), path=path) from error
    return content


def _altered(path: Path, error: Exception) -> str:
    return (
        f"{path} was modified or damaged ({error}). Run the suite again to write it again; "
        "finished jobs are kept."
    )


def name_folder(spec: JobSpec) -> str:
    """Return the folder of a job, relative to that of its suite."""
    return f"{JOBS}/{spec.method}-{spec.key}"


def read_outcome(folder: RunFolder, entry: Entry, name: str) -> Outcome:
    """Return what came out of a finished job."""
    written, records = folder.read_result(), []
    for number, line in enumerate(folder.read_lines(RECORDS)[0], start=1):
        try:
            records.append(read_record(line))
        except (AcclimateError, TypeError, ValueError) as error:
            raise folder.altered(RECORDS, f"line {number}: {error}") from error
    if len(records) != (expected := written["n_batches"]):
        raise CorruptFile(
            "wrong_length",
            folder.explain(RECORDS, f"expected {expected} lines, found {len(records)}"),
            path=folder.path / RECORDS,
            expected=expected,
            found=len(records),
        )
    sums = [unpack_sums(line["measures"]) for line in folder.read_lines(SUMS)[0]]
    merged = merge(pair for own in sums for pair in own.items())
    return Outcome(entry, Result(tuple(records), merged), written["provenance"], name)
