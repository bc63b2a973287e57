"""Rules that choose between candidates without the test domain.

A rule only determines what may be looked at: models by the domains they were not trained on, and
the domain each is measured on. What is chosen is the candidate with the highest mean accuracy
there. Accuracy on the test domain is not among what `choose` takes, and a rule that asks for it is
refused; the oracle alone may ask, and is marked.

rule = get_domain_rule("leave-one-domain-out")
looks = rule.list_looks("sketch", ("art_painting", "cartoon", "photo"))
choose(rule, "sketch", ("art_painting", "cartoon", "photo"), accuracies)    # a position
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from acclimate.errors import BadInput, check_name


@dataclass(frozen=True)
class Look:
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
    find: Callable[[str, Sequence[str]], Sequence[Look]]
    is_oracle: bool = False

    def list_looks(self, test_domain: str, sources: Sequence[str]) -> tuple[Look, ...]:
        """Return what is looked at for a test domain, given all other domains.

        Raises:
            BadInput: The rule looks at the test domain, at a model that was trained on it, or at
                images that the model was trained on.
        """
        looks = tuple(self.find(test_domain, sources))
        if not looks:
            raise BadInput(
                "not_applicable", f'The rule "{self.name}" uses no measurement.', option="rule"
            )
        for look in looks:
            if test_domain not in look.without:
                raise BadInput(
                    "trained_on_test",
                    f'The rule "{self.name}" uses a model that was trained on the test domain '
                    f'"{test_domain}". Hold that domain out.',
                    rule=self.name,
                    domain=test_domain,
                )
            if look.domain == test_domain and not self.is_oracle:
                raise BadInput(
                    "selection_leak",
                    f'The rule "{self.name}" uses the test domain "{test_domain}". Only a rule '
                    "marked as an oracle may do this.",
                    rule=self.name,
                )
            if look.domain not in look.without and look.part != "held":
                raise BadInput(
                    "trained_on_images",
                    f'The rule "{self.name}" uses images of "{look.domain}" that its model was '
                    "trained on. Use the held-out part.",
                    rule=self.name,
                    domain=look.domain,
                )
        return looks


def choose(
    rule: DomainRule,
    test_domain: str,
    sources: Sequence[str],
    accuracies: Sequence[Mapping[Look, float]],
) -> int:
    """Return the position of the candidate with the highest mean accuracy; of equals, the first.

    `accuracies` are those of every candidate by what was looked at: exactly what the rule lists for
    the test domain, given all other domains as `sources`. Anything else is refused.
    """
    if not accuracies:
        raise BadInput(
            "missing_option", "Expected candidates to choose from, found none.", option="accuracies"
        )
    looks = rule.list_looks(test_domain, sources)
    for number, own in enumerate(accuracies):
        more = [look for look in own if look not in looks]
        if more:
            raise BadInput(
                "selection_leak",
                f'The rule "{rule.name}" must not use "{more[0].domain}" with a model trained '
                f"without {', '.join(more[0].without)}. Pass only the measurements that "
                "list_looks() returns.",
                rule=rule.name,
            )
        if len(own) < len(looks):
            missing = next(look for look in looks if look not in own)
            raise BadInput(
                "untried_candidate",
                f'A candidate was not measured on "{missing.domain}" with a model trained without '
                f"{', '.join(missing.without)}. Pass all measurements that list_looks() returns.",
                name=str(number),
            )
    means = [statistics.fmean(own[look] for look in looks) for own in accuracies]
    return means.index(max(means))


def get_domain_rule(name: str) -> DomainRule:
    """Return the rule of that name."""
    check_name(name, DOMAIN_RULES, "selection rule")
    return DOMAIN_RULES[name]


def _leave_out(test_domain: str, sources: Sequence[str]) -> list[Look]:
    return [Look((min(test_domain, own), max(test_domain, own)), own) for own in sources]


_ALL = (
    DomainRule("leave-one-domain-out", _leave_out),
    DomainRule(
        "training-domain", lambda test, sources: [Look((test,), d, "held") for d in sources]
    ),
    DomainRule("oracle", lambda test, sources: [Look((test,), test)], is_oracle=True),
)

#: By name; the first is the paper's.
DOMAIN_RULES: dict[str, DomainRule] = {rule.name: rule for rule in _ALL}
