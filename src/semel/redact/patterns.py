"""Credentials, links, e-mail addresses, order and tracking numbers: how each is recognised in a text."""

import re
from collections.abc import Callable, Iterable
from string import digits
from typing import Final

from semel.redact.text import CJK_MARKS, EMAIL_MASK, MASK, QUOTE_MARKS, TAKEN, Mark, TextSpan, united

# --- Digits, and words that say what a number is ---------------------------------------------------

DIGITS: Final = re.compile(r"\d+")

# Quicker than the rules for long numbers, and finds more: where it finds none, they need not look.
MANY_DIGITS: Final = re.compile(r"\d[\d \t().\-/+]{5,}\d")

DAY: Final = r"(?:0?[1-9]|[12]\d|3[01])"
MONTH: Final = r"(?:0?[1-9]|1[0-2])"
DATE: Final = rf"(?:19|20)\d\d(?P<sep>[-./]){MONTH}(?P=sep){DAY}"
DATE_ONLY: Final = re.compile(DATE)


def digits_of(text: str) -> str:
    """The digits alone."""
    return "".join(DIGITS.findall(text))


# A word begins after anything but a letter, or with its capital inside camelCase.
BEGIN: Final = r"(?:(?<![a-z])|(?-i:(?<=[a-z])(?=[A-Z])))"

# What may stand between such a word and its number, JSON's punctuation included; a mask is the number itself.
GAP: Final = r"(?:(?!\*{3}(?![\w#*]))[\s_.:=\\\"'*`\[(>-]){0,7}"
NUMBER_WORD: Final = (
    r"(?:numbers?|num|nos?|nr|ids?|code|ref(?:erence)?|name|nummer|num[eé]ro|n[uú]mero|numer|n[°º]|№|"
    r"#(?=\s?[:=])|номер\w{0,2}|号码?|號碼?|番号|번호)"
)

# These end no word that announces a number, nor what stands between the two.
_NO_END_OF_WORD: Final = frozenset(" \t().-/+,;")

# Letters, digits and hyphens, with a digit among them; perhaps "#" before it.
WRITTEN: Final = r"#? ?(?=[a-z/_-]{0,40}\d)[0-9a-z]+(?:[/_-]+[0-9a-z]+)*(?![0-9a-z])"

# A list goes on: ", 12346 and 12347".
AND: Final = r"(?:\s?[,;&/+]\s?|\s(?:and|or|und|oder|et|ou|y|o|e|och|eller|og|en|of|i|и|или)\s)"
_ANOTHER: Final = re.compile(rf"{AND}(?P<number>{WRITTEN})", re.IGNORECASE)
_FEWEST_DIGITS_IN_A_LIST: Final = 5


def _numbers_after(announced: re.Pattern[str], plain: str, is_number: Callable[[str], bool]) -> list[Mark]:
    """Numbers that a pattern with a word announces, and those that follow each of them in a list."""
    spans = list[TextSpan]()
    for found in announced.finditer(plain):
        if is_number(found["number"]):
            spans.append(found.span("number"))
    return _listed_marks(plain, spans) if spans else []


def _listed_marks(plain: str, firsts: list[TextSpan]) -> list[Mark]:
    """Numbers that a word announces, each with those that follow it in a list."""
    marks = list[Mark]()
    for start, end in firsts:
        if marks and start < marks[-1][1]:
            continue
        marks.append((start, end, MASK))
        while found := _ANOTHER.match(plain, marks[-1][1]):
            if not _is_another(found["number"]):
                break
            marks.append((*found.span("number"), MASK))
    return marks


def _is_another(number: str) -> bool:
    return len(digits_of(number)) >= _FEWEST_DIGITS_IN_A_LIST and not DATE_ONLY.fullmatch(number)


