"""Quill on AWS: one function takes deliveries and posts them, the other posts what could not be posted."""

from semel.apps.deployment import Deployment, DeploymentQueue, Function, Setting, secrets_of, settings_of
from semel.apps.quill.settings import Settings
from semel.apps.tables import QUILL
from semel.tables import DOCUMENTS, Table

WRITES = ("GetItem", "PutItem", "UpdateItem")
# The ledger, and the pace at which Power BI is asked, which all functions keep together.
MAY: dict[Table, tuple[str, ...]] = {QUILL: WRITES, DOCUMENTS: WRITES}

TTL_DAYS = Setting(
    variable="DYNAMO_TTL_DAYS",
    parameter="TtlDays",
    about="For how many days an event is remembered.",
    default="14",
)
# HubSpot signs the address that it was told.
PUBLIC_URL = Setting(
    variable="SEMEL_SERVICE__PUBLIC_URL",
    parameter="PublicUrl",
    about="What HubSpot was told, without a path, such as https://hooks.example.com; else the API's own.",
    default="",
)
DATASET = ("powerbi_tenant", "powerbi_client", "powerbi_workspace", "powerbi_dataset")
SETTINGS = (
    TTL_DAYS,
    *settings_of(
        "quill",
        Settings,
        {
            "powerbi_tenant": "The tenant of Entra ID.",
            "powerbi_client": "The application in Entra ID that may write to the workspace.",
            "powerbi_workspace": "The workspace.",
            "powerbi_dataset": "The push dataset.",
            "powerbi_url": "Where Power BI's API is.",
            "powerbi_login": "Where tokens for it are given out.",
            "powerbi_timeout": "For how many seconds Power BI is waited for.",
            "zone": "The time zone of contacts whose own is not known.",
            "events": "Which events become facts, as JSON; none of them is the default report.",
            "fact_tables": "The tables of facts beside the default one, as JSON.",
            "dimensions": "The tables that facts refer to beside the default ones, as JSON.",
            "facts": "A function of your own that makes facts of events, as package.module:function.",
            "with_default": "Whether what these make nothing of is what it is by default: true or false.",
            "lost_posts": "When nobody knows whether Power BI has a row: hold, or repeat.",
            "lease": "After how many seconds of silence a delivery is taken for dead.",
            "max_attempts": "How often an event is posted in vain before it is put aside.",
        },
        required=DATASET,
    ),
)

DEPLOYMENT = Deployment(
    app="quill",
    ledger=QUILL,
    tables=(QUILL, DOCUMENTS),
    # Events stand alone, so that none waits for another; a day of trying is what an outage may take.
    queue=DeploymentQueue(receives=480),
    functions={
        "Ingress": Function(
            handler="semel.apps.quill.aws_lambda.ingress",
            about="Posts what Aloware and HubSpot deliver to Power BI, or leaves it to the worker.",
            paths=("/webhooks/aloware", "/webhooks/hubspot"),
            sends=True,
            may=MAY,
            secrets=("secret", "powerbi_secret", "aloware_token", "hubspot_secret"),
        ),
        "Worker": Function(
            handler="semel.apps.quill.aws_lambda.worker",
            about="Posts to Power BI what could not be posted at once.",
            works=True,
            gathers=True,
            may=MAY,
            secrets=("secret", "powerbi_secret"),
            settings=tuple(one.parameter for one in SETTINGS),
        ),
    },
    settings=(*SETTINGS, PUBLIC_URL),
    secrets=secrets_of(
        "quill",
        {
            "secret": "32 random bytes, by which messages are sealed",
            "powerbi_secret": "the secret of that application",
            "aloware_token": "what Aloware shows",
            "hubspot_secret": "the client secret of the HubSpot app",
        },
        optional={"aloware_token": "HasAloware", "hubspot_secret": "HasHubSpot"},
    ),
    requires="semel[apps,crypto,privacy,zones]",
)
