"""The examples for Kubernetes and systemd: they parse, fit each other and the worker."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parents[2] / "examples" / "scale_out"
UNIT = HERE / "surehold-worker@.service"


def options_of_the_worker() -> set[str]:
    shown = subprocess.run(
        [sys.executable, "-m", "surehold", "worker", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"--[a-z-]+", shown.stdout))


def check_command(words: list[str]) -> dict[str, str]:
    """The options of a command that starts a worker, each of which must exist."""
    program, verb, code, *rest = words
    assert (Path(program).name, verb, code) == ("surehold", "worker", "nightly:nightly")
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    assert options.keys() <= options_of_the_worker()
    return options


def documents() -> dict[str, Any]:
    found = list(yaml.safe_load_all((HERE / "kubernetes.yaml").read_text("utf-8")))
    assert all({"apiVersion", "kind", "metadata", "spec"} == one.keys() for one in found)
    return {one["kind"]: one for one in found}


def test_the_deployment_fits_itself_and_the_worker() -> None:
    made = documents()
    spec = made["Deployment"]["spec"]
    pod = spec["template"]
    assert spec["replicas"] >= 2
    assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    budget = made["PodDisruptionBudget"]["spec"]
    assert budget["selector"] == spec["selector"]
    (container,) = pod["spec"]["containers"]
    options = check_command(container["command"])
    assert float(options["--grace"]) < pod["spec"]["terminationGracePeriodSeconds"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert int(options["--listen"].rpartition(":")[2]) in ports.values()
    for probe in ("readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] == "/healthz"
        assert asked["port"] in ports
    (variable,) = container["env"]
    assert variable["name"] == "SUREHOLD_STORAGE"
    assert variable["valueFrom"]["secretKeyRef"].keys() == {"name", "key"}


def test_the_unit_lets_the_worker_stop() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text("utf-8"))
    service = unit["Service"]
    options = check_command(shlex.split(service["ExecStart"]))
    assert float(options["--grace"]) < float(service["TimeoutStopSec"])
    assert (service["Restart"], service["KillSignal"]) == ("always", "SIGTERM")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text("utf-8").replace("/opt/nightly/.venv/bin/surehold", "/bin/true")
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert UNIT.name.partition("@")[0] not in done.stderr, done.stderr


def test_the_example_is_the_workflow_that_both_serve() -> None:
    sys.path.insert(0, str(HERE))
    try:
        from surehold.executors import served_by

        assert [one.target for one in served_by(["nightly:nightly"])] == ["nightly:nightly@1"]
    finally:
        sys.path.remove(str(HERE))
        sys.modules.pop("nightly", None)
