"""Links, with or without a scheme."""

import re
from typing import Final

from semel.redact.masks import MASK
from semel.redact.page import CJK_MARKS, TAKEN, Mark

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
