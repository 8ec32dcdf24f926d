"""Support on AWS: one function takes what Richpanel sends, the other works on it."""

from semel.apps.deployment import Deployment, DeploymentQueue, Function, secrets_of, settings_of
from semel.apps.support.settings import Settings
from semel.apps.tables import SUPPORT_AUDIT, SUPPORT_EVENTS, SUPPORT_STATE
from semel.tables import DOCUMENTS, JOURNAL

SETTINGS = settings_of(
    "support",
    Settings,
    {
        "automation_enabled": "Whether replies are sent while nobody has turned the switch: true or false.",
        "assignees": "Who a team's conversations are assigned to, as JSON, where that is not its name.",
        "tag_ids": "What Richpanel calls a tag, as JSON, where that is not its name.",
        "human_team": "The team that gets what no rule knows, and what automation gives up.",
        "decide": "The function that decides about a message: package.module:function.",
        "templates": "Replies by name, as JSON, in place of those that come with support.",
        "reply_every": "A conversation does not get the same reply twice in a row within so many seconds.",
        "on_lost_reply": "When nobody knows whether a reply was sent: hold, or rerun.",
        "lookup": "The function that finds an order; else Shopify is asked, where it is set up.",
        "lookup_every": "For how many seconds what was found about an order counts.",
        "shopify_url": "The shop, such as https://NAME.myshopify.com; none where orders are not looked up.",
        "richpanel_url": "Where Richpanel's API is.",
        "richpanel_timeout": "For how many seconds Richpanel is waited for.",
        "richpanel_keeps_keys": "Whether an Idempotency-Key is heeded there: true or false.",
        "events_ttl": "For how many seconds an event is remembered.",
        "state_ttl": "For how many seconds a conversation is remembered.",
        "flow_ttl": "For how many seconds it is remembered what was asked for.",
        "audit_ttl": "For how many seconds the audit is kept.",
        "excerpt": "Whether the beginning of a message is kept in the audit, redacted: true or false.",
    },
)

DEPLOYMENT = Deployment(
    app="support",
    ledger=SUPPORT_EVENTS,
    tables=(SUPPORT_EVENTS, SUPPORT_STATE, SUPPORT_AUDIT, DOCUMENTS, JOURNAL),
    queue=DeploymentQueue(),
    functions={
        "Ingress": Function(
            handler="semel.apps.support.aws_lambda.ingress",
            about="Puts what Richpanel sends into the queue, and writes nothing.",
            paths=("/webhooks/richpanel",),
            sends=True,
            timeout=10,
            secrets=("secret", "webhook_token"),
            settings=(),
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
            secrets=("secret", "richpanel_key", "shopify_token"),
        ),
    },
    settings=SETTINGS,
    secrets=secrets_of(
        "support",
        {
            "secret": "32 random bytes, by which messages are sealed and persons are named",
            "webhook_token": "what Richpanel shows",
            "richpanel_key": "the key of Richpanel's API, without which nothing is done there",
            "shopify_token": "the token of Shopify's API",
        },
        optional={"richpanel_key": "HasRichpanelKey", "shopify_token": "HasShopifyToken"},
    ),
    requires="semel[apps,crypto,privacy]",
    optional={"audit": SUPPORT_AUDIT},
)
