"""Options of a server. They need no torch, so that the command line can be made of them."""

from __future__ import annotations

from typing import Literal

from acclimate.options import Values, hp, options

_BATCHES, _LIMITS = "Batches and queues", "Limits of requests"


@options
class EngineSettings(Values):
    """How a server batches, learns and saves."""

    max_batch: int = hp(
        32, low=1, panel=_BATCHES, help="images that are answered together, at most"
    )
    max_wait_ms: float = hp(
        4.0, low=0.0, panel=_BATCHES, help="longest wait of a request for others, in milliseconds"
    )
    max_queue: int = hp(
        256,
        low=1,
        panel=_BATCHES,
        help="images of a stream that wait for an answer; beyond it: status 429",
    )
    learn_batch: int = hp(64, low=2, panel=_BATCHES, help="images that are learned from together")
    learn_queue: int = hp(
        512, low=2, panel=_BATCHES, help="images of a stream that wait for learning, at most"
    )
    when_behind: Literal["skip", "refuse"] = hp(
        "skip",
        choices=("skip", "refuse"),
        panel=_BATCHES,
        help="if learning does not keep up: skip learns from a part of the images, refuse answers "
        "requests with status 429",
    )
    save_every: int = hp(
        10, low=1, panel=_BATCHES, help="learned batches between two saved states of a stream"
    )
    max_streams: int = hp(
        256, low=1, panel=_BATCHES, help="streams, in memory and in files, at most"
    )
    sessions: int = hp(32, low=1, panel=_BATCHES, help="streams in memory, at most")


@options
class AppSettings(Values):
    """Limits of single requests."""

    max_body: int = hp(16_000_000, low=1, panel=_LIMITS, help="bytes of a request, at most")
    max_images: int = hp(64, low=1, panel=_LIMITS, help="images of a request, at most")
    max_pixels: int = hp(25_000_000, low=1, panel=_LIMITS, help="pixels of an image file, at most")
