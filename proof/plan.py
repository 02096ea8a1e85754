"""Which tests prove what."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROOFS", "Proof"]


@dataclass(frozen=True)
class Proof:
    """A promise and the tests that try to break it.

    The short form of each is part of the test suite, the full one is run here.
    """

    promise: str
    tests: tuple[str, ...]
    """Files, or tests in them."""
    control: bool = True
    """Whether one of the tests is a control, in which the promise must be seen to be broken."""


PROOFS: dict[str, Proof] = {
    "kills": Proof(
        "a process killed at any moment loses nothing that was acknowledged",
        ("tests/crash/test_kills.py",),
    ),
    "syscalls": Proof(
        "nor one killed at any system call; one that fails is told of and acknowledges nothing",
        ("tests/crash/test_syscalls.py",),
    ),
    "power": Proof(
        "a power cut loses nothing that was acknowledged",
        ("tests/crash/test_power.py",),
    ),
    "full": Proof(
        "without room a save fails and says so; with room again the work goes on",
        ("tests/crash/test_full.py",),
    ),
    "outages": Proof(
        "while its primary fails, a loop saves and restores on the copies, however late it saves",
        ("tests/crash/test_outages.py",),
        control=False,
    ),
    "damage": Proof(
        "damage to what is stored is detected, or changes nothing",
        ("tests/crash/test_damage.py",),
    ),
    "groups": Proof(
        "a checkpoint of a group holds all of its members or is not there, killed at any append",
        ("tests/crash/test_group_kills.py",),
        control=False,
    ),
    "records": Proof(
        "a damaged record costs at most 128 checkpoints, never the run; with a copy, none",
        ("tests/crash/test_damaged_records.py",),
        control=False,
    ),
    "workers": Proof(
        "workers killed, frozen and woken lose no run and repeat only steps that were in flight",
        ("tests/executors/test_worker_faults.py", "tests/executors/test_fencing.py"),
    ),
    "writers": Proof(
        "of processes that save to one run at once, one wins each place",
        ("tests/crash/test_writers.py",),
    ),
    "pauses": Proof(
        "a process that was stopped for longer than its lease appends nothing",
        ("tests/crash/test_pauses.py",),
    ),
    "servers": Proof(
        "a server that is killed, or a connection that is cut, loses nothing acknowledged",
        ("tests/e2e/servers/test_faults.py", "tests/e2e/servers/test_races.py"),
    ),
    "http": Proof(
        "a run that a server accepted over HTTP is executed once, whatever kills the server",
        ("tests/crash/test_http_kills.py",),
        control=False,
    ),
    "chaos": Proof(
        "whatever fails, every run ends, and no process begins a step that is not its own",
        ("tests/e2e/servers/test_chaos.py",),
    ),
    "objects": Proof(
        "writers on an object store that are killed, cut off or raced lose and double nothing",
        tuple(
            f"tests/e2e/test_object_stores.py::{test}"
            for test in (
                "test_a_kill_at_any_moment_loses_nothing",
                "test_of_8_processes_that_race_for_a_run_one_wins_each_step",
                "test_a_writer_whose_lease_was_taken_over_is_refused_by_the_fence_alone",
                "test_connections_that_are_cut_lose_nothing_and_double_nothing",
                "test_the_managers_do_what_the_model_says",
            )
        ),
    ),
    "graphs": Proof(
        "a killed graph goes on where it was, and recorded effects are not repeated",
        (
            "tests/crash/test_graph_kills.py",
            "tests/crash/test_graph_races.py",
            "tests/crash/test_graph_payments.py",
        ),
        control=False,
    ),
    "random": Proof(
        "graphs made by chance repeat no recorded call, whatever stops them, and end alike",
        ("tests/crash/test_random_graphs.py",),
    ),
    "programs": Proof(
        "ordinary Python around calls, stopped in every way, repeats nothing and ends alike",
        ("tests/crash/test_programs.py",),
    ),
    "interrupts": Proof(
        "Ctrl-C at any moment ends the loop of the README, and the next start continues",
        ("tests/crash/test_interrupts.py",),
        control=False,
    ),
    "unattended": Proof(
        "with all defaults a job killed again and again finishes without a person, but for effects",
        ("tests/crash/test_unattended.py",),
        control=False,
    ),
    "messages": Proof(
        "messages from several processes to a run that is killed are taken once, in order",
        ("tests/crash/test_messages.py",),
        control=False,
    ),
    "races": Proof(
        "a race in a run that is killed has one winner, and repeats no effect",
        ("tests/crash/test_races.py",),
        control=False,
    ),
    "endless": Proof(
        "a workflow that begins anew for ever stays as small and as quick to resume",
        ("tests/crash/test_endless.py",),
        control=False,
    ),
    "transactions": Proof(
        "a step in the user's own transaction has happened exactly when its rows are there",
        ("tests/crash/test_transactions.py",),
        control=False,
    ),
    "patterns": Proof(
        "programs of patterns and ports, killed at every record that they write, end alike",
        ("tests/patterns/test_patterns.py", "tests/patterns/test_ports.py"),
        control=False,
    ),
    "machine": Proof(
        "all calls in any order do what a simple model says, crashes and new keys included",
        ("tests/machine/test_machine.py",),
    ),
    "fuzz": Proof(
        "whatever bytes are read, the answer is a value or an error of ours",
        ("tests/crash/test_fuzz.py",),
    ),
    "bombs": Proof(
        "files that unpack without end are refused within a second and 128 MiB",
        ("tests/engine/transfer/test_hostile_files.py",),
        control=False,
    ),
}
