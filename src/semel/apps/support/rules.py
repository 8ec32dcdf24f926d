"""What a message is about, and what is to be done with it: plain rules, and the shape of any others."""

import re
from typing import Final

import msgspec

from semel.apps.support.conversation import Conversation
from semel.apps.support.ticket import Ticket

# After this many requests for an order number that brought none, a person is quicker.
MOST_ASKS: Final = 2

NEED_ORDER_NUMBER: Final = "need_order_number"

RISKS: Final = {
    "chargeback": r"charge ?backs?|disput(?:e|ed|ing)",
    "legal": r"lawyers?|attorneys?|legal action|sue|suing|in court",
    "fraud_suspected": r"fraud\w*|scam\w*|stolen card|unauthori[sz]ed",
}
# Of several that fit the first is meant: it is the one that should not wait.
INTENTS: Final = {
    "cancellation": r"cancel\w*",
    "returns": r"return(?:s|ed|ing)?|refund\w*|send it back|money back",
    "shipping": (
        r"damaged|broken|wrong (?:item|address)|missing (?:item|parcel|package)s?|never arrived"
        r"|not (?:been )?(?:received|arrived)|lost in (?:the )?(?:mail|post|transit)"
    ),
    "billing": r"invoice\w*|charged twice|payment|billing|receipt",
    "order_status": (
        r"where(?:'s| is| are)? my (?:order|package|parcel)|order status|status of (?:my|the) order|track\w*"
        r"|when will (?:it|my (?:order|package|parcel)) (?:arrive|come|ship)"
    ),
}
TEAMS: Final = {
    "cancellation": "orders",
    "returns": "returns",
    "shipping": "shipping",
    "billing": "billing",
    "order_status": "orders",
}


def _compiled(phrases: dict[str, str]) -> dict[str, re.Pattern[str]]:
    return {name: re.compile(rf"\b(?:{one})\b", re.IGNORECASE) for name, one in phrases.items()}


_RISKS: Final = _compiled(RISKS)
_INTENTS: Final = _compiled(INTENTS)

_NUMBER = r"(?P<number>(?:[A-Za-z]{1,6}-?)?\d{3,12})(?![\w-])"
_NAMED: Final = re.compile(
    rf"(?:#\s?|\border(?:\s+(?:number|no\.?|nr\.?|id))?\s*(?:is\s+|[:#]\s*)?#?){_NUMBER}", re.IGNORECASE
)
_BARE: Final = re.compile(rf"(?<![\w+-]){_NUMBER}")


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with a message."""

    intent: str
    team: str
    confidence: float
    tags: tuple[str, ...] = ()
    risk_flags: tuple[str, ...] = ()
    reply: str | None = None
    """The name of a template; None leaves it to a person."""
    order: str = ""
    """An order to be looked up before it is answered; its number is kept nowhere."""
    awaits: str = ""
    """The flow that the reply begins, or goes on with."""


def decide(ticket: Ticket, state: Conversation) -> Decision:
    """The rules that are used unless the settings name others."""
    risks = tuple(name for name, words in _RISKS.items() if words.search(ticket.text))
    if risks:
        tags = tuple(f"risk-{name}" for name in risks)
        return Decision(intent="dispute", team="disputes", confidence=0.95, tags=tags, risk_flags=risks)
    found = [name for name, words in _INTENTS.items() if words.search(ticket.text)]
    asked = state.awaits(NEED_ORDER_NUMBER)
    if found == ["order_status"] or (asked and not found):
        return _order_status(ticket, asked)
    if not found:
        return Decision(intent="other", team="support", confidence=0.3, tags=("needs-human",))
    intent = found[0]
    confidence = 0.9 if len(found) == 1 else 0.6
    return Decision(intent=intent, team=TEAMS[intent], confidence=confidence, tags=(f"intent-{intent}",))


def _order_status(ticket: Ticket, asked: int) -> Decision:
    number = order_number(ticket.text, bare=bool(asked))
    about = Decision(intent="order_status", team="orders", confidence=0.9, tags=("intent-order_status",))
    if number:
        return msgspec.structs.replace(about, reply="order_status", order=number, awaits="")
    return ask_for_number(about, asked)


def ask_for_number(about: Decision, asked: int, reply: str = "") -> Decision:
    """A decision to ask for the order number; a person takes over once it was `asked` for too often."""
    if asked >= MOST_ASKS:
        tags = (*about.tags, "needs-human")
        return msgspec.structs.replace(about, team="support", tags=tags, reply=None, order="", awaits="")
    chosen = reply or ("ask_order_number_again" if asked else "ask_order_number")
    return msgspec.structs.replace(about, reply=chosen, order="", awaits=NEED_ORDER_NUMBER)


def order_number(text: str, *, bare: bool = False) -> str:
    """The order number in a text; a `bare` number counts where one was asked for, if it is the only one."""
    if named := _NAMED.search(text):
        return named["number"]
    numbers = {found["number"] for found in _BARE.finditer(text)} if bare else set()
    return numbers.pop() if len(numbers) == 1 else ""
