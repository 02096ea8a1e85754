"""For LangGraph: a checkpointer, a store, a cache, and an importer and exporter of threads."""

from __future__ import annotations

from surehold.lazy import extra

with extra("langgraph"):
    from surehold.integrations.langgraph.cache import SureholdCache as SureholdCache
    from surehold.integrations.langgraph.exporter import export_threads as export_threads
    from surehold.integrations.langgraph.importer import check_file as check_file
    from surehold.integrations.langgraph.importer import import_threads as import_threads
    from surehold.integrations.langgraph.saver import SureholdSaver as SureholdSaver
    from surehold.integrations.langgraph.store import SureholdStore as SureholdStore
