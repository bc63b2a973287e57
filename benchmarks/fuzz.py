"""Damage and alter files of states, artifacts and weights, and count what loading them does.

    python benchmarks/fuzz.py --n 10000 --seed 0 --out results/fuzz.json

Half of the mutations change bytes of the file. The others change tensors or the card and then
write the file with a right checksum, as somebody would who alters it on purpose. For each kind of
file the table has the numbers of mutations that were

- refused: one of our errors, and the model is as it was before;
- same: loaded, and equal to the file before the mutation;
- accepted: loaded with a right checksum, exactly as the file has it, and the next batch runs;
- other errors, half loaded, silently different, hangs: failures. All of them must be 0.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from acclimate.adaptation import adapt
from acclimate.artifact import Artifact
from acclimate.errors import AcclimateError, AcclimateWarning
from acclimate.methods import METHODS, get_method
from acclimate.methods.method import Method
from acclimate.snapshot import flatten_tree, model_tensors, unflatten_tree
from acclimate.storage import read_file, versions, write_atomically, write_file
from acclimate.testing.cases import METHOD_OPTIONS, Case, tiny_artifact
from acclimate.testing.models import tiny_model
from acclimate.testing.steps import equal, make_stream, run_stream, same_state
from acclimate.zoo.readers import fit, read_tensors

FAILURES = ("other error", "half loaded", "silently different", "hang")
OUTCOMES = ("refused", "same", "accepted", *FAILURES)
KINDS = ("states", "artifacts", "weights")
SECONDS = 20  # after which a mutation counts as a hang

Tensors = dict[str, Tensor]


class Hang(BaseException):
    """A mutation took too long. Not an Exception: nothing may catch it."""


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Change a file at random."""
    data = bytearray(content)
    # The header has the card, and is most of what can go wrong.
    header = 8 + int.from_bytes(content[:8], "little")
    end = len(data) if rng.random() < 0.5 else min(header, len(data))
    at, n = rng.randrange(end), rng.randrange(1, 40)
    kind = rng.choice(("flip", "flip", "byte", "truncate", "insert", "delete", "zero", "length"))
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        data[at] = rng.randrange(256)
    elif kind == "truncate":
        del data[at:]
    elif kind == "insert":
        data[at:at] = rng.randbytes(n)
    elif kind == "delete":
        del data[at : at + n]
    elif kind == "zero":
        data[at : at + n] = bytes(len(data[at : at + n]))
    else:
        data[:8] = rng.choice((0, 1, header, 2**31, 2**63, 10**8)).to_bytes(8, "little")
    return bytes(data)


def mutate_tensors(tensors: Tensors, rng: random.Random) -> Tensors:
    """Remove, add, rename, reshape, retype, swap or spoil one tensor."""
    changed = dict(tensors)
    name = rng.choice(sorted(changed))
    tensor = changed[name].clone()
    kind = rng.choice(("remove", "add", "rename", "shape", "type", "swap", "value", "value"))
    if kind == "remove":
        del changed[name]
    elif kind == "add":
        changed[f"{name}.more"] = tensor
    elif kind == "rename":
        changed[name + rng.choice(("x", ".0", "\0", "é"))] = changed.pop(name)
    elif kind == "shape":
        shapes: tuple[Callable[[], Tensor], ...] = (
            lambda: tensor.reshape(-1),
            lambda: tensor.reshape(1, *tensor.shape),
            lambda: tensor.reshape(-1)[:1],
            lambda: tensor.reshape(-1)[:0],
            lambda: tensor.reshape(-1)[:1].reshape(()) if tensor.numel() else tensor,
            lambda: torch.cat([tensor, tensor]) if tensor.dim() else tensor[None],
            lambda: tensor[:-1] if tensor.dim() else tensor[None],
        )
        changed[name] = rng.choice(shapes)()
    elif kind == "type":
        types = (torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16)
        changed[name] = tensor.to(rng.choice(types))
    elif kind == "swap":
        other = rng.choice(sorted(changed))
        changed[name], changed[other] = changed[other], changed[name]
    elif tensor.numel():
        values = (float("nan"), float("inf"), -1.0, 1e30, 0.0, -float("inf"), 255.0)
        value = rng.choice(values)
        if not tensor.is_floating_point():
            value = float(rng.randrange(200))
        tensor.view(-1)[rng.randrange(tensor.numel())] = value
        changed[name] = tensor
    return changed


