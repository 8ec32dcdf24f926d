"""Support: customers' messages are routed, tagged and, where that is safe, answered; each action once.

A webhook of Richpanel's brings messages into an inbox. A worker decides about each, acts, and says so in the
audit.
"""

from semel.apps.support.app import Support
from semel.apps.support.conversation import AutoReply, Conversation, PendingFlow
from semel.apps.support.orders import Order
from semel.apps.support.rules import Decision
from semel.apps.support.settings import Settings
from semel.apps.support.ticket import Ticket

__all__ = [
    "AutoReply",
    "Conversation",
    "Decision",
    "Order",
    "PendingFlow",
    "Settings",
    "Support",
    "Ticket",
]
