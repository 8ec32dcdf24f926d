"""Names: what the keys in a Redis are called.

    semel:meta                                  the stamp: whose they are, and how they are named
    semel:ledger:{prod/acme/charge:o-1}         an item, by its partition
    semel:journal:{prod/acme/chat-7}            where a partition has several: their sort keys, in order
    semel:journal:{prod/acme/chat-7}:01J5...    and each of them
    semel:journal/actor-at:{prod/acme/ann}      an index: what leads to the items of one value, see `indexes`

The braces are Redis' own: in a cluster, keys with the same text between the first two of them lie in one
slot. So the items of a partition do, in whatever table. With `slots=scope` those of a whole scope do:

    semel:ledger:{prod/acme/}{charge:o-1}
    semel:journal:{prod/acme/}{chat-7}:01J5...
"""

from urllib.parse import unquote

# What stands for the scope of a key that has none, which no rule of semel's makes.
NO_SCOPE = "/"
# What stands for an empty value: braces with nothing between them count for none. No escaped text is like it.
NOTHING = "%"


def escaped(text: str) -> str:
    """A text as it stands between braces: the first closing one ends it."""
    return text.replace("%", "%25").replace("}", "%7D")


def globbed(text: str) -> str:
    """A text as a pattern that matches nothing else."""
    return "".join("\\" + sign if sign in "*?[]\\^-" else sign for sign in text)


def divided(text: str) -> tuple[str, str]:
    """The scope that a qualified key begins with, to its second "/", and the rest; another key has none."""
    end = text.find("/", text.find("/") + 1) + 1
    return text[:end], text[end:]


class KeyNames:
    """How the keys of one table are named."""

    def __init__(self, prefix: str, table: str, scoped: bool = False) -> None:
        self.scoped = scoped
        self._start = f"{prefix}:{table}"
        self._head = f"{self._start}:{{"

    def partition(self, key: str) -> str:
        """The key of a partition."""
        if "}" in key or "%" in key:
            key = escaped(key)
        if not self.scoped:
            return f"{self._head}{key}}}"
        scope, rest = divided(key)
        return f"{self._head}{scope or NO_SCOPE}}}{{{rest}}}"

    def index(self, name: str, value: str) -> str:
        """The key of an index's entries for one value; a value that has no scope is kept for itself."""
        scope, rest = divided(escaped(value)) if self.scoped else ("", escaped(value))
        braces = f"{{{scope}}}{{{rest}}}" if scope else f"{{{rest or NOTHING}}}"
        return f"{self._start}/{name}:{braces}"

    def parse(self, name: str) -> tuple[str, str] | None:
        """The partition of an item's key and what follows it; None for a key of something else."""
        if not name.startswith(self._head):
            return None
        scope, text = "", name.removeprefix(self._head)
        if self.scoped:
            scope, _, text = text.partition("}{")
        partition, brace, ending = text.partition("}")
        if not brace or "}" in scope:
            return None
        partition = partition if scope == NO_SCOPE else scope + partition
        return unquote(partition) if "%" in partition else partition, ending

    def pattern(self, prefix: str) -> bytes:
        """What the keys of all partitions look like that begin so."""
        start = escaped(prefix)
        if self.scoped:
            scope, rest = divided(start)
            # Of less than a scope nobody can tell where it stands; what does not fit is left out later.
            start = f"{scope}}}{{{rest}" if scope else ""
        return (globbed(self._head + start) + "*").encode()
