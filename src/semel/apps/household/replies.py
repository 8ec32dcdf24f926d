"""What is replied to a message, by template; another function is named in the settings."""

from typing import Final

from semel.apps.household.classify import Classification

NAMES: Final = {
    "cooking": "matlagning",
    "dishes": "disk",
    "laundry": "tvätt",
    "trash": "sopor",
    "childcare": "barnen",
    "pets": "husdjuren",
    "shopping": "inköp",
    "garden": "trädgård",
    "cleaning": "städning",
    "repair": "reparation",
    "rest": "vila",
}

REPLIES: Final = {
    ("chore", "sv"): "Noterat: {name}. Tack!",
    ("chore", "en"): "Noted: {name}. Thank you!",
    ("recovery", "sv"): "Noterat: {name}. Väl unt!",
    ("recovery", "en"): "Noted: {name}. Well deserved!",
    ("question", "sv"): "Den frågan kan jag inte svara på; jag antecknar det som är gjort.",
    ("question", "en"): "I cannot answer that; I keep track of what has been done.",
}


def reply(_text: str, found: Classification | None) -> str | None:
    """The reply to a message that tells this; None where nothing is replied."""
    template = None if found is None else REPLIES.get((found.type, found.language))
    if found is None or template is None:
        return None
    name = NAMES.get(found.activity, found.activity) if found.language == "sv" else found.activity
    return template.format(name=name)
