"""What the command line does, as functions: one per command, with the options as keywords.

artifact = commands.prepare(source="data/train", model="builtin", out="builtin.acclimate").artifact
commands.evaluate(model="builtin", data="builtin", method="source,tent", out="eval").comparison

Each function has a class of options, `prepare.options`, which declares name, type, default, range
and help. The command line is made of it, so that both have the same names. Importing this needs no
torch.
"""

from acclimate.commands.files import export, inspect
from acclimate.commands.measure import evaluate
from acclimate.commands.models import adapt, doctor, prepare
from acclimate.commands.serving import send, serve
from acclimate.commands.sources import (
    data_check,
    data_corrupt,
    data_get,
    data_list,
    train,
    zoo_get,
    zoo_list,
    zoo_show,
)
from acclimate.commands.suites import (
    bench_compare,
    bench_report,
    bench_run,
    bench_status,
    demo,
    reproduce,
)

__all__ = [
    "adapt",
    "bench_compare",
    "bench_report",
    "bench_run",
    "bench_status",
    "data_check",
    "data_corrupt",
    "data_get",
    "data_list",
    "demo",
    "doctor",
    "evaluate",
    "export",
    "inspect",
    "prepare",
    "reproduce",
    "send",
    "serve",
    "train",
    "zoo_get",
    "zoo_list",
    "zoo_show",
]