def mutate_card(card: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Remove, add or change one value anywhere in a card."""
    changed = copy.deepcopy(card)
    places = list(_places(changed))
    container, key = rng.choice(places)
    kind = rng.choice(("remove", "add", "change", "change", "change"))
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    values = (None, -1, 0, 1, 1e30, "x", "", [], {}, [1], {"a": 1}, 10**30, True, deep, 0.5)
    if kind == "remove":
        del container[key]
    elif kind == "add" and isinstance(container, dict):
        container["unknown"] = rng.choice(values)
    elif kind == "add":
        container.append(rng.choice(values))
    else:
        container[key] = rng.choice(values)
    return changed


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)


def reseal(path: Path, kind: str, original: tuple[Tensors, dict[str, Any]], rng: Any) -> None:
    """Write an altered file with a right checksum."""
    tensors, card = original
    if rng.random() < 0.5:
        tensors = mutate_tensors(tensors, rng)
    else:
        card = mutate_card(card, rng)
    plain = {key: value for key, value in card.items() if key not in ("kind", "format")}
    write_file(path, kind, tensors, plain)


class Target:
    """A file, what loads it, and whether that changed something."""

    #: Kind of file in the card; empty for one without a card.
    kind = ""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "file.safetensors"
        self.save()
        self.content = self.path.read_bytes()

    def save(self) -> None:
        raise NotImplementedError

    def load(self) -> None:
        """Load the file."""
        raise NotImplementedError

    def is_untouched(self) -> bool:
        """Return whether the model is as before the load."""
        raise NotImplementedError

    def is_original(self) -> bool:
        """Return whether what was loaded is what was saved."""
        raise NotImplementedError

    def is_as_in_file(self) -> bool:
        """Return whether what was loaded is exactly what the file has."""
        raise NotImplementedError

    def use(self) -> None:
        """Use what was loaded."""

    def rewind(self) -> None:
        """Undo the load."""

    def alter(self, rng: random.Random) -> None:
        """Write an altered file with a right checksum."""
        self.path.write_bytes(self.content)
        reseal(self.path, self.kind, read_file(self.path, self.kind), rng)


class State(Target):
    """The state of an adapted model."""

    kind = "state"

    def __init__(self, folder: Path, method: str) -> None:
        self.case = next(case for case in (Case(method, name) for name in MODELS) if case.suits)
        self.options: dict[str, Any] = {"guard": True} if method in GUARDED else {}
        if method in AUTO:
            self.options["statistics"] = "auto"
        super().__init__(folder)

    def save(self) -> None:
        adapted = self.case.build(**self.options)
        run_stream(adapted, make_stream(2))
        adapted.save(self.path)
        self.saved = adapted.snapshot().tree
        self.live: Method = self.case.build(**self.options)
        run_stream(self.live, make_stream(3)[2:])
        self.before = self.live.snapshot()

    def load(self) -> None:
        self.live.load(self.path)

    def is_untouched(self) -> bool:
        return same_tree(self.live.snapshot().tree, self.before.tree)

    def is_original(self) -> bool:
        return same_tree(self.live.snapshot().tree, self.saved)

    def is_as_in_file(self) -> bool:
        tensors, card = read_file(self.path, self.kind)
        return same_tree(self.live.snapshot().tree, unflatten_tree(tensors, card["tree"]))

    def use(self) -> None:
        run_stream(self.live, make_stream(1))

    def rewind(self) -> None:
        self.live.restore(self.before)


class Prepared(Target):
    """An artifact, and a method that needs it."""

    kind = "artifact"

    def __init__(self, folder: Path, method: str) -> None:
        self.method = method
        self.artifact = tiny_artifact("batch_norm", guarded=method in GUARDED)
        super().__init__(folder)

    def save(self) -> None:
        self.artifact.save(self.path)
        self.model = tiny_model("batch_norm")
        self.before = {name: t.detach().clone() for name, t in model_tensors(self.model).items()}
        self.saved = Artifact.load(self.path)  # tuples of a card are lists in a file

    def load(self) -> None:
        self.loaded = Artifact.load(self.path)
        self.loaded.check(self.model)

    def is_untouched(self) -> bool:
        return same_state(dict(model_tensors(self.model)), self.before)

    def is_original(self) -> bool:
        return (
            same_tree(self.loaded.tensors, self.saved.tensors)
            and self.loaded.card == self.saved.card
        )

    def is_as_in_file(self) -> bool:
        tensors, card = read_file(self.path, self.kind)
        return same_tree(self.loaded.tensors, tensors) and all(
            card[key] == value for key, value in self.loaded.card.items()
        )

    def use(self) -> None:
        options = {"guard": True} if self.method in GUARDED else {}
        model = tiny_model("batch_norm")
        named = {**METHOD_OPTIONS.get(self.method, {}), **options}
        run_stream(adapt(model, self.method, self.loaded, **named), make_stream(1))


class Weights(Target):
    """Weights of a model in a plain safetensors file or a PyTorch file."""

    def __init__(self, folder: Path, model: str, as_torch: bool) -> None:
        self.name, self.as_torch = model, as_torch
        super().__init__(folder)
        if as_torch:
            self.path = folder / "file.pt"
            torch.save(self.saved, self.path)
            self.content = self.path.read_bytes()

    def save(self) -> None:
        self.saved = {n: t.clone() for n, t in tiny_model(self.name, seed=1).state_dict().items()}
        save_file(self.saved, self.path)
        self.model: nn.Module = tiny_model(self.name)
        self.before = {n: t.clone() for n, t in self.model.state_dict().items()}

    def load(self) -> None:
        fit(self.model, read_tensors(self.path), None, self.path)

    def is_untouched(self) -> bool:
        return same_state(self.model.state_dict(), self.before)

    def is_original(self) -> bool:
        # Without a checksum: another value is another file. Names and shapes must be the model's.
        return self.is_as_in_file()

    def is_as_in_file(self) -> bool:
        tensors = read_tensors(self.path)
        own = self.model.state_dict()
        given = {name: tensors.get(name, self.before[name]).to(own[name]) for name in own}
        return equal([given[n] for n in own], list(own.values()))

    def use(self) -> None:
        with torch.no_grad():
            self.model.eval()(make_stream(1)[0])

    def rewind(self) -> None:
        self.model.load_state_dict(self.before)

    def alter(self, rng: random.Random) -> None:
        changed = mutate_tensors(self.saved, rng)
        if self.as_torch:
            loop: dict[str, Any] = {"state_dict": changed}
            if rng.random() < 0.1:
                loop["state_dict"] = loop
            torch.save(loop if rng.random() < 0.5 else changed, self.path)
        else:
            save_file({name: t.contiguous().clone() for name, t in changed.items()}, self.path)


MODELS = ("batch_norm", "instance_aware", "group_norm", "vit")
GUARDED = ("tent", "swr_nsp", "eata", "steady")
AUTO = ("steady", "tent", "infomax")


def same_tree(left: Any, right: Any) -> bool:
    """Return whether two trees are equal bit for bit."""
    (mine, skeleton), (other, expected) = flatten_tree(left), flatten_tree(right)
    return (
        skeleton == expected
        and mine.keys() == other.keys()
        and all(
            mine[name].dtype == other[name].dtype
            and torch.equal(mine[name].nan_to_num(-7.0), other[name].nan_to_num(-7.0))
            for name in mine
        )
    )


def try_one(target: Target, sealed: bool) -> tuple[str, str]:
    """Load a mutated file; return the outcome, and what went wrong."""
    try:
        target.load()
    except AcclimateError as error:
        if target.is_untouched():
            return "refused", error.code
        return "half loaded", repr(error)
    except Exception:  # noqa: BLE001 - counted
        return "other error", traceback.format_exc(limit=-3)
    if not sealed:
        return ("same", "") if target.is_original() else ("silently different", "")
    if not target.is_as_in_file():
        return "silently different", "not what the file has"
    try:
        target.use()
    except AcclimateError as error:
        return "refused", error.code
    except Exception:  # noqa: BLE001 - counted
        return "other error", traceback.format_exc(limit=-3)
    return "accepted", ""


def build_targets(kind: str, folder: Path) -> list[Callable[[], Target]]:
    """Return what makes each target of a kind, in the order of rotation."""
    if kind == "states":
        names = [name for name in METHODS if any(Case(name, m).suits for m in MODELS)]
        return [lambda name=name: State(folder, name) for name in names]  # type: ignore[misc]
    if kind == "artifacts":
        needy = [n for n in METHODS if get_method(n).needs and Case(n, "batch_norm").suits]
        names = list(dict.fromkeys([*needy, *GUARDED]))
        return [lambda name=name: Prepared(folder, name) for name in names]  # type: ignore[misc]
    return [
        lambda name=name, form=form: Weights(folder, name, form)  # type: ignore[misc]
        for name in ("batch_norm", "vit", "tied")
        for form in (False, True)
    ]


def fuzz(kind: str, n: int, seed: int, keep: Path | None = None) -> dict[str, Any]:
    """Return the numbers of outcomes of n mutations, and the first failures.

    Args:
        kind: Kind of file.
        n: Number of mutations.
        seed: Seed of the mutations.
        keep: Folder for the files that failed; None to keep none.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, stop)
    rng, counts, codes, failures = random.Random(seed), Counter[str](), Counter[str](), []
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        makers = build_targets(kind, Path(name))
        share = -(-n // len(makers))
        for make in makers:
            target = make()
            label = " ".join(str(v) for v in vars(target).values() if isinstance(v, str | Case))
            for _ in range(min(share, n - sum(counts.values()))):
                sealed = rng.random() < 0.5
                if sealed:
                    try:
                        target.alter(rng)
                    except (ValueError, TypeError, RuntimeError, RecursionError):
                        sealed = False  # no such file can be written
                if not sealed:
                    target.path.write_bytes(mutate_bytes(target.content, rng))
                signal.alarm(SECONDS)
                try:
                    outcome, detail = try_one(target, sealed)
                except Hang:
                    outcome, detail = "hang", ""
                finally:
                    signal.alarm(0)
                counts[outcome] += 1
                codes[detail if outcome == "refused" else outcome] += 1
                if outcome in FAILURES and keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    name = f"{kind}-{seed}-{sum(counts.values())}{target.path.suffix}"
                    shutil.copy(target.path, keep / name)
                if outcome in FAILURES and len(failures) < 20:
                    failures.append({"target": label, "outcome": outcome, "detail": detail})
                target.rewind()
    return {
        "n": sum(counts.values()),
        **{outcome: counts[outcome] for outcome in OUTCOMES},
        "codes": dict(sorted(codes.items())),
        "failures": failures,
    }


def describe_run() -> dict[str, Any]:
    """Return commit, machine and versions."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    return {
        "commit": git("rev-parse", "HEAD"),
        "is_changed": bool(git("status", "--porcelain", "--untracked-files=no")),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, {platform.system()}",
        **versions(),
    }


def main() -> int:
    """Fuzz every kind of file and print a table; return 1 if there was a failure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=10_000, help="mutations of each kind of file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--out", type=Path, help="JSON file; other kinds in it are kept")
    parser.add_argument("--keep", type=Path, help="folder for files that fail")
    options = parser.parse_args()
    warnings.simplefilter("ignore", AcclimateWarning)
    torch.set_num_threads(1)
    found = {kind: fuzz(kind, options.n, options.seed, options.keep) for kind in options.kinds}
    print(f"{'':20}" + "".join(f"{kind:>12}" for kind in found))
    for outcome in OUTCOMES:
        print(f"{outcome:20}" + "".join(f"{each[outcome]:12}" for each in found.values()))
    for kind, each in found.items():
        for failure in each["failures"][:5]:
            print(f"\n{kind}, {failure['target']}: {failure['outcome']}\n{failure['detail']}")
    if options.out is not None:
        old = json.loads(options.out.read_text())["files"] if options.out.exists() else {}
        run = {"seed": options.seed, "provenance": {"script": "fuzz.py", **describe_run()}}
        files = {**old, **{kind: {**run, **each} for kind, each in found.items()}}
        write_atomically(options.out, (json.dumps({"files": files}, indent=1) + "\n").encode())
    return int(any(each[outcome] for each in found.values() for outcome in FAILURES))


if __name__ == "__main__":
    sys.exit(main())
