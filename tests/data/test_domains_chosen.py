"""Parts of domains as what jobs run on and what they are prepared from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate.bench import JobSpec, Preparing
from acclimate.data.domain_choice import DomainChoice, split_keys
from acclimate.data.domains import load_domains
from acclimate.data.loading import Preparation, load_data
from acclimate.data.request import Request
from acclimate.data.stores import concatenate
from tests.codes import raises, warns
from tests.domains.samples import DOMAINS, make_set, make_tree


def read(paths: list[Path]) -> np.ndarray:
    return np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])


def list_files(root: Path, domain: str) -> list[Path]:
    return sorted((root / domain).rglob("*.png"), key=lambda path: (path.parent.name, path.name))


def test_a_pool_reads_what_is_asked_for(tree: Path) -> None:
    data = load_domains(str(tree))
    parts = data.choose(DomainChoice(names=("shore", "city"), part="train"))
    pool = concatenate(list(parts.values()))
    paths = []
    for name in ("shore", "city"):
        files = list_files(tree, name)
        train, _ = split_keys(len(files), 0, DOMAINS.index(name))
        paths += [files[key] for key in train]
    assert len(pool) == len(paths) == 32
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1)).numpy()
    assert np.array_equal(pool[order], read([paths[index] for index in order]))
    classes = sorted({path.parent.name for path in paths})
    assert pool.labels.tolist() == [classes.index(path.parent.name) for path in paths]
    few = pool.select([31, 2])
    assert np.array_equal(few[np.array([1, 0])], read([paths[2], paths[31]]))
    with raises("empty_batch"):
        pool[np.array([], np.int64)]


def test_parts_are_those_of_training() -> None:
    data = make_set(20)
    every = data.choose(DomainChoice())
    assert [len(part) for part in every.values()] == [20, 20, 20]
    for seed in (0, 3):
        train = data.choose(DomainChoice(names=("farm",), part="train", trial_seed=seed))
        held = data.choose(DomainChoice(names=("farm",), part="held", trial_seed=seed))
        keys = split_keys(20, seed, 1)
        images = data.domains["farm"]
        for part, own in ((train["farm"], keys[0]), (held["farm"], keys[1])):
            x, _ = next(part.batches([torch.arange(len(part))]))
            same, _ = next(images.batches([torch.tensor(own)]))
            assert torch.equal(x, same)
    with raises("unknown_name", kind="part", name="helt", known=("all", "train", "held")):
        DomainChoice(part="helt")
    with raises("unknown_name", kind="domain", name="frm", known=DOMAINS):
        data.choose(DomainChoice(names=("frm",)))


def test_a_stream_leaves_out_what_cannot_be_read(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "mine")
    bad = list_files(root, "farm")[5]
    bad.write_bytes(b"no image")
    request = Request(domains=DomainChoice(names=("farm",)))
    with warns("unreadable_images", paths=(bad,)):
        data = load_data(str(root), request)
    (domain,) = data.domains
    assert len(domain) == 19
    assert list(data.unreadable) == [bad]
    x, y = domain.take(torch.arange(19))
    good = [path for path in list_files(root, "farm") if path != bad]
    assert np.array_equal((255 * x.permute(0, 2, 3, 1)).round().byte().numpy(), read(good))
    assert y.tolist() == [sorted(data.classes).index(path.parent.name) for path in good]
    assert data.descriptions["farm"]["n"] == 19
    fewer = load_data(str(root), Request(n=6, domains=DomainChoice(names=("city",))))
    assert len(fewer.domains[0]) == 6
    assert len(set(fewer.domains[0].labels.tolist())) > 1


def test_the_checksum_is_that_of_the_images_that_are_used(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "mine")
    path = list_files(root, "farm")[3]
    content = path.read_bytes()
    path.write_bytes(content + b"\0")

    def find(name: str = str(root), n: int | None = None, **options: Any) -> dict[str, str]:
        data = load_data(name, Request(n=n, domains=DomainChoice(**options)))
        return {domain: about["sha256"] for domain, about in data.descriptions.items()}

    before = find()
    assert find() == before
    assert len(set(before.values())) == len(DOMAINS)
    assert find(part="train")["farm"] != find(part="held")["farm"] != before["farm"]
    assert find(n=6)["farm"] != before["farm"]
    path.write_bytes(content + b"\1")  # as large as before
    changed = find()
    assert changed["farm"] != before["farm"]
    assert changed["city"] == before["city"]
    builtin = [find("builtin-domains", n, images=20)["plain"] for n in (None, 10)]
    assert len({*builtin, find("builtin-domains", images=20, part="held")["plain"]}) == 3


def test_a_published_set_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acclimate.data.generated.N_DOMAIN", 20)
    data = load_data("builtin-domains")
    assert [domain.name for domain in data.domains] == ["negative", "plain", "sketch", "woven"]
    assert data.is_folder
    with raises("not_applicable", option="corruptions"):
        load_data("builtin-domains", Request(corruptions=("fog",)))


def test_what_is_prepared_from_has_the_size_that_is_asked_for(tree: Path) -> None:
    for own, size, expected in ((None, 16, 16), (12, 16, 12), (None, (8, 10), (8, 10))):
        choice = DomainChoice(size=own)
        batches, _ = Preparation(source=str(tree), domains=choice, size=size, n=4).open()
        x, _ = next(iter(batches))
        assert x.shape[2:] == (expected if isinstance(expected, tuple) else (expected,) * 2)
        data = load_data(str(tree), Request(domains=choice, size=size))
        assert data.domains[0].take(torch.arange(1))[0].shape[1:] == x.shape[1:]


def test_what_is_prepared_from_is_pooled_seeded_and_to_be_had_again() -> None:
    choice = DomainChoice(names=("plain", "woven"), part="train", images=50)
    loads = load_domains("builtin-domains", n=50)
    pixels = {
        image.tobytes()
        for part in loads.choose(choice).values()
        for image in part[np.arange(len(part))]
    }
    found: dict[int, np.ndarray] = {}
    for seed in (0, 0, 1):
        preparation = Preparation(source="builtin-domains", domains=choice, n=60, seed=seed)
        batches, classes = preparation.open()
        first, again = ([x for x, _ in batches] for _ in range(2))
        assert sum(map(len, first)) == 60
        assert len(classes) == 10
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        images = (255 * torch.cat(first)).round().byte().permute(0, 2, 3, 1).numpy()
        assert {np.ascontiguousarray(image).tobytes() for image in images} <= pixels
        if seed in found:
            assert np.array_equal(found[seed], images)
        found[seed] = images
    assert not np.array_equal(found[0], found[1])
    specs = [JobSpec(method="swr", prepare=Preparing(domains=own)) for own in (choice, None)]
    assert specs[0].to_dict()["prepare"]["domains"]["names"] == ["plain", "woven"]
    assert specs[0].artifact_key != specs[1].artifact_key