def may_end_with_word(before: str) -> bool:
    """Whether a word that announces a number may stand before it; in a list of numbers that is quickly told.

    A digit or two may be part of such a word.
    """
    end = before.rstrip(" \t\n_.:=\\\"'*`[(>-#+").rstrip(digits)
    return end != "" and end[-1] not in _NO_END_OF_WORD


def stem_pattern(words: Iterable[str]) -> re.Pattern[str]:
    """Compile a quick search for the beginnings of words: in small letters, a text with a word has one."""
    stems = {re.split(r"\W", word)[0] for word in words}
    # A stem that contains another one is found with that.
    shortest = [stem for stem in stems if not any(other in stem for other in stems - {stem})]
    return re.compile("|".join(map(re.escape, sorted(shortest))))


# --- Credentials -----------------------------------------------------------------------------------

# By the form that their makers gave them, so that they are found where they should not be: Stripe's, those of
# language models, GitHub's, GitLab's, Slack's, Amazon's, Google's, JSON Web Tokens, and any after "Bearer".
_CREDENTIAL: Final = re.compile(
    r"(?<![\w-])(?:(?:sk|pk|rk)_(?:live|test)_[A-Za-z0-9]{8,}|whsec_[\w+/-]{16,}=*"
    r"|sk-(?=[A-Za-z_-]*\d)[\w-]{20,}|gh[opusr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|xox[abeoprs]-[\w-]{10,}|A(?:KI|SI)A[0-9A-Z]{16}(?!\w)|AIza[\w-]{35}"
    r"|eyJ[\w-]{10,}\.[\w-]+(?:\.[\w-]*)?|(?<=[Bb]earer )[\w.~+/-]{16,}=*)"
)


def credentials(plain: str) -> list[Mark]:
    """Every key and token whose form tells what it is, to be masked whole."""
    if not _CREDENTIAL.search(plain):
        return []
    return [(*found.span(), MASK) for found in _CREDENTIAL.finditer(plain)]


# --- Links -----------------------------------------------------------------------------------------

# Domains under which links are given without a scheme, as in "bit.ly/3xYz". Not every one there is: ".py" and
# ".md" are countries, and files.
_DOMAINS: Final = (
    "com|net|org|info|biz|io|co|me|ly|gl|to|app|dev|shop|store|link|page|site|online|xyz|eu|us|uk|ca|de|at|ch|"
    "fr|es|it|nl|be|ie|pt|se|no|dk|fi|pl|cz|sk|hu|ro|gr|tr|il|in|cn|jp|kr|hk|sg|tw|au|nz|za|br|mx|ar|cl|ru|ua"
)
_LINK: Final = re.compile(
    r"(?:[a-z][a-z0-9+.-]{0,30}://|www\d?\.(?=[^\s.])"
    rf"|(?<![\w.@-])(?:[\w-]+\.)+(?:{_DOMAINS})(?::\d+)?(?=[/?][^\s{TAKEN}]))"
    rf"[^\s<>\"{CJK_MARKS}{TAKEN}]+",
    re.IGNORECASE,
)
_LINK_HINT: Final = re.compile(r"\.[A-Za-z]{2,6}(?::\d+)?[/?]")


def links(plain: str) -> list[Mark]:
    """Every link, to be masked whole."""
    if "://" not in plain and "www" not in plain.lower() and not _LINK_HINT.search(plain):
        return []
    # A sentence's own punctuation after a link is not part of it.
    found = [(link.start(), link[0].rstrip(".,;:!?)]}'*_~\\")) for link in _LINK.finditer(plain)]
    return [(start, start + len(link), MASK) for start, link in found]


# --- E-mail addresses ------------------------------------------------------------------------------

