"""The dashboard, the rules and the alarms: each file is what the code makes, and looks at what there is."""

import json
import re
import threading
from collections.abc import Iterator

import pytest
import yaml  # type: ignore[import-untyped]
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from semel import Claimed
from semel.core.events import Event, What
from semel.service.runtime import Runtime
from semel.telemetry import families
from semel.telemetry.emf import Emf
from semel.telemetry.families import MetricFamily
from semel.telemetry.thresholds import OFTEN, ONCE
from semel.telemetry.words import metric, outcome
from tests import monitoring_files as monitoring
from tests.monitoring_files import FOLDER
from tests.seeds import ROOT
from tests.servers.running import until
from tests.service.kit import client_of, opened, register

# What Prometheus adds to each series, and to the buckets of a histogram.
ADDED = {"job", "le"}
FAMILIES = [each for each in vars(families).values() if isinstance(each, MetricFamily)]


@pytest.mark.parametrize("name", monitoring.files())
def test_a_file_is_what_the_code_makes(name: str) -> None:
    written = (FOLDER / name).read_text("utf-8")
    assert written == monitoring.files()[name], "python -m tests.monitoring_files"


def test_there_is_no_other_file() -> None:
    assert {path.name for path in FOLDER.iterdir()} == monitoring.files().keys()


# What the service tells

Told = dict[str, tuple[str, set[str]]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What a service tells Prometheus: each metric by its name, with its kind and its labels."""
    with pytest.MonkeyPatch.context() as patch:
        register(patch)
        folder = tmp_path_factory.mktemp("told")
        text = f"[service]\nopen_metrics = true\n[apps.echo]\nfolder = '{folder}'"
        with opened(text, folder) as runtime, client_of(runtime) as client:
            bury(runtime, client)
            client.post("/webhooks/echo", content=b'["fine"]')
            claim = runtime.s.ledger.claim("a", on_lapsed="hold")
            assert isinstance(claim, Claimed)
            runtime.s.ledger.doubt(claim)
            runtime.metrics.refused("requests")
            return dict(metrics_in(client.get("/metrics").text))


def bury(runtime: Runtime, client: TestClient) -> None:
    """Let a message be one that nobody could handle."""
    client.post("/webhooks/echo", content=b'["bad"]')
    [echo] = runtime.apps
    worker = echo.inbox.worker(echo.app.handle, max_attempts=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert until(lambda: bool(echo.inbox.dead()) and not echo.inbox.waiting())
    worker.stop()
    thread.join(60)


def metrics_in(text: str) -> Iterator[tuple[str, tuple[str, set[str]]]]:
    for family in text_string_to_metric_families(text):
        labels = {name for sample in family.samples for name in sample.labels} - ADDED
        names = {sample.name for sample in family.samples if not sample.name.endswith("_created")}
        for name in {*names, family.name}:
            yield name, (family.type, labels)


def test_the_service_tells_every_metric_of_the_list_and_no_other(told: Told) -> None:
    listed = {family.name: (family.kind, set(family.labels)) for family in FAMILIES}
    assert {name: told.get(name) for name in listed} == listed
    known = tuple(name.removesuffix("_total") for name in listed)
    assert [name for name in told if name.startswith("semel_") and not name.startswith(known)] == []


def test_every_metric_of_the_list_is_on_the_page() -> None:
    page = (ROOT / "docs" / "how-to" / "run-the-service.md").read_text("utf-8")
    assert re.findall(r"^\| `(semel_\w+)` \|", page, re.MULTILINE) == [
        "semel_events_total",
        "semel_http_requests_total",
        "semel_http_request_seconds",
        "semel_http_in_flight",
        "semel_http_refused_total",
        *[family.name for family in FAMILIES if not family.name.startswith(("semel_http", "semel_events"))],
    ]


# What the files look at


def expressions(name: str) -> list[str]:
    """Every expression in a file."""
    text = (FOLDER / name).read_text("utf-8")
    if name.endswith(".json"):
        return [target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]]
    return [rule["expr"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


FILES = ["grafana-dashboard.json", "prometheus-alerts.yml"]


@pytest.mark.parametrize("name", FILES)
def test_every_metric_and_label_in_an_expression_is_one_that_the_service_tells(name: str, told: Told) -> None:
    for expression in expressions(name):
        used = set(re.findall(r"semel_\w+", expression))
        assert used, expression
        assert used <= told.keys(), expression
        labels = set(re.findall(r"(\w+)=~?\"", expression))
        labels |= {one for by in re.findall(r"by \(([^)]*)\)", expression) for one in by.split(", ")}
        for metric_name in used:
            assert labels - ADDED <= told[metric_name][1], expression


def test_outcomes_in_expressions_are_those_of_events() -> None:
    known = set(map(outcome, What))
    for expression in (each for name in FILES for each in expressions(name)):
        for values in re.findall(r"outcome=~?\"([^\"]+)\"", expression):
            assert set(values.split("|")) <= known, expression


def test_the_dashboard_shows_every_metric() -> None:
    shown = " ".join(expressions("grafana-dashboard.json"))
    assert [family.name for family in FAMILIES if family.name not in shown] == []


def test_no_panel_lies_on_another() -> None:
    panels = json.loads((FOLDER / "grafana-dashboard.json").read_text("utf-8"))["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_what_somebody_has_to_look_at_is_watched_in_both() -> None:
    rules = yaml.safe_load((FOLDER / "prometheus-alerts.yml").read_text("utf-8"))["groups"][0]["rules"]
    alarms = yaml.safe_load((FOLDER / "cloudwatch-alarms.yml").read_text("utf-8"))["Resources"]
    for what in (*ONCE, *OFTEN):
        [rule] = [rule for rule in rules if rule["alert"] == f"Semel{metric(what)}"]
        summary = alarms[f"{metric(what)}Alarm"]["Properties"]["AlarmDescription"]
        assert rule["annotations"]["summary"] == summary


def test_an_alarm_looks_at_a_metric_that_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    emf = Emf(service="orders", env="prod")
    for what in What:
        emf(Event(what, "0123456789abcdef", 1))
    emf.flush()
    document = json.loads(capsys.readouterr().out)
    [directive] = document["_aws"]["CloudWatchMetrics"]
    resources = yaml.safe_load((FOLDER / "cloudwatch-alarms.yml").read_text("utf-8"))["Resources"]
    for alarm in (one["Properties"] for one in resources.values()):
        queries = [one["MetricStat"]["Metric"] for one in alarm.get("Metrics", []) if "MetricStat" in one]
        for watched in queries or [alarm]:
            assert watched["Namespace"] == directive["Namespace"]
            assert watched["MetricName"] in document
            assert [one["Name"] for one in watched["Dimensions"]] in directive["Dimensions"]


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs" / "how-to" / "watch-what-happens.md").read_text("utf-8")
    assert [name for name in monitoring.files() if f"(../telemetry/{name})" not in page] == []
