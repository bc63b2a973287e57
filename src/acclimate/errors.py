"""Every error and warning the package raises on purpose; docs/errors.md lists them.

Each message states what was expected, what was found, and what to do. The wording may change
between versions. The `code` of an error and the names of its data do not; programs and tests use
those:

>>> try:
...     raise BadInput("not_found", "There is no file a.png. Check the path.", path="a.png")
... except AcclimateError as error:
...     print(error.code, error.path)
not_found a.png

A class declares its codes and inherits those of its bases. In the text of a code, the names in
backticks are the names of its data.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NoReturn


class Coded(Exception):
    """An exception with a stable code and with its data as attributes.

    Args:
        code: One of the codes that the class or a base of it declares.
        message: The message for users.
        **data: The values that the message mentions.
    """

    #: What each code of this class means, with the names of its data in backticks.
    codes: ClassVar[Mapping[str, str]] = {}

    code: str
    data: dict[str, Any]

    def __init__(self, code: str, message: str, /, **data: Any) -> None:
        if code not in self.all_codes():
            raise TypeError(f'{type(self).__name__} declares no code "{code}".')
        super().__init__(message)
        self.code = code
        self.data = data
        for name, value in data.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        names = ", ".join(self.__dict__.get("data", {})) or "none"
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; its data: {names}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.code, str(self), self.data)

    @classmethod
    def all_codes(cls) -> dict[str, str]:
        """Return the codes of the class and of its bases, with their meanings."""
        declared = (vars(base).get("codes", {}) for base in reversed(cls.__mro__))
        return {code: text for codes in declared for code, text in codes.items()}


def _rebuild(kind: type[Coded], code: str, message: str, data: dict[str, Any]) -> Coded:
    return kind(code, message, **data)


class AcclimateError(Coded):
    """Base of all errors raised on purpose.

    Its own codes are about names and values; any error can have one of them.
    """

    codes: ClassVar[Mapping[str, str]] = {
        "unknown_name": "No `kind` has the name `name`; `known` lists those that exist.",
        "unknown_option": "There is no option `option` here; `known` lists those that exist.",
        "out_of_range": "The value `found` of `option` is outside the allowed range.",
        "wrong_type": "The value of `option` has the wrong type: `found`.",
        "malformed": "The text `found` cannot be read as a value of `option`.",
        "conflicting_options": "The options `options` exclude one another.",
        "missing_option": "A value for `option` is needed, and none was given.",
        "not_applicable": "`option` does not apply here.",
        "duplicate": "`name` occurs more than once.",
        "invalid_options": "Several options may be wrong; `problems` has the reason for each.",
    }


class UnknownMethod(AcclimateError, LookupError):
    """No method of that name is registered."""

    codes: ClassVar[Mapping[str, str]] = {
        "unknown_method": "No method has the name `name`; `known` lists those that exist."
    }


class InvalidConfig(AcclimateError, ValueError):
    """A hyper-parameter does not exist or cannot have that value."""

    codes: ClassVar[Mapping[str, str]] = {
        "artifact_conflict": "`option` is `found`; the artifact was prepared with `expected`.",
        "count_mismatch": "Two lengths must agree: `expected` and `found`.",
        "diverged": "The training loss became infinite or undefined in step `step`.",
        "name_mismatch": "A class registered as `expected` has the name `found`.",
        "name_taken": "The name `name` is already registered.",
        "no_gradient_steps": "The method `method` has no gradient steps that a term could change.",
        "not_shardable": "`method` cannot share batches between processes; those in `known` can.",
        "views_move_pixels": "The views move pixels, so that labels of pixels would no longer fit.",
    }


class UnsuitableModel(AcclimateError, ValueError):
    """The model cannot be adapted as requested."""

    codes: ClassVar[Mapping[str, str]] = {
        "scripted_model": "A model of torch.jit cannot be adapted.",
        "quantized_model": "The model is quantised; see `layers`.",
        "probabilities": "The model returns probabilities instead of logits.",
        "one_logit": "The model has a single logit.",
        "not_a_module": "A `found` is not a torch.nn.Module.",
        "format_failed": "The model cannot be written in the format `format`.",
        "no_gradient": "No gradient reaches the loss.",
        "exported_program": "An ExportedProgram is a fixed graph and cannot be adapted.",
        "ambiguous_head": "Several layers may be the head: `candidates`.",
        "batch_dependent": "The layers `layers` mix the samples of a batch.",
        "changed_in_place": "The input of the layers `layers` is changed in place later on.",
        "dense_unsupported": "`what` is not available for models that predict every pixel.",
        "head_not_found": "No layer returns the logits; `candidates` lists those that ran.",
        "lazy_layers": "The model has lazy layers that have not seen an input yet.",
        "method_refused": "The methods `methods` cannot adapt this model; see `reasons`.",
        "missing_layers": "The model has none of the layers `layers`.",
        "no_logits": "The output of the model contains no logits.",
        "not_differentiable": "No per-sample gradients of `parameters` can be computed.",
        "not_attached": "The training objective was not attached to a model before its use.",
        "nothing_to_train": "The method found no parameter that it may train.",
        "random_layers": "The layers `layers` drop activations at random.",
        "unsupported_model": "The model `model` is of a kind that is not supported.",
        "unsupported_output": "The model returns a `found`, which cannot be split and joined.",
        "wrong_head": "The module `head` cannot be the head of this model.",
        "wrong_logits": "The logits have the shape `found`.",
        "wrong_projection_head": "The projection head is not Linear, ReLU, Linear.",
    }


class BadInput(AcclimateError, ValueError):
    """A batch, a source set or a path cannot be used; nothing was changed."""

    codes: ClassVar[Mapping[str, str]] = {
        "inputs_belong_together": "Other inputs belong to `expected` images; a pass has `found`.",
        "extra_inputs": "The source batches contain `inputs` besides images and labels.",
        "ambiguous_images": "It is unclear which of the arguments `candidates` is the images.",
        # Batches and labels
        "count_mismatch": "Two lengths must agree: `expected` and `found`.",
        "empty_batch": "The batch has no samples.",
        "image_too_small": "The images of size `found` are too small for the operation.",
        "model_rejects_input": "The model fails on a batch of shape `found`.",
        "not_finite": "There are infinite or undefined values in `found`.",
        "pixel_range": "The pixels range from `low` to `high`, which is not the expected range.",
        "single_sample": "One sample is not enough to compute batch statistics.",
        "wrong_device": "The batch is on `found`, the model on `expected`.",
        "wrong_dtype": "The tensor has the type `found`.",
        "wrong_labels": "The labels `found` do not number the `n_classes` classes of the model.",
        "wrong_shape": "The tensor has the shape `found`.",
        # Sources and streams
        "class_mismatch": "The classes `found` are not the expected classes `expected`.",
        "degenerate_source": "The source samples do not differ from each other.",
        "empty_source": "The source or the stream has no batch.",
        "missing_classes": "No sample of the classes `missing` was found.",
        "no_labelled_pixels": "Every pixel has the label that is ignored.",
        "not_repeatable": "The source or the stream can be read only once.",
        "oracle_method": "The methods `methods` learn from labels and must be allowed explicitly.",
        "refused_elsewhere": "Another process refused its part of the batch; see `refusals`.",
        "too_many_streams": "There are already `limit` streams.",
        "too_many_images": "The request has `found` images, more than `limit`.",
        "too_large": "The request has more than `limit` bytes.",
        "wrong_body": "The body of the request is not what its content type says, but `found`.",
        "no_snapshot": "There is no snapshot of the stream `stream`.",
        "too_few_domains": "At least `expected` domains are needed; `found` were given.",
        "too_few_classes": "At least `expected` classes are needed; `found` were given.",
        "too_few_samples": "At least `expected` samples are needed; `found` were given.",
        # Metrics
        "incompatible_sums": "The sums belong to different numbers or kinds of classes.",
        "no_samples_measured": "The sums contain no sample.",
        "not_recorded": "`what` was not recorded for this result.",
        "wrong_fields": "The fields `missing` are missing, the fields `unknown` are unknown.",
        # Paths
        "already_exists": "`path` already exists.",
        "in_use": "Another process writes to `path`.",
        "inside_input": "The output `path` is inside the folder that is read.",
        "made_differently": "`path` was made from other data or settings; see `differences`.",
        "not_a_file": "`path` is not a file.",
        "not_a_folder": "`path` is not a folder.",
        "not_found": "`path` does not exist.",
        "not_writable": "`path` cannot be written.",
        "other_content": "The folder `path` has content of another origin.",
        "other_run": "The file `path` is the result of another run.",
        "overwrites_input": "The output `path` would overwrite the input of `option`.",
        "unfinished_run": "An interrupted run left `path`.",
        "unreadable": "`path` cannot be read.",
        "wrong_suffix": "The file name `path` has an unsupported suffix.",
        # Images and data sets
        "ambiguous_layout": "It is unclear which folders in `path` are the classes.",
        "ambiguous_name": "The name `name` may mean any of `candidates`.",
        "faulty_data": "Files of the data set have `faults`.",
        "mixed_sizes": "The images have different sizes: `sizes`.",
        "no_clean_images": "The data set `name` has no clean images.",
        "no_images": "There is no image in `path`.",
        "no_training_images": "The data set `name` has no labelled training images.",
        "not_fetchable": "The data set `name` cannot be downloaded by acclimate.",
        "not_fetched": "The data set `name` has not been downloaded.",
        "unreadable_images": "The images `paths` cannot be read.",
        "wrong_archive": "The archive or folder `path` does not contain the data set.",
        "wrong_layout": "The files in `path` are not arranged as expected.",
        "wrong_loader": "The data set `name` is read by another function.",
        # Models
        "device_unavailable": "This machine has no device `device`, or fewer than requested.",
        "import_failed": "The module `name` cannot be imported.",
        "model_function_failed": "The function `name` does not return a model.",
        "no_weights": "No weights of the model `name` are available.",
        "weights_unavailable": "The published weights of `name` cannot be downloaded.",
        # Suites, workers and selection
        "cluster_unreachable": "No Ray cluster can be used at `address`.",
        "folder_not_shared": "The node `node` of a cluster does not see the folder `path`.",
        "insufficient_resources": "No node has the resources `required`.",
        "malformed_file": "`path` is not written in the expected format.",
        "model_object": "The model `name` is a Python object that no other process has.",
        "models_not_trained": "The jobs of `name` need models that have not been trained yet.",
        "no_default_candidate": "The rule `rule` takes published values; no candidate has them.",
        "no_finished_job": "No job has finished.",
        "selection_leak": "The selection rule `rule` would use data that it must not see.",
        "trained_on_images": "The rule `rule` scores a model on its training images of `domain`.",
        "trained_on_test": "The rule `rule` uses a model trained on the test domain `domain`.",
        "unfinished_job": "The job in `path` has not finished.",
        "untried_candidate": "The candidate `name` was not tried.",
        "worker_failed": "A worker process could not be started.",
    }


class UnreadableImage(BadInput):
    """An image cannot be decoded, or exceeds a limit."""

    codes: ClassVar[Mapping[str, str]] = {
        "image_too_large": "`path` has `found` bytes or pixels, over the `limit`; see `reason`.",
        "unreadable_image": "The image `path` cannot be decoded: `reason`.",
    }


class ArtifactError(AcclimateError, ValueError):
    """A file written by acclimate cannot be used."""


class CorruptFile(ArtifactError):
    """The file is truncated, altered, or not an acclimate file."""

    codes: ClassVar[Mapping[str, str]] = {
        "altered_file": "The content of `path` is not what was written.",
        "file_missing": "The file `path` is missing.",
        "not_ours": "`path` was not written by acclimate.",
        "truncated_file": "`path` is truncated.",
        "unreadable_file": "`path` cannot be read in its format.",
        "unsafe_file": "`path` contains objects that could execute code, or exhaust memory.",
        "wrong_checksum": "The checksum of `path` is not the expected one.",
        "wrong_content": "`path` does not contain what a file of its kind must contain.",
        "wrong_length": "`path` has `found` entries, not `expected`.",
        "wrong_signature": "`path` is not signed with the given key.",
        "wrong_weights": "Tensors of `path` cannot be weights; see `problems`.",
    }


class StateError(ArtifactError):
    """A saved state does not fit the adapted model, which was not changed."""

    codes: ClassVar[Mapping[str, str]] = {
        "wrong_state": "The state in `path` does not fit the adapted model; see `problems`.",
    }


class ArtifactMissing(ArtifactError):
    """A method needs a part that the artifact does not contain."""

    codes: ClassVar[Mapping[str, str]] = {
        "artifact_needed": "The methods `methods` need an artifact, and none was given.",
        "missing_parts": "The parts `parts` are not in the artifact.",
        "projection_head_needed": "The projection head of joint training is needed.",
    }


class ArtifactMismatch(ArtifactError):
    """The file belongs to another model, method or configuration."""

    codes: ClassVar[Mapping[str, str]] = {
        "other_kind": "`path` is of the kind `found`, not `expected`.",
        "other_model": "The file was made for another model; see `differences`.",
        "other_settings": "The file was made with other settings; see `differences`.",
        "other_weights": "The file has the weights of another model; see `differences`.",
        "weights_differ": "The weights are not those that were published for `name`.",
    }


class ArtifactVersion(ArtifactError):
    """The file was written by a version whose format cannot be read."""

    codes: ClassVar[Mapping[str, str]] = {
        "newer_format": "`path` has the format `found`, which is newer than this version.",
        "older_format": "`path` was written by an older version, with another layout.",
    }


class NotAdapted(AcclimateError, RuntimeError):
    """The adapted model was used where it cannot work."""

    codes: ClassVar[Mapping[str, str]] = {
        "already_adapted": "The model is already being adapted.",
        "assign_refused": "Loading with assign=True would replace the borrowed parameters.",
        "inference_mode": "Nothing can be learned inside torch.inference_mode().",
        "labels_needed": "An oracle learns from labels, which only an evaluation can provide.",
        "labels_refused": "The method `method` must not see labels.",
        "no_guard": "An estimate needs a guard, and the model was adapted without one.",
        "no_process_group": "There is no process group, or this process is not part of it.",
        "not_exportable": "No plain module can predict as the method `method` does.",
        "not_adapted": "A `found` is not an adapted model.",
        "out_of_step": "The processes may be out of step after an earlier failure.",
        "pending": "An answer was given by predict(), and its batch was not learned from yet.",
        "processes_differ": "The processes differ; see `differences`.",
        "reentrant": "The adapted model was called from inside one of its own calls.",
        "shards_unsupported": "The method cannot share its batches between processes.",
        "unwrapped": "The model was unwrapped and is no longer adapted.",
    }


class DownloadFailed(AcclimateError, OSError):
    """A file could not be downloaded from any of its published locations."""

    codes: ClassVar[Mapping[str, str]] = {
        "client_missing": "The program `client`, which downloads the file, is not installed.",
        "download_failed": "`what` could not be downloaded; see `reasons`.",
    }


class RequestFailed(AcclimateError, OSError):
    """A server does not answer, or refuses what is sent to it."""

    codes: ClassVar[Mapping[str, str]] = {
        "refused": "The server at `address` refuses the request with the status `status`.",
        "unreachable": "No server answers at `address`.",
    }


class ServerBusy(AcclimateError, RuntimeError):
    """The server cannot take a request now; a client may repeat it later."""

    codes: ClassVar[Mapping[str, str]] = {
        "queue_full": "The queue of the stream `stream` is full.",
        "replica_lost": "The replica that had the request was lost.",
        "stream_elsewhere": "Another server has the stream `stream`.",
        "shutting_down": "The server shuts down, or one of its threads has failed.",
    }


class MissingExtra(AcclimateError, ImportError):
    """An optional dependency is not installed."""

    codes: ClassVar[Mapping[str, str]] = {
        "missing_extra": "The package `package` is not installed."
    }


class AcclimateWarning(Coded, UserWarning):
    """Something differs from what a user might expect."""

    codes: ClassVar[Mapping[str, str]] = {
        "adaptation_hurts": "The adapted model is estimated to be worse than the source model.",
        "accuracy_left_out": "The part accuracy, which the guard needs, was not prepared.",
        "correlated_stream": "Consecutive images seem to be of the same class.",
        "small_batch": "A batch has too few images for BatchNorm statistics.",
        "low_accuracy": "The share `accuracy` of correct predictions is not far above `chance`.",
        "nothing_adapted": "The module that was adapted in place was not called.",
        "nothing_changed": "An update changed no parameter.",
        "eval_mode": "The adapted model is in eval mode: it predicts, but does not learn.",
        "cache_full": "The features of the source fit neither in memory nor on disk.",
        "classes_by_position": "The names of the classes differ; they are matched by position.",
        "encoder_only": "The artifact has no projection head; only the encoder is aligned.",
        "export_incomplete": "The exported module does not do all that the method does.",
        "few_samples": "The penalty uses `found` samples, fewer than the `expected`.",
        "frost_stand_in": "The frost photographs are missing; a computed texture is used.",
        "job_left_out": "The job `name` was left out of the report.",
        "old_version": "`path` was made by another version of the code that makes it.",
        "prepared_on_test": "No training split exists; the split `split` is used to prepare.",
        "set_differs": "The files differ from the published data set; see `differences`.",
        "sorted_source": "The source samples contain only `found` of `expected` classes.",
        "unknown_fields": "`path` has the unknown fields `fields`.",
        "unlabelled_images": "`n` images have no labelled pixel.",
        "unreadable_images": "The images `paths` cannot be read and are left out.",
        "weights_differ": "The weights are not those that were published for `name`.",
    }


def warn(warning: AcclimateWarning) -> None:
    """Issue a warning that points to the line outside acclimate and torch that led to it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).split(".")[0] in ("acclimate", "torch")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint to append to an error: the nearest known name, then all of them.

    >>> did_you_mean("tnet", ["tent", "norm"])
    'Did you mean "tent"? Known: norm, tent.'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f'Did you mean "{near[0]}"? ' if near else ""
    return f"{hint}Known: {', '.join(names) or 'none'}."