_LOCAL: Final = rf"[^\s@<>()\[\],;:\"\\{QUOTE_MARKS}{CJK_MARKS}{TAKEN}]"
_LABEL: Final = rf"[^\s!-,./:-@\[-^`{{-\x7f\u2019{QUOTE_MARKS}{CJK_MARKS}{TAKEN}]"
_EMAIL: Final = re.compile(
    rf'(?:"(?:[^"\\\r\n{TAKEN}]|\\.){{1,128}}"|(?<!{_LOCAL}){_LOCAL}++)@'
    rf"(?:\[[0-9A-Za-z:.]+\]|{_LABEL}++(?P<top>(?:\.{_LABEL}++)+))(?:@{_LABEL}++(?:\.{_LABEL}++)*)*"
)
# A top-level domain begins with a letter, and the version in "react@18.2.0" does not.
_TOP_LEVEL: Final = re.compile(r"\.[^\W\d_][^.]")

# What stands before an address without being part of it: a quote, or a form's "email=".
_BEFORE_EMAIL: Final = re.compile(
    r"['*`]+|(?:.*&)?(?:\w+[_.-])?(?:e-?mail|from|to|cc|user(?:name)?|login|recipient|sender|address)=",
    re.IGNORECASE,
)
_BEFORE_EMAIL_LENGTH: Final = 100
_QUERY: Final = re.compile(rf'\?[^\s<>"{TAKEN}]*')

# "ann at example.com", "ann @ example.com", "ann [at] example (dot) com". The domain has to be a usual one:
# "at setup.py" names a file.
_DOT: Final = r"(?:\.|\sdot\s|\s?[\[({]\s?(?:dot|\.)\s?[\])}]\s?)"
_SPELLED_EMAIL: Final = re.compile(
    r"(?<![\w@])(?<!\w[.+'-])(?P<local>\w[\w.+'-]{0,63}+)"
    r"(?:(?P<sure>\s?[\[({]\s?(?:at|@)\s?[\])}]\s?)|\s{1,3}(?:at\s|@)\s{0,2}|@\s{1,3})"
    rf"(?:[\w-]{{1,63}}+{_DOT}){{1,8}}"
    rf"(?P<top>{_DOMAINS}|ai|bg|edu|ee|gov|hr|is|lt|lu|lv|mil|si|tv|xn--[a-z0-9-]{{2,}}|[^\W\x00-\x7f]{{2,}})"
    r"(?![\w@-])(?!\.\w)(?!:\d)",
    re.IGNORECASE,
)
_SPELLED_HINT: Final = r"[\s(\[{]at[\s)\]}]"
_HAS_AT: Final = re.compile(_SPELLED_HINT, re.IGNORECASE)

# What stands before "at" in a sentence and is nobody's name: "look at", "hosted at", "us at", "v2.4 at".
_BEFORE_AT: Final = re.compile(
    r"accounts?|again|all|also|always|am|and|api|app|are|arrived?|articles?|as|available|back|be|been|blog|book(?:ed)?|"
    r"bought|browse|but|buy|check|chat|cheaper|click|code|crashed|customers?|dashboard|deals|demo|deployed|"
    r"developers?|directly|doc(?:s|umentation)|domain|downloads?|e-?mail|employees?|endpoint|engineers?|errors?|even|"
    r"every(?:one|thing)|exception|fail(?:ed|s)|find|folks|forms?|forum|found|friends|from|go|guide|happened|have|he|"
    r"help|her|here|him|hosted|i|images?|in|installed|is|it|items?|jobs?|join|just|learn|links?|listed|listening|"
    r"lives?|located|log|login|look(?:ed|ing|s)?|mail|me|meet(?:ing)?|mirror|more|not|now|of|office|on|one|online|"
    r"only|open|or|order(?:ed|s)?|out|package|page|paid|people|portal|posted|prices?d?|project|published|purchased?|"
    r"questions|reach|read|register(?:ed)?|released?|repo(?:sitory)?|running|runs|sale|see|seen|servers?|services?|she|"
    r"shop(?:ping)?|sign|(?:web)?site|sits|sold|some(?:one|body|thing)|source|staff|start(?:ed|s)?|stay|still|"
    r"stop(?:ped)?|store|subscribe|talk|team|them|then|there|they|this|timeout|to|today|tomorrow|try|up|update|us|"
    r"users?|version|via|visit|was|watch|we|were|what|where|with|work(?:ed|ing|s)?|write|wrote|yesterday|you",
    re.IGNORECASE,
)
_VERSION: Final = re.compile(r"v?\d[\d.]*", re.IGNORECASE)
# "The team at", "more info at"; and "my email: shop at", which is an address whatever the word.
_BEFORE_NOUN: Final = re.compile(
    r"(?<!\w)(?:an?|the|our|your|my|his|her|their|its|this|that|these|those|every|each|some|any|all|more|further|"
    r"full|latest|other|no)\s{1,3}$",
    re.IGNORECASE,
)
_MAIL_IS: Final = re.compile(r"(?<![a-z])(?:e-?mail|address)\s?(?:is|[:=])\s{0,2}$", re.IGNORECASE)
_LONGEST_BEFORE: Final = 16


