"""Read hostile images and archives as data sets do, and count what happens to them.

    python benchmarks/hostile_images.py --n 6000 --seed 0 --out results/hostile.json

Images in 24 formats are mutated: bytes are flipped, removed or inserted, files are cut, joined and
named like other formats. A child process reads each folder of them in four ways: as a stream, as a
labelled folder, as pairs of images and masks, and by its headers. 40 files and 30 archives that are
made to do harm follow. For each folder the table has the numbers of files that were

- read, or unreadable: one of the two, for every file;
- unaccounted: neither, or both; crashes, hangs and started programs: failures. All must be 0.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import json
import lzma
import os
import platform
import random
import resource
import struct
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from acclimate.data.archives import iter_paths, list_names, read_member
from acclimate.data.layouts import open_folder
from acclimate.data.mask_files import make_table, read_mask
from acclimate.errors import AcclimateError
from acclimate.storage import versions, write_atomically
from acclimate.streams.folder import FolderStream
from acclimate.streams.images import list_images, read_size

FORMATS: dict[str, str] = {
    "AVIF": ".avif",
    "BLP": ".blp",
    "BMP": ".bmp",
    "DDS": ".dds",
    "DIB": ".dib",
    "EPS": ".eps",
    "GIF": ".gif",
    "ICNS": ".icns",
    "ICO": ".ico",
    "IM": ".im",
    "JPEG": ".jpg",
    "JPEG2000": ".jp2",
    "MPO": ".mpo",
    "MSP": ".msp",
    "PCX": ".pcx",
    "PDF": ".pdf",
    "PNG": ".png",
    "PPM": ".ppm",
    "QOI": ".qoi",
    "SGI": ".sgi",
    "SPIDER": ".spi",
    "TGA": ".tga",
    "TIFF": ".tif",
    "WEBP": ".webp",
}
_MODES = {"BLP": "P", "MSP": "1", "SPIDER": "F"}
SUFFIXES = (".png", ".jpg", ".bmp", ".webp", ".ppm", ".tif")
SIZE = (16, 16)
SECONDS = 900  # after which a folder counts as a hang; long, as other programs may run beside it
GIGABYTES = 6  # of address space of a child
#: Events of the interpreter that mean a started program.
PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn")
FAILURES = ("unaccounted", "crashes", "hangs", "programs")


# Images -------------------------------------------------------------------------------------------


def encode(kind: str, rng: random.Random) -> bytes:
    """Return a small image in a format of Pillow's."""
    pixels = np.random.default_rng(rng.getrandbits(32)).integers(0, 256, (24, 32, 3), np.uint8)
    image = Image.fromarray(pixels)
    if kind in ("ICNS", "ICO"):
        image = image.resize((32, 32))
    content = io.BytesIO()
    image.convert(_MODES.get(kind, "RGB")).save(content, kind)
    return content.getvalue()


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return a damaged copy."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        # Headers are most of what can go wrong.
        end = len(data) if rng.random() < 0.5 else min(64, len(data))
        at, n = rng.randrange(max(1, end)), rng.randrange(1, 24)
        how = rng.choice(("flip", "flip", "byte", "number", "cut", "insert", "delete", "join"))
        if how == "flip" and data:
            data[at] ^= 1 << rng.randrange(8)
        elif how == "byte" and data:
            data[at] = rng.randrange(256)
        elif how == "number":
            value = rng.choice((0, 1, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF))
            data[at : at + 4] = struct.pack(rng.choice("<>") + "I", value)
        elif how == "cut":
            del data[at:]
        elif how == "insert":
            data[at:at] = rng.randbytes(n)
        elif how == "delete":
            del data[at : at + n]
        elif how == "join":
            data += content
    return bytes(data)


def write_mutants(folder: Path, kind: str, n: int, seed: int) -> None:
    """Write n mutated images of a format as `a/000.png` and the like."""
    rng = random.Random(f"{kind} {seed}")
    for number in range(n):
        suffix = rng.choice(SUFFIXES)
        path = folder / "ab"[number % 2] / f"{number:04}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(mutate(encode(kind, rng), rng))
    write_sound(folder)


