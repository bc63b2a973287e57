"""Write and read acclimate files: safetensors with a JSON card, written atomically and verified.

An acclimate file is a plain safetensors file. Its metadata has one string, `acclimate`: a JSON
card, whose field `sha256` is a digest over the rest of the card and all tensors, so that any
flipped bit is detected. The same content gives the same bytes. Loading cannot execute code.

A checksum shows damage, not intent: whoever alters a file can compute it again. A file that is
written with a key also has the field `hmac`, an HMAC-SHA256 over the card and all tensors, which
needs the key. A reader with that key refuses every other file; a reader without one ignores it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import platform
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from acclimate._version import __version__
from acclimate.errors import (
    AcclimateError,
    AcclimateWarning,
    ArtifactMismatch,
    ArtifactVersion,
    BadInput,
    CorruptFile,
)

#: Format version (major, minor). Readers accept their own major; newer minors may add fields.
FORMAT = (1, 0)

_LARGEST_HEADER = 100_000_000  # the safetensors format's own limit
_NOT_OURS = "Pass a file written by acclimate; other files cannot be converted."


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's raw bytes, for hashing."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Return the SHA-256 of the names, dtypes, shapes and bytes of tensors, and of a text."""
    state = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        state.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        state.update(tensor_bytes(tensor))
    return state.hexdigest()


def file_digest(path: str | Path, kind: str = "sha256") -> str:
    """Return the checksum of a file; `kind` is a name that `hashlib` knows, such as `md5`."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def make_folder(folder: Path, remedy: str = "Pass another folder with --out.") -> Path:
    """Return a folder, created with its parents if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            "not_writable",
            f"Cannot create the folder {folder} ({error.strerror}). {remedy}",
            path=folder,
        ) from error
    return folder


@contextmanager
def guard_writing(path: Path) -> Iterator[None]:
    """Turn a full disk, a limit on file sizes and other failures to write into one error."""
    try:
        yield
    except AcclimateError:
        raise
    except OSError as error:
        raise BadInput(
            "not_writable",
            f"{path} cannot be written ({error.strerror or error}). What was there before is "
            "unchanged. Free disk space, check quotas, limits and permissions, or choose another "
            "location, and run the same command again.",
            path=path,
        ) from error


