"""Patches HTTP libraries as soon as they are imported, whoever imports them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_PATCHES = {
    "httpx": "httpx_patch",
    "httpx2": "httpx_patch",
    "urllib3": "urllib3_patch",
    "aiohttp": "aiohttp_patch",
}
_ROOM = __name__.rpartition(".")[0]


class PatchingFinder:
    """Finds a library as the others do, and patches it when it was executed."""

    def __init__(self) -> None:
        self._busy: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of one of the libraries; None for anything else."""
        if name not in _PATCHES or name in self._busy:
            return None
        self._busy.add(name)
        try:
            specs = (
                finder.find_spec(name, path, target)
                for finder in sys.meta_path
                if finder is not self and hasattr(finder, "find_spec")
            )
            spec = next((one for one in specs if one is not None), None)
        finally:
            self._busy.discard(name)
        loader: Any = getattr(spec, "loader", None)
        if spec is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _patch(name, module)

        loader.exec_module = exec_module
        return spec


_told = ""


def join(told: str) -> None:
    """Join the run that *told*, a JSON text, names; called before the program begins."""
    global _told  # noqa: PLW0603
    _told = told
    if '"freeze": {}' not in told:
        import_module(f"{_ROOM}.freezing").freeze(told)
    install()


def _patch(name: str, module: Any) -> None:
    global _told
    try:
        if _told:
            told, _told = _told, ""
            import_module(f"{_ROOM}.remote").play_remotely(told)
        import_module(f"{_ROOM}.{_PATCHES[name]}").patch(module)
    except Exception as error:
        sys.stderr.write(
            f"surehold: cannot record the calls of {name}"
            f" {getattr(module, '__version__', '')}: {type(error).__name__}: {error}\n"
        )


def install() -> None:
    """Patch the libraries that are imported already, and the others when they are."""
    if not any(isinstance(one, PatchingFinder) for one in sys.meta_path):
        sys.meta_path.insert(0, PatchingFinder())
    for name in _PATCHES:
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__spec__", None) is not None:
            _patch(name, module)