def write_sound(folder: Path) -> None:
    """Write an image that can be read into each class."""
    for name in "ab":
        (folder / name / "sound.png").write_bytes(_encoded("PNG"))


# Files that are made to do harm -------------------------------------------------------------------


def png(width: int, height: int, body: bytes, bits: int = 8, colour: int = 2) -> bytes:
    """Return a PNG file whose header says whatever it is told to."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        sum_ = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + sum_

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _encoded(kind: str, size: tuple[int, int] = (16, 16), **options: Any) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size).save(content, kind, **options)
    return content.getvalue()


def _webp(width: int, height: int) -> bytes:
    canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas + _encoded("WEBP")[12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, width, height, 1, 24, *[0] * 6)


_EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(/tmp/x) (w) file closefile\nshowpage\n"


def hostile_files() -> dict[str, bytes | Callable[[Path], None]]:
    """Return the content of 40 hostile files by their names, or what makes them."""
    small = _encoded("PNG")
    text = _encoded("PNG", pnginfo=_long_text())
    files: dict[str, bytes | Callable[[Path], None]] = {
        "empty.png": b"",
        "zeros.png": bytes(4096),
        "text.jpg": b"not an image",
        "html.png": b"<!doctype html><html></html>",
        "shell.png": b"#!/bin/sh\ntouch /tmp/executed\n",
        "pickle.png": b"cos\nsystem\n(S'touch /tmp/executed'\ntR.",
        "zip.png": b"PK\x03\x04" + bytes(64),
        "eps.png": _EPS,
        "pdf.png": b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\n",
        "svg.png": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="/etc/passwd"/></svg>',
        "wmf.bmp": b"\xd7\xcd\xc6\x9a" + bytes(64),
        "gif.png": _encoded("GIF"),
        "dds.png": _encoded("DDS"),
        "avif.png": _encoded("AVIF"),
        "ico.png": _encoded("ICO"),
        "jp2.jpg": _encoded("JPEG2000"),
        "bomb.png": png(13_300, 13_300, bytes(13_300 * 1000)),
        "huge.png": png(2**31 - 1, 2**31 - 1, b""),
        "long.png": png(2**31 - 1, 1, b""),
        "flat.png": png(0, 0, b""),
        "wide.png": png(60_000, 1, bytes(180_001)),
        "short.png": png(64, 64, bytes(100)),
        "more.png": png(16, 16, bytes(1 << 22)),
        "depth.png": png(16, 16, bytes(4096), bits=16, colour=6),
        "odd.png": png(16, 16, bytes(4096), bits=3, colour=7),
        "text.png": text,
        "cut.png": small[:40],
        "header.png": small[:20],
        "trailing.png": small + bytes(1 << 16),
        "canvas.webp": _webp(16_384, 16_384),
        "huge.bmp": _bmp(2**31 - 1, 2**31 - 1),
        "minus.bmp": _bmp(-16, -16),
        "huge.ppm": b"P6 2147483647 2147483647 255\n",
        "deep.ppm": b"P6 4 4 65536\n" + bytes(48),
        "words.ppm": b"P3 4 4 255\n" + b"9" * 5000,
        "loop.tif": b"II*\0\x08\0\0\0\x01\0\x00\x01\x03\0\x01\0\0\0\x04\0\0\0\x08\0\0\0",
        "tags.tif": b"II*\0\x08\0\0\0\xff\xff" + bytes(64),
        "fifo.png": os.mkfifo,
        "folder.png": Path.mkdir,
        "device.png": lambda path: path.symlink_to("/dev/zero"),
    }
    assert len(files) == 40
    return files


def _long_text() -> Any:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("comment", "x" * (1 << 21), zip=True)
    return info


def write_hostile(folder: Path) -> None:
    """Write the hostile files into two class folders, each beside a sound image."""
    for number, (name, content) in enumerate(hostile_files().items()):
        path = folder / "ab"[number % 2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)
    write_sound(folder)


# Archives -----------------------------------------------------------------------------------------


def _tar(*members: tuple[str, bytes], **changes: Any) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, body in members:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            for key, value in changes.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(body) if member.isreg() else None)
    return content.getvalue()


def _zip(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w", method) as archive:
        warnings.simplefilter("ignore")
        for name, body in members:
            archive.writestr(name, body)
    return content.getvalue()


def _replaced(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content
    return content.replace(old, new)


@cache
def hostile_archives() -> dict[str, bytes]:
    """Return 30 hostile archives by their names."""
    body, bomb = b"x" * 2000, bytes(120_000_000)
    one = ("d/c/a.jpg", body)
    plain, zipped = _tar(one), _zip(one)
    local, central = zipped.index(b"PK\x03\x04"), zipped.index(b"PK\x01\x02")
    encrypted = bytearray(zipped)
    encrypted[local + 6] |= 1
    encrypted[central + 8] |= 1
    unknown = bytearray(zipped)
    unknown[local + 8] = unknown[central + 10] = 99
    sized = bytearray(zipped)
    sized[central + 24 : central + 28] = struct.pack("<I", 2**32 - 2)
    archives = {
        "empty.tar": b"",
        "text.tar": b"not an archive",
        "zeros.tar": bytes(10_240),
        "cut.tar": plain[:1000],
        "cut.tar.gz": gzip.compress(plain)[:-20],
        "cut.tar.bz2": bz2.compress(plain)[:-20],
        "cut.tar.xz": lzma.compress(plain)[:-20],
        "flipped.tar.gz": gzip.compress(plain)[:30] + b"\xff" * 40,
        "flipped.tar.xz": lzma.compress(plain)[:30] + b"\xff" * 40,
        "flipped.tar.bz2": bz2.compress(plain)[:30] + b"\xff" * 40,
        "checksum.tar": plain[:148] + b"7777777\0" + plain[156:],
        "size.tar": plain[:124] + b"77777777777\0" + plain[136:],
        "minus.tar": plain[:124] + b"\xff" * 12 + plain[136:],
        "bomb.tar.gz": gzip.compress(_tar(("d/c/b.jpg", bomb)), 9),
        "bomb.tar.xz": lzma.compress(_tar(("d/c/b.jpg", bomb))),
        "bomb.zip": _zip(("d/c/b.jpg", bomb)),
        "bomb-lzma.zip": _zip(("d/c/b.jpg", bomb), method=zipfile.ZIP_LZMA),
        "up.tar": _tar(("../../x.jpg", body)),
        "up.zip": _zip(("../../x.jpg", body)),
        "root.tar": _tar(("/etc/x.jpg", body)),
        "long.tar": _tar(("d/c/" + "n" * 5000 + ".jpg", body)),
        "long.zip": _zip(("d/c/" + "n" * 5000 + ".jpg", body)),
        "link.tar": _tar(("d/c/a.jpg", b""), type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        "device.tar": _tar(("d/c/a.jpg", b""), type=tarfile.CHRTYPE, devmajor=1, devminor=5),
        "fifo.tar": _tar(("d/c/a.jpg", b""), type=tarfile.FIFOTYPE),
        "encrypted.zip": bytes(encrypted),
        "method.zip": bytes(unknown),
        "size.zip": bytes(sized),
        "cut.zip": zipped[: len(zipped) // 2],
        "sum.zip": _replaced(_zip(one, method=zipfile.ZIP_STORED), body, b"y" * len(body)),
    }
    assert len(archives) == 30
    return archives


def read_archive(path: Path) -> str:
    """Read all of an archive as data sets do; return `read`, or the code of the error."""
    try:
        list_names(path)
        for _, file in iter_paths(path):
            read_member(file, path)
    except AcclimateError as error:
        return str(error.code)
    return "read"


# Reading ------------------------------------------------------------------------------------------


def read_everything(folder: Path) -> dict[str, Any]:
    """Read all images of a folder in each way; return the numbers of files and of faults."""
    programs: list[str] = []
    watching = True
    sys.addaudithook(
        lambda event, _: programs.append(event) if watching and event in PROGRAMS else None
    )
    paths = list_images(folder)
    faults = []
    stream = FolderStream(folder, 16, batch_size=32)
    read = [path for batch in stream.batches() for path in batch.paths]
    faults += _compare("stream", paths, read, stream.unreadable)
    store = open_folder(folder, 16)
    good = store.select(store.find_readable())
    faults += _compare("folder", paths, good.paths, store.unreadable)
    faults += [f"folder and stream differ: {path}" for path in set(read) ^ set(good.paths)]
    table = make_table(dict.fromkeys(range(256), 0))
    masks = [read_mask(path, table, SIZE) for path in paths]
    sizes = [read_size(path) for path in paths]
    faults += [
        f"has pixels but no size: {p}"
        for p, s in zip(paths, sizes, strict=True)
        if p in read and s is None
    ]
    watching = False
    return {
        "files": len(paths),
        "read": len(read),
        "unreadable": len(paths) - len(read),
        "read_as_masks": sum(not isinstance(mask, str) for mask in masks),
        "unaccounted": len(faults),
        "programs": len(programs),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "faults": faults[:20],
    }


def _compare(what: str, paths: list[Path], read: Any, unreadable: Any) -> Iterator[str]:
    for path in paths:
        if (path in set(read)) == (path in unreadable):
            yield f"{what}: {path} is {'both' if path in unreadable else 'neither'}"


def read_in_child(folder: Path) -> dict[str, Any]:
    """Run `read_everything` in another process, with limits of time and memory."""
    command = [sys.executable, __file__, "--read", str(folder)]
    counts: dict[str, Any] = dict.fromkeys(FAILURES, 0)
    n = sum(path.suffix in SUFFIXES for path in folder.rglob("*"))
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {**counts, "files": n, "hangs": 1, "faults": [f"no end within {SECONDS} s"]}
    if run.returncode:
        return {**counts, "files": n, "crashes": 1, "faults": [run.stderr[-2000:]]}
    return {**counts, **json.loads(run.stdout)}


def describe_run() -> dict[str, Any]:
    """Return commit, machine and versions."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return {
        "script": Path(__file__).name,
        "commit": git("rev-parse", "HEAD"),
        "is_changed": bool(git("status", "--porcelain", "--untracked-files=no")),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, {platform.system()}",
        "pillow": Image.__version__,
        **versions(),
    }


