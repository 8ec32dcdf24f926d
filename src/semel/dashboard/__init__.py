"""The dashboard: pages for whoever runs a ledger, as an ASGI application that any other one mounts.

`app.mount("/semel", dashboard(s, tokens=...))`. Pages are made on the server and charts are SVG drawn there,
so nothing is fetched from elsewhere, there is nothing to vendor, and all of it works without scripts.
"""

from semel.core.runtime import require

require("jinja2", "dashboard")  # which says how to install it
require("starlette", "dashboard")

from semel.dashboard.app import dashboard

__all__ = ["dashboard"]
