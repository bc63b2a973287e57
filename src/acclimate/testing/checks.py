"""The conformance suite: checks that every method must pass.

`check_method("mine")` runs it. The package's own tests do so for every registered method.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from acclimate.testing.cases import Case, Violation
from acclimate.testing.contract import METHOD, NORMALIZATION, STRUCTURE, refuses_with_a_reason
from acclimate.testing.models import TINY_MODELS

Check = Callable[[], None]

#: Tiny models that represent a kind of normalisation. The others differ only in structure.
_NORMALIZATIONS = ("batch_norm", "group_norm", "instance_aware", "vit")


def yield_checks(method: str, models: Sequence[str] | None = None) -> Iterator[tuple[str, Check]]:
    """Yield the checks that apply to a method, each with its name.

    All checks run on the first model that the method supports, and on the transformer, which has no
    BatchNorm. On every other model, only those run whose outcome can depend on it.
    """
    is_first = True
    for model in models if models is not None else TINY_MODELS:
        case = Case(method, model)
        checks: tuple[Callable[[Case], None], ...] = (refuses_with_a_reason,)
        if case.suits:
            checks = STRUCTURE
            if is_first or model in _NORMALIZATIONS:
                checks += NORMALIZATION
            if is_first or model == "vit":
                checks += METHOD
            is_first = False
        for check in checks:
            yield f"{model}-{check.__name__}", functools.partial(check, case)


def check_method(method: str, models: Sequence[str] | None = None) -> None:
    """Run the whole suite on one method; raise an error that lists all violations."""
    problems = []
    for name, check in yield_checks(method, models):
        try:
            check()
        except Violation as violation:
            problems.append(f"\n  {name}: {violation}")
    if problems:
        raise Violation(f"{method} does not conform:{''.join(problems)}")
