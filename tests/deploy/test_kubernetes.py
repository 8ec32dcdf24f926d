"""The manifests for Kubernetes: they have its form, agree with the image, and ask what is answered."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]

from semel.apps.configuration import gather
from semel.cli.app import app
from semel.service.settings import ServiceSection, ServiceSettings, settings
from tests.apps.kit import Service
from tests.deploy.image import DEPLOY, instructions, settings_of
from tests.servers.absence import served
from tests.servers.running import Unavailable

KUBERNETES = DEPLOY / "kubernetes"
BASE, EXAMPLE = KUBERNETES / "base", KUBERNETES / "example"
KUSTOMIZATION = "kustomization.yaml"
MANIFESTS = [file for file in sorted(KUBERNETES.rglob("*.yaml")) if file.name != KUSTOMIZATION]
# The oldest whose pods can sleep before they stop without asking for it, and the newest that is known here.
VERSIONS = ("1.30", kubernetes_validate.latest_version())


def loaded(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def pod(name: str) -> Any:
    return loaded(BASE / name)["spec"]["template"]


DEPLOYMENT, JOB = pod("deployment.yaml"), pod("provision.yaml")
[CONTAINER], [PROVISION] = DEPLOYMENT["spec"]["containers"], JOB["spec"]["containers"]
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


# Their form


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_it_has_the_form_that_kubernetes_gives(file: Path, version: str) -> None:
    kubernetes_validate.validate(loaded(file), version, strict=True)


def test_a_name_that_kubernetes_does_not_know_is_found() -> None:
    wrong = loaded(BASE / "deployment.yaml")
    wrong["spec"]["template"]["spec"]["terminationGraceSeconds"] = 45
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGraceSeconds"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_every_file_is_applied_but_the_secret_that_shows_the_form() -> None:
    files = {file.name for file in BASE.glob("*.yaml")} - {KUSTOMIZATION}
    assert set(loaded(BASE / KUSTOMIZATION)["resources"]) == files
    assert loaded(EXAMPLE / KUSTOMIZATION)["resources"] == ["../base"]


@contextmanager
def kubectl() -> Iterator[list[str]]:
    """kubectl, for what it does without a cluster."""
    found = shutil.which("kubectl")
    if found is None:
        raise Unavailable("kubectl: no registry of packages has it")
    yield [found]


@pytest.mark.parametrize("folder", [BASE, EXAMPLE], ids=lambda folder: folder.name)
def test_kustomize_puts_them_together(folder: Path, tmp_path: Path) -> None:
    with served(kubectl, required=False) as program:
        env = {"PATH": os.defpath, "HOME": str(tmp_path), "KUBECONFIG": os.devnull}
        built = subprocess.run(
            [*program, "kustomize", folder], env=env, capture_output=True, text=True, check=False
        )
    assert built.returncode == 0, built.stderr
    made = list(yaml.safe_load_all(built.stdout))
    for one in made:
        kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
    kinds = {one["kind"]: one for one in made}
    assert len(kinds) == len(made) == 6
    mounted = kinds["Deployment"]["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
    assert mounted == kinds["ConfigMap"]["metadata"]["name"]
    assert re.fullmatch(r"semel-settings-\w{10}", mounted)
    assert kinds["ConfigMap"]["data"]["semel.toml"] == (folder / "semel.toml").read_text()


# What has to agree


def test_whatever_selects_pods_selects_those_of_the_service_and_not_the_job() -> None:
    labels, others = DEPLOYMENT["metadata"]["labels"], JOB["metadata"]["labels"]
    budget = loaded(BASE / "disruption.yaml")["spec"]["selector"]["matchLabels"]
    [spread] = DEPLOYMENT["spec"]["topologySpreadConstraints"]
    selectors = [
        loaded(BASE / "deployment.yaml")["spec"]["selector"]["matchLabels"],
        loaded(BASE / "service.yaml")["spec"]["selector"],
        spread["labelSelector"]["matchLabels"],
        budget,
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not selector.items() <= others.items()


def test_ports_and_user_are_those_of_the_image() -> None:
    image = dict(instructions(DEPLOY / "Dockerfile"))
    [port] = CONTAINER["ports"]
    assert str(port["containerPort"]) == image["EXPOSE"]
    assert settings_of(DEPLOY / "Dockerfile")["SEMEL_SERVICE__PORT"] == image["EXPOSE"]
    [service] = loaded(BASE / "service.yaml")["spec"]["ports"]
    assert {service["targetPort"], *(CONTAINER[probe]["httpGet"]["port"] for probe in PROBES)} == {
        port["name"]
    }
    for one in (DEPLOYMENT, JOB):
        context = one["spec"]["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == image["USER"]
        assert context["fsGroup"] == context["runAsGroup"]  # by which it reads its secrets


@pytest.mark.parametrize("container", [CONTAINER, PROVISION], ids=lambda container: container["name"])
def test_it_may_do_what_the_strictest_standard_for_pods_lets_it(container: Any) -> None:
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for one in (DEPLOYMENT, JOB):
        assert one["spec"]["securityContext"]["runAsNonRoot"] is True
        assert one["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert one["spec"]["automountServiceAccountToken"] is False


def test_both_have_the_same_settings_and_secrets() -> None:
    assert CONTAINER["env"] == PROVISION["env"]
    assert all(mount in CONTAINER["volumeMounts"] for mount in PROVISION["volumeMounts"])
    assert all(volume in DEPLOYMENT["spec"]["volumes"] for volume in JOB["spec"]["volumes"])
    mounted = {mount["mountPath"] for mount in PROVISION["volumeMounts"]}
    named = {each["name"]: each["value"] for each in CONTAINER["env"]}
    assert {str(Path(named["SEMEL_CONFIG"]).parent), named["SEMEL_SECRETS_DIR"]} == mounted


def test_a_pod_is_given_longer_to_stop_than_it_takes() -> None:
    before = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert DEPLOYMENT["spec"]["terminationGracePeriodSeconds"] > before + ServiceSection().stop_timeout


def test_the_kubelet_waits_for_an_answer_longer_than_the_service_waits_for_its_store() -> None:
    assert CONTAINER["readinessProbe"]["timeoutSeconds"] > ServiceSection().ready_timeout


def test_no_pod_has_to_be_the_only_one() -> None:
    """A budget lets a node be drained if there are two; the autoscaler sees to that."""
    assert loaded(BASE / "autoscaler.yaml")["spec"]["minReplicas"] >= 2
    assert "replicas" not in loaded(BASE / "deployment.yaml")["spec"]


# Settings and secrets


@pytest.mark.parametrize("file", sorted(DEPLOY.rglob("semel.toml")), ids=lambda file: file.parent.name)
def test_the_settings_and_the_secret_make_a_whole(file: Path, tmp_path: Path) -> None:
    for name, value in loaded(EXAMPLE / "secret.example.yaml")["stringData"].items():
        (tmp_path / name).write_text(value)
    chosen = settings(gather(str(file), {"SEMEL_SECRETS_DIR": str(tmp_path)}))
    assert chosen.semel.url.startswith("postgresql://")
    assert chosen.semel.secret
    assert {name for name, token in chosen.tokens.items() if token.token} == {"shop", "ops"}


def test_what_kubernetes_puts_into_the_environment_for_a_service_named_semel_sets_nothing() -> None:
    """Pods have that unless `enableServiceLinks` is off, as it is here."""
    links = {
        "SEMEL_PORT": "tcp://10.0.0.1:80",
        "SEMEL_PORT_80_TCP": "tcp://10.0.0.1:80",
        "SEMEL_PORT_80_TCP_ADDR": "10.0.0.1",
        "SEMEL_SERVICE_HOST": "10.0.0.1",
        "SEMEL_SERVICE_PORT": "80",
        "SEMEL_SERVICE_PORT_HTTP": "80",
    }
    assert settings(gather(None, links)) == ServiceSettings()
    assert DEPLOYMENT["spec"]["enableServiceLinks"] is False


# Probes


def test_the_service_answers_what_the_probes_ask(tmp_path: Path) -> None:
    """Without its store it is alive and not ready, so that no pod is started anew for that."""
    paths = {probe: CONTAINER[probe]["httpGet"]["path"] for probe in PROBES}

    def asked(service: Service) -> dict[str, int]:
        with httpx.Client(base_url=service.url, trust_env=False, timeout=60) as client:
            return {probe: client.get(path).status_code for probe, path in paths.items()}

    store = tmp_path / "semel.db"
    with Service(tmp_path, f"[semel]\nurl = 'sqlite:///{store}'") as service:
        assert asked(service) == dict.fromkeys(PROBES, 200)
        store.rename(tmp_path / "elsewhere.db")
        assert asked(service) == {"startupProbe": 200, "livenessProbe": 200, "readinessProbe": 503}


def test_the_commands_are_commands() -> None:
    assert [*CONTAINER["args"], *PROVISION["args"]] == ["serve", "provision"]
    assert {"serve", "provision"} <= {command.name for command in app.registered_commands}