def emails(plain: str) -> list[Mark]:
    """Every e-mail address, to be masked whole."""
    marks = _written_emails(plain) if "@" in plain else []
    if "@" in plain or _HAS_AT.search(plain):
        for found in _SPELLED_EMAIL.finditer(plain):
            if _is_spelled_email(found):
                marks.append((*found.span(), EMAIL_MASK))
    return united(marks) if marks else marks


def _is_spelled_email(found: re.Match[str]) -> bool:
    """Whether the words say who is written to, and not where something is."""
    if found["top"].istitle():
        return False  # "at noon.It": a sentence whose blank is missing
    start, plain = found.start(), found.string
    first = max(start - _LONGEST_BEFORE, 0)
    if found["sure"] or _MAIL_IS.search(plain, first, start):
        return True
    if _BEFORE_AT.fullmatch(found["local"]) or _VERSION.fullmatch(found["local"]):
        return False
    return _BEFORE_NOUN.search(plain, first, start) is None


def _written_emails(plain: str) -> list[Mark]:
    marks: list[Mark] = []
    for found in _EMAIL.finditer(plain):
        start, end = found.span()
        # The query of a link to write to somebody may hold more addresses.
        if marks and start < marks[-1][1]:
            continue
        if found["top"] is not None and not _TOP_LEVEL.search(found["top"]):
            continue
        at = plain.index("@", start)
        if before := _BEFORE_EMAIL.match(plain, start, min(at, start + _BEFORE_EMAIL_LENGTH)):
            start = before.end()
        if plain[max(start - 7, 0) : start].lower() == "mailto:" and (query := _QUERY.match(plain, end)):
            end = query.end()
        marks.append((start, end, EMAIL_MASK))
    return marks


# --- Order numbers ---------------------------------------------------------------------------------