def check_name(
    name: Any,
    known: Collection[str],
    kind: str,
    error: type[AcclimateError] = BadInput,
    advice: str = "",
) -> None:
    """Refuse a name of some kind that is not known, with the nearest one that is."""
    if name not in known:
        text = f'Unknown {kind} "{name}". {did_you_mean(str(name), known)}{advice}'
        raise error("unknown_name", text, kind=kind, name=name, known=tuple(known))


def check_options(
    names: Iterable[str],
    known: Collection[str],
    where: str,
    error: type[AcclimateError] = InvalidConfig,
) -> None:
    """Refuse options that do not exist; `where` is what has none of that name."""
    for name in names:
        if name not in known:
            text = f'{where} has no option "{name}". {did_you_mean(name, known)}'
            raise error("unknown_option", text, option=name, known=tuple(known))


def refuse_type(
    option: str,
    found: Any,
    expected: str,
    error: type[AcclimateError] = BadInput,
    where: str = "",
) -> NoReturn:
    """Refuse a value of the wrong type; `expected` is such as "an integer"."""
    comma = "," if " such as " in expected else ""
    text = f"{where and f'{where}: '}Expected {expected}{comma} for {option}, found {found!r}."
    raise error("wrong_type", text, option=option, found=found)


def refuse_value(
    option: str, found: Any, expected: str, error: type[AcclimateError] = BadInput
) -> NoReturn:
    """Refuse a value outside the allowed range; `expected` is such as "at least 1"."""
    text = f"Expected {option} to be {expected}, found {found}."
    raise error("out_of_range", text, option=option, found=found)


