"""Ten thousand planted values go in, and none comes out: of a text, of nested data, of a log file."""

import logging
import re
import string
from random import Random

import phonenumbers
import pytest
from phonenumbers import PhoneNumberFormat as Format
from phonenumbers import PhoneNumberType as Line

from semel.redact import REGIONS, Redactor

# --- Values as people write them -------------------------------------------------------------------

EMAIL_DOMAINS = (
    "example.com",
    "mail.example.co.uk",
    "example.museum",
    "xn--mller-kva.example",
    "müller.example",
    "пример.рф",
    "例子.中国",
    "sub.deep.example.org",
    "example-shop.de",
    "[192.168.7.12]",
)
LOCAL_PARTS = (
    "{w}.{w}",
    "{w}",
    "{w}+{w}",
    "{w}_{w}{d}",
    "{w}-{w}",
    "o'{w}",
    "{w}{d}",
    '"{w} {w}"',
    "{w}={w}.org",
    "йцу{w}",
    "{w}.{w}.{w}",
    "{w}%{w}",
    "x{d}",
    "größe{w}",
)


def word(rng: Random, length: int = 7) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=length))


def digits(rng: Random, count: int) -> str:
    return "".join(rng.choices(string.digits, k=count))


# Those of the above that are also written with "at" or with blanks.
SPELLED_DOMAINS = ("example.com", "mail.example.co.uk", "пример.рф", "例子.中国", "example-shop.de")
SPELLED_PARTS = ("{w}.{w}", "{w}", "{w}+{w}", "{w}_{w}{d}", "{w}-{w}", "o'{w}", "{w}{d}", "йцу{w}")
SPELLED = (" at ", " AT ", " @ ", "@ ", " @", " (at) ", " [at] ", "(at)", " [@] ")


def email(rng: Random) -> str:
    spelled = rng.random() < 0.3
    shape = rng.choice(SPELLED_PARTS if spelled else LOCAL_PARTS)
    local = re.sub(r"\{w\}", lambda _: word(rng), shape).replace("{d}", digits(rng, 3))
    if not spelled:
        return f"{local}@{rng.choice(EMAIL_DOMAINS)}"
    domain = rng.choice(SPELLED_DOMAINS).replace(".", rng.choice([".", ".", " dot ", " [dot] ", "(dot)"]))
    return f"{local}{rng.choice(SPELLED)}{domain}"


def phone(rng: Random) -> str:
    return rng.choice(phone_forms(phone_number(rng, rng.choice(REGIONS)), rng))


def phone_number(rng: Random, region: str) -> phonenumbers.PhoneNumber:
    """A valid number of that country: its example, with other digits at the end where those are valid too."""
    example = phonenumbers.example_number_for_type(region, rng.choice([Line.FIXED_LINE, Line.MOBILE]))
    assert example is not None
    whole = str(example.national_number)
    changed = phonenumbers.PhoneNumber()
    changed.merge_from(example)
    changed.national_number = int(whole[:-5] + digits(rng, 5))
    valid = phonenumbers.is_valid_number(changed) and len(str(changed.national_number)) == len(whole)
    return changed if valid else example


def phone_forms(number: phonenumbers.PhoneNumber, rng: Random) -> list[str]:
    national = phonenumbers.format_number(number, Format.NATIONAL)
    international = phonenumbers.format_number(number, Format.INTERNATIONAL)
    e164 = phonenumbers.format_number(number, Format.E164)
    bare = re.sub(r"\D", "", national)
    split = rng.randrange(2, len(national) - 2)
    forms = [
        national,
        international,
        e164,
        bare,
        "00" + e164[1:],
        e164[1:],
        phonenumbers.format_number(number, Format.RFC3966),
        national.replace(" ", "-"),
        international.replace(" ", "\u00a0"),
        international.replace(" ", "."),
        national.replace("-", "\u2011"),
        national.translate({ord(digit): chr(ord(digit) + 0xFEE0) for digit in string.digits}),
        f"{national[:split]}\u200b{national[split:]}",
        e164.replace("+", "%2B"),
    ]
    return [form for form in forms if not reads_otherwise(form)]


def reads_otherwise(form: str) -> bool:
    """What the redactor says it leaves alone: times since 1970, days and years, and round numbers."""
    plain = form.translate({chr_ + 0xFEE0: chr_ for chr_ in range(48, 58)}).replace("\u200b", "")
    year = r"(?:19[5-9]|20[0-4])\d"
    return bool(
        re.fullmatch(
            rf"1[5-9]\d{{8}}(\d{{3}})?|{year}[01]\d[0-3]\d\d*|{year}[ -]{year}|[1-9][\d .-]*0[ .]?0000", plain
        )
    )