def write_atomically(path: str | Path, content: bytes, sync: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    The bytes are written to a temporary file beside it and, unless the file can be made again,
    synced to disk; then it is renamed.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise BadInput(
            "not_found",
            f"Cannot write {path}: the folder {path.parent} does not exist. Create it first.",
            path=path.parent,
        )
    if path.is_dir():
        raise BadInput(
            "not_a_file",
            f"Cannot write {path}: it is a folder. Pass the path of a file.",
            path=path,
        )
    neighbour = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with guard_writing(path), neighbour.open("wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        with guard_writing(path):
            neighbour.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            neighbour.unlink()
        raise


def write_file(
    path: str | Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    card: Mapping[str, Any],
    key: bytes | str | None = None,
) -> None:
    """Write tensors and a JSON card as one file; its folder must exist.

    The kind, such as `"artifact"` or `"state"`, is verified on reading. The content is signed with
    the key, which is not written; None for no signature.
    """
    text = json.dumps({"kind": kind, "format": list(FORMAT), **card}, allow_nan=False)
    # Tied tensors share memory, which safetensors refuses: each gets its own copy.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    if key is not None:
        text = json.dumps({**json.loads(text), "hmac": _sign(key, digest(plain, text))})
    # One key only: safetensors writes several in no fixed order.
    signed = json.dumps({**json.loads(text), "sha256": digest(plain, text)})
    write_atomically(path, save(plain, {"acclimate": signed}))


def read_file(
    path: str | Path, kind: str, key: bytes | str | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file written by `write_file` with this kind; refuse any other file.

    It must be signed with the key; None accepts signed and unsigned files.
    """
    path = Path(path)
    if not path.is_file():
        text = f"Expected a file, but {path} is not one. Pass the path that was passed to save()."
        if not path.exists():
            raise BadInput("not_found", text, path=path)
        raise BadInput("not_a_file", text, path=path)
    _check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # a damaged file can make the reader fail in any way
        raise CorruptFile(
            "unreadable_file",
            f"{path} has a safetensors header that does not fit its content ({error}). "
            "The file was damaged after it was written. Copy or create it again.",
            path=path,
        ) from error
    if "acclimate" not in metadata:
        raise CorruptFile(
            "not_ours",
            f"{path} is a safetensors file without an acclimate card in its metadata. {_NOT_OURS}",
            path=path,
        )
    card = _open_card(metadata["acclimate"])
    version: Any = card.get("format")
    is_version = isinstance(version, list) and [type(each) for each in version] == [int, int]
    version = version if is_version else [0, 0]
    if version[0] > FORMAT[0]:  # checked first: a later format may be signed differently
        raise ArtifactVersion(
            "newer_format",
            f"{path} has format {version[0]}.{version[1]}; this version of acclimate reads formats "
            f"up to {FORMAT[0]}.x. Upgrade acclimate, or create the file again with this version.",
            path=path,
            found=tuple(version),
        )
    sha256 = card.pop("sha256", None)
    if digest(tensors, json.dumps(card)) != sha256:
        raise CorruptFile(
            "altered_file",
            f"The SHA-256 of {path} differs from the one in its card. The file was altered or "
            "damaged. Copy or create it again.",
            path=path,
        )
    signature = card.pop("hmac", None)
    if key is not None:
        expected = _sign(key, digest(tensors, json.dumps(card)))
        if not isinstance(signature, str) or not hmac.compare_digest(
            signature.encode(), expected.encode()
        ):
            raise CorruptFile(
                "wrong_signature",
                f"Expected a file signed with the given key, but {path} "
                + ("has no signature." if signature is None else "has another signature.")
                + " Do not use it, unless you know why; then load it without a key.",
                path=path,
            )
    if not is_version or not isinstance(card.get("kind"), str):
        raise CorruptFile(
            "wrong_content",
            f"The card of {path} has no format version or no kind. Create the file again.",
            path=path,
        )
    if card["kind"] != kind:
        raise ArtifactMismatch(
            "other_kind",
            f"Expected a file of kind {kind!r}, but {path} is of kind {card['kind']!r}. "
            "Artifacts are read by Artifact.load(), states by adapted.load().",
            path=path,
            found=card["kind"],
            expected=kind,
        )
    return tensors, card


def warn_unknown(path: str | Path, fields: Iterable[str], known: Iterable[str]) -> None:
    """Warn about card fields that this version does not know."""
    unknown = sorted(set(fields) - set(known) - {"kind", "format"})
    if unknown:
        warnings.warn(
            AcclimateWarning(
                "unknown_fields",
                f"{path} has fields that this version of acclimate does not know and ignores: "
                f"{', '.join(unknown)}. Upgrade acclimate to use them.",
                path=path,
                fields=tuple(unknown),
            ),
            stacklevel=3,
        )


def _open_card(text: str) -> dict[str, Any]:
    """Return a card, or an empty one if the text was altered."""
    try:
        card = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return {}
    # Some altered texts have the same meaning (1e5 and 1E5); they count as damaged nevertheless.
    return card if isinstance(card, dict) and json.dumps(card) == text else {}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _sign(key: bytes | str, content: str) -> str:
    """Return the HMAC-SHA256 of a digest of the content."""
    if not isinstance(key, bytes | str) or not key:
        found = "an empty one" if isinstance(key, bytes | str) else f"a {type(key).__name__}"
        raise BadInput(
            "wrong_type",
            f"Expected a key of bytes or text that is not empty, found {found}.",
            option="key",
            found=found,
        )
    secret = key.encode() if isinstance(key, str) else key
    return hmac.new(secret, b"acclimate\0" + content.encode(), hashlib.sha256).hexdigest()


def _check_header(path: Path) -> None:
    """Refuse a file that is not safetensors before the library reads it, with the reason."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(9)
    if len(first) < 9:
        raise CorruptFile(
            "truncated_file",
            f"{path} has only {size} bytes, too few for a safetensors file. "
            "It is truncated. Copy or create it again.",
            path=path,
        )
    length = int.from_bytes(first[:8], "little")
    if first[8:] != b"{":
        raise CorruptFile(
            "not_ours",
            f"{path} is not a safetensors file (no header found). {_NOT_OURS}",
            path=path,
        )
    if length > _LARGEST_HEADER:
        raise CorruptFile(
            "unsafe_file",
            f"{path} claims a header of {length} bytes, more than the {_LARGEST_HEADER} that the "
            "format allows. It is damaged, or designed to exhaust memory. Do not use it.",
            path=path,
        )
    if length + 8 > size:
        raise CorruptFile(
            "truncated_file",
            f"{path} ends inside its header ({size} bytes of at least {length + 8}). "
            "It is truncated. Copy or create it again.",
            path=path,
        )


def versions() -> dict[str, str]:
    """Return the versions of acclimate, torch, numpy and Python."""
    return {
        "acclimate": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
