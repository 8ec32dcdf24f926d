"""Applications as a SAM template: everything that `Deployment` values say, with the least permissions.

Nothing in it is a wildcard, and no secret is in it: those are fields of secrets in Secrets Manager, which
CloudFormation looks up by name when it makes the functions.
"""

from collections.abc import Iterable
from typing import Any

from semel.apps.alarms import TemplateBlock, alarms
from semel.apps.deployment import Deployment, DeploymentQueue, Function, Secret, camel
from semel.apps.settings import variable
from semel.provision import formats
from semel.provision.formats import TRANSFORM, VERSION, holding, logical
from semel.provision.shape import title_variables
from semel.tables import LEDGER

CODE = "function/"
FUNCTION: dict[str, Any] = {"Runtime": "python3.13", "Architectures": ["x86_64"], "CodeUri": CODE}

# Lambda's own advice: a message that an invocation has in hand must not be given to another one.
# https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-configure.html
VISIBILITY = 6
# What Lambda asks of a queue in the function's name, by the same page.
RECEIVING = ["sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]
# As long as SQS keeps a message at most, so that there is time to look at it.
DEAD_KEPT = 14 * 86400

HEADER = """\
# {apps} for environment {env}, on AWS.
#
# The folder {code} holds a requirements.txt with {requires}.
# Before: one secret for each application, as its parameter says. Then: sam build && sam deploy --guided
# After, as no template can stamp tables: semel provision --app {app} --env {env} --url dynamodb://REGION
"""

COMMON: TemplateBlock = {
    "AlarmTopic": {
        "Type": "String",
        "Default": "",
        "Description": "The ARN of the SNS topic that alarms are told to; none where it is left out.",
    },
    "LogDays": {
        "Type": "Number",
        "Default": 30,
        "AllowedValues": [1, 3, 5, 7, 14, 30, 60, 90, 180, 365],
        "Description": "For how many days logs are kept.",
    },
}
HAS_TOPIC: TemplateBlock = {"HasAlarmTopic": {"Fn::Not": [{"Fn::Equals": [{"Ref": "AlarmTopic"}, ""]}]}}

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
    return head + formats.yaml(template(listed, env))


def template(deployments: Iterable[Deployment], env: str) -> TemplateBlock:
    """The template."""
    listed = tuple(deployments)
    found: TemplateBlock = {
        "AWSTemplateFormatVersion": VERSION,
        "Transform": TRANSFORM,
        "Description": f"{', '.join(one.app for one in listed)} of semel for environment {env}",
        "Parameters": {},
        "Conditions": {},
        "Globals": {"Function": FUNCTION},
        "Resources": {logical(table): formats.resource(table, env) for one in listed for table in one.tables},
        "Outputs": {},
    }
    for one in listed:
        part = _Part(one, env)
        found["Parameters"] |= part.parameters()
        found["Conditions"] |= part.conditions()
        found["Resources"] |= part.resources() | alarms(one, env)
        found["Outputs"] |= part.outputs()
    found["Parameters"] |= COMMON
    found["Conditions"] |= HAS_TOPIC
    return found


class _Part:
    """What one application has in the template; its names there begin with the application's."""

    def __init__(self, deployment: Deployment, env: str) -> None:
        self._deployment, self._env = deployment, env
        self._name = name = deployment.title
        self._secret, self._api = f"{name}Secret", f"{name}Api"
        self._queue, self._dead = f"{name}Queue", f"{name}DeadLetters"

    def parameters(self) -> TemplateBlock:
        """What whoever deploys it has to say."""
        deployment, found = self._deployment, TemplateBlock()
        if deployment.secrets:
            fields = ", ".join(f"{one.field} ({one.about})" for one in deployment.secrets)
            about = f"The secret in Secrets Manager with the fields {fields}."
            found[self._secret] = _parameter(about, f"semel/{self._env}/{deployment.app}")
        for setting in deployment.settings:
            found[self._name + setting.parameter] = _parameter(setting.about, setting.default)
        for one in deployment.secrets:
            if one.optional:
                about = f"Whether the secret has the field {one.field}, {one.about}."
                found[self._name + one.optional] = _parameter(about, "no", AllowedValues=["yes", "no"])
        return found

    def conditions(self) -> TemplateBlock:
        """Which optional secrets there are."""
        names = [self._name + one.optional for one in self._deployment.secrets if one.optional]
        return {f"{name}IsGiven": {"Fn::Equals": [{"Ref": name}, "yes"]} for name in names}

    def resources(self) -> TemplateBlock:
        """The application itself."""
        deployment = self._deployment
        found = {} if deployment.queue is None else self._queues(deployment.queue)
        if any(function.paths for function in deployment.functions.values()):
            found[self._api] = API
        for name, function in deployment.functions.items():
            found |= self._function(self._name + name, function)
        return found

    def outputs(self) -> TemplateBlock:
        """Where it is reached."""
        paths = [path for function in self._deployment.functions.values() for path in function.paths]
        base = f"https://${{{self._api}}}.execute-api.${{AWS::Region}}.${{AWS::URLSuffix}}"
        found = {self._name + camel(path): {"Value": {"Fn::Sub": base + path}} for path in paths}
        queues = () if self._deployment.queue is None else (self._queue, self._dead)
        return found | {f"{queue}Url": {"Value": {"Ref": queue}} for queue in queues}

    def _queues(self, queue: DeploymentQueue) -> TemplateBlock:
        longest = max(one.timeout for one in self._deployment.functions.values() if one.works)
        fifo = {"FifoQueue": True, "SqsManagedSseEnabled": True}
        waiting = {
            # Groups do not wait for each other.
            "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId",
            "MessageRetentionPeriod": queue.kept,
            "VisibilityTimeout": VISIBILITY * longest,
            "RedrivePolicy": {"deadLetterTargetArn": _arn(self._dead), "maxReceiveCount": queue.receives},
        }
        dead = {"MessageRetentionPeriod": DEAD_KEPT}
        return {
            self._dead: holding("AWS::SQS::Queue", fifo | dead, "Retain"),
            self._queue: holding("AWS::SQS::Queue", fifo | waiting, "Retain"),
        }

    def _function(self, whole: str, function: Function) -> TemplateBlock:
        logs, role = f"{whole}Logs", f"{whole}Role"
        document = {"Version": "2012-10-17", "Statement": self._statements(logs, function)}
        return {
            logs: holding("AWS::Logs::LogGroup", {"RetentionInDays": {"Ref": "LogDays"}}, "Delete"),
            role: {
                "Type": "AWS::IAM::Role",
                "Properties": {
                    "AssumeRolePolicyDocument": TRUST,
                    "Policies": [{"PolicyName": "least", "PolicyDocument": document}],
                },
            },
            f"{whole}Function": {
                "Type": "AWS::Serverless::Function",
                "Properties": {
                    "Description": function.about,
                    "Handler": function.handler,
                    "Timeout": function.timeout,
                    "MemorySize": function.memory,
                    "Role": _arn(role),
                    "LoggingConfig": {"LogGroup": {"Ref": logs}},
                    "Environment": {"Variables": self._variables(function)},
                    "Events": self._events(function),
                },
            },
        }

    def _variables(self, function: Function) -> TemplateBlock:
        """The environment of a function."""
        deployment, layout = self._deployment, self._deployment.ledger.name
        inbox = f"SEMEL_INBOX__{deployment.app.upper()}__"
        url = "dynamodb://${AWS::Region}" + (f"?layout={layout}" if layout != LEDGER.name else "")
        found: TemplateBlock = {"SEMEL_URL": {"Fn::Sub": url}, "SEMEL_ENV": self._env}
        names = title_variables(function.may)
        for name, table in deployment.own().items():
            if table.name in deployment.titles and table in function.may:
                names[variable(deployment.app, f"tables__{name}")] = table
        found |= {name: {"Ref": logical(table)} for name, table in names.items()}
        found |= {variable(deployment.app, name): "false" for name in deployment.off}
        if deployment.queue is not None:
            found[f"{inbox}QUEUE"] = {"Ref": self._queue}
        if function.works:
            found[f"{inbox}DEAD_LETTERS"] = {"Ref": self._dead}
        for setting in deployment.settings:
            if function.settings is None or setting.parameter in function.settings:
                found[setting.variable] = {"Ref": self._name + setting.parameter}
        secrets = [one for one in deployment.secrets if one.field in function.secrets]
        return found | {one.variable: self._looked_up(one) for one in secrets}

    def _looked_up(self, secret: Secret) -> TemplateBlock:
        value = {"Fn::Sub": f"{{{{resolve:secretsmanager:${{{self._secret}}}:SecretString:{secret.field}}}}}"}
        if not secret.optional:
            return value
        return {"Fn::If": [f"{self._name}{secret.optional}IsGiven", value, {"Ref": "AWS::NoValue"}]}

    def _events(self, function: Function) -> TemplateBlock:
        api, found = {"ApiId": {"Ref": self._api}, "Method": "POST"}, TemplateBlock()
        for path in function.paths:
            found[camel(path)] = {"Type": "HttpApi", "Properties": api | {"Path": path}}
        if function.works and (queue := self._deployment.queue) is not None:
            source = {
                "Queue": _arn(self._queue),
                "BatchSize": queue.batch,
                # What failed comes again, and what was done with it does not.
                "FunctionResponseTypes": ["ReportBatchItemFailures"],
                "ScalingConfig": {"MaximumConcurrency": queue.workers},
            }
            found["Messages"] = {"Type": "SQS", "Properties": source}
        return found

    def _statements(self, logs: str, function: Function) -> list[TemplateBlock]:
        """The least that a function has to be allowed."""
        found = [_allow("Logs", logs, "logs:CreateLogStream", "logs:PutLogEvents")]
        if function.sends:
            found.append(_allow("Sends", self._queue, "sqs:SendMessage"))
        if function.works:
            found.append(_allow("Works", self._queue, *RECEIVING))
            found.append(_allow("Buries", self._dead, "sqs:SendMessage"))
        if function.gathers:
            found.append(_allow("Gathers", self._queue, "sqs:ChangeMessageVisibility"))
        for table, actions in function.may.items():
            found.append(
                _allow(logical(table), logical(table), *(f"dynamodb:{one}" for one in sorted(actions)))
            )
        return found


def _parameter(about: str, default: str | None, **more: list[str]) -> TemplateBlock:
    given = {} if default is None else {"Default": default}
    return {"Type": "String", **given, **more, "Description": about}


def _arn(name: str) -> TemplateBlock:
    return {"Fn::GetAtt": [name, "Arn"]}


def _allow(sid: str, resource: str, *actions: str) -> TemplateBlock:
    return {"Sid": sid, "Effect": "Allow", "Action": [*actions], "Resource": _arn(resource)}