def order(rng: Random) -> str:
    """An order number with the words that make it one."""
    number = digits(rng, rng.randrange(5, 11)).replace("0", "1", 1)
    year, letter = rng.randrange(2020, 2030), rng.choice("ABCKX")
    return rng.choice(
        [
            f"#{number}",
            f"order {number}",
            f"Order #{number}",
            f"order no. {number}",
            f"ORD-{year}-{number}",
            f"Order No: {letter}-{number}",
            f"order number {number}",
            f"orderId={number}",
            f"order_id: {number}",
            f'"order_number": "{letter}{number}"',
            f"Bestellung {number}",
            f"Bestellnummer: {letter}-{number}",
            f"Auftrag Nr. {number}",
            f"pedido {number}",
            f"commande n° {number}",
            f"numéro de commande {number}",
            f"ordine {number}",
            f"beställning {number}",
            f"zamówienie nr {number}",
            f"заказ № {number}",
            f"订单号\uff1a{number}",
            f"注文番号 {number}",
            f"PO-{number}",
            f"#{letter}-{number}",
            f"ord_{number}",
            f"{rng.choice(['SO', 'PO', 'so'])}{digits(rng, rng.randrange(6, 11))}",
            f"{digits(rng, 3)}-{digits(rng, 7)}-{digits(rng, 7)}",
        ]
    )


def gs1(serial: str) -> str:
    total = sum(int(digit) * (3 if place % 2 == 0 else 1) for place, digit in enumerate(reversed(serial)))
    return f"{serial}{-total % 10}"


def fedex(serial: str) -> str:
    total = sum(int(digit) * (1, 3, 7)[place % 3] for place, digit in enumerate(reversed(serial)))
    return f"{serial}{total % 11 % 10}"


def ups(rng: Random) -> str:
    serial = "".join(rng.choices(string.digits + string.ascii_uppercase, k=6)) + digits(rng, 9)
    values = [int(char) if char.isdigit() else (ord(char) - 63) % 10 for char in serial]
    return f"1Z{serial}{-(sum(values[::2]) + 2 * sum(values[1::2])) % 10}"


def s10(rng: Random) -> str:
    serial = digits(rng, 8)
    weights = (8, 6, 4, 2, 3, 5, 9, 7)
    check = 11 - sum(int(digit) * weight for digit, weight in zip(serial, weights, strict=True)) % 11
    service, country = rng.choice(["RB", "CP", "EE", "LX"]), rng.choice(["GB", "DE", "CN"])
    return f"{service}{serial}{ {10: 0, 11: 5}.get(check, check) }{country}"


def dhl(rng: Random) -> str:
    serial = rng.choice("23456789") + digits(rng, 8)
    return f"{serial}{int(serial) % 7}"


def in_fours(number: str) -> str:
    return " ".join(re.findall(".{1,4}", number))


def parcel(rng: Random) -> str:
    number = rng.choice(
        [
            ups(rng),
            s10(rng),
            gs1("9400" + digits(rng, 17)),
            gs1(digits(rng, 14)),
            fedex(digits(rng, 11)),
            gs1("00" + digits(rng, 17)),
            gs1("92" + digits(rng, 19)),
            f"TBA{digits(rng, 12)}",
            f"JJD00{digits(rng, 16)}",
            f"GM{digits(rng, 18)}",
            dhl(rng),
        ]
    )
    label = rng.choice(["tracking number", "Tracking no.:", "Sendungsnummer", "n° de suivi :"])
    carrier = rng.choice(["DPD", "dpd", "GLS", "Hermes:", "DPD parcel no.", "PostNord", "UPS #", "DHL-Paket"])
    carried = rng.choice(
        [f"1550{digits(rng, 10)}", in_fours(f"1550{digits(rng, 10)}"), f"81{digits(rng, 9)}"]
    )
    labelled = rng.choice([f"{label} {word(rng, 2).upper()}-{digits(rng, 8)}", f"{carrier} {carried}"])
    spaced = in_fours(number) if len(number) in (12, 15, 20, 22) and number.isdigit() else number
    return rng.choice([number, number, spaced, labelled])


def link(rng: Random) -> str:
    path = f"{word(rng)}/{digits(rng, 8)}?{word(rng, 3)}={word(rng)}"
    host = rng.choice([f"{word(rng)}.example.com", "track.example.de", "münchen.example", "127.0.0.1:8080"])
    return rng.choice(
        [
            f"https://{host}/{path}",
            f"http://{host}/{path}",
            f"www.{word(rng)}.example/{path}",
            f"bit.ly/{word(rng)}{digits(rng, 3)}",
        ]
    )


