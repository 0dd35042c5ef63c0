"""Which tokenizer a prompt is counted for, and what the servers' usage has taught about each. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentroute.tokens import Fingerprint, of_model
from agentroute.tokens.learn import Learner

if TYPE_CHECKING:
    from agentroute.router import Router
    from agentroute.rules import Rules

EVERY, AT_FIRST = 16, 16
"""The first prompts of a model teach all, later ones every so many: learning takes longer than deciding. Assumed."""
MOST_TAUGHT = 262_144
"""A prompt of more tokens teaches nothing: of many tiny messages it would take most of a second. Assumed."""


class Counting:
    """A fingerprint for each model of a router's fleet, as learnt so far. Where the router goes by another fleet, what
    was learnt of models that are still served stays."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._learners: dict[str, Learner] = {}
        self._seen: dict[str, int] = {}
        self._known: set[str] = set()
        """Models whose file has a fingerprint."""
        self._follow(router.rules)

    def _follow(self, rules: Rules) -> None:
        of = {d.name: d.model_name or d.name for d in rules.fleet.deployments}
        for deployment in rules.fleet.deployments:
            name, own = of[deployment.name], of_model(deployment.model)
            if own.source == "fingerprint":
                self._known.add(name)
            self._learners.setdefault(name, Learner.of(own, name=name))
        allowed = rules.routes["default"].allow
        models = {model for name, model in of.items() if allowed is None or name in allowed}
        self._of, self._only = of, models.pop() if len(models) == 1 else None
        self._rules = rules

    def fingerprint(self, deployment: str | None = None) -> Fingerprint:
        """That of the model that a deployment serves, or of the only one that there is; else nobody's."""
        if (rules := self._router.rules) is not self._rules:
            self._follow(rules)
        name = self._of.get(deployment or "", self._only)
        if name is None:
            return of_model(None)
        learner = self._learners[name]
        return learner.fingerprint if learner.seen or name in self._known else of_model(None)

    def seen(
        self, deployment: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], prompt_tokens: int | None
    ) -> None:
        """A deployment counted so many tokens in a prompt."""
        if (rules := self._router.rules) is not self._rules:
            self._follow(rules)
        name = self._of.get(deployment)
        if name is None or prompt_tokens is None or prompt_tokens > MOST_TAUGHT:
            return
        count = self._seen[name] = self._seen.get(name, -1) + 1
        if count < AT_FIRST or count % EVERY == 0:
            self._learners[name] = self._learners[name].learn(messages, prompt_tokens, tools=tools)
