"""Quill on AWS: one function takes deliveries and posts them, the other posts what could not be posted."""

from semel.provision.deployment import Deployment, Function, Queue, Secret, Setting
from semel.tables import DOCUMENTS
from semel.tables.seeds import QUILL

WRITES = ("GetItem", "PutItem", "UpdateItem")
# The ledger, and the pace at which Power BI is asked, which all functions keep together.
MAY = {QUILL: WRITES, DOCUMENTS: WRITES}

DEPLOYMENT = Deployment(
    app="quill",
    ledger=QUILL,
    tables=(QUILL, DOCUMENTS),
    # Events stand alone, so that none waits for another; a day of trying is what an outage may take.
    queue=Queue(receives=480),
    functions={
        "Ingress": Function(
            handler="semel.apps.quill.aws_lambda.ingress",
            about="Posts what Aloware and HubSpot deliver to Power BI, or leaves it to the worker.",
            paths=("/webhooks/aloware", "/webhooks/hubspot"),
            sends=True,
            may=MAY,
        ),
        "Worker": Function(
            handler="semel.apps.quill.aws_lambda.worker",
            about="Posts to Power BI what could not be posted at once.",
            works=True,
            gathers=True,
            may=MAY,
        ),
    },
    settings=(
        Setting(
            variable="DYNAMO_TTL_DAYS",
            parameter="TtlDays",
            about="For how many days an event is remembered.",
            default="14",
        ),
        Setting(
            variable="SEMEL_APPS__QUILL__POWERBI_TENANT",
            parameter="PowerBiTenant",
            about="The tenant of Entra ID.",
        ),
        Setting(
            variable="SEMEL_APPS__QUILL__POWERBI_CLIENT",
            parameter="PowerBiClient",
            about="The application in Entra ID that may write to the workspace.",
        ),
        Setting(
            variable="SEMEL_APPS__QUILL__POWERBI_WORKSPACE",
            parameter="PowerBiWorkspace",
            about="The workspace.",
        ),
        Setting(
            variable="SEMEL_APPS__QUILL__POWERBI_DATASET",
            parameter="PowerBiDataset",
            about="The push dataset.",
        ),
        Setting(
            variable="SEMEL_APPS__QUILL__ZONE",
            parameter="Zone",
            about="The time zone of contacts whose own is not known.",
            default="UTC",
        ),
        Setting(
            variable="SEMEL_APPS__QUILL__EVENTS",
            parameter="Events",
            about="Which events become facts, as JSON; none of them is the default report.",
            default="{}",
        ),
        Setting(
            variable="SEMEL_APPS__QUILL__FACT_TABLES",
            parameter="FactTables",
            about="The tables of facts beside the default one, as JSON.",
            default="{}",
        ),
        Setting(
            variable="SEMEL_APPS__QUILL__DIMENSIONS",
            parameter="Dimensions",
            about="The tables that facts refer to beside the default ones, as JSON.",
            default="{}",
        ),
        Setting(
            variable="SEMEL_APPS__QUILL__FACTS",
            parameter="Facts",
            about="A function of your own that makes facts of events, as package.module:function.",
            default="",
        ),
        Setting(
            variable="SEMEL_APPS__QUILL__WITH_DEFAULT",
            parameter="WithDefault",
            about="Whether what these make nothing of is what it is by default: true or false.",
            default="false",
        ),
    ),
    secrets=(
        Secret(
            variable="SEMEL_SECRET",
            field="secret",
            about="32 random bytes, by which messages are sealed",
        ),
        Secret(
            variable="SEMEL_APPS__QUILL__POWERBI_SECRET",
            field="powerbi_secret",
            about="the secret of that application",
        ),
        Secret(
            variable="SEMEL_APPS__QUILL__ALOWARE_TOKEN",
            field="aloware_token",
            about="what Aloware shows",
            optional="HasAloware",
        ),
        Secret(
            variable="SEMEL_APPS__QUILL__HUBSPOT_SECRET",
            field="hubspot_secret",
            about="the client secret of the HubSpot app",
            optional="HasHubSpot",
        ),
    ),
    requires="semel[apps,crypto,privacy,zones]",
)
