"""Names that say what a value is."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from semel.redact.digits import DIGITS, digits_of
from semel.redact.masks import EMAIL_MASK, MASK
from semel.redact.orders import order_mask
from semel.redact.phones import FEWEST, phone_mask

Named: TypeAlias = Callable[[str], str | None]


def _named_email(plain: str) -> str | None:
    return EMAIL_MASK if plain.strip() else None


def _named_phone(plain: str) -> str | None:
    digits = digits_of(plain)
    if not digits:
        return None
    return phone_mask(digits) if len(digits) >= FEWEST else MASK


def _named_order(plain: str) -> str | None:
    return order_mask(plain) if DIGITS.search(plain) else None


def _named_bare_order(plain: str) -> str | None:
    # Under "order" alone there may be a place in a list, or a sentence.
    return order_mask(plain) if len(digits_of(plain)) > 3 and " " not in plain.strip() else None


def _named_parcel(plain: str) -> str | None:
    return MASK if DIGITS.search(plain) else None


_ID: Final = r"_?(?:ids?|numbers?|num|nos?|nr|nummer|ref|reference|name|codes?)(?:_?\d+)?"
_ORDER_NAME: Final = r"(?:orders?|bestell(?:ungs?)?|auftrags?|pedido|commande|ordine|ordre|encomenda|po)"
_PHONE_NAME: Final = (
    r"(?:(?:tele|cell|mobile)?_?phones?|tel|mobile|fax|msisdn|whatsapp|wa_id|handy|telefon[oe]?|gsm)"
    r"(?:_?(?:numbers?|num|nos?|nr|nummer|e164))?(?:_?\d+)?"
)
_NAMES: Final[tuple[tuple[str, Named], ...]] = (
    (r"(?:e_?)?mails?(?:_?address(?:es)?)?(?:_?\d+)?", _named_email),
    (_PHONE_NAME, _named_phone),
    (_ORDER_NAME + _ID, _named_order),
    (r"orders?", _named_bare_order),
    (rf"(?:tracking|waybill|awb)(?:{_ID})?", _named_parcel),
    (rf"(?:shipment|parcel|consignment|sendungs?|paket){_ID}", _named_parcel),
)

# What programs use for names. Anything else is itself data, and is not to be kept in memory.
_NAME: Final = re.compile(r"[A-Za-z](?!.*\d.*\d.*\d.*\d)[\w .-]{0,63}")


@lru_cache(maxsize=1024)
def _named_by_text(name: str) -> Named | None:
    words = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
    return next((named for pattern, named in _NAMES if re.fullmatch(f"(?:.*_)?(?:{pattern})", words)), None)


def named_by(name: Any) -> Named | None:
    """What masks the value under this name, if the name says what it is."""
    return _named_by_text(name) if type(name) is str and len(name) <= 64 and _NAME.fullmatch(name) else None
