"""What customers are answered without a person."""

from collections.abc import Mapping
from string import Formatter
from typing import Final

from semel.apps.support.orders import WORDS, Order
from semel.apps.support.settings import wrong

TEMPLATES: Final = {
    "ask_order_number": (
        "Thank you for your message. To look that up we need your order number: "
        "it is in the confirmation that you got by e-mail. Please reply with it."
    ),
    "ask_order_number_again": (
        "We did not find an order number in your message. It is in the confirmation that you got by e-mail, "
        "as in #10042. Please reply with it, or just write on, and one of us will have a look."
    ),
    "order_not_found": (
        "We did not find an order {order} that was placed with your e-mail address. "
        "Please check the number, and reply with it."
    ),
    "order_status": "Your order {order} {status}.",
}
# What a template may speak of; nothing else about a customer is at hand when a reply is written.
FIELDS: Final = frozenset({"order", "status"})


def templates(own: Mapping[str, str]) -> dict[str, str]:
    """The replies by name, with those of the settings in place of ours."""
    for name, text in own.items():
        try:
            _check(name, text)
        except ValueError as error:
            raise wrong(f"templates.{name}", f"it cannot be filled in: {error}") from error
    return {**TEMPLATES, **own}


def _check(name: str, text: str) -> None:
    if unknown := {field for _, field, _, _ in Formatter().parse(text) if field is not None} - FIELDS:
        known = ", ".join(sorted(FIELDS))
        raise wrong(f"templates.{name}", f"it speaks of {', '.join(sorted(unknown))}; there are {known}")
    written(text, "", None)


def written(template: str, ending: str, order: Order | None) -> str:
    """A reply's text; an order number is told by its last digits, where it has more."""
    number = f"ending in {ending}" if ending else ""
    text = template.format(order=number, status="" if order is None else WORDS[order.status])
    return text.replace("  ", " ")
