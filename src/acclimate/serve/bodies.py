"""The images of a request: files or tensors, read within limits and without executing code."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from io import BytesIO
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from acclimate.decode import decode_image
from acclimate.errors import BadInput
from acclimate.functional.inputs import Normalization
from acclimate.streams.images import fit_image

#: Content types of tensors.
NPY, JSON, MULTIPART = "application/x-npy", "application/json", "multipart/form-data"
_MALFORMED = (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError, TokenError)
_LONGEST_HEADER = 10_000  # characters: longer texts could exhaust the parser


def check_count(n: int, limit: int) -> None:
    """Refuse more images than a request may have."""
    if n > limit:
        raise BadInput(
            "too_many_images",
            f"Expected at most {limit} images in a request, found {n}. Send them in several "
            "requests.",
            limit=limit,
            found=n,
        )


async def read_body(chunks: AsyncIterator[bytes], declared: str | None, limit: int) -> bytes:
    """Return a body; refuse it where it becomes larger than `limit` bytes."""
    if declared is not None and declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


async def split_parts(headers: Any, body: bytes, most: int) -> list[bytes]:
    """Return the files of a multipart body."""
    from starlette.datastructures import UploadFile
    from starlette.formparsers import MultiPartException, MultiPartParser

    async def give() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await MultiPartParser(
            headers, give(), max_files=most, max_fields=0, max_part_size=0
        ).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        text = getattr(error, "message", None) or str(error)
        raise _wrong_body(f"a multipart body of at most {most} files", text) from error
    try:
        return [await part.read() for _, part in form.multi_items() if isinstance(part, UploadFile)]
    finally:
        await form.close()


def read_files(
    files: Sequence[bytes],
    shape: Sequence[int],
    normalization: Normalization | None,
    *,
    max_pixels: int,
) -> Tensor:
    """Return image files as a batch: resized, cropped and normalised as the model takes them."""
    if not files:
        raise _wrong_body("at least one image file", "none")
    size = (shape[1], shape[2])
    pixels = [fit_image(decode_image(file, max_pixels=max_pixels), size) for file in files]
    x = torch.from_numpy(np.stack(pixels).transpose(0, 3, 1, 2).copy()).float() / 255
    return x if normalization is None else normalization.normalize(x)


def read_tensor(body: bytes, kind: str) -> Tensor:
    """Return a tensor, given as an npy file or as JSON (`{"inputs": [...]}`), as float32."""
    array = _read_npy(body) if kind == NPY else _read_json(body)
    x = torch.from_numpy(array.astype(np.float32))
    return x[None] if x.dim() == 3 else x


def _read_npy(body: bytes) -> np.ndarray[Any, Any]:
    # numpy.load allocates what the header claims and can unpickle; this reads the header only.
    expected, file = "an npy file of numbers", BytesIO(body)
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(file, max_header_size=_LONGEST_HEADER)
    except _MALFORMED as error:
        raise _wrong_body(expected, "a header that cannot be read") from error
    start, size = file.tell(), math.prod(shape) * dtype.itemsize
    is_plain = dtype.kind in "fiu" and all(type(n) is int and n >= 0 for n in shape)
    if not is_plain or len(shape) not in (3, 4) or size != len(body) - start:
        raise _wrong_body(expected, f"{dtype} of shape {shape} in {len(body) - start} bytes")
    flat: np.ndarray[Any, Any] = np.frombuffer(body, dtype, offset=start)
    return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)


def _read_json(body: bytes) -> np.ndarray[Any, Any]:
    expected = 'JSON such as {"inputs": [[[[0.5, …]]]]}'
    try:
        content = json.loads(body)
        values = content["inputs"] if isinstance(content, Mapping) else content
        array = np.array(values, dtype=np.float32)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise _wrong_body(expected, f"{type(error).__name__}") from error
    if array.ndim not in (3, 4):
        raise _wrong_body(expected, f"numbers of shape {array.shape}")
    return array


def _wrong_body(expected: str, found: str) -> BadInput:
    return BadInput("wrong_body", f"Expected {expected}, found {found}.", found=found)


def _too_large(limit: int) -> BadInput:
    return BadInput(
        "too_large",
        f"Expected a request of at most {limit} bytes, found more. Send fewer or smaller images.",
        limit=limit,
    )
