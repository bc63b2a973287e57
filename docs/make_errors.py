"""Write docs/errors.md from the classes in `acclimate.errors`.

python docs/make_errors.py
"""

from __future__ import annotations

import inspect
from pathlib import Path

from acclimate import errors
from acclimate.errors import AcclimateError, AcclimateWarning, Coded

PAGE = Path(__file__).with_name("errors.md")

INTRODUCTION = """\
# Errors and warnings

<!-- Generated from src/acclimate/errors.py by `python docs/make_errors.py`. Do not edit. -->

Every error that acclimate raises on purpose is an `AcclimateError`. Its message states what was
expected, what was found and what to do. Its `code` is stable across versions, and so are the names
of its data, which are attributes of the error. The wording of the message is not.

```python
from acclimate import AcclimateError

try:
    acclimate.adapt(model, "tnet")
except AcclimateError as error:
    print(error.code)  # unknown_method
    print(error.name)  # tnet
    print(error)  # the message
```

On the command line an error is printed with its code, and the exit status is 2. In the tables
below, the names in `code font` inside a description are the data of the error. An error can also
have one of the codes of `AcclimateError` itself, which are about names and values.
"""


def make_page() -> str:
    """Return the page."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, AcclimateError | AcclimateWarning)
    ]
    return "\n".join([INTRODUCTION, *map(make_section, kinds)])


def make_section(kind: type[Coded]) -> str:
    """Return what the page says about one class."""
    bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__ if base is not Coded)
    heading = f"## {kind.__name__}\n\n{inspect.getdoc(kind)}"
    lines = [f"{heading} Base classes: {bases}.\n" if bases else f"{heading}\n"]
    if kind.codes:
        lines += ["| code | meaning |", "|---|---|"]
        lines += [f"| `{code}` | {text} |" for code, text in kind.codes.items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(make_page())
