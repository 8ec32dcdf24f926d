"""`semel gate`: why an action was allowed or refused."""

from collections.abc import Iterator
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.text import Text

from semel.cli import views
from semel.cli.common import JsonOption, StoreOptions, absent, connected, on_a_store, print_json
from semel.gate import RECORD, RULES, Allowed, Charging, GateDecision, Refused, RuleResult, Taken

app: Final = typer.Typer(no_args_is_help=True, help="Show why an action was allowed or refused.")


@app.command()
@on_a_store()
def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the action.")],
    *,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Show the recorded decision about an action, with what each rule saw.

    semel gate show reply:42:7
    """
    with connected(where) as s:
        # `semel ls` shows a decision by the key of its record.
        decision = s.gate().recorded(key.removesuffix(RECORD))
    if decision is None:
        raise absent("decision about", key)
    if as_json:
        print_json(for_programs(decision))
    else:
        print_decision(decision)


def print_decision(decision: GateDecision) -> None:
    """Print the decision, then each rule."""
    views.print_pairs(_about(decision))
    if decision.seen:
        views.print_table(("rule", "says", "saw"), [_row(result) for result in decision.seen])


def _about(decision: GateDecision) -> Iterator[tuple[str, views.TableCell]]:
    yield "action", decision.key
    yield "decision", _verdict(decision)
    yield "at", views.moment(decision.at)
    if isinstance(decision, Refused) and decision.not_before is not None:
        yield "not before", views.moment(decision.not_before)
    for taken in decision.taken if isinstance(decision, Allowed) else ():
        yield "used up", _taking(taken)


def _verdict(decision: GateDecision) -> Text:
    if isinstance(decision, Allowed):
        return Text("allowed", "green")
    others = " (all other rules would allow it)" if decision.would_allow else ""
    return Text(f"refused: {decision.reason}{others}", "red")


def _taking(taken: Taken) -> str:
    rule = RULES.get(taken.kind)
    if rule is None or not issubclass(rule, Charging):  # a rule of somebody's own
        return f"{taken.kind} {taken.counter}"
    return rule.describe(taken)


def _row(result: RuleResult) -> views.TableRow:
    return result.rule, Text("pass", "green") if result.passed else Text("refuse", "red"), result.saw


def for_programs(decision: GateDecision) -> dict[str, Any]:
    """A decision as JSON, without its token, which is its holder's alone."""
    view: dict[str, Any] = {
        "action": decision.key,
        "allowed": decision.allowed,
        "at": views.moment(decision.at),
    }
    if isinstance(decision, Allowed):
        view["taken"] = [msgspec.to_builtins(taken) for taken in decision.taken]
    else:
        not_before = views.moment_or_none(decision.not_before)
        view |= {"reason": decision.reason, "not_before": not_before, "would_allow": decision.would_allow}
    return view | {"rules": views.readable(decision.seen)}
