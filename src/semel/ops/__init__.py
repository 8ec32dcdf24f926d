"""Questions and actions for whoever runs a ledger, by command line, HTTP API and dashboard alike."""

from semel.ops.facades import AsyncOps, Ops
from semel.ops.model import Action, Done, Search, SearchCost, SearchPage, version_of
from semel.ops.rates import RateKeeper, Rates
from semel.ops.related import StoryAction, StoryDecision, StoryEntry, StoryMessage, StoryStep
from semel.ops.standing import CounterState, CounterStates, InboxPlace, SwitchTurn
from semel.ops.story import Story, StoryLine

__all__ = [
    "Action",
    "AsyncOps",
    "CounterState",
    "CounterStates",
    "Done",
    "InboxPlace",
    "Ops",
    "RateKeeper",
    "Rates",
    "Search",
    "SearchCost",
    "SearchPage",
    "Story",
    "StoryAction",
    "StoryDecision",
    "StoryEntry",
    "StoryLine",
    "StoryMessage",
    "StoryStep",
    "SwitchTurn",
    "version_of",
]
