"""Templates of HTML pages: every value is escaped unless it is markup already."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["Markup", "render"]


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("acclimate.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, /, **values: Any) -> Markup:
    """Return a template of this package, filled in."""
    return Markup(_environment().get_template(template).render(**values))
