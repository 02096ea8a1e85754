"""Runs other projects' own suites with our integrations in their places.

`python tests/peers/run.py DIRECTORY` fetches LangGraph's source distribution, in the version and
with the hashes that `requirements/peers.txt` pins, unpacks it in DIRECTORY, and runs the tests
that go through its SQLite savers with ours instead. Threads are imported from a real Postgres
server as well, which this environment has and that of our own tests has not.

The suites of LangGraph's stores and caches, the OpenAI Agents SDK, the Claude Agent SDK, the MCP
SDK and Strands run twice, with their stock class and with ours: a test that fails with ours alone
is an error, unless `DIFFERS` names it. That of Strands runs alone, by a second argument `strands`:
it needs older packages.

With SUREHOLD_NEWEST set, the versions are those that are installed, and no hash is asked for.

Agent Framework's source distributions hold no tests. With AGENT_FRAMEWORK set to a checkout of
its repository, and that version installed, its checkpoint tests are run as well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PINS = [ROOT / "requirements" / name for name in ("peers.txt", "sources.txt", "agents.txt")]

DIFFERS = (
    # They look into the connections, locks, tables and corrupt rows of the SDK's SQLite class.
    r"memory/test_session\.py::test_sqlite_session_(close|closed|closes|reaps|keeps)_",
    r"memory/test_session\.py::test_sqlite_session_(failed|rollback|post_commit|file_lock)_",
    r"memory/test_session\.py::test_sqlite_session_\w*corrupt",
    r"test_run_impl_resume_paths\.py::test_handoff_resume_after_cancelled_compaction_commits",
    # An unknown setting is a UsageError, not a TypeError.
    r"memory/test_session\.py::test_session_settings_rejects_unknown_dictionary_fields",
    # They set dicts of the stock class, count its turns of the event loop, or need a clock that
    # tells two appends in a millisecond apart.
    r"test_session_helpers_store\.py::.*test_load_concurrency_is_bounded",
    r"test_session_resume\.py::.*test_continue_(picks|skips|tie_break)_",
    r"test_session_resume\.py::.*test_cancelled_after_mkdtemp_cleans_temp_dir",
    r"test_session_summary\.py::.*test_(mixed_sessions_gap_filled|gap_fill_bounded_concurrency)",
    r"test_transcript_mirror\.py::.*test_eager_flush_mode_appends_per_frame",
    # LangGraph's stores: a search by meaning, which ours refuses by name.
    r"test_(async_)?store\.py::test_(async_)?(batched_)?(vector|embed_with_path|scores|non_ascii)",
    r"test_store\.py::test_async_batched_vector_search_concurrent",
    r"test_store\.py::test_(cannot_put_empty_namespace|basic_store_operations|search_items)",
    r"test_store\.py::test_list_namespaces_operations",
    r"test_async_store\.py::test_(basic_store_ops|list_namespaces|search_items)$",
    # Their SQL, the paths that their SQLite store alone takes as names of fields, a thread that
    # removes what has ended, a refusal to be called from a thread, keys and bytes in Redis.
    r"test_store\.py::test_(nonnull_migrations|sql_injection_vulnerability)",
    r"test_store\.py::test_filter_keys_with_hyphens_and_digits",
    r"test_ttl\.py::test_(async_)?ttl_sweeper",
    r"test_ttl\.py::test_ttl_override_default",  # their SQLite store begins no item's time anew
    r"test_async_store\.py::test_no_running_loop",
    r"test_redis_cache\.py::.*test_corrupted_data_handling",
)
"""The tests that are about the stock class itself."""


def main(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    status = _run(_source_of("langgraph", directory), "langgraph_slots", ["tests", "-n", "2"])
    bare = ["--noconftest", "-c", os.devnull, "--rootdir", str(HERE)]
    status |= _run(HERE, "no:xdist", [*bare, "postgres_import.py"])
    status |= _langgraph_stores(directory)
    status |= _openai_agents(directory) | _claude_agent(directory) | _mcp(directory)
    checkout = os.environ.get("AGENT_FRAMEWORK")
    if checkout is None:
        print("AGENT_FRAMEWORK names no checkout: its tests are not run")
        return status
    for package, tests in (("core", "tests/workflow"), ("orchestrations", "tests")):
        root = Path(checkout, "python", "packages", package)
        status |= _run(root, "agent_framework_slot", [tests])
    return status


def _langgraph_stores(directory: Path) -> int:
    """LangGraph's tests of stores and caches."""
    root = _source_of("langgraph-checkpoint", directory)
    tests = ["tests/test_store.py", "tests/test_redis_cache.py"]
    status = _compare(root, "langgraph_store_slot", tests)
    root = _source_of("langgraph-checkpoint-sqlite", directory)
    tests = [f"tests/test_{name}.py" for name in ("store", "async_store", "ttl")]
    return status | _compare(root, "langgraph_store_slot", tests)


