"""The probe on AWS Lambda: `ingress` behind an API, set up by `SEMEL_URL`, `SEMEL_ENV` and its settings."""

from semel.apps.functions import Functions
from semel.apps.probe.app import Probe
from semel.apps.probe.settings import Settings
from semel.apps.settings import from_environment

FUNCTIONS = Functions(
    "probe",
    lambda s, inbox, environ: Probe(s, inbox, from_environment(Settings, "probe", environ)),
    url=lambda _: "dynamodb://?layout=probe",
    has_inbox=False,
    # Others read its table, as JSON.
    encrypts=False,
)
ingress = FUNCTIONS.ingress