_ORDER_WORDS: Final = (
    *("order(?:s)?", "preorder", "reorder", "bestell(?:ung(?:s|en)?)?", "auftrag(?:s)?", "pedido(?:s)?"),
    *("orden", "commande(?:s)?", "ordin[ei]", "encomenda(?:s)?", "bestel(?:ling)?", "best[aä]llning(?:s)?"),
    *("ordre", "tilaus", "zam[oó]wieni[ea]", "objedn[aá]vk[aye]", "rendel[eé]s", "comand[aă]", "sipari[sş]"),
    *("заказ(?:\\w)?", "замовлення", "订单", "訂單", "注文", "주문"),
)
_ORDER_STEM: Final = stem_pattern(_ORDER_WORDS)
_LABELLED_ORDER: Final = re.compile(
    rf"{BEGIN}(?:{'|'.join(_ORDER_WORDS)})(?P<word>(?:{GAP}{NUMBER_WORD}){{1,4}})?(?P<gap>(?:{GAP}is)?{GAP})"
    rf"(?P<number>{WRITTEN})(?P<more>(?: \d{{2,}})*)",
    re.IGNORECASE,
)
# "#12345", "#A-10023"; not "&#12345;", "#covid2019" or a colour with letters in it.
_HASHED_ORDER: Final = re.compile(
    r"(?<![\w&#/])# ?(?:[A-Z]{1,6}-?|[A-Za-z]{1,12}[-_])?\d{4,}(?:[-_/]\d+)*(?![0-9A-Za-z])"
)
_HASHED_OTHERWISE: Final = re.compile(
    r"(?:issues?|pr|pull requests?|bugs?|tickets?|commits?|pages?|lines?|rooms?|items?) ?$", re.IGNORECASE
)
# "ORD-2026-000123", "PO-4711-22", "SO48215577", and Amazon's 3-7-7 digits.
_SHAPED_ORDER: Final = re.compile(
    r"(?<![0-9A-Za-z])(?:"
    r"(?:(?:(?i:ord(?:er)?)|PO|SO)[-_#](?=[0-9A-Za-z_/-]{0,40}\d{4})|(?i:ord(?:er)?)(?=\d{4})|(?i:[PS]O)(?=\d{6}))"
    r"[0-9A-Za-z]+(?:[-_/][0-9A-Za-z]+)*"
    r"|(?<!\d-)(?<!\+)\d{3}-\d{7}-\d{7}(?!-\d))(?![0-9A-Za-z])"
)
_FRACTION: Final = re.compile(r"[.,]\d")


def order_numbers(plain: str) -> list[Mark]:
    """Every order number, to be masked but for its last digits."""
    marks = list[Mark]()
    for found in _SHAPED_ORDER.finditer(plain):
        marks.append((*found.span(), MASK))
    if "#" in plain:
        for found in _HASHED_ORDER.finditer(plain):
            if not _is_hashed_otherwise(found):
                marks.append((*found.span(), MASK))
    if _ORDER_STEM.search(plain.lower()):
        spans = list[TextSpan]()
        for found in _LABELLED_ORDER.finditer(plain):
            if _is_order(found):
                spans.append(_order_span(found))
        if spans:
            marks += _listed_marks(plain, spans)
    if not marks:
        return marks
    return [(start, end, order_mask(plain[start:end])) for start, end, _ in united(marks)]


def _is_hashed_otherwise(found: re.Match[str]) -> bool:
    return _HASHED_OTHERWISE.search(found.string, max(found.start() - 16, 0), found.start()) is not None


def _is_order(found: re.Match[str]) -> bool:
    number = found["number"]
    if found["word"]:
        return len(number) >= 3
    if DATE_ONLY.fullmatch(number) or _FRACTION.match(found.string, found.end("number")):
        return False
    pointed = not {":", "=", "#"}.isdisjoint(found["gap"] + number)
    return len(digits_of(number)) >= (4 if pointed or number[0].isalpha() else 5)


def _order_span(found: re.Match[str]) -> TextSpan:
    return found.start("number"), found.end("more" if found["word"] else "number")


def order_mask(text: str) -> str:
    """The mask that shows an order number's last four digits, if it has more."""
    digits = digits_of(text)
    return MASK + digits[-4:] if len(digits) > 4 else MASK


# --- Tracking numbers ------------------------------------------------------------------------------