def _openai_agents(directory: Path) -> int:
    """Tests of resumes, deferred writes, compaction and sessions, and the corpus of states."""
    root = _source_of("openai-agents", directory)
    tests = ["tests/test_run_impl_resume_paths.py", "tests/deferred_session_writes"]
    tests += ["tests/test_max_turns.py", "tests/utils/test_simple_session.py"]
    tests += ["tests/memory/test_session.py", "tests/memory/test_session_limit.py"]
    status = _compare(root, "openai_agents_slot", tests)
    corpus = {"RUN_STATES": str(root / "tests" / "fixtures" / "run_state")}
    bare = ["--noconftest", "-c", os.devnull, "--rootdir", str(HERE)]
    return status | _run(HERE, "no:xdist", [*bare, "run_state_corpus.py"], corpus)


def _claude_agent(directory: Path) -> int:
    """The suite of its wheel on every medium, and the tests of stores in its sources."""
    root = _source_of("claude-agent-sdk", directory)
    ours = "tests/integrations/claude_agent/test_session_store.py"
    source = {"PYTHONPATH": str(root / "src")}
    status = _run(ROOT, "no:xdist", ["--noconftest", ours], source)
    tests = [str(one.relative_to(root)) for one in (root / "tests").glob("test_session_*.py")]
    return status | _compare(root, "claude_agent_slot", [*tests, "tests/test_transcript_mirror.py"])


def _mcp(directory: Path) -> int:
    """Tests of streams that are resumed."""
    root = _source_of("mcp", directory)
    places = ("test_hosting_resume.py", "test_client_transport_http.py")
    tests = [f"tests/interaction/transports/{name}" for name in places]
    plain = ["-p", "no:asyncio", "-o", "addopts=-p anyio", "-o", "log_cli=false"]
    return _compare(root, "mcp_slot", tests, plain)


def strands(directory: Path) -> int:
    """Tests of snapshots, sessions on them, and storages."""
    directory.mkdir(parents=True, exist_ok=True)
    root = _source_of("strands-agents", directory)
    tests = ["session/test_snapshot_session_manager.py", "storage/test_storage.py"]
    return _compare(root, "strands_slot", [f"tests/strands/{name}" for name in tests])


def _compare(root: Path, plugin: str, tests: Sequence[str], options: Sequence[str] = ()) -> int:
    """Run tests with the stock class and with ours; 1 if one fails with ours alone, twice."""

    def told(slot: str, tests: Sequence[str]) -> dict[str, list[str]]:
        report = root.parent / f"{plugin}-{slot}.json"
        report.unlink(missing_ok=True)
        slots = {"SUREHOLD_SLOT": slot, "SUREHOLD_SLOT_REPORT": str(report)}
        _run(root, plugin, [*options, *tests, "--tb=no", "-r", "N"], slots)
        found: dict[str, list[str]] = json.loads(report.read_text())
        return found

    stock, ours = told("stock", tests), told("ours", tests)
    alone = set(ours["failed"]) - set(stock["failed"])
    wrong = sorted(one for one in alone if not any(re.search(form, one) for form in DIFFERS))
    print(
        f"{plugin}: {len(ours['used'])} tests made our class; {len(alone)} fail with it"
        f" alone, {len(alone) - len(wrong)} of them about the stock class itself"
    )
    if wrong:  # some of them wait for a clock
        wrong = sorted({*wrong} & {*told("ours", wrong)["failed"]})
    for one in wrong:
        print(f"  {one}")
    return 1 if wrong or not ours["used"] else 0


def _source_of(package: str, directory: Path) -> Path:
    """The unpacked source distribution of a pinned package."""
    if os.environ.get("SUREHOLD_NEWEST"):
        number, pin = _newest(package), f"{package}=={_newest(package)}"
    else:
        form = rf"^{package}==(\S+)(?: \\\n +--hash=\S+)+"
        pins = "\n".join(path.read_text() for path in PINS)
        found = re.search(form, pins, re.MULTILINE)
        if found is None:
            raise SystemExit(f"no lock file pins {package}")
        number, pin = found[1], found[0]
    root = directory / f"{package.replace('-', '_')}-{number}"
    if not root.exists():
        wanted = directory / f"{package}.txt"
        wanted.write_text(pin + "\n")
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        fetch += ["--disable-pip-version-check", "--no-build-isolation", "--no-binary", ":all:"]
        fetch += ["--require-hashes"] if "--hash" in pin else []
        fetch += ["-r", str(wanted), "-d", str(directory)]
        subprocess.run(fetch, check=True)
        with tarfile.open(directory / f"{root.name}.tar.gz") as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
            packed.extractall(directory)
    return root


def _newest(package: str) -> str:
    """The version that is installed here; of a package that is not, the newest of the index."""
    try:
        return version(package)
    except PackageNotFoundError:
        command = [sys.executable, "-m", "pip", "index", "versions", package]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return told.split("(", 1)[1].split(")", 1)[0]


def _run(
    root: Path, plugin: str, arguments: list[str], more: Mapping[str, str] | None = None
) -> int:
    environment = {**os.environ, "NO_DOCKER": "true", **(more or {})}
    path = [str(HERE), str(root), (more or {}).get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    command = [sys.executable, "-m", "pytest", "-p", plugin, "-q", "-p", "no:cacheprovider"]
    print(f"{root.name}, with {plugin}", flush=True)
    return subprocess.run([*command, *arguments], cwd=root, env=environment, check=False).returncode


if __name__ == "__main__":
    suites = strands if sys.argv[2:] == ["strands"] else main
    sys.exit(suites(Path(sys.argv[1]).absolute()))