def run_all(n: int, seed: int) -> dict[str, Any]:
    """Return the numbers for every format, the hostile files and the hostile archives."""
    found: dict[str, Any] = {}
    share = -(-n // len(FORMATS))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for kind in FORMATS:
            write_mutants(root / kind, kind, share, seed)
            found[kind] = read_in_child(root / kind)
        write_hostile(root / "hostile")
        found["hostile files"] = read_in_child(root / "hostile")
        (root / "archives").mkdir()
        archives = {}
        for archive, content in hostile_archives().items():
            path = root / "archives" / archive
            path.write_bytes(content)
            archives[archive] = read_archive(path)
    return {"images": found, "archives": archives}


def main() -> int:
    """Read everything and print a table; return 1 if there was a failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=6000, help="mutated images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES << 30, GIGABYTES << 30))
        warnings.simplefilter("ignore")
        print(json.dumps(read_everything(options.read)))
        return 0
    found = run_all(options.n, options.seed)
    columns = ("files", "read", "unreadable", *FAILURES, "megabytes")
    print(f"{'':14}" + "".join(f"{column:>12}" for column in columns))
    for kind, each in found["images"].items():
        print(f"{kind:14}" + "".join(f"{each.get(column, 0):12}" for column in columns))
        for fault in each["faults"][:3]:
            print(f"    {fault}")
    for archive, outcome in found["archives"].items():
        print(f"{archive:20}{outcome}")
    if options.out is not None:
        about = {"n": options.n, "seed": options.seed, "provenance": describe_run()}
        content = json.dumps({**about, **found}, indent=1) + "\n"
        write_atomically(options.out, content.encode())
    return int(any(each[key] for each in found["images"].values() for key in FAILURES))


if __name__ == "__main__":
    sys.exit(main())
