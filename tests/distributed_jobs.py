"""What two processes do in the tests of acclimate.distributed; the parent compares."""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path

import torch

import acclimate
from acclimate.distributed import check_agreement, shard
from acclimate.errors import AcclimateError
from acclimate.methods.compute import Speed
from acclimate.methods.config import GradientConfig
from acclimate.methods.tent import Tent
from acclimate.snapshot import flatten_tree, model_tensors
from acclimate.storage import digest
from acclimate.testing.models import tiny_batches, tiny_model
from tests.guarding import script_gain

PROJECTOR = {"train_projector": True, "detach_target": False, "optimizer": "sgd"}
BOTH = {"terms": ("swr", "nsp")}


def guarded(gain=None, **options):
    """Options of a guard, and the gain that it estimates; None if the artifact decides."""
    return {"lr": 0.3, "guard": {"gain": gain, "options": options}}


#: Method, model and options of each comparison.
CASES = {
    "source": ("source", "batch_norm", {}),
    "norm": ("norm", "batch_norm", {}),
    "norm, nothing tracked": ("norm", "untracked", {}),
    "bn_ema": ("bn_ema", "batch_norm", {}),
    "tent": ("tent", "batch_norm", {}),
    "tent on LayerNorm": ("tent", "vit", {}),
    "entropy": ("entropy", "batch_norm", {}),
    "infomax": ("infomax", "batch_norm", {}),
    "infomax on LayerNorm": ("infomax", "vit", {}),
    "infomax, running": ("infomax", "batch_norm", {"statistics": "running"}),
    "infomax, mixed": ("infomax", "batch_norm", {"statistics": "mixed"}),
    "infomax, robust": ("infomax", "batch_norm", {"statistics": "robust"}),
    "infomax, source": ("infomax", "batch_norm", {"statistics": "source"}),
    "swr": ("swr", "batch_norm", {}),
    "nsp by prototypes": ("nsp", "batch_norm", {"predictor": "prototypes"}),
    "swr_nsp": ("swr_nsp", "batch_norm", {}),
    "swr_nsp on LayerNorm": ("swr_nsp", "vit", {}),
    "swr_nsp, projector": ("swr_nsp", "batch_norm", PROJECTOR),
    "tent with swr and nsp": ("tent", "batch_norm", BOTH),
    "entropy, estimated to help": ("entropy", "batch_norm", guarded(0.5)),
    "entropy, estimated to hurt": ("entropy", "batch_norm", guarded(-0.5, patience=1)),
    "entropy, only watched": ("entropy", "batch_norm", guarded(answers=False, every=1)),
}
#: Samples of each process in a batch, for the main methods and for the others.
SIZES = ((100, 100), (130, 70), (1, 23))
SMALL = (17, 7)
MAIN = ("tent", "infomax", "swr_nsp")
N_STEPS = 3

RUNS = [(case, SMALL) for case in CASES] + [(case, sizes) for case in MAIN for sizes in SIZES]


def build_model(name):
    model = tiny_model("batch_norm" if name == "untracked" else name).double()
    # What no loss depends on (a bias before BatchNorm, that of attention's keys) is moved by
    # rounding alone, which Adam makes large; it is different on every machine.
    frozen = model.attention.in_proj_bias if name == "vit" else model.stem.bias
    frozen.requires_grad_(False)
    if name == "untracked":
        for layer in (model.norm, model.block.norm1, model.block.norm2):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = None
    return model


def artifact_path(folder, model):
    return Path(folder) / f"{model}.acclimate"


def build(case, folder, **options):
    method, name, own = CASES[case]
    options = {"lr": 0.01, **own, **options}
    if method in ("source", "norm", "bn_ema"):
        del options["lr"]
    needs = acclimate.get_method(method).needs or "guard" in own or "terms" in own
    artifact = acclimate.Artifact.load(artifact_path(folder, name)) if needs else None
    if "guard" in options:
        gain = options["guard"]["gain"]
        known = artifact if gain is None else script_gain(artifact, gain)
        options["guard"] = acclimate.Guard(known, **options["guard"]["options"])
    return acclimate.adapt(build_model(name), method, artifact, **options)


def batches(sizes, n=N_STEPS):
    return [x for x, _ in tiny_batches(n, sum(sizes), seed=3, dtype=torch.float64)]


def record(adapted, logits):
    """Return what a run gave, as plain values and tensors."""
    tensors, skeleton = flatten_tree(adapted.snapshot().tree)
    return {
        "logits": logits,
        "weights": {name: t.detach().clone() for name, t in model_tensors(adapted).items()},
        "counts": asdict(adapted.counts),
        "report": None if adapted.guard is None else asdict(adapted.report()),
        "digest": digest(tensors, str(skeleton)),
    }


def agreement(rank, folder):
    """Run every comparison on the samples of this process."""
    found = {}
    for case, sizes in RUNS:
        adapted = shard(build(case, folder))
        own = [x.split(sizes)[rank] for x in batches(sizes)]
        found[f"{case} {sizes}"] = record(adapted, [adapted(x) for x in own])
        check_agreement(adapted)
    return found