def check_at_least(option: str, found: float, low: float) -> None:
    """Refuse a number that is too small."""
    if not found >= low:
        refuse_value(option, found, f"at least {low}")


def check_each_once(option: str, names: Sequence[str]) -> None:
    """Refuse an empty list of names, and names that are listed twice."""
    text = f"Expected one or more {option}, each listed once, found: {', '.join(names) or 'none'}."
    if not names:
        raise BadInput("missing_option", text, option=option)
    for place, name in enumerate(names):
        if name in names[:place]:
            raise BadInput("duplicate", text, name=name)


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, for a message.

    pip takes acclimate itself as it is installed, from wherever it came, and adds the packages.

    >>> how_to_install("data")
    "pip install 'acclimate[data]'"
    """
    return f"pip install 'acclimate[{extra}]'"


def check_output(path: Path | None, force: bool = True, is_folder: bool = False) -> None:
    """Refuse an output that cannot be written before minutes are spent on its content."""
    if path is None:
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise BadInput(
            "not_found",
            f"Cannot write {path}: the folder {folder} does not exist. Create it first.",
            path=folder,
        )
    if path.is_dir() and not is_folder:
        raise BadInput(
            "not_a_file",
            f"Cannot write {path}: it is a folder. Pass the name of a file in it.",
            path=path,
        )
    if not os.access(folder, os.W_OK):
        raise BadInput(
            "not_writable",
            f"Cannot write {path}: no permission to write to {folder}. Choose another folder.",
            path=path,
        )
    if path.exists() and not force:
        raise BadInput(
            "already_exists",
            f"{path} already exists. Pass another --out, or --force to overwrite it.",
            path=path,
        )


def import_extra(module: str, user: str, extra: str, package: str = "") -> Any:
    """Import an optional dependency.

    Args:
        module: Its name.
        user: What requires it: the beginning of a sentence.
        extra: The extra of acclimate that contains it.
        package: Its name on PyPI, if it is not that of the module.

    Raises:
        MissingExtra: It is not installed.
    """
    root = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != root:
            raise
        package = package or root
        raise MissingExtra(
            "missing_extra",
            f"{user} requires {package}, which is not installed. Run: {how_to_install(extra)}",
            package=package,
        ) from error


def list_lines(lines: Sequence[str], shown: int = 12) -> str:
    """Return the first lines, indented, and the number of others, for a message."""
    more = f"\n  (+ {len(lines) - shown} more)" if len(lines) > shown else ""
    return "".join(f"\n  {line}" for line in lines[:shown]) + more


def name_some(names: Sequence[str]) -> str:
    """Return the first three names and the number of others, for a message.

    >>> name_some(["a", "b", "c", "d", "e"])
    'a, b, c (+ 2 more)'
    """
    more = f" (+ {len(names) - 3} more)" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
