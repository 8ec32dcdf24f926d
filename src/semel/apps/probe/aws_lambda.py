"""The probe on AWS Lambda: `ingress` behind an API, set up by `SEMEL_URL`, `SEMEL_ENV` and its settings."""

from semel.apps.functions import Functions
from semel.apps.probe.app import Probe
from semel.apps.probe.settings import Settings
from semel.apps.settings import from_environment

FUNCTIONS = Functions(
    "probe",
    lambda s, inbox, environ: Probe(s, inbox, from_environment(Settings, "probe", environ)),
    has_inbox=False,
)
ingress = FUNCTIONS.ingress
