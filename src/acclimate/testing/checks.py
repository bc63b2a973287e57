"""The conformance suite: what every method must hold, whatever it does.

`check_method("mine")` runs all checks on all tiny models; the package's own tests do the same for
every registered method.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from acclimate.testing.cases import Case, Violation
from acclimate.testing.contract import CHECKS, refuses_with_a_reason
from acclimate.testing.models import TINY_MODELS

Check = Callable[[], None]


def yield_checks(method: str, models: Sequence[str] | None = None) -> Iterator[tuple[str, Check]]:
    """Yield the checks that apply to a method, each with its name and ready to be called."""
    for model in models if models is not None else TINY_MODELS:
        case = Case(method, model)
        checks = CHECKS if case.suits else (refuses_with_a_reason,)
        for check in checks:
            yield f"{model}-{check.__name__}", functools.partial(check, case)


def check_method(method: str, models: Sequence[str] | None = None) -> None:
    """Run the whole suite on one method; raise with every violation found."""
    problems = []
    for name, check in yield_checks(method, models):
        try:
            check()
        except Violation as violation:
            problems.append(f"\n  {name}: {violation}")
    if problems:
        raise Violation(f"{method} does not conform:{''.join(problems)}")
