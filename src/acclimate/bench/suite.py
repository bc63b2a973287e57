"""A suite: jobs that belong together, written as a short TOML file or made in code."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from acclimate.bench.outcome import Entry
from acclimate.bench.rows import expand_rows
from acclimate.bench.selection import Rule, get_rule
from acclimate.bench.spec import JobSpec
from acclimate.errors import BadInput, did_you_mean

_FIELDS = ("title", "notes", "selection", "job", "rows")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Jobs that are run together and stand in one report.

    Attributes:
        title: Of the report.
        entries: The jobs in the order of the tables. Two rows may share a job: it is run once.
        notes: What a reader must know, such as what a subset leaves out.
        selection: Name of the rule that hyper-parameters were chosen by; see
            `acclimate.bench.selection`.

    Raises:
        BadInput: There is no job in it, no such rule, or the same row comes twice.
    """

    title: str
    entries: tuple[Entry, ...]
    notes: str = ""
    selection: str = "paper"

    def __post_init__(self) -> None:
        get_rule(self.selection)
        if not self.entries:
            raise BadInput(
                "missing_option",
                f'The suite "{self.title}" has no jobs. Add at least one row.',
                option="entries",
            )
        seen: list[tuple[str, str, dict[str, Any]]] = []
        for entry in self.entries:
            told = (entry.label, entry.group, entry.spec.to_dict())
            if told in seen:
                raise BadInput(
                    "duplicate",
                    f'The suite "{self.title}" contains the job "{entry.label}" (seed '
                    f"{entry.spec.seed}) twice. Remove one of them, or change its settings.",
                    name=entry.label,
                )
            seen.append(told)

    @property
    def rule(self) -> Rule:
        """The rule that hyper-parameters were chosen by."""
        return get_rule(self.selection)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a suite from a TOML file.

        `[job]` has what all jobs share, each `[[rows]]` what differs; both take the fields of
        `JobSpec`, a row also `label` and `group`. A list stands for several jobs, one for each of
        its values (and for the product, if there are several lists); but `corruptions` and
        `severities` are lists themselves, and a list of lists stands for several jobs.
        `terms.swr = true` adds SWR with its defaults, `terms.nsp = true` NSP; `false` adds none.
        Files are looked for beside the suite.

        Raises:
            BadInput: The file cannot be read, or has something in it that no suite has.
            AcclimateError: A job cannot be, with what to do.
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
        for name in content:
            if name not in _FIELDS:
                raise BadInput(
                    "unknown_option",
                    f'{file}: a suite has no option "{name}". {did_you_mean(name, _FIELDS)}',
                    option=name,
                    known=_FIELDS,
                )
        texts = {name: content[name] for name in ("title", "notes", "selection") if name in content}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise BadInput(
                    "wrong_type",
                    f"{file}: expected a string for {name}, found {text!r}.",
                    option=name,
                    found=text,
                )
        shared, rows = content.get("job", {}), content.get("rows", [])
        if not isinstance(shared, Mapping):
            raise BadInput(
                "wrong_type",
                f"{file}: expected one table [job], found {shared!r}.",
                option="job",
                found=shared,
            )
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise BadInput(
                "wrong_type",
                f"{file}: expected tables [[rows]], found {rows!r}.",
                option="rows",
                found=rows,
            )
        if not rows:
            raise BadInput(
                "missing_option",
                f"{file}: expected at least one table [[rows]], found none.",
                option="rows",
            )
        entries = expand_rows(shared, rows, file)
        return cls(**{"title": file.stem, **texts}, entries=entries)

    def to_dict(self) -> dict[str, Any]:
        """Return the suite as JSON types."""
        return {
            "title": self.title,
            "notes": self.notes,
            "selection": self.selection,
            "entries": [
                {
                    "label": entry.label,
                    "group": entry.group,
                    "axes": dict(entry.axes),
                    "spec": entry.spec.to_dict(),
                }
                for entry in self.entries
            ],
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the suite that `to_dict` gave."""
        entries = tuple(
            Entry(JobSpec.from_dict(item["spec"]), item["label"], item["group"], item["axes"])
            for item in content["entries"]
        )
        named = {name: content[name] for name in ("title", "notes", "selection")}
        return cls(**named, entries=entries)