def not_finite(rank, folder):
    """Return what the guard does if the logits of one process only are not finite."""
    adapted = shard(build("entropy, estimated to help", folder))
    xs = [x.split(SMALL)[rank] for x in batches(SMALL, 4)]
    for x in xs[:2]:
        adapted(x)
    answers = [adapted.report().answers]
    hook = adapted.model.head.register_forward_hook(lambda _, __, logits: logits / rank)
    found = adapted(xs[2])
    hook.remove()
    answers.append(adapted.report().answers)
    check_agreement(adapted)
    return {"answers": answers, "logits": found, "reasons": adapted.report().reasons}


def life(rank, folder):
    """Save, load, pause, copy, reset and unwrap in the course of a stream."""
    sizes, folder = (17, 7), Path(folder)
    xs = [x.split(sizes)[rank] for x in batches(sizes, 4)]
    adapted = shard(build("swr_nsp", folder))
    found = {"logits": [adapted(x) for x in xs[:2]]}
    if rank == 0:
        adapted.save(folder / "sharded.safetensors")
    twin = copy.deepcopy(adapted)
    before = record(adapted, [])["digest"]
    with adapted.paused():
        found["paused"] = adapted(xs[2])
    found["pausing changed nothing"] = record(adapted, [])["digest"] == before
    found["next"] = adapted(xs[2])
    found["copy's next"] = twin(xs[2])
    adapted.reset()
    found["again"] = [adapted(x) for x in xs[:2]]
    adapted.load(folder / "single.safetensors")
    found["loaded"] = adapted(xs[2])
    found["model"] = dict(adapted.unwrap().state_dict())
    return found


class Undeclared(Tent):
    """A method of somebody else, who has not said that it can be spread."""

    name = "undeclared"


def refusals(rank, folder):
    """Return the code and the data of what each process raised at things that cannot be."""
    said = {}

    def attempt(name, action):
        said[name] = None
        try:
            action()
        except AcclimateError as error:
            said[name] = {"code": error.code, **error.data}

    model = build_model("batch_norm")
    loaded = acclimate.Artifact.load(artifact_path(folder, "batch_norm"))
    tensors = {name: t + rank if "prototypes/" in name else t for name, t in loaded.tensors.items()}
    other = acclimate.Artifact(tensors, loaded.card)
    fast = Speed(view_share=0.5)
    away = [
        ("method", lambda: acclimate.adapt(model, "eta")),
        ("subclass", lambda: Undeclared(model, GradientConfig())),
        ("speed", lambda: acclimate.adapt(model, "swr_nsp", loaded, speed=fast)),
        ("weights", lambda: acclimate.adapt(tiny_model("batch_norm", seed=rank), "tent")),
        ("seed", lambda: acclimate.adapt(model, "tent", seed=rank)),
        ("artifact", lambda: acclimate.adapt(model, "swr_nsp", other)),
        ("options", lambda: acclimate.adapt(model, "tent", lr=0.1 * (rank + 1))),
        ("one of two", lambda: acclimate.adapt(model, "eta" if rank else "tent")),
        ("layers", lambda: acclimate.adapt(tiny_model("instance_aware"), "tent")),
    ]
    for name, make in away:
        attempt(name, lambda make=make: shard(make()).unwrap())

    adapted = shard(acclimate.adapt(model, "tent"))
    x = batches((4, 4), 1)[0].split((4, 4))[rank]
    adapted(x)
    before = record(adapted, [])["digest"]
    attempt("empty", lambda: adapted(x[: 4 * (1 - rank)]))
    attempt("not finite", lambda: adapted(x / rank))
    attempt("shape", lambda: adapted(x[:, :, : 8 - rank]))
    attempt("no tensor", lambda: adapted(x if rank else None))
    with adapted.paused() if rank else torch.no_grad():
        attempt("paused", lambda: adapted(x))
    said["nothing changed"] = record(adapted, [])["digest"] == before
    if rank:
        adapted.reset()
    attempt("reset", lambda: adapted(x))
    adapted.reset()
    attempt("all reset", lambda: adapted(x))

    hook = model.head.register_forward_hook(lambda _, __, logits: logits / rank)
    adapted(x)  # infinite where the rank is 0
    hook.remove()
    said["skipped"] = dict(adapted.counts.skipped)
    check_agreement(adapted)

    def fail(*_):
        raise AcclimateError("duplicate", "half-way", name="batch")

    hook = model.head.register_forward_hook(fail)
    attempt("failing", lambda: adapted(x))
    hook.remove()
    attempt("after failing", lambda: adapted(x))
    shard(adapted)
    attempt("new start", lambda: adapted(x))
    if rank:
        with torch.no_grad():
            model.head.weight[0, 0] += 1e-12
    attempt("drift", lambda: check_agreement(adapted))
    return said


def everything(rank, folder):
    return {
        "agreement": agreement(rank, folder),
        "not finite": not_finite(rank, folder),
        "life": life(rank, folder),
        "refusals": refusals(rank, folder),
    }
