"""The tables of an application as its settings have them: under other names in DynamoDB, or left out.

    [apps.household.tables]
    activities = "homeops-activities"

There each of its own tables has its name without the application's; the only one of quill, or of the probe,
is called `ledger`.
"""

from collections.abc import Mapping
from typing import Any

from semel.apps.deployment import Deployment
from semel.apps.registry import deployment, find
from semel.apps.settings import read, wrong
from semel.stores.dynamodb.address import with_titles
from semel.stores.dynamodb.items import is_title

SETTING = "tables"


def deployed(app: str, section: Mapping[str, Any]) -> Deployment:
    """An application in AWS with the tables that its section of the settings asks for."""
    found = deployment(app, _at(app, section))
    off = [name for name in found.optional if not read(app, name, bool, section.get(name, True))]
    return found.under(titles(found, section), off)


def deploys(app: str, section: Mapping[str, Any]) -> bool:
    """Whether an application says what it needs, as it need not."""
    return hasattr(find(app, _at(app, section)).kind, "deployment")


def located(url: str, app: str, section: Mapping[str, Any]) -> str:
    """The URL of the store that an application is on, with the names that its section gives to its tables."""
    if not section.get(SETTING):
        return url
    named = titles(deployment(app, _at(app, section)), section)
    return with_titles(url, named) if url.startswith("dynamodb:") else url


def _at(app: str, section: Mapping[str, Any]) -> str:
    found: str = read(app, "at", str, section.get("at", ""))
    return found


def titles(deployment: Deployment, section: Mapping[str, Any]) -> dict[str, str]:
    """What tables of an application are called in DynamoDB, by semel's own names for them."""
    app, own = deployment.app, deployment.own()
    named = read(app, SETTING, dict[str, str], section.get(SETTING) or {})
    for name, title in named.items():
        if name not in own:
            raise wrong(app, f"{SETTING}.{name}", f"it has no table of that name; it has {', '.join(own)}")
        if not is_title(title):
            raise wrong(app, f"{SETTING}.{name}", "a table's name has 3 to 255 of A-Z a-z 0-9 _ . -")
    return {own[name].name: title for name, title in named.items()}
