"""What a message tells: something that was done, a question, or nothing.

This is the classifier that costs nothing: keywords, in Swedish and in English. Another one is named in the
settings, and is a function like `classify`.
"""

import re
from typing import Final

import msgspec


class Classification(msgspec.Struct, frozen=True):
    """What a message tells of."""

    type: str
    """`chore` or `recovery` for what was done; `question` for what is asked."""
    activity: str = ""
    effort: str | None = None
    confidence: float | None = None
    """How sure it is; None where the classifier does not say, and nothing is kept of it then."""
    language: str = "en"

    @property
    def done(self) -> bool:
        """Whether something was done, which is then an activity."""
        return self.type != "question"


class ActivityKind(msgspec.Struct, frozen=True):
    """One kind of activity, and the words that tell of it."""

    activity: str
    effort: str
    sv: str
    en: str
    type: str = "chore"


# Where a text has words of several kinds, the first of them in the text counts; where two kinds share a word
# (one mends a tap and makes a meal with the same Swedish verb), the first of them here does.
KINDS: Final = (
    ActivityKind(
        "cooking",
        "medium",
        r"lag(?:at|ade)\s+(?:\w+\s+)?(?:mat\w*|middag\w*|lunch\w*|frukost\w*)|(?:koka|baka)(?:t|de)",
        r"cook(?:ed|ing)|bak(?:ed|ing)|made\s+(?:\w+\s+)?(?:dinner|lunch|breakfast|food)",
    ),
    ActivityKind("dishes", "low", r"diska(?:t|de)|disken|diskmaskinen", r"dishes|dishwasher|washed\s+up"),
    ActivityKind(
        "laundry",
        "medium",
        r"tvätta(?:t|de)|tvätten|strukit|strök|vikt\s+tvätt\w*",
        r"laundry|iron(?:ed|ing)|folded\s+(?:the\s+)?clothes",
    ),
    ActivityKind(
        "trash",
        "low",
        r"soporna|sopor|skräpet|återvinning\w*|panta(?:t|de)",
        r"trash|garbage|rubbish|recycling|the\s+bins?",
    ),
    ActivityKind(
        "childcare",
        "high",
        r"blöj\w+|nattat?|nattade|läxor\w*|(?:hämta|lämna)(?:t|de)\s+(?:\w+\s+)?"
        r"(?:barn\w*|på\s+(?:dagis|förskolan|skolan|fritids))",
        r"diapers?|napp(?:y|ies)|homework|bedtime|daycare|"
        r"(?:picked\s+up|dropped\s+off|bathed|fed)\s+the\s+(?:kids?|child(?:ren)?|baby)",
    ),
    ActivityKind(
        "pets",
        "low",
        r"rasta(?:t|de)|kattlåd\w+|(?:matat?|gick\s+ut\s+med)\s+(?:hund|katt)\w*",
        r"litter\s*box|(?:walked|fed|groomed)\s+the\s+(?:dog|cat|pets?)s?",
    ),
    ActivityKind(
        "shopping",
        "medium",
        r"handla(?:t|de)|köpt|köpte|matvaror\w*",
        r"groceries|(?:went|gone|did\s+the)\s+shopping|bought",
    ),
    ActivityKind(
        "garden",
        "high",
        r"klippt\w*\s+gräs\w*|gräsmattan|ogräs\w*|vattna(?:t|de)",
        r"mow(?:ed|n)|weeded|watered|raked|the\s+lawn",
    ),
    ActivityKind(
        "cleaning",
        "medium",
        r"städa(?:t|de)|dammsugit|dammsög|moppa(?:t|de)|damma(?:t|de)|torka(?:t|de)|skura(?:t|de)",
        r"clean(?:ed|ing)|vacuum(?:ed|ing)|mopp(?:ed|ing)|dust(?:ed|ing)|tidied|wiped|scrubbed",
    ),
    ActivityKind(
        "repair",
        "high",
        r"lagat|lagade|reparera(?:t|de)|fixa(?:t|de)|skruva(?:t|de)|monterat?|monterade",
        r"repair(?:ed|ing)|fixed|mended|assembled|installed",
    ),
    ActivityKind(
        "rest",
        "low",
        r"vila(?:t|de)|tupplur\w*|sovit|tränat|tränade|yoga\w*|promenera(?:t|de)|mediterat?",
        r"rested|nap(?:ped)?|worked\s+out|gym|yoga|went\s+for\s+a\s+(?:walk|run)|meditated",
        type="recovery",
    ),
)

WORDS: Final = tuple(
    (kind, language, re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE))
    for kind in KINDS
    for language, words in (("sv", kind.sv), ("en", kind.en))
)

# Meant to be done, or left undone, is not done.
UNDONE: Final = re.compile(
    r"(?<!\w)(?:ska|måste|borde|behöver|tänkte|imorgon|inte|ingen|aldrig|"
    r"will|going\s+to|must|should|needs?\s+to|have\s+to|has\s+to|tomorrow|not|nobody|never|\w+n['\u2019]t)(?!\w)",
    re.IGNORECASE,
)
ASKED: Final = re.compile(
    r"^\W*(?:vem|vad|när|var|hur|varför|vilken|vilket|vilka|kan|har|har\s+du|"
    r"(?P<en>who|what|when|where|how|why|which|can|could|did|does|do|has|have|is))(?!\w)[^?]*\?",
    re.IGNORECASE,
)


def classify(text: str) -> Classification | None:
    """What a message tells of, by its words; None where it tells of nothing that is kept."""
    if "?" in text:
        asked = ASKED.search(text)
        return None if asked is None else Classification("question", language="en" if asked["en"] else "sv")
    if UNDONE.search(text):
        return None
    matches: dict[int, tuple[ActivityKind, str]] = {}
    for kind, language, words in WORDS:
        for match in words.finditer(text):
            matches.setdefault(match.start(), (kind, language))
    if not matches:
        return None
    kind, language = matches[min(matches)]
    alone = len({kind.activity for kind, _ in matches.values()}) == 1
    return Classification(kind.type, kind.activity, kind.effort, 0.8 if alone else 0.5, language)
