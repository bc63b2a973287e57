"""The image decoder: hostile files give one error and start nothing."""

from __future__ import annotations

import io
import os
import re
import struct
import zlib
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, ImageFile

import acclimate
from acclimate.decode import FORMATS, decode_image, read_image_size
from acclimate.errors import UnreadableImage
from acclimate.streams.images import common_size, try_read
from tests.codes import raises

EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
(/tmp/executed) (w) file closefile
showpage
%%EOF
"""


def encode(kind: str = "PNG", size: tuple[int, int] = (6, 4), **options: object) -> bytes:
    width, height = size
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def png_of(width: int, height: int, idat: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", idat) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def webp_of(width: int, height: int) -> bytes:
    canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    inner = encode("WEBP")[12:]
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas + inner
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("kind", FORMATS)
def test_decodes_every_format_of_the_list(kind: str, tmp_path: Path) -> None:
    content = encode(kind)
    path = tmp_path / "image"
    path.write_bytes(content)
    assert decode_image(content).size == decode_image(path).size == (6, 4)
    assert decode_image(content).mode == "RGB"
    assert read_image_size(path) == read_image_size(content) == (4, 6)


@pytest.mark.parametrize("kind", ["GIF", "ICO", "TGA", "PCX", "JPEG2000", "DDS", "EPS", "PDF"])
def test_refuses_other_formats(kind: str) -> None:
    with raises("unreadable_image", UnreadableImage):
        decode_image(encode(kind, (32, 32)))


def test_an_eps_file_named_png_starts_no_program(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(EPS)
    with mock.patch.object(EpsImagePlugin, "Ghostscript", side_effect=AssertionError) as started:
        with raises("unreadable_image", path=path):
            decode_image(path)
        assert isinstance(try_read(path, (8, 8)), str)
        with raises("unreadable_images"):
            common_size([path])
    assert not started.called


def test_refuses_what_is_not_a_regular_file_at_once(tmp_path: Path) -> None:
    fifo = tmp_path / "x.png"
    os.mkfifo(fifo)
    link = tmp_path / "link.png"
    link.symlink_to("/dev/zero")
    for path in (fifo, link, tmp_path, tmp_path / "absent.png"):
        with raises("unreadable_image", path=path):
            decode_image(path)
        with raises("unreadable_image", path=path):
            read_image_size(path)


def test_closes_what_it_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.png")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in (tmp_path, tmp_path / "x.png"):
        with raises("unreadable_image"):
            decode_image(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("kind", FORMATS)
def test_truncated_and_flipped_files_give_the_one_error_or_an_image(kind: str) -> None:
    content = encode(kind)
    draws = np.random.default_rng(0)
    refused = 0
    for turn in range(150):
        damaged = bytearray(content)
        if turn % 2:
            damaged[int(draws.integers(len(damaged)))] ^= 1 << int(draws.integers(8))
        else:
            damaged = damaged[: int(draws.integers(len(damaged)))]
        try:
            assert decode_image(bytes(damaged), max_pixels=10**6).mode == "RGB"
        except UnreadableImage:
            refused += 1
    assert refused > 30


def test_a_bomb_is_refused_before_its_pixels_are_decoded() -> None:
    bomb = png_of(30_000, 30_000, zlib.compress(bytes(10_000)))
    with mock.patch.object(ImageFile.ImageFile, "load", side_effect=AssertionError) as loaded:
        with raises("unreadable_image", reason=lambda text: "DecompressionBomb" in text):
            decode_image(bomb)
        with raises("image_too_large", limit=23, found=24, path=None):
            decode_image(encode(), max_pixels=23)
        with raises("image_too_large", limit=10):
            decode_image(encode(), max_bytes=10)
    assert not loaded.called


def test_the_limits_are_inclusive(tmp_path: Path) -> None:
    content = encode()
    path = tmp_path / "image"
    path.write_bytes(content)
    for source in (content, path):
        assert decode_image(source, max_pixels=24, max_bytes=len(content)).size == (6, 4)
        with raises("image_too_large", found=len(content)):
            decode_image(source, max_bytes=len(content) - 1)


def test_the_canvas_of_a_webp_file_is_not_allocated() -> None:
    with (
        mock.patch.object(Image, "open", side_effect=AssertionError) as opened,
        raises("image_too_large", found=60_000 * 60_000),
    ):
        decode_image(webp_of(60_000, 60_000))
    assert not opened.called


def test_a_failure_of_memory_is_the_one_error() -> None:
    failing = mock.patch.object(ImageFile.ImageFile, "load", side_effect=MemoryError)
    with failing, raises("unreadable_image"):
        decode_image(encode())


def test_polyglots_are_decoded_as_the_image_that_they_begin_with() -> None:
    jpeg = encode("JPEG")
    assert np.array_equal(decode_image(jpeg + b"PK\x03\x04" + EPS), decode_image(jpeg))
    with raises("unreadable_image"):
        decode_image(EPS + jpeg)
    with raises("unreadable_image"):
        decode_image(b"GIF89a" + encode())


def test_orientation_turns_images_and_masks() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encode("PNG", exif=exif)
    assert decode_image(turned).size == (4, 6)
    assert read_image_size(turned) == (6, 4)
    mask = io.BytesIO()
    Image.fromarray(np.zeros((4, 6), np.uint8)).save(mask, "PNG", exif=exif)
    kept = decode_image(mask.getvalue(), rgb=False)
    assert (kept.mode, kept.size) == ("L", (4, 6))


def test_float_pixels_have_no_known_range() -> None:
    file = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.float32)).save(file, "TIFF")
    with raises("unreadable_image"):
        decode_image(file.getvalue())


def test_no_other_module_opens_images() -> None:
    root = Path(acclimate.__file__).parent
    users = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search(
            r"\bImage\.open\(|\bImageFile\b|cv2\.im(read|decode)|torchvision\.io", path.read_text()
        )
    ]
    assert users == ["decode.py"]
