"""Applications as a SAM template: everything that `Deployment` values say, with the least permissions.

Nothing in it is a wildcard, and no secret is in it: those are fields of secrets in Secrets Manager, which
CloudFormation looks up by name when it makes the functions.
"""

from collections.abc import Iterable

from semel.provision import cloudformation
from semel.provision.alarms import TemplateBlock, alarms
from semel.provision.cloudformation import VERSION, holding, logical
from semel.provision.deployment import Deployment, DeploymentQueue, Function, Secret, camel
from semel.provision.sam import TRANSFORM
from semel.tables import LEDGER, Table

RUNTIME = "python3.13"
CODE = "function/"

# Lambda's own advice: a message that an invocation has in hand must not be given to another one.
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
VISIBILITY = 6
# As long as SQS keeps a message at most, so that there is time to look at it.
DEAD_KEPT = 14 * 86400
LOG_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 180, 365)

HEADER = """\
# {apps} for environment {env}, on AWS.
#
# The folder {code} holds a requirements.txt with {requires}.
# Before: one secret for each application, as its parameter says. Then: sam build && sam deploy --guided
# After, as no template can stamp tables: semel provision --app {app} --env {env} --url dynamodb://REGION
"""


def text(deployments: Iterable[Deployment], env: str) -> str:
    """The template as YAML."""
    listed = tuple(deployments)
    head = HEADER.format(
        apps=" and ".join(one.app.capitalize() for one in listed),
        app=" --app ".join(one.app for one in listed),
        requires=" and ".join(dict.fromkeys(one.requires for one in listed)),
        env=env,
        code=CODE,
    )
    return head + cloudformation.yaml(template(listed, env))


def template(deployments: Iterable[Deployment], env: str) -> TemplateBlock:
    """The template."""
    listed = tuple(deployments)
    tables = dict.fromkeys(table for one in listed for table in one.tables)
    parts = [_Part(one, env) for one in listed]
    found: TemplateBlock = {
        "AWSTemplateFormatVersion": VERSION,
        "Transform": TRANSFORM,
        "Description": f"{', '.join(one.app for one in listed)} of semel for environment {env}",
        "Parameters": _merged(part.parameters() for part in parts) | COMMON,
        "Conditions": _merged(part.conditions() for part in parts) | {"HasAlarmTopic": _given("AlarmTopic")},
        "Globals": {"Function": {"Runtime": RUNTIME, "Architectures": ["x86_64"], "CodeUri": CODE}},
        "Resources": {logical(table): cloudformation.resource(table, env) for table in tables}
        | _merged(part.resources() for part in parts),
        "Outputs": _merged(part.outputs() for part in parts),
    }
    return found


COMMON: TemplateBlock = {
    "AlarmTopic": {
        "Type": "String",
        "Default": "",
        "Description": "The ARN of the SNS topic that alarms are told to; none where it is left out.",
    },
    "LogDays": {
        "Type": "Number",
        "Default": 30,
        "AllowedValues": list(LOG_DAYS),
        "Description": "For how many days logs are kept.",
    },
}


def _merged(blocks: Iterable[TemplateBlock]) -> TemplateBlock:
    found: TemplateBlock = {}
    for block in blocks:
        found |= block
    return found


def _given(parameter: str) -> TemplateBlock:
    return {"Fn::Not": [{"Fn::Equals": [{"Ref": parameter}, ""]}]}


