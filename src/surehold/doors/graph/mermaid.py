"""Mermaid flowcharts of a graph and of a run of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from surehold.doors.graph.edges import Edge, describe
from surehold.doors.resume import Progress, Shape, find_run, find_target, read_progress
from surehold.engine.journal import Reader


def draw(shape: Shape, edges: Sequence[Edge], reader: Reader | None, run_id: str | None) -> str:
    """See `StateGraph.to_mermaid`."""
    progress, status = Progress(), ""
    if reader is not None and run_id is not None:
        newest = find_target(reader, find_run(reader, run_id)).newest
        progress, status = read_progress(reader.load(newest)), newest.status
    visits = Counter(progress.path)
    taken = Counter(pairwise(progress.path))
    names = {node: f"n{number}" for number, node in enumerate(shape.nodes)}
    lines = ["flowchart TD"]
    for node in shape.nodes:
        count = f" x{visits[node]}" if visits[node] else ""
        left, right = ("([", "])") if node in shape.exits else ("[", "]")
        lines.append(f'    {names[node]}{left}"{_text(node)}{count}"{right}')
    if shape.entry in names:
        lines.append(f"    start(( )) --> {names[shape.entry]}")
    drawn: set[tuple[str, str]] = set()
    for edge in edges:
        if edge.source not in names or edge.target not in names:
            continue
        pair = (edge.source, edge.target)
        count = f"x{taken[pair]}" if taken[pair] and pair not in drawn else ""
        label = " ".join(part for part in (edge.name or describe(edge.predicate), count) if part)
        drawn.add(pair)
        arrow = "==>" if count else "-->"
        said = f'|"{_text(label)}"|' if label else ""
        lines.append(f"    {names[edge.source]} {arrow}{said} {names[edge.target]}")
    lines += _classes(names, progress, status, visits)
    return "\n".join(lines) + "\n"


def _classes(
    names: dict[str, str], progress: Progress, status: str, visits: Counter[str]
) -> list[str]:
    if not status:
        return []
    stopped = progress.next or (progress.path[-1] if progress.path else None)
    lines = [
        "    classDef done fill:#d7f0dd,stroke:#2e7d4f,color:#123",
        "    classDef stopped fill:#fde2c8,stroke:#b3541e,color:#311,stroke-width:3px",
    ]
    done = [names[node] for node in names if visits[node] and node != stopped]
    if status == "completed" and stopped in names:
        done.append(names[stopped])
    elif stopped in names:
        lines.append(f"    class {names[stopped]} stopped")
    if done:
        lines.append(f"    class {','.join(done)} done")
    lines.append(f"    %% {status}{f' at {stopped}' if stopped else ''}, step {len(progress.path)}")
    return lines


def _text(text: str) -> str:
    """Escape *text* for a quoted label."""
    for mark, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(mark, entity)
    return text.replace("\n", " ")
