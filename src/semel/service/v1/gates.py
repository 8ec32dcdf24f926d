"""Gates: may this happen now? Their rules are in the settings, under `[gates.NAME]`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from fastapi import APIRouter, Path

from semel import errors
from semel.apps.configuration import Configuration
from semel.core.keys import compile_template
from semel.gate import RULES, Allowed, GateDecision, Refused, Rule
from semel.periods import PERIODS
from semel.service.openapi import problems
from semel.service.problems import problem_error
from semel.service.runtime import Runtime
from semel.service.settings import GateSection
from semel.service.tokens import LedgerWriter, Principal
from semel.service.v1.handles import decision_handle, decision_of
from semel.service.v1.models import (
    DecideRequest,
    DecisionResponse,
    GateRefundRequest,
    RefundResponse,
    RuleResultResponse,
)
from semel.service.v1.strict_json import StrictRoute

EXAMPLE: Final = 'rules = [{ rule = "kill_switch", switch = "safe_mode" }]'
# What a file of settings cannot say: a table is a value of the program's.
ELSEWHERE: Final = frozenset({"book", "table"})
GateName: TypeAlias = Annotated[str, Path(description="The gate, by its name in the settings.")]
# Facts become arguments, and these are arguments already.
TAKEN: Final = frozenset({"self", "also", "at", "subject"})


def router(runtime: Runtime) -> APIRouter:
    """The addresses of gates."""
    gates = {name: _rules(name, gate, runtime.configuration) for name, gate in runtime.settings.gates.items()}
    routes = APIRouter(prefix="/gates/{name}", tags=["gates"], route_class=StrictRoute)

    def gate_of(name: str, caller: Principal) -> Any:
        if name not in gates:
            raise problem_error("no-such-gate", f"there are {', '.join(gates) or 'none'}")
        chosen = runtime.settings.gates[name]
        return caller.s.aio.gate(*gates[name], ttl=chosen.ttl, trace=chosen.trace)

    @routes.post(
        "/decide",
        operation_id="decide",
        responses=problems("key-malformed", "no-such-gate", "payload-changed"),
    )
    async def decide(name: GateName, asked: DecideRequest, caller: LedgerWriter) -> DecisionResponse:
        """Whether this action may happen; asked again with the same facts, the answer is the same."""
        gate = gate_of(name, caller)
        if taken := TAKEN & asked.facts.keys():
            raise problem_error("invalid-request", f"no fact can be named {min(taken)!r}")
        ask = gate.reconsider if asked.reconsider else gate.decide
        return _response(await ask(asked.key, **asked.facts))

    @routes.post(
        "/refund",
        operation_id="refund_decision",
        responses=problems("key-malformed", "claim-malformed", "no-such-gate"),
    )
    async def refund(name: GateName, asked: GateRefundRequest, caller: LedgerWriter) -> RefundResponse:
        """What was allowed did not happen: give back what it used up, once."""
        gate, held = gate_of(name, caller), decision_of(asked.decision)
        known = await gate.recorded(held.key)
        if known is None:
            # Which tells whether it was given back before.
            return RefundResponse(refunded=await gate.refund(held))
        if not isinstance(known, Allowed) or known.token != held.token:
            return RefundResponse(refunded=False)
        return RefundResponse(refunded=await gate.refund(known))

    return routes


def _response(decision: GateDecision) -> DecisionResponse:
    refused = decision if isinstance(decision, Refused) else None
    return DecisionResponse(
        key=decision.key,
        allowed=decision.allowed,
        at=decision.at,
        decision=decision_handle(decision) if isinstance(decision, Allowed) else None,
        reason=None if refused is None else refused.reason,
        not_before=None if refused is None else refused.not_before,
        would_allow=refused is None or refused.would_allow,
        rules=[RuleResultResponse.model_validate(result) for result in decision.seen],
    )


def _rules(name: str, gate: GateSection, configuration: Configuration) -> list[Rule]:
    def wrong(problem: str) -> errors.InvalidOption:
        return configuration.wrong(("gates", name, "rules"), problem)

    try:
        _template(gate.trace)
    except ValueError as error:
        raise configuration.wrong(("gates", name, "trace"), str(error)) from error
    if not gate.rules:
        problem = f"a gate without rules would allow everything; give it some, such as {EXAMPLE}"
        raise configuration.wrong(("gates", name), problem)
    return [_rule(values, wrong) for values in gate.rules]


def _rule(values: Mapping[str, Any], wrong: Callable[[str], errors.InvalidOption]) -> Rule:
    options = dict(values)
    word = options.pop("rule", None)
    if not isinstance(word, str) or word not in RULES:
        raise wrong(f"rule = {word!r} is none; it is one of {', '.join(RULES)}")
    kind = RULES[word]
    known = set(kind.__struct_fields__) - ELSEWHERE
    if "per" in known:
        known.add("zone")
    if unknown := options.keys() - known:
        raise wrong(f"{word} has no {min(unknown)}; it has {', '.join(sorted(known))}")
    per, zone = options.pop("per", "day"), options.pop("zone", "UTC") if "per" in known else "UTC"
    if not isinstance(per, str) or per not in PERIODS:
        raise wrong(f"per = {per!r} is none; it is one of {', '.join(PERIODS)}")
    try:
        return kind(**_typed(kind, options) | ({"per": PERIODS[per](zone)} if "per" in known else {}))
    except (TypeError, ValueError) as error:  # InvalidOption is a ValueError too
        raise wrong(str(error)) from error


def _typed(kind: type[Rule], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, each of the type that the rule has for it: a rule takes them as they are."""
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for name, value in options.items():
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            raise errors.InvalidOption(f"{name} = {value!r}: {error}") from error
        _template(value)
    return dict(options)


def _template(value: Any) -> None:
    """Refuse a text in which no facts can be filled in."""

    def decide(**facts: Any) -> None:
        """What a gate is asked, with any facts."""

    if isinstance(value, str) and {"{", "}"} & set(value):
        compile_template(value, inspect.signature(decide))
