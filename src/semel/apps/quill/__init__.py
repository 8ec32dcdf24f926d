"""Quill: what agents did, by the webhooks of Aloware and HubSpot, as facts in Power BI or in a local file.

POST /webhooks/aloware    calls and texts
POST /webhooks/hubspot    e-mails and cases, up to a hundred in one request

Each event is a fact once, however often it is delivered.
"""

from semel.apps.quill.app import Quill
from semel.apps.quill.report import Received
from semel.apps.quill.schema import Fact
from semel.apps.quill.settings import Settings, from_environment, store_url

__all__ = ["Fact", "Quill", "Received", "Settings", "from_environment", "store_url"]
