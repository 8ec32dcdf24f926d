"""The files in docs/telemetry: `python -m tests.monitoring_files` writes them.

A dashboard for Grafana, rules for Prometheus and alarms for CloudWatch, from one list of metrics.
"""

import json
from typing import Any, Final, TypeAlias

import msgspec

from semel.apps.alarms import TemplateBlock, ledger_alarms
from semel.core.events import What
from semel.provision.formats import VERSION, yaml
from semel.telemetry import families
from semel.telemetry.families import MetricFamily
from semel.telemetry.thresholds import DUPLICATES, FEW, MOST_DUPLICATES, OFTEN, ONCE, PERIOD
from semel.telemetry.words import metric, outcome
from tests.seeds import ROOT

FOLDER = ROOT / "docs" / "telemetry"

# Whose alerts and panels they are: a job of Prometheus is one deployment of the service.
JOB: Final = "job"
# The outcomes of calls that were given a result, the first time or again.
CALLS: Final = f"{outcome(What.CLAIMED)}|{outcome(What.REPLAYED)}"
HEADER: Final = "# Made by semel from its list of metrics. {about}\n"


def files() -> dict[str, str]:
    """All of them, by the names of their files."""
    return {
        "grafana-dashboard.json": json.dumps(dashboard(), indent=2) + "\n",
        "prometheus-alerts.yml": _yaml(rules(), "Name it under rule_files in prometheus.yml."),
        "cloudwatch-alarms.yml": _yaml(alarms(), "Service and Env are what the program gives to Emf."),
    }


def _yaml(document: Any, about: str) -> str:
    return HEADER.format(about=about) + yaml(document)


# Prometheus


class Alert(msgspec.Struct, frozen=True):
    """An alert of Prometheus."""

    name: str
    expression: str
    about: str
    severity: str = "warning"
    lasting: str = ""
    """For how long it must hold before somebody is told, such as "5m"."""

    def rule(self) -> dict[str, Any]:
        """The alert as it stands in a file of rules."""
        told = {"alert": f"Semel{self.name}", "expr": self.expression}
        held = {"for": self.lasting} if self.lasting else {}
        return told | held | {"labels": {"severity": self.severity}, "annotations": {"summary": self.about}}


def rules() -> dict[str, Any]:
    """The rules."""
    return {"groups": [{"name": "semel", "rules": [alert.rule() for alert in alerts()]}]}


def alerts() -> list[Alert]:
    """Every alert: on what happened, and on what waits."""
    happened = [
        Alert(metric(what), f"{_events(what)} > 0", about, severity="critical")
        for what, about in ONCE.items()
    ]
    happened += [
        Alert(metric(what), f"{_events(what)} > {most}", about) for what, (most, about) in OFTEN.items()
    ]
    return [*happened, _duplicates(), *_waiting(), *_http()]


def _duplicates() -> Alert:
    hits = _increase(families.EVENTS, f'{{outcome="{outcome(What.REPLAYED)}"}}', JOB)
    both = _increase(families.EVENTS, f'{{outcome=~"{outcome(What.REPLAYED)}|{outcome(What.CLAIMED)}"}}', JOB)
    return Alert("Duplicates", f"{hits} / {both} > {MOST_DUPLICATES} and {both} > {FEW}", DUPLICATES)


def _waiting() -> list[Alert]:
    return [
        Alert("Doubts", f"{_largest(families.LEDGER_DOUBTS)} > 0", "Keys wait to be settled.", lasting="5m"),
        Alert(
            "DeadLetters",
            f"{_largest(families.INBOX_DEAD)} > 0",
            "There are messages that nobody could handle.",
            lasting="5m",
        ),
        Alert("InboxAge", f"{_largest(families.INBOX_OLDEST)} > 900", "A message waits for too long."),
    ]


def _http() -> list[Alert]:
    failed = _increase(families.HTTP_REQUESTS, '{status=~"5.."}', f"{JOB}, route")
    refused = _increase(families.HTTP_REFUSED, "", f"{JOB}, budget")
    return [
        Alert("HttpErrors", f"{failed} > 5", "Requests were answered with an error of the service."),
        Alert("HttpRefused", f"{refused} > 5", "Requests were refused, since a limit was reached."),
    ]


def _events(what: What) -> str:
    # By outcome, as CloudWatch counts: what failed after its last attempt failed too.
    return _increase(families.EVENTS, f'{{outcome="{outcome(what)}"}}', f"{JOB}, door")


def _increase(family: MetricFamily, labels: str, by: str) -> str:
    return f"sum by ({by}) (increase({family.name}{labels}[{PERIOD // 60}m]))"


def _largest(family: MetricFamily) -> str:
    # Every process of one store tells the same.
    return f"max by ({', '.join((JOB, *family.labels))}) ({family.name})"


# CloudWatch


def alarms() -> TemplateBlock:
    """The alarms on events that `semel.telemetry.emf` writes, as a template of their own."""
    return {
        "AWSTemplateFormatVersion": VERSION,
        "Description": "Alarms on a ledger of semel",
        "Parameters": {
            "Service": {"Type": "String", "Description": "The service, as the program calls itself."},
            "Env": {"Type": "String", "Description": "The environment, as the program calls it."},
            "AlarmTopic": {
                "Type": "String",
                "Default": "",
                "Description": "The ARN of an SNS topic that is told; none unless it is given.",
            },
        },
        "Conditions": {"HasAlarmTopic": {"Fn::Not": [{"Fn::Equals": [{"Ref": "AlarmTopic"}, ""]}]}},
        "Resources": ledger_alarms({"Ref": "Service"}, {"Ref": "Env"}),
    }


