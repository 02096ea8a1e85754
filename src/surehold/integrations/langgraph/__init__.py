"""For LangGraph: a checkpointer, a store, a cache, and threads in and out."""

from __future__ import annotations

from surehold.lazy import extra

with extra("langgraph"):
    from surehold.integrations.langgraph.cache import SureholdCache as SureholdCache
    from surehold.integrations.langgraph.saver import SureholdSaver as SureholdSaver
    from surehold.integrations.langgraph.store import SureholdStore as SureholdStore
    from surehold.integrations.langgraph.transfer import check_file as check_file
    from surehold.integrations.langgraph.transfer import export_threads as export_threads
    from surehold.integrations.langgraph.transfer import import_threads as import_threads
