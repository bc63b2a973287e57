"""Rules that choose between candidates without the test domain.

A rule only determines what may be looked at: models by the domains they were not trained on, and
the domain each is measured on. What is chosen is the candidate with the highest mean accuracy
there. Accuracy on the test domain is not among what `choose` takes, and a rule that asks for it is
refused; the oracle alone may ask, and is marked.

rule = get_domain_rule("leave-one-domain-out")
validations = rule.list_validations("sketch", ("art_painting", "cartoon", "photo"))
choose(rule, "sketch", ("art_painting", "cartoon", "photo"), accuracies)    # a position
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from acclimate.errors import BadInput, check_name


@dataclass(frozen=True)
class Validation:
    """A model and the images that it is measured on.

    Attributes:
        without: The domains that the model was not trained on, sorted.
        domain: The one it is measured on.
        part: `all` of its images, or the 20 % that are `held` out of training.
    """

    without: tuple[str, ...]
    domain: str
    part: str = "all"


@dataclass(frozen=True)
class DomainRule:
    """A way to choose hyper-parameters of training and of adaptation.

    Attributes:
        name: On the command line and in tables; also in `acclimate.bench.selection`.
        find: Returns what to look at for a test domain and the other domains.
        is_oracle: Whether it looks at the test domain: an upper bound, not a result.
    """

    name: str
    find: Callable[[str, Sequence[str]], Sequence[Validation]]
    is_oracle: bool = False

    def list_validations(self, test_domain: str, sources: Sequence[str]) -> tuple[Validation, ...]:
        """Return what is looked at for a test domain, given all other domains.

        Raises:
            BadInput: The rule looks at the test domain, at a model that was trained on it, or at
                images that the model was trained on.
        """
        validations = tuple(self.find(test_domain, sources))
        if not validations:
            raise BadInput(
                "not_applicable", f'The rule "{self.name}" uses no measurement.', option="rule"
            )
        for validation in validations:
            if test_domain not in validation.without:
                raise BadInput(
                    "trained_on_test",
                    f'The rule "{self.name}" uses a model that was trained on the test domain '
                    f'"{test_domain}". Hold that domain out.',
                    rule=self.name,
                    domain=test_domain,
                )
            if validation.domain == test_domain and not self.is_oracle:
                raise BadInput(
                    "selection_leak",
                    f'The rule "{self.name}" uses the test domain "{test_domain}". Only a rule '
                    "marked as an oracle may do this.",
                    rule=self.name,
                )
            if validation.domain not in validation.without and validation.part != "held":
                raise BadInput(
                    "trained_on_images",
                    f'The rule "{self.name}" uses images of "{validation.domain}" that its model '
                    "was trained on. Use the held-out part.",
                    rule=self.name,
                    domain=validation.domain,
                )
        return validations


def choose(
    rule: DomainRule,
    test_domain: str,
    sources: Sequence[str],
    accuracies: Sequence[Mapping[Validation, float]],
) -> int:
    """Return the position of the candidate with the highest mean accuracy; of equals, the first.

    `accuracies` are those of every candidate by what was looked at: exactly what the rule lists for
    the test domain, given all other domains as `sources`. Anything else is refused.
    """
    if not accuracies:
        raise BadInput(
            "missing_option", "Expected candidates to choose from, found none.", option="accuracies"
        )
    validations = rule.list_validations(test_domain, sources)
    for number, own in enumerate(accuracies):
        more = [validation for validation in own if validation not in validations]
        if more:
            raise BadInput(
                "selection_leak",
                f'The rule "{rule.name}" must not use "{more[0].domain}" with a model trained '
                f"without {', '.join(more[0].without)}. Pass only the measurements that "
                "list_validations() returns.",
                rule=rule.name,
            )
        if len(own) < len(validations):
            missing = next(validation for validation in validations if validation not in own)
            raise BadInput(
                "untried_candidate",
                f'A candidate was not measured on "{missing.domain}" with a model trained without '
                f"{', '.join(missing.without)}. Pass all measurements that list_validations() "
                "returns.",
                name=str(number),
            )
    means = [statistics.fmean(own[validation] for validation in validations) for own in accuracies]
    return means.index(max(means))


def get_domain_rule(name: str) -> DomainRule:
    """Return the rule of that name."""
    check_name(name, DOMAIN_RULES, "selection rule")
    return DOMAIN_RULES[name]


def _leave_out(test_domain: str, sources: Sequence[str]) -> list[Validation]:
    return [Validation((min(test_domain, own), max(test_domain, own)), own) for own in sources]


_ALL = (
    DomainRule("leave-one-domain-out", _leave_out),
    DomainRule(
        "training-domain", lambda test, sources: [Validation((test,), d, "held") for d in sources]
    ),
    DomainRule("oracle", lambda test, sources: [Validation((test,), test)], is_oracle=True),
)

#: By name; the first is the paper's.
DOMAIN_RULES: dict[str, DomainRule] = {rule.name: rule for rule in _ALL}