_TRACKING_WORDS: Final = (
    *("tracking", "track(?:[ -]?(?:&|and|n)[ -]?trace)", "waybill", "awb", "consignment", "suivi", "colis"),
    *("sendungsverfolgung", "seguimiento", "rastre(?:o|io|amento)", "tracciamento", "spedizione"),
    *("sp[aå]rning", "sporing", "seuranta", "przesy[lł]ki", "отслеживания"),
    *("运单", "運單", "快递单", "追跡", "송장"),
)
# These say it only together with a word for "number".
_SHIPPING_WORDS: Final = ("shipment", "parcel", "package", "sendung", "paket", "kolli", "трек")
_TRACKING_STEM: Final = stem_pattern(_TRACKING_WORDS + _SHIPPING_WORDS)
_LABELLED_TRACKING: Final = re.compile(
    rf"{BEGIN}(?:(?:{'|'.join(_TRACKING_WORDS)})|(?:{'|'.join(_SHIPPING_WORDS)})s?{GAP}{NUMBER_WORD})s?"
    rf"(?:{GAP}(?:{NUMBER_WORD}|is)){{0,4}}{GAP}(?P<number>{WRITTEN}(?: \d{{2,}})*)",
    re.IGNORECASE,
)
_SHORTEST_LABELLED_TRACKING: Final = 6

# A carrier's name before a long number, as in "DPD 15501234567890". Not "UPS 1500", nor "DHL 10 500 000".
_CARRIERS: Final = (
    *(
        "dpd",
        "dhl",
        "ups",
        "fedex",
        "usps",
        "tnt",
        "gls",
        "hermes",
        "evri",
        "yodel",
        "royal ?mail",
        "postnord",
    ),
    *(
        "deutsche post",
        "la poste",
        "colissimo",
        "chronopost",
        "mondial relay",
        "correos",
        "seur",
        "brt",
        "inpost",
    ),
    *("posti", "aramex", "purolator", "ontrac", "lasership", "cainiao", "yunexpress", "canada post"),
)
_CARRIED: Final = re.compile(
    rf"{BEGIN}(?:{'|'.join(_CARRIERS)})(?:{GAP}(?:{'|'.join(_SHIPPING_WORDS)}))?(?:{GAP}(?:{NUMBER_WORD}|is)){{0,4}}"
    rf"{GAP}(?P<number>{WRITTEN}(?: \d{{2,}})*)",
    re.IGNORECASE,
)
_FEWEST_CARRIED: Final = 8
_QUANTITY: Final = re.compile(r"\d{1,3}(?: \d{3}){1,2}|\d*0{4}")
_COMPACT_TIME: Final = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:\d{4}|\d{6})?")

# The forms that begin with letters: UPS; the posts' S10; Amazon, LaserShip, DHL, Cainiao, SF, YunExpress.
_LETTERED_TRACKING: Final = re.compile(
    r"(?<![0-9a-z])(?:(?P<ups>1Z(?:[ -]?[0-9A-Z]){16})|(?P<post>[A-Z]{2}(?: ?\d){9} ?[A-Z]{2})"
    r"|TBA\d{12}|1LS\d{12,15}|J(?:JD|VGL)\d{9,20}|JD\d{16,20}|GM\d{16,22}|LP\d{14,16}|SF\d{12,15}|YT\d{16})"
    r"(?![0-9a-z])",
    re.IGNORECASE,
)


def tracking_numbers(plain: str) -> list[Mark]:
    """Every tracking number with a word or with letters, to be masked whole."""
    marks, lower = list[Mark](), plain.lower()
    if MANY_DIGITS.search(plain) or "1z" in lower:
        for found in _LETTERED_TRACKING.finditer(plain):
            if _is_lettered_tracking(found):
                marks.append((*found.span(), MASK))
        marks += _numbers_after(_CARRIED, plain, _is_carried)
    if _TRACKING_STEM.search(lower):
        marks += _numbers_after(_LABELLED_TRACKING, plain, _is_labelled_tracking)
    return united(marks) if marks else marks


def _is_labelled_tracking(labelled: str) -> bool:
    return len(labelled) >= _SHORTEST_LABELLED_TRACKING and not DATE_ONLY.fullmatch(labelled)


def _is_carried(number: str) -> bool:
    if _QUANTITY.fullmatch(number) or _COMPACT_TIME.fullmatch(number):
        return False
    return len(digits_of(number)) >= _FEWEST_CARRIED and not DATE_ONLY.match(number)


