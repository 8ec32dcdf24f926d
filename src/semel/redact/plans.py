"""Numbering plans: which digits are a phone number in which country."""

import re
from functools import lru_cache
from typing import Any, Final

from semel.extras import require

# Left out are countries whose phone numbers cannot be told from quantities: seven digits without a prefix, as
# in Iceland, Estonia and Luxembourg, or written like thousands, as in Latvia ("21 234 567").
REGIONS: Final = (
    *("US", "CA", "MX", "BR", "AR", "CL", "CO", "PE"),
    *("GB", "IE", "FR", "BE", "NL", "DE", "AT", "CH", "IT", "ES", "PT", "DK", "NO", "SE", "FI"),
    *("LT", "PL", "CZ", "SK", "HU", "RO", "BG", "GR", "HR", "SI", "RS", "UA", "RU", "TR"),
    *("IL", "AE", "SA", "EG", "ZA", "NG", "KE"),
    *("IN", "PK", "BD", "CN", "HK", "TW", "JP", "KR", "SG", "MY", "TH", "ID", "PH", "VN", "AU", "NZ"),
)

# How many questions about a region's numbers take as long as one about the whole world's.
INTERNATIONAL_PRICE: Final = 5

_LINES: Final = (
    *("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number"),
    *("voip", "pager", "uan", "voicemail"),
)


class Numbering:
    """The phone numbers of some regions, and those of the whole world after a "+"."""

    # One pattern for all regions, made of phonenumbers' own metadata: it takes 5 microseconds for a number,
    # and asking phonenumbers itself takes 30 for each region.
    def __init__(self, regions: tuple[str, ...]) -> None:
        self._library = require("phonenumbers", "privacy")
        plans = [_Plan(self._library, region) for region in regions]
        self._known = re.compile("|".join([plan.pattern() for plan in plans]) or "(?!)")
        self.writes_thousands = any(plan.writes_thousands() for plan in plans)
        self._rewriting = [plan for plan in plans if plan.rewrites]

    def knows(self, digits: str) -> bool:
        """Whether these are a phone number in one of the regions."""
        known = self._known.match(digits) is not None
        return known or any(plan.knows_rewritten(digits) for plan in self._rewriting)

    def is_international(self, digits: str) -> bool:
        """Whether these are a phone number after a "+"."""
        try:
            return bool(self._library.is_valid_number(self._library.parse(f"+{digits}")))
        except self._library.NumberParseException:
            return False


numbering: Final = lru_cache(maxsize=8)(Numbering)


class _Plan:
    def __init__(self, library: Any, region: str) -> None:
        metadata = library.PhoneMetadata.metadata_for_region(region)
        # Canada and the islands share the formats of the United States.
        main = library.region_code_for_country_code(metadata.country_code)
        lines = [getattr(metadata, line) for line in _LINES]
        self._valid = "|".join([line.national_number_pattern for line in lines if _has_numbers(line)])
        self._country_code = metadata.country_code
        self._prefix = metadata.national_prefix_for_parsing
        self._formats = (
            metadata.number_format or library.PhoneMetadata.metadata_for_region(main).number_format
        )
        self.rewrites = metadata.national_prefix_transform_rule

    def pattern(self) -> str:
        """Digits as they are dialled inside the country, or from outside without the plus."""
        ways = [f"{self._country_code}(?:{self._valid})"]
        if self._prefix:
            ways.append(f"(?:{self._prefix})(?:{self._valid})")
        if unprefixed := [_format_pattern(one) for one in self._formats if _needs_no_prefix(one)]:
            ways.append(f"(?=(?:{self._valid})$)(?:{'|'.join(unprefixed)})")
        return f"(?:{'|'.join(ways)})$"

    def writes_thousands(self) -> bool:
        """Whether phone numbers look like 12 345 678 there, as they do in Latvia."""
        return any(one.pattern == r"(\d{2})(\d{3})(\d{3})" and _needs_no_prefix(one) for one in self._formats)

    def knows_rewritten(self, digits: str) -> bool:
        """Whether the plan's prefix, once rewritten by its rule, leaves a valid number."""
        found = re.match(self._prefix, digits)
        if found is None or not found.lastindex or found[found.lastindex] is None:
            return False
        return re.fullmatch(self._valid, found.expand(self.rewrites) + digits[found.end() :]) is not None


def _has_numbers(line: Any) -> bool:
    return line is not None and line.national_number_pattern is not None


def _needs_no_prefix(one: Any) -> bool:
    rule = one.national_prefix_formatting_rule
    return not rule or rule in ("\\1", "(\\1)") or bool(one.national_prefix_optional_when_formatting)


def _format_pattern(one: Any) -> str:
    leading = f"(?={one.leading_digits_pattern[-1]})" if one.leading_digits_pattern else ""
    return f"{leading}(?:{one.pattern})"
