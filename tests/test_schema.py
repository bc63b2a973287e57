"""Schemas list every problem of a tree, and nothing of a right one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acclimate.schema import (
    Anything,
    Choice,
    EmptyOr,
    Fields,
    Items,
    Maybe,
    Nothing,
    Number,
    Schema,
    TensorOf,
    Where,
    like,
    positive,
)

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            TensorOf((2,)),
            [torch.ones(2), torch.ones(2).double()],
            [torch.ones(1), torch.ones(2, 1)],
        ),
        (TensorOf((2,)), [torch.zeros(2)], [torch.ones(2).long(), 1.0, None, [1.0, 1.0]]),
        (TensorOf((None, 3)), [torch.ones(0, 3), torch.ones(5, 3)], [torch.ones(3)]),
        (TensorOf(None), [torch.ones(()), torch.ones(2, 2)], [torch.tensor(NAN)]),
        (TensorOf((), torch.int64), [torch.tensor(1)], [torch.tensor(1.0), torch.tensor(True)]),
        (TensorOf(()), [torch.tensor(-1.0)], [torch.tensor(INF), torch.tensor(NAN)]),
        (TensorOf((), nan=True), [torch.tensor(NAN)], [torch.tensor(INF)]),
        (TensorOf((), finite=False), [torch.tensor(INF)], [torch.tensor(NAN)]),
        (TensorOf((), low=0, high=1), [torch.tensor(1.0)], [torch.tensor(-0.1), torch.tensor(1.1)]),
        (positive((1,)), [torch.ones(1)], [torch.zeros(1), -torch.ones(1), torch.ones(2)]),
        (Number(int, low=0), [0, 7], [-1, 1.0, True, "1", 2**60]),
        (Number(float), [1, 0.5], [INF, NAN, "x", None]),
        (Number(bool), [True], [1, "True"]),
        (Number(str), ["", "x"], [1, None]),
        (Choice(("a", "b")), ["a"], ["c", 1, ["a"]]),
        (Fields({"a": Number(int)}), [{"a": 1}], [{}, {"a": 1, "b": 2}, {"a": "1"}, [1], None]),
        (Fields({"a": Number(int)}, partial=True), [{}, {"a": 1}], [{"b": 1}]),
        (Fields({}, others=Number(int)), [{}, {"b": 1}], [{"b": "1"}]),
        (Items(Number(int)), [{}, {"a": 1}], [{"a": "1"}, [1]]),
        (Items(Number(int), list, longest=2), [[], [1, 2]], [[1, 2, 3], ["1"], (1, 2)]),
        (Maybe(Number(int)), [None, 1], ["1"]),
        (Nothing(), [None], [0, {}, torch.ones(1)]),
        (EmptyOr(Fields({"a": Number(int)})), [{}, {"a": 1}], [{"b": 1}, []]),
        (Where(Number(int), lambda n: n % 2 == 0, "odd"), [2], [1, "2"]),
        (Anything(), [{"a": [torch.ones(1), None, "x"]}], [{"a": [torch.tensor(NAN)]}, [INF]]),
    ],
)
def test_right_and_wrong_values(schema: Schema, right: list[Any], wrong: list[Any]) -> None:
    assert [schema.find_problems(value) for value in right] == [[]] * len(right)
    assert all(len(schema.find_problems(value)) >= 1 for value in wrong)


def test_problems_are_all_listed_with_their_place() -> None:
    schema = Fields({"a": Fields({"b": TensorOf((2,))}), "c": Items(Number(int, low=0), list)})
    found = schema.find_problems({"a": {"b": torch.ones(3), "x": 1}, "c": [1, -1]})
    assert [line.partition(":")[0] for line in found] == ["a.x", "a.b", "c.1"]


def test_tensors_agree_on_named_sizes() -> None:
    schema = Fields({"mean": TensorOf(("classes",)), "rows": TensorOf((None, "classes"))})
    tree = {"mean": torch.ones(3), "rows": torch.ones(2, 3)}
    assert schema.find_problems(tree) == []
    assert schema.find_problems(tree, {"classes": 3}) == []
    assert len(schema.find_problems(tree, {"classes": 4})) == 2
    assert len(schema.find_problems({**tree, "rows": torch.ones(2, 4)})) == 1


def test_class_numbers_are_below_the_number_of_classes() -> None:
    schema = TensorOf((None,), torch.int64, low=-1, below="classes")
    assert schema.find_problems(torch.tensor([-1, 2]), {"classes": 3}) == []
    assert schema.find_problems(torch.tensor([3]), {"classes": 3})
    assert schema.find_problems(torch.tensor([-2]), {"classes": 3})


def test_images_agree_on_their_shape() -> None:
    schema = Fields({"a": TensorOf((2, ...)), "b": TensorOf((1, ...))})
    assert schema.find_problems({"a": torch.ones(2, 3, 4), "b": torch.ones(1, 3, 4)}) == []
    assert len(schema.find_problems({"a": torch.ones(2, 3, 4), "b": torch.ones(1, 3)})) == 1


def test_schema_of_an_example() -> None:
    example = {"x": torch.ones(2), "n": 1, "unknown": None, "nan": torch.tensor([NAN])}
    schema = like(example)
    assert schema.find_problems(example) == []
    assert schema.find_problems({**example, "unknown": {"more": 1}}) == []
    for changed in ({"x": torch.ones(3)}, {"x": torch.tensor([1.0, NAN])}, {"n": -1}, {"n": 1.0}):
        assert len(schema.find_problems({**example, **changed})) == 1