def _is_lettered_tracking(found: re.Match[str]) -> bool:
    number = re.sub("[ -]", "", found[0]).upper()
    spaced = len(number) < len(found[0])
    if found["ups"]:
        # Without blanks nothing else looks like this; with them, a sentence may.
        return not spaced or (_is_ups(number) and len(digits_of(number)) > len(number) // 2)
    if found["post"]:
        return _is_post(number[2:11]) and (not spaced or found[0].isupper())
    return True


def _is_ups(number: str) -> bool:
    values = [int(char) if char.isdigit() else (ord(char) - 3) % 10 for char in number[2:]]
    return (sum(values[0:15:2]) + 2 * sum(values[1:15:2]) + values[15]) % 10 == 0


def _is_post(digits: str) -> bool:
    # Universal Postal Union S10: eight digits and their check digit.
    weights = (8, 6, 4, 2, 3, 5, 9, 7)
    remainder = sum(int(digit) * weight for digit, weight in zip(digits[:8], weights, strict=True)) % 11
    return int(digits[8]) == {0: 5, 1: 0}.get(remainder, 11 - remainder)


def _is_gs1(digits: str) -> bool:
    # The check digit of GS1, which USPS, FedEx Ground and the SSCC share: 3 and 1 by turns, from the right.
    values = [int(digit) for digit in reversed(digits)]
    return (sum(values[0::2]) + 3 * sum(values[1::2])) % 10 == 0


def _is_fedex(digits: str) -> bool:
    # FedEx Express: 1, 3 and 7 by turns, from the right.
    values = [int(digit) for digit in reversed(digits)]
    return (sum(values[1::3]) + 3 * sum(values[2::3]) + 7 * sum(values[3::3])) % 11 % 10 == values[0]


def is_tracking_number(digits: str, bare: bool) -> bool:
    """Whether a carrier numbers its parcels so; `bare` if the digits are written in one group."""
    match len(digits):
        case 10 | 11:  # DHL Express
            return bare and digits[0] != "0" and int(digits[:-1]) % 7 == int(digits[-1])
        case 12:
            return _is_fedex(digits)
        case 15:
            return _is_gs1(digits)
        case 18:
            return digits[0] == "0" and _is_gs1(digits)
        case 20:  # USPS and SmartPost leave out the 91 or 92 that their check digit counts
            return _is_gs1(digits) or _is_gs1("91" + digits) or _is_gs1("92" + digits)
        case 22 | 26:
            return digits[0] == "9" and (_is_gs1(digits) or _is_gs1(digits[-15:]))
        case 30 | 34:
            return _is_gs1(digits[-22:]) or _is_fedex(digits[-14:])
    return False


# --- The first look --------------------------------------------------------------------------------

# A credential, a link, an address, "so" before an order number, or what is percent-encoded has one of these,
# in small letters.
SIGN: Final = re.compile(
    r"@|%[2-7]|://|www|\.[a-z]{2,6}(?::\d+)?[/?]"
    r"|[spr]k_(?:live|test)_|(?<![\w-])sk-|whsec_|gh[opusr]_[a-z0-9]{20}|github_|glpat-|xox[abeoprs]-"
    r"|a(?:ki|si)a[0-9a-z]{16}|aiza|eyj|earer "
    rf"|[ps]o\d{{6}}|{_SPELLED_HINT}"
)
# A number that no word announces and that has few digits has one of these.
_NUMBER_STEM: Final = re.compile(f"{_ORDER_STEM.pattern}|{_TRACKING_STEM.pattern}|#|1z|ord|po[-_]|so[-_]")


def is_harmless(plain: str) -> bool:
    """Whether no rule can find anything: one look, and most short texts need no other."""
    lower = plain.lower()
    if SIGN.search(lower):
        return False
    if not DIGITS.search(lower):
        return True
    return not MANY_DIGITS.search(lower) and not _NUMBER_STEM.search(lower)
