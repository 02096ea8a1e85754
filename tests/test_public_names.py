"""What `import surehold` gives, and what it costs."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import surehold
from surehold import compat

HEAVY = {
    *("asyncio", "sqlite3", "ssl", "logging.config"),
    *("apsw", "cryptography", "opentelemetry", "prompt_toolkit", "pydantic", "rich", "stamina"),
    *("yaml", "zstandard"),
}
"""Modules that must not be loaded before something needs them."""


def run(code: str, **environment: str) -> str:
    """What a fresh interpreter prints when it runs *code*."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    return done.stdout


def test_public_names_are_sorted_and_unique() -> None:
    assert surehold.__all__ == sorted(set(surehold.__all__))


def test_every_public_name_exists_and_says_what_it_is() -> None:
    values = {name: getattr(surehold, name) for name in surehold.__all__}
    silent = [
        name
        for name, value in values.items()
        if (inspect.isclass(value) and not vars(value).get("__doc__"))
        or (inspect.isroutine(value) and not value.__doc__)
    ]
    assert silent == []


def test_type_checkers_see_the_names_that_exist() -> None:
    tree = ast.parse(Path(surehold.__file__).with_suffix(".pyi").read_text("utf-8"))
    seen = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert seen == set(surehold._HOMES)


def test_about_sixty_names_are_listed_and_the_rest_is_found_too() -> None:
    assert len(surehold.__all__) <= 67
    for name in surehold._HOMES.keys() - set(surehold.__all__):
        assert getattr(surehold, name) is not None
        assert name not in dir(surehold)


def test_every_spelling_of_the_seeds_is_in_compat_and_found_at_the_top() -> None:
    for name in compat.__all__:
        assert getattr(surehold, name) is getattr(compat, name)
        assert name not in surehold.__all__


def test_dir_shows_every_public_name() -> None:
    assert set(surehold.__all__) <= set(dir(surehold))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        surehold.no_such_name  # noqa: B018


def test_importing_surehold_loads_no_heavy_module() -> None:
    loaded = set(run("import surehold, sys; print(*sys.modules)").split())
    assert loaded & HEAVY == set()


def test_a_zip_of_the_package_works_on_the_path(tmp_path: Path) -> None:
    """As a zipapp, or as PySpark's --py-files."""
    package = Path(surehold.__file__).parent
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        for path in package.rglob("*.py*"):
            if path.suffix in (".py", ".pyi"):
                archive.write(path, path.relative_to(package.parent))
    (tmp_path / "main.py").write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import surehold\n"
        "assert 'app.zip' in surehold.__file__\n"
        "with surehold.run('r', storage='memory://') as run:\n"
        "    run.checkpoint(n=1)\n"
        "for name in ('StateGraph', 'Agent', 'Fleet', 'workflow', 'StateManager', 'group'):\n"
        "    getattr(surehold, name)\n"
        "print(run.status)\n"
    )
    command = [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "app.zip")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert (done.stdout, done.stderr) == ("completed\n", "")


def test_a_first_run_loads_no_agents_page_or_clients_of_servers(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    code = (
        "import surehold, sys\n"
        f"with surehold.run('r', storage={address!r}) as run: run.checkpoint(n=1)\n"
        "print(*sys.modules)"
    )
    loaded = set(run(code).split())
    layers = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("surehold.")}
    unwanted = {"agents", "executors", "integrations", "cli", "web", "testing", "compat"}
    assert layers & {f"surehold.{layer}" for layer in unwanted} == set()
    assert loaded & {"psycopg", "redis", "obstore", "azure", "rich", "pydantic", "yaml"} == set()


def test_nothing_switches_the_garbage_collector_of_the_process() -> None:
    sources = {path: path.read_text("utf-8") for path in Path("src").rglob("*.py")}
    assert [path for path, text in sources.items() if "import gc" in text] == []


@pytest.mark.figures
def test_importing_surehold_costs_a_few_times_a_bare_interpreter(tmp_path: Path) -> None:
    """A bare start takes 12 ms where `import surehold` takes up to 100."""
    cached = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}

    def seconds(code: str) -> float:
        started = time.perf_counter()
        run(code, **cached)
        return time.perf_counter() - started

    seconds("import surehold")  # fills the cache
    pairs = [(seconds("pass"), seconds("import surehold")) for _ in range(9)]
    bare, ours = (min(times) for times in zip(*pairs, strict=True))
    assert ours <= 8 * bare
