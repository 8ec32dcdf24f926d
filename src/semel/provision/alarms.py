"""The alarms of an application: what its ledger counts, and what AWS counts about its parts."""

from typing import Any, TypeAlias

from semel.core.events import What
from semel.provision.cloudformation import logical
from semel.provision.deployment import Deployment, DeploymentQueue
from semel.telemetry.thresholds import DUPLICATES, FEW, MOST_DUPLICATES, OFTEN, ONCE, PERIOD
from semel.telemetry.words import metric

TemplateBlock: TypeAlias = dict[str, Any]

NAMESPACE = "semel"


def alarms(deployment: Deployment, env: str) -> TemplateBlock:
    """The alarms."""
    name, found = deployment.title, _tables(deployment)
    for function in deployment.functions:
        of_function = _functions(f"{name}{function}")
        found |= {f"{function}{suffix}": alarm for suffix, alarm in of_function.items()}
    if deployment.queue is not None:
        found |= _queues(name, deployment.queue)
    found = ledger_alarms(deployment.app, env) | {what: _notifying(alarm) for what, alarm in found.items()}
    return {f"{name}{suffix}": alarm for suffix, alarm in found.items()}


def _notifying(alarm: TemplateBlock) -> TemplateBlock:
    topics = {"Fn::If": ["HasAlarmTopic", [{"Ref": "AlarmTopic"}], {"Ref": "AWS::NoValue"}]}
    # What did not happen is not written.
    properties = alarm | {"EvaluationPeriods": 1, "TreatMissingData": "notBreaching", "AlarmActions": topics}
    return {"Type": "AWS::CloudWatch::Alarm", "Properties": properties}


# By the names under which semel.telemetry.emf writes them


def ledger_alarms(service: str | TemplateBlock, env: str | TemplateBlock) -> dict[str, TemplateBlock]:
    """The alarms on what happens in a ledger; a service and an environment may be references."""
    dimensions = {"service": service, "env": env}
    found = {
        f"{metric(what)}Alarm": _over(0, about, _metric(NAMESPACE, metric(what), dimensions))
        for what, about in ONCE.items()
    }
    for what, (most, about) in OFTEN.items():
        found[f"{metric(what)}Alarm"] = _over(most, about, _metric(NAMESPACE, metric(what), dimensions))
    found["DuplicatesAlarm"] = _duplicates(dimensions)
    return {suffix: _notifying(alarm) for suffix, alarm in found.items()}


def _duplicates(dimensions: dict[str, str | TemplateBlock]) -> TemplateBlock:
    hits, misses = metric(What.REPLAYED), metric(What.CLAIMED)
    number = "FILL(hits, 0) + FILL(misses, 0)"
    share = f"IF({number} > {FEW}, FILL(hits, 0) / ({number}), 0)"
    return {
        "AlarmDescription": DUPLICATES,
        "Metrics": [
            {"Id": "share", "Expression": share, "ReturnData": True},
            _query("hits", _metric(NAMESPACE, hits, dimensions)),
            _query("misses", _metric(NAMESPACE, misses, dimensions)),
        ],
        **_above(MOST_DUPLICATES),
    }


# By AWS


def _functions(whole: str) -> dict[str, TemplateBlock]:
    dimensions = {"FunctionName": {"Ref": f"{whole}Function"}}
    return {
        "ErrorsAlarm": _over(0, "The function failed.", _metric("AWS/Lambda", "Errors", dimensions)),
        "ThrottlesAlarm": _over(
            0, "The function was not let run.", _metric("AWS/Lambda", "Throttles", dimensions)
        ),
    }


def _tables(deployment: Deployment) -> dict[str, TemplateBlock]:
    """One alarm for the tables together, as CloudWatch charges for each, and they have one remedy."""
    found = {}
    for way, about in (("Read", "Reads"), ("Write", "Writes")):
        queries = [
            _query(
                f"m{number}",
                _metric("AWS/DynamoDB", f"{way}ThrottleEvents", {"TableName": {"Ref": logical(table)}}),
            )
            for number, table in enumerate(deployment.tables)
        ]
        found[f"{way}sThrottledAlarm"] = {
            "AlarmDescription": f"{about} of a table of {deployment.app} were throttled.",
            "Metrics": [{"Id": "all", "Expression": "SUM(METRICS())", "ReturnData": True}, *queries],
            **_above(0),
        }
    return found


def _queues(name: str, queue: DeploymentQueue) -> dict[str, TemplateBlock]:
    waiting = {"QueueName": {"Fn::GetAtt": [f"{name}Queue", "QueueName"]}}
    dead = {"QueueName": {"Fn::GetAtt": [f"{name}DeadLetters", "QueueName"]}}
    oldest = _metric("AWS/SQS", "ApproximateAgeOfOldestMessage", waiting, "Maximum")
    letters = _metric("AWS/SQS", "ApproximateNumberOfMessagesVisible", dead, "Maximum")
    return {
        "QueueAgeAlarm": _over(queue.late, "A message waits for too long.", oldest),
        "DeadLettersAlarm": _over(0, "There are messages that nobody could handle.", letters),
    }


def _over(most: float, about: str, metric: TemplateBlock) -> TemplateBlock:
    return {"AlarmDescription": about, **metric, **_above(most)}


def _above(most: float) -> TemplateBlock:
    return {"ComparisonOperator": "GreaterThanThreshold", "Threshold": most}


def _metric(namespace: str, name: str, dimensions: dict[str, Any], statistic: str = "Sum") -> TemplateBlock:
    return {
        "Namespace": namespace,
        "MetricName": name,
        "Dimensions": [{"Name": each, "Value": value} for each, value in dimensions.items()],
        "Statistic": statistic,
        "Period": PERIOD,
    }


def _query(id: str, metric: TemplateBlock) -> TemplateBlock:
    plain = metric.copy()
    statistic, period = plain.pop("Statistic"), plain.pop("Period")
    return {
        "Id": id,
        "ReturnData": False,
        "MetricStat": {"Metric": plain, "Period": period, "Stat": statistic},
    }
