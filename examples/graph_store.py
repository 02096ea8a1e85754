"""A storage of your own, registered under a name; this one prints what it stores."""

from __future__ import annotations

from collections.abc import Sequence

from surehold import (
    GraphConfig,
    MemoryStorage,
    State,
    StateGraph,
    register_checkpoint_store,
)
from surehold.errors import ConflictError
from surehold.storage.base import Batch


class TalkingStorage(MemoryStorage):
    """A storage; any class that keeps the promises of `surehold.Storage` will do."""

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        for batch in batches:
            for record in batch.records:
                print(f"step {record.header.step}: {record.header.stored} bytes")
        return super().append(batches)


def main() -> None:
    register_checkpoint_store("talking", TalkingStorage())
    config = GraphConfig.from_mapping(
        {"name": "double", "checkpoint": {"store": "talking", "interval": 1, "preserve": True}}
    )
    graph = StateGraph(config)
    graph.add_node("double", lambda state: {"n": state["n"] * 2})
    graph.add_node("end", lambda state: None)
    graph.add_edge("double", "end", lambda state: state["n"] > 20)
    graph.add_edge("double", "double")
    graph.set_entry_point("double")
    graph.set_exit_point("end")
    print(graph.execute_sync(State.new({"n": 3}, run_id="r"))["n"])
    print("and from the store:", graph.resume_sync("r")["n"])


if __name__ == "__main__":
    main()
