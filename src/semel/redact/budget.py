"""How much work a text may be, whatever it holds: what is left of it unread then goes unread, masked."""

from typing import Final

# Some twenty pages. Nobody reads more of a line in a log, or of an entry in an audit.
MOST_CHARACTERS: Final = 65_536

# A page of ordinary text takes fewer than fifty; an answer takes from two microseconds to fifty.
MOST_QUESTIONS: Final = 500


class Budget:
    """What is left of the work that one text, or one piece of nested data, may be."""

    def __init__(self) -> None:
        self._characters = MOST_CHARACTERS
        self._questions = MOST_QUESTIONS

    def read(self, text: str) -> int:
        """How many characters of a text may be read; they are then not there for the next."""
        most = self._characters
        self._characters = max(0, most - len(text))
        return most

    @property
    def spent(self) -> bool:
        """Whether nothing more is to be asked."""
        return self._questions <= 0

    def ask(self, price: int = 1) -> None:
        """Count a question, by how long its answer takes."""
        self._questions -= price
