"""Support on AWS: one function takes what Richpanel sends, the other works on it."""

from semel.provision.deployment import Deployment, Function, Queue, Secret, Setting
from semel.tables import DOCUMENTS, JOURNAL
from semel.tables.seeds import SUPPORT_AUDIT, SUPPORT_EVENTS, SUPPORT_STATE

DEPLOYMENT = Deployment(
    app="support",
    ledger=SUPPORT_EVENTS,
    tables=(SUPPORT_EVENTS, SUPPORT_STATE, SUPPORT_AUDIT, DOCUMENTS, JOURNAL),
    queue=Queue(),
    functions={
        "Ingress": Function(
            handler="semel.apps.support.aws_lambda.ingress",
            about="Puts what Richpanel sends into the queue, and writes nothing.",
            paths=("/webhooks/richpanel",),
            sends=True,
            timeout=10,
        ),
        "Worker": Function(
            handler="semel.apps.support.aws_lambda.worker",
            about="Decides about each message and acts, once.",
            works=True,
            may={
                SUPPORT_EVENTS: ("GetItem", "PutItem", "UpdateItem"),
                SUPPORT_STATE: ("GetItem", "PutItem", "UpdateItem"),
                SUPPORT_AUDIT: ("GetItem", "PutItem"),
                # The kill switches.
                DOCUMENTS: ("GetItem",),
                # What would be done, where Richpanel's key is not set.
                JOURNAL: ("GetItem", "PutItem"),
            },
            timeout=60,
        ),
    },
    settings=(
        Setting(
            variable="SEMEL_APPS__SUPPORT__AUTOMATION_ENABLED",
            parameter="AutomationEnabled",
            about="Whether replies are sent while nobody has turned the switch: true or false.",
            default="false",
        ),
        Setting(
            variable="SEMEL_APPS__SUPPORT__ASSIGNEES",
            parameter="Assignees",
            about="Who a team's conversations are assigned to, as JSON, where that is not the team's name.",
            default="{}",
        ),
        Setting(
            variable="SEMEL_APPS__SUPPORT__TAG_IDS",
            parameter="TagIds",
            about="What Richpanel calls a tag, as JSON, where that is not its name.",
            default="{}",
        ),
        Setting(
            variable="SEMEL_APPS__SUPPORT__SHOPIFY_URL",
            parameter="ShopifyUrl",
            about="The shop, such as https://NAME.myshopify.com; none where orders are not looked up.",
            default="",
        ),
    ),
    secrets=(
        Secret(
            variable="SEMEL_SECRET",
            field="secret",
            about="32 random bytes, by which messages are sealed and persons are named",
        ),
        Secret(
            variable="SEMEL_APPS__SUPPORT__WEBHOOK_TOKEN",
            field="webhook_token",
            about="what Richpanel shows",
        ),
        Secret(
            variable="SEMEL_APPS__SUPPORT__RICHPANEL_KEY",
            field="richpanel_key",
            about="the key of Richpanel's API, without which nothing is done there",
            optional="HasRichpanelKey",
        ),
        Secret(
            variable="SEMEL_APPS__SUPPORT__SHOPIFY_TOKEN",
            field="shopify_token",
            about="the token of Shopify's API",
            optional="HasShopifyToken",
        ),
    ),
    requires="semel[apps,crypto,privacy]",
    optional={"audit": SUPPORT_AUDIT},
)
