"""The reference of the public names, grouped; the text is that of the docstrings."""

from __future__ import annotations

import acclimate
from acclimate import commands

GROUPS = {
    "Verbs": "prepare adapt evaluate iter_evaluate",
    "Files and state": "Artifact Snapshot Sessions",
    "Models": "ModelInfo Normalization Problem Speed",
    "Guard": "Guard GuardReport Estimate",
    "Methods": "get_method list_methods register_method Method GradientMethod MethodCard Config "
    "GradientConfig EntropyConfig hp",
    "Parts": "Part Accuracy Confidence Contrast Features FisherInformation Mirror Penalty "
    "Prototypes register_part",
    "Terms": "Term ActiveTerm Swr Nsp FisherPenalty register_term",
    "Errors": "AcclimateError AcclimateWarning",
}

MODULES = {
    "Streams": "acclimate.streams",
    "Metrics": "acclimate.metrics",
    "Corruptions": "acclimate.corruptions",
    "Data": "acclimate.data",
    "Built-in task and model": "acclimate.builtin",
    "Published models": "acclimate.zoo",
    "Training": "acclimate.training",
    "Bench": "acclimate.bench",
    "Commands": "acclimate.commands",
    "Processes that share a batch": "acclimate.distributed",
    "Integrations": "acclimate.integrations",
    "Functions": "acclimate.functional",
    "Parts": "acclimate.parts",
    "Terms": "acclimate.terms",
    "Testing": "acclimate.testing",
}

INTRODUCTION = """\
# API reference

What `import acclimate` offers. Everything else in the package can change without notice, except the
modules at the end of this page: see [Versions and deprecation](versions.md).
"""


def make_page() -> str:
    """Return the page as Markdown with the directives of mkdocstrings."""
    named = [name for names in GROUPS.values() for name in names.split()]
    if sorted([*named, "__version__"]) != sorted(acclimate.__all__):
        raise ValueError(f"GROUPS differs from acclimate.__all__: {acclimate.__all__}")
    parts = [INTRODUCTION]
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        for name in names.split():
            kind = getattr(acclimate, name)
            parts.append(f"::: {kind.__module__}.{kind.__qualname__}\n")
    for group, module in MODULES.items():
        parts.append(
            f"## {group}: `{module}`\n\n::: {module}\n    options:\n      members: false\n"
        )
        if module == "acclimate.commands":
            parts += ["| function | what it does |", "| --- | --- |"]
            for name in commands.__all__:
                function = getattr(commands, name)
                first = (function.__doc__ or "").partition("\n")[0]
                parts.append(f"| `{name}(**{function.options.__name__})` | {first} |")
            parts.append("\nTheir options are those of the [command line](cli.md).\n")
    return "\n".join(parts)