# Grafana

Target: TypeAlias = tuple[str, str]
"""An expression, and what its series are called."""

WIDTH: Final = 24


class Panel(msgspec.Struct, frozen=True):
    """A panel of a dashboard."""

    title: str
    targets: tuple[Target, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8


def dashboard() -> dict[str, Any]:
    """The dashboard, which asks for its data source and its jobs as it is opened."""
    return {
        "uid": "semel",
        "title": "semel",
        "tags": ["semel"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": _placed(panels()),
    }


def panels() -> list[Panel]:
    """Every panel, from what needs somebody to how the service is."""
    return [*_now(), *_ledger(), *_inboxes(), *_requests()]


def _now() -> list[Panel]:
    shown = [
        ("Keys in doubt", _sum(families.LEDGER_DOUBTS), "short"),
        ("Oldest doubt", _oldest(families.LEDGER_DOUBTS_OLDEST), "s"),
        ("Dead letters", _sum(families.INBOX_DEAD), "short"),
        ("Oldest dead letter", _oldest(families.INBOX_DEAD_OLDEST), "s"),
        ("Oldest message", _oldest(families.INBOX_OLDEST), "s"),
        ("Requests under way", f"sum({_of_job(families.HTTP_IN_FLIGHT.name)})", "short"),
    ]
    return [
        Panel(title, ((expression, ""),), unit, "stat", width=4, height=4)
        for title, expression, unit in shown
    ]


def _ledger() -> list[Panel]:
    events = families.EVENTS.name
    watched, often = ("|".join(map(outcome, whats)) for whats in (ONCE, OFTEN))
    hits = _rate(events, f'outcome="{outcome(What.REPLAYED)}"')
    news = _rate(events, f'outcome="{outcome(What.CLAIMED)}"')
    return [
        Panel("What happened, by outcome", ((_rate(events, by="outcome"), "{{outcome}}"),), "ops"),
        Panel("Share of duplicates", ((f"{hits} / ({hits} + {news})", "duplicates"),), "percentunit"),
        Panel("For somebody to look at", ((_counted(f'outcome=~"{watched}"'), "{{outcome}}"),)),
        Panel("Failures and the store", ((_counted(f'outcome=~"{often}"'), "{{outcome}}"),)),
        Panel("Calls, by door", ((_rate(events, f'outcome=~"{CALLS}"', by="door"), "{{door}}"),), "ops"),
        Panel("Keys in doubt, by scope", ((_by(families.LEDGER_DOUBTS), "{{scope}}"),)),
    ]


def _inboxes() -> list[Panel]:
    return [
        Panel("Messages that wait", ((_by(families.INBOX_WAITING), "{{app}}"),)),
        Panel("How long the oldest has waited", ((_by(families.INBOX_OLDEST), "{{app}}"),), "s"),
    ]


def _requests() -> list[Panel]:
    buckets = _rate(f"{families.HTTP_SECONDS.name}_bucket", by="le")
    quantiles = tuple(
        (f"histogram_quantile({part}, {buckets})", f"p{part * 100:g}") for part in (0.5, 0.95, 0.99)
    )
    return [
        Panel(
            "Requests, by status", ((_rate(families.HTTP_REQUESTS.name, by="status"), "{{status}}"),), "reqps"
        ),
        Panel("How long answers took", quantiles, "s"),
        Panel(
            "Requests refused, by limit",
            ((_rate(families.HTTP_REFUSED.name, by="budget"), "{{budget}}"),),
            "reqps",
        ),
        Panel(
            "Errors, by route",
            ((_rate(families.HTTP_REQUESTS.name, 'status=~"5.."', by="route"), "{{route}}"),),
            "reqps",
        ),
    ]


def _of_job(name: str, labels: str = "") -> str:
    chosen = f'{JOB}=~"$job"'
    return f"{name}{{{chosen}, {labels}}}" if labels else f"{name}{{{chosen}}}"


def _rate(name: str, labels: str = "", by: str = "") -> str:
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (rate({_of_job(name, labels)}[$__rate_interval]))"


def _counted(labels: str) -> str:
    return f"sum by (outcome) (increase({_of_job(families.EVENTS.name, labels)}[$__rate_interval]))"


def _by(family: MetricFamily) -> str:
    return f"max by ({', '.join(family.labels)}) ({_of_job(family.name)})"


def _sum(family: MetricFamily) -> str:
    return f"sum({_by(family)})"


def _oldest(family: MetricFamily) -> str:
    return f"max({_of_job(family.name)})"


def _variables() -> list[dict[str, Any]]:
    jobs = f"label_values({families.EVENTS.name}, {JOB})"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "job",
            "type": "query",
            "label": "Job",
            "datasource": SOURCE,
            "definition": jobs,
            "query": {"query": jobs, "refId": "jobs"},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]


SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def _placed(panels: list[Panel]) -> list[dict[str, Any]]:
    """The panels side by side, and below each other where a row is full."""
    placed, x, y, height = list[dict[str, Any]](), 0, 0, 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > WIDTH:
            x, y, height = 0, y + height, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        placed.append({"id": number, "gridPos": place} | _shown(panel))
        x, height = x + panel.width, max(height, panel.height)
    return placed


def _shown(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": SOURCE,
                "expr": expression,
                "legendFormat": legend,
            }
            for number, (expression, legend) in enumerate(panel.targets)
        ],
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
