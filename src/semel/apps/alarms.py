"""The alarms of an application: what its ledger counts, and what AWS counts about its parts."""

from typing import Any, TypeAlias

from semel.apps.deployment import Deployment, DeploymentQueue
from semel.core.events import What
from semel.provision.formats import logical
from semel.telemetry.thresholds import DUPLICATES, FEW, MOST_DUPLICATES, OFTEN, ONCE, PERIOD
from semel.telemetry.words import metric

TemplateBlock: TypeAlias = dict[str, Any]


def alarms(deployment: Deployment, env: str) -> TemplateBlock:
    """The alarms."""
    name = deployment.title
    found = ledger_alarms(deployment.app, env) | _tables(deployment)
    for function in deployment.functions:
        at = {"FunctionName": {"Ref": f"{name}{function}Function"}}
        errors, throttles = (_metric("AWS/Lambda", word, at) for word in ("Errors", "Throttles"))
        found[f"{function}ErrorsAlarm"] = _over(0, "The function failed.", errors)
        found[f"{function}ThrottlesAlarm"] = _over(0, "The function was not let run.", throttles)
    if deployment.queue is not None:
        found |= _queues(name, deployment.queue)
    return {f"{name}{suffix}": alarm for suffix, alarm in found.items()}


def ledger_alarms(service: str | TemplateBlock, env: str | TemplateBlock) -> dict[str, TemplateBlock]:
    """The alarms on what happens in a ledger; a service and an environment may be references."""

    def counted(what: What) -> TemplateBlock:
        # By the name under which semel.telemetry.emf writes it.
        return _metric("semel", metric(what), {"service": service, "env": env})

    most = {what: (0, about) for what, about in ONCE.items()} | OFTEN
    found = {f"{metric(what)}Alarm": _over(*most[what], counted(what)) for what in most}
    number = "FILL(hits, 0) + FILL(misses, 0)"
    share = f"IF({number} > {FEW}, FILL(hits, 0) / ({number}), 0)"
    both = {"hits": counted(What.REPLAYED), "misses": counted(What.CLAIMED)}
    return found | {"DuplicatesAlarm": _over(MOST_DUPLICATES, DUPLICATES, _computed("share", share, both))}


def _tables(deployment: Deployment) -> dict[str, TemplateBlock]:
    """One alarm for the tables together, as CloudWatch charges for each, and they have one remedy."""
    found = {}
    for way in ("Read", "Write"):
        metrics = {
            f"m{number}": _metric(
                "AWS/DynamoDB", f"{way}ThrottleEvents", {"TableName": {"Ref": logical(table)}}
            )
            for number, table in enumerate(deployment.tables)
        }
        about = f"{way}s of a table of {deployment.app} were throttled."
        found[f"{way}sThrottledAlarm"] = _over(0, about, _computed("all", "SUM(METRICS())", metrics))
    return found


def _queues(name: str, queue: DeploymentQueue) -> dict[str, TemplateBlock]:
    waiting, dead = (
        {"QueueName": {"Fn::GetAtt": [f"{name}{one}", "QueueName"]}} for one in ("Queue", "DeadLetters")
    )
    oldest = _metric("AWS/SQS", "ApproximateAgeOfOldestMessage", waiting, "Maximum")
    letters = _metric("AWS/SQS", "ApproximateNumberOfMessagesVisible", dead, "Maximum")
    return {
        "QueueAgeAlarm": _over(queue.late, "A message waits for too long.", oldest),
        "DeadLettersAlarm": _over(0, "There are messages that nobody could handle.", letters),
    }


def _over(most: float, about: str, metric: TemplateBlock) -> TemplateBlock:
    """An alarm that tells its topic once a metric is above a number."""
    properties = {
        "AlarmDescription": about,
        **metric,
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": most,
        "EvaluationPeriods": 1,
        # What did not happen is not written.
        "TreatMissingData": "notBreaching",
        "AlarmActions": {"Fn::If": ["HasAlarmTopic", [{"Ref": "AlarmTopic"}], {"Ref": "AWS::NoValue"}]},
    }
    return {"Type": "AWS::CloudWatch::Alarm", "Properties": properties}


def _metric(namespace: str, name: str, dimensions: dict[str, Any], statistic: str = "Sum") -> TemplateBlock:
    return {
        "Namespace": namespace,
        "MetricName": name,
        "Dimensions": [{"Name": each, "Value": value} for each, value in dimensions.items()],
        "Statistic": statistic,
        "Period": PERIOD,
    }


def _computed(id: str, expression: str, metrics: dict[str, TemplateBlock]) -> TemplateBlock:
    """A metric made from others."""
    found: list[TemplateBlock] = [{"Id": id, "Expression": expression, "ReturnData": True}]
    for name, plain in metrics.items():
        statistic, period = plain.pop("Statistic"), plain.pop("Period")
        stat = {"Metric": plain, "Period": period, "Stat": statistic}
        found.append({"Id": name, "ReturnData": False, "MetricStat": stat})
    return {"Metrics": found}
