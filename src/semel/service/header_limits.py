"""How large a request's head may be, and how long it may take."""

from typing import Final

# A head is a few hundred bytes, and comes at once. Who sends more, or sends it by drops, means no good.
MAX_HEAD_BYTES: Final = 65536
# What follows a head is parsed in pieces of this size, so that the next head is met within one of them.
PIECE_BYTES: Final = 16384
HEAD_SECONDS: Final = 10.0
