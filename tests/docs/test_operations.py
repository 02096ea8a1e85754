"""The examples for operators: every metric that they name exists, every manifest has its form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import jsonschema
import kubernetes_validate
import promql_parser
import psycopg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.executors import jobs
from tests.servers import postgres

from surehold import SQLiteStorage
from surehold.cli.listing import COMMANDS
from surehold.executors import Worker, served_by
from surehold.storage.postgres import PostgresStorage

HERE = Path("examples/operations")
SCALED = Path("examples/scale_out/kubernetes.yaml")
RULES = yaml.safe_load((HERE / "alerts.yaml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((HERE / "grafana/surehold.json").read_text())
TARGETS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
VARIABLES = [one["query"]["query"] for one in DASHBOARD["templating"]["list"][1:]]
QUERIES = [*TARGETS, *(rule["expr"] for rule in RULES)]
NAME = re.compile(r"\bsurehold_\w+")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each series of a worker that executed a run, by its name."""
    with SQLiteStorage(tmp_path_factory.mktemp("scrape") / "runs.db") as storage:
        handle = jobs.doubled.start([3], storage=storage, queue="mail")
        jobs.doubled.start([4], storage=storage, queue="other")
        worker = Worker(storage, served_by([jobs.__name__]), queues=("mail",))
        worker.run(until_idle=True)
        assert handle.result(timeout=30).value == [6]
        text = worker.metrics.text(active=0)
    return {
        sample.name: {*sample.labels}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_valid_and_every_metric_and_label_in_it_exists(
    query: str, scraped: dict[str, set[str]]
) -> None:
    for variable, value in (("$__rate_interval", "5m"), ("$queue", "x"), ("$code", "x")):
        query = query.replace(variable, value)
    named = [*selectors(promql_parser.parse(query).prettify())]
    assert named
    for name, labels in named:
        if name != "up":  # Prometheus' own
            assert name in scraped
            assert labels <= scraped[name]
    for grouped in re.findall(r"by \(([^)]*)\)", query):
        labels = {label.strip() for label in grouped.split(",")}
        assert any(labels <= scraped[name] for name, _ in named if name in scraped)


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics of a query, each with the labels that it is selected by."""
    for name, inside in re.findall(r"\b(surehold_\w+|up)\b(?:\{([^}]*)\})?", query):
        yield name, set(re.findall(r"(\w+)\s*[=!]~?", inside))


@pytest.mark.parametrize("query", VARIABLES)
def test_a_variable_of_the_dashboard_lists_labels_that_exist(
    query: str, scraped: dict[str, set[str]]
) -> None:
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", query)
    assert found is not None
    assert found[2] in scraped[found[1]]


def test_every_metric_that_the_docs_alert_on_exists(scraped: dict[str, set[str]]) -> None:
    page = Path("docs/how-to/monitor.md").read_text()
    table = page.partition("## What to alert on")[2].partition("\n## ")[0]
    named = {*NAME.findall(table)}
    assert named
    assert named <= scraped.keys()


def test_an_alert_says_what_to_do_with_commands_that_exist() -> None:
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {*rule["annotations"]} == {"summary", "action"}
        for command in re.findall(r"\bsurehold ([a-z-]+)", rule["annotations"]["action"]):
            assert command in COMMANDS


def test_the_manifest_of_workers_fits_the_schemas_of_kubernetes() -> None:
    for manifest in yaml.safe_load_all(SCALED.read_text()):
        kubernetes_validate.validate(manifest, "1.33", strict=True)


TRIGGER = {
    "type": "object",
    "required": ["type", "metadata"],
    "additionalProperties": False,
    "properties": {
        "type": {"const": "postgresql"},
        "metadata": {
            "type": "object",
            "required": ["query", "targetQueryValue"],
            "additionalProperties": {"type": "string"},
        },
        "authenticationRef": {"type": "object", "required": ["name"]},
    },
}
KEDA = {
    "TriggerAuthentication": {
        "properties": {
            "secretTargetRef": {
                "type": "array",
                "items": {"type": "object", "required": ["parameter", "name", "key"]},
            }
        },
    },
    "ScaledObject": {
        "required": ["scaleTargetRef", "triggers"],
        "additionalProperties": False,
        "properties": {
            "scaleTargetRef": {"type": "object", "required": ["name"]},
            "minReplicaCount": {"type": "integer", "minimum": 0},
            "maxReplicaCount": {"type": "integer", "minimum": 1},
            "pollingInterval": {"type": "integer"},
            "cooldownPeriod": {"type": "integer"},
            "advanced": {"type": "object"},
            "triggers": {"type": "array", "minItems": 1, "items": TRIGGER},
        },
    },
}
"""The forms of KEDA's own kinds, as its documentation has them: no package has its schemas."""


def test_the_scaling_by_the_queue_has_its_form_and_its_query_counts() -> None:
    kinds = {one["kind"]: one for one in yaml.safe_load_all((HERE / "keda.yaml").read_text())}
    for kind, manifest in kinds.items():
        assert manifest["apiVersion"] == "keda.sh/v1alpha1"
        jsonschema.validate(manifest["spec"], {"type": "object", **KEDA[kind]})
    scaled = kinds["ScaledObject"]["spec"]
    deployments = {one["metadata"]["name"] for one in yaml.safe_load_all(SCALED.read_text())}
    assert scaled["scaleTargetRef"]["name"] in deployments
    (trigger,) = scaled["triggers"]
    assert (
        trigger["authenticationRef"]["name"] in kinds["TriggerAuthentication"]["metadata"]["name"]
    )
    schema = f"k{uuid4().hex[:12]}"
    query = trigger["metadata"]["query"].replace("surehold.", f"{schema}.")
    with (
        PostgresStorage(postgres().url, schema=schema) as storage,
        psycopg.connect(postgres().url, autocommit=True) as db,
    ):
        jobs.doubled.start([1], storage=storage)
        jobs.doubled.start([2], storage=storage)
        jobs.doubled.start([3], storage=storage, delay=600)
        assert db.execute(query).fetchone() == (2,)
        db.execute(f"DROP SCHEMA {schema} CASCADE")


SERVICE = {
    "type": "object",
    "required": ["image"],
    "additionalProperties": False,
    "properties": {
        "image": {"type": "string"},
        "command": {"type": "array", "items": {"type": "string"}},
        "environment": {"type": "object", "additionalProperties": {"type": "string"}},
        "volumes": {"type": "array", "items": {"type": "string"}},
        "ports": {"type": "array", "items": {"type": "string", "pattern": "^127.0.0.1:"}},
        "depends_on": {"type": "object"},
        "healthcheck": {"type": "object", "required": ["test"]},
        "stop_grace_period": {"type": "string", "pattern": r"^\d+s$"},
        "restart": {"enum": ["unless-stopped"]},
        "read_only": {"type": "boolean"},
    },
}


def test_the_services_have_their_form_and_name_files_that_are_there() -> None:
    compose = yaml.safe_load((HERE / "compose.yaml").read_text())
    services = compose["services"]
    for service in services.values():
        jsonschema.validate(service, SERVICE)
        assert {*service.get("depends_on", ())} <= services.keys()
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (HERE / source).exists()
        command = service.get("command", [""])
        assert command[0] != "surehold" or command[1] in COMMANDS
    config = yaml.safe_load((HERE / "prometheus.yml").read_text())
    assert all((HERE / name).exists() for name in config["rule_files"])
    assert {one["names"][0] for one in config["scrape_configs"][0]["dns_sd_configs"]} <= {*services}