class _Part:
    """What one application has in the template; its names there begin with the application's."""

    def __init__(self, deployment: Deployment, env: str) -> None:
        self._deployment, self._env = deployment, env
        self._name = deployment.title

    def parameters(self) -> TemplateBlock:
        """What whoever deploys it has to say."""
        found: TemplateBlock = {}
        if self._deployment.secrets:
            fields = ", ".join(f"{one.field} ({one.about})" for one in self._deployment.secrets)
            found[self._secret] = {
                "Type": "String",
                "Default": f"semel/{self._env}/{self._deployment.app}",
                "Description": f"The secret in Secrets Manager with the fields {fields}.",
            }
        for one in self._deployment.settings:
            default = {} if one.default is None else {"Default": one.default}
            found[self._name + one.parameter] = {"Type": "String", **default, "Description": one.about}
        for secret in self._deployment.secrets:
            if secret.optional:
                found[self._name + secret.optional] = _yes_or_no(secret)
        return found

    def conditions(self) -> TemplateBlock:
        """Which optional secrets there are."""
        names = dict.fromkeys(one.optional for one in self._deployment.secrets if one.optional)
        return {
            f"{self._name}{name}IsGiven": {"Fn::Equals": [{"Ref": self._name + name}, "yes"]}
            for name in names
        }

    def resources(self) -> TemplateBlock:
        """The application itself."""
        found: TemplateBlock = {}
        if self._deployment.queue is not None:
            found |= self._queues()
        if any(function.paths for function in self._deployment.functions.values()):
            found[self._api] = API
        for name, function in self._deployment.functions.items():
            found |= self._function(name, function)
        return found | alarms(self._deployment, self._env)

    def outputs(self) -> TemplateBlock:
        """Where it is reached."""
        found: TemplateBlock = {}
        for function in self._deployment.functions.values():
            for path in function.paths:
                url = f"https://${{{self._api}}}.execute-api.${{AWS::Region}}.${{AWS::URLSuffix}}{path}"
                found[self._name + camel(path)] = {"Value": {"Fn::Sub": url}}
        if self._deployment.queue is not None:
            found[f"{self._name}QueueUrl"] = {"Value": {"Ref": f"{self._name}Queue"}}
            found[f"{self._name}DeadLettersUrl"] = {"Value": {"Ref": f"{self._name}DeadLetters"}}
        return found

    @property
    def _secret(self) -> str:
        return f"{self._name}Secret"

    @property
    def _api(self) -> str:
        return f"{self._name}Api"

    # Queues

    def _queues(self) -> TemplateBlock:
        queue = self._deployment.queue or DeploymentQueue()
        longest = max(one.timeout for one in self._deployment.functions.values() if one.works)
        dead = {"Fn::GetAtt": [f"{self._name}DeadLetters", "Arn"]}
        fifo = {"FifoQueue": True, "SqsManagedSseEnabled": True}
        waiting = {
            # Groups do not wait for each other.
            "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId",
            "MessageRetentionPeriod": queue.kept,
            "VisibilityTimeout": VISIBILITY * longest,
            "RedrivePolicy": {"deadLetterTargetArn": dead, "maxReceiveCount": queue.receives},
        }
        kept = {"MessageRetentionPeriod": DEAD_KEPT}
        return {
            f"{self._name}DeadLetters": holding("AWS::SQS::Queue", fifo | kept, "Retain"),
            f"{self._name}Queue": holding("AWS::SQS::Queue", fifo | waiting, "Retain"),
        }

    # Functions

    def _function(self, name: str, function: Function) -> TemplateBlock:
        whole = self._name + name
        return {
            f"{whole}Logs": holding("AWS::Logs::LogGroup", {"RetentionInDays": {"Ref": "LogDays"}}, "Delete"),
            f"{whole}Role": self._role(whole, function),
            f"{whole}Function": {
                "Type": "AWS::Serverless::Function",
                "Properties": {
                    "Description": function.about,
                    "Handler": function.handler,
                    "Timeout": function.timeout,
                    "MemorySize": function.memory,
                    "Role": {"Fn::GetAtt": [f"{whole}Role", "Arn"]},
                    "LoggingConfig": {"LogGroup": {"Ref": f"{whole}Logs"}},
                    "Environment": {"Variables": self.variables(function)},
                    "Events": self._events(function),
                },
            },
        }

    def variables(self, function: Function) -> TemplateBlock:
        """The environment of one of its functions."""
        deployment, layout = self._deployment, self._deployment.ledger
        url = "dynamodb://${AWS::Region}" + (f"?layout={layout.name}" if layout.name != LEDGER.name else "")
        found: TemplateBlock = {"SEMEL_URL": {"Fn::Sub": url}, "SEMEL_ENV": self._env}
        for variable, one in deployment.variables(function).items():
            found[variable] = {"Ref": logical(one)} if isinstance(one, Table) else one
        if deployment.queue is not None:
            found[f"SEMEL_INBOX__{deployment.app.upper()}__QUEUE"] = {"Ref": f"{self._name}Queue"}
        if function.works:
            found[f"SEMEL_INBOX__{deployment.app.upper()}__DEAD_LETTERS"] = {
                "Ref": f"{self._name}DeadLetters"
            }
        found |= {
            one.variable: {"Ref": self._name + one.parameter}
            for one in deployment.settings
            if function.settings is None or one.parameter in function.settings
        }
        return found | {
            one.variable: self._looked_up(one) for one in deployment.secrets if one.field in function.secrets
        }

    def _looked_up(self, secret: Secret) -> TemplateBlock:
        where = f"{{{{resolve:secretsmanager:${{{self._secret}}}:SecretString:{secret.field}}}}}"
        value = {"Fn::Sub": where}
        if not secret.optional:
            return value
        return {"Fn::If": [f"{self._name}{secret.optional}IsGiven", value, {"Ref": "AWS::NoValue"}]}

    def _events(self, function: Function) -> TemplateBlock:
        found: TemplateBlock = {
            camel(path): {
                "Type": "HttpApi",
                "Properties": {"ApiId": {"Ref": self._api}, "Method": "POST", "Path": path},
            }
            for path in function.paths
        }
        queue = self._deployment.queue
        if function.works and queue is not None:
            found["Messages"] = {
                "Type": "SQS",
                "Properties": {
                    "Queue": {"Fn::GetAtt": [f"{self._name}Queue", "Arn"]},
                    "BatchSize": queue.batch,
                    # What failed comes again, and what was done with it does not.
                    "FunctionResponseTypes": ["ReportBatchItemFailures"],
                    "ScalingConfig": {"MaximumConcurrency": queue.workers},
                },
            }
        return found

    # Permissions

    def _role(self, whole: str, function: Function) -> TemplateBlock:
        document = {"Version": "2012-10-17", "Statement": self._statements(whole, function)}
        return {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "AssumeRolePolicyDocument": TRUST,
                "Policies": [{"PolicyName": "least", "PolicyDocument": document}],
            },
        }

    def _statements(self, whole: str, function: Function) -> list[TemplateBlock]:
        found = [_allow("Logs", ["logs:CreateLogStream", "logs:PutLogEvents"], f"{whole}Logs")]
        if function.sends:
            found.append(_allow("Sends", ["sqs:SendMessage"], f"{self._name}Queue"))
        if function.works:
            found.append(_allow("Works", RECEIVING, f"{self._name}Queue"))
            found.append(_allow("Buries", ["sqs:SendMessage"], f"{self._name}DeadLetters"))
        if function.gathers:
            found.append(_allow("Gathers", ["sqs:ChangeMessageVisibility"], f"{self._name}Queue"))
        return found + [_on(table, actions) for table, actions in function.may.items()]


# What Lambda asks of a queue in the function's name.
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
RECEIVING = ["sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]

TRUST: TemplateBlock = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    ],
}

API: TemplateBlock = {
    "Type": "AWS::Serverless::HttpApi",
    "Properties": {
        "FailOnWarnings": True,
        # Whoever is not let in costs little, and a burst of webhooks is let in.
        "DefaultRouteSettings": {"ThrottlingBurstLimit": 200, "ThrottlingRateLimit": 100},
    },
}


def _on(table: Table, actions: tuple[str, ...]) -> TemplateBlock:
    return _allow(logical(table), [f"dynamodb:{action}" for action in sorted(actions)], logical(table))


def _allow(sid: str, actions: list[str], resource: str) -> TemplateBlock:
    arn = {"Fn::GetAtt": [resource, "Arn"]}
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": arn}


def _yes_or_no(secret: Secret) -> TemplateBlock:
    return {
        "Type": "String",
        "Default": "no",
        "AllowedValues": ["yes", "no"],
        "Description": f"Whether the secret has the field {secret.field}, {secret.about}.",
    }
