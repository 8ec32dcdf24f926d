"""The masks, and how they are known again in a text that holds some already."""

import re
from typing import Final

MASK: Final = "***"
EMAIL_MASK: Final = "***@***"

# Masks that must not be read as numbers or addresses again.
KEPT: Final = re.compile(r"\*{3}(?:(?:-\*{3}-)?\d{4}(?!\d)|@\*{3})")

ANY_MASK: Final = re.compile(rf"{KEPT.pattern}|\*{{3}}")
