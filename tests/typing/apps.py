"""What an application is, as a type checker sees it; this file is checked and never run."""

import msgspec

import semel
from examples.order_notices import notices
from semel.apps import (
    Application,
    ApplicationClass,
    Deploys,
    Handles,
    Shows,
    household,
    probe,
    quill,
    support,
)
from semel.doors.inbox import Inbox, open_inbox

s = semel.connect("memory:")
inbox = open_inbox(s, "inbox")

# Semel's own, and the example: each class is made as the service makes it.
quills: ApplicationClass[quill.Settings] = quill.Quill
supports: ApplicationClass[support.Settings] = support.Support
households: ApplicationClass[household.Settings] = household.Household
probes: ApplicationClass[probe.Settings] = probe.Probe
examples: ApplicationClass[notices.Settings] = notices.Notices

every: list[Application] = [
    quills(s, inbox, quill.Settings()),
    supports(s, inbox, support.Settings()),
    households(s, inbox, household.Settings()),
    probes(s, inbox, probe.Settings()),
    examples(s, inbox, notices.Settings()),
]

# What some have besides.
handles: list[type[Handles]] = [quill.Quill, support.Support, household.Household, notices.Notices]
shows: list[type[Shows]] = [quill.Quill, support.Support, household.Household, notices.Notices]
deploys: list[type[Deploys]] = [
    quill.Quill,
    support.Support,
    household.Household,
    probe.Probe,
    notices.Notices,
]


class Silent:
    """One that takes nothing, and so is no application."""

    settings_type = msgspec.Struct

    def __init__(self, s: semel.Semel, inbox: Inbox, settings: msgspec.Struct) -> None: ...

    def close(self) -> None: ...


silent: ApplicationClass[msgspec.Struct] = Silent  # type: ignore[assignment]  # it has no hooks