# --- What must not be left of them -----------------------------------------------------------------

BEFORE = (
    "",
    "Hi, ",
    "Please use ",
    "(",
    "Customer wrote: ",
    "On 2026-01-03 at 14:30: ",
    "- ",
    '"',
    "Grüße,\n",
    "Спасибо: ",
)
AFTER = ("", ".", ", thanks", " on Monday", ")", "!", " (new)", '"', "\nBye", "; see you", " — danke", "?")


def sentence(rng: Random, planted: str) -> str:
    return f"{rng.choice(BEFORE)}{planted}{rng.choice(AFTER)}"


def traces(planted: str) -> set[str]:
    """Every piece of a value that would tell it: five digits in a row, or a word of it."""
    plain = planted.translate({code + 0xFEE0: code for code in range(48, 58)}).replace("\u200b", "")
    number = re.sub(r"\D", "", plain.removeprefix("%2B"))
    pieces = {number[at : at + 5] for at in range(len(number) - 4)}
    if re.search(r"@|/|1Z|[\s(\[]at[\s)\]]", planted, re.IGNORECASE):
        pieces |= {piece for piece in re.split(r"[^\w]+", planted.lower()) if len(piece) >= 6}
    return pieces - {"https", "example"}


def leaked(output: str, planted: str) -> set[str]:
    seen = output.lower()
    run_together = re.sub(r"[\s().+/\u200b\u00a0\u2011-]", "", seen.replace("2026-01-03", ""))
    return {piece for piece in traces(planted) if piece in seen or piece in run_together}


KINDS = {"email": email, "phone": phone, "order": order, "parcel": parcel, "link": link}


def planted_values(rng: Random) -> list[str]:
    counts = {"email": 2500, "phone": 2500, "order": 2500, "parcel": 1500, "link": 1000}
    values = [KINDS[kind](rng) for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(values)
    return values


@pytest.fixture(scope="module")
def values() -> list[str]:
    found = planted_values(Random(20260103))
    assert len(found) == 10_000
    return found


REDACTOR = Redactor()


@pytest.mark.seed("R7")
def test_none_gets_through_a_text(values):
    rng = Random(1)
    through = {}
    for value in values:
        output = REDACTOR.text(sentence(rng, value))
        if leaked(output, value) or "***" not in output:
            through[value] = output
    assert not through


@pytest.mark.seed("R7")
def test_none_gets_through_nested_data(values):
    rng = Random(2)
    bodies = [
        {"id": 7, "message": {"lines": [sentence(rng, value), "all is well"]}, value: (None, {value})}
        for value in values
    ]
    outputs = [REDACTOR.json(body) for body in bodies]
    through = {
        value: output
        for value, output in zip(values, map(repr, outputs), strict=True)
        if leaked(output, value) or output.count("***") < 3
    }
    assert not through


class OneByOne(logging.Formatter):
    """Marks the end of each record, since a traceback has many lines."""

    END = "\x1e"

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record) + self.END


@pytest.mark.seed("R7")
def test_none_gets_through_a_log_file(values, tmp_path):
    """Not through the message, its arguments, an extra attribute, or an exception's traceback."""
    rng = Random(3)
    path = tmp_path / "app.log"
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(OneByOne("%(message)s | %(customer)s"))
    handler.addFilter(REDACTOR.filter())
    logger = logging.getLogger("tests.planted")
    logger.propagate = False
    logger.addHandler(handler)
    for place, value in enumerate(values):
        extra = {"customer": {"said": value}}
        if place % 10 == 0:
            try:
                raise LookupError(value)
            except LookupError:
                logger.exception("no such customer", extra=extra)
        elif place % 2 == 0:
            logger.warning("customer wrote %s", sentence(rng, value), extra=extra)
        else:
            logger.warning(sentence(rng, value), extra=extra)
    logger.removeHandler(handler)
    handler.close()

    records = path.read_text(encoding="utf-8").split(OneByOne.END)[:-1]
    assert len(records) == len(values)
    assert sum("Traceback" in record for record in records) == len(values) // 10
    # What a traceback quotes of this file is code, in which no value stands.
    through = {
        value: record
        for value, record in zip(values, records, strict=True)
        if leaked(re.sub(r'File ".*', "", record), value) or record.count("***") < 2
    }
    assert not through
