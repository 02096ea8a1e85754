"""Counts of runs by status, queue and state, kept by every commit.

Each change of a run adds rows of -1 and +1 to the table `tallies`, so that no two commits wait
for each other; their sums are the counts. Now and then a commit replaces many rows by their sums.
"""

from __future__ import annotations

from surehold.storage.shared import SAVED_BY_HAND

_STATES = "('ready', 'waiting', 'dead')"
"""The states of queued runs that no worker executes."""
_QUEUE = "CASE WHEN {0}queue_state IS NOT NULL THEN {0}queue END"

TABLE = """
CREATE TABLE IF NOT EXISTS {schema}.tallies(
    status bytea NOT NULL, queue bytea, queue_state text, runs bigint NOT NULL
);
"""

FUNCTIONS = f"""
CREATE OR REPLACE FUNCTION {{schema}}.count_run_v1() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.ordinal IS NOT NULL THEN
        INSERT INTO {{schema}}.tallies
        VALUES (OLD.status, {_QUEUE.format("OLD.")}, OLD.queue_state, -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.ordinal IS NOT NULL THEN
        INSERT INTO {{schema}}.tallies
        VALUES (NEW.status, {_QUEUE.format("NEW.")}, NEW.queue_state, 1);
    END IF;
    IF random() < 0.005 THEN
        WITH some_rows AS (
            SELECT ctid FROM {{schema}}.tallies LIMIT 5000 FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM {{schema}}.tallies t USING some_rows s WHERE t.ctid = s.ctid RETURNING t.*
        )
        INSERT INTO {{schema}}.tallies
        SELECT status, queue, queue_state, sum(runs) FROM gone
        GROUP BY status, queue, queue_state HAVING sum(runs) <> 0;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION {{schema}}.tallies_v1(
    OUT status bytea, OUT queue bytea, OUT queue_state text, OUT runs bigint
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog AS $$
    SELECT status, queue, queue_state, sum(runs)::bigint FROM {{schema}}.tallies
    GROUP BY status, queue, queue_state HAVING sum(runs) <> 0
$$;
"""

TRIGGERS = """
CREATE OR REPLACE TRIGGER count_run AFTER INSERT OR DELETE ON {schema}.runs
    FOR EACH ROW EXECUTE FUNCTION {schema}.count_run_v1();
CREATE OR REPLACE TRIGGER count_change AFTER UPDATE ON {schema}.runs
    FOR EACH ROW WHEN (OLD.status <> NEW.status
        OR OLD.queue_state IS DISTINCT FROM NEW.queue_state
        OR OLD.queue IS DISTINCT FROM NEW.queue
        OR (OLD.ordinal IS NULL) <> (NEW.ordinal IS NULL))
    EXECUTE FUNCTION {schema}.count_run_v1();
"""

_LOOSE = f"status = 'running' AND (queue_state IS NULL OR queue_state NOT IN {_STATES}" + (
    " OR owner IS NOT NULL)"
)

INDEXES = {
    "runs_loose": "CREATE INDEX{concurrently} runs_loose ON {schema}.runs(ordinal)"
    f" WHERE ordinal IS NOT NULL AND {_LOOSE}",
    "runs_dead": "CREATE INDEX{concurrently} runs_dead ON {schema}.runs(ordinal)"
    " WHERE queue_state = 'dead'",
}
"""Indexes of the runs that a count has to look at one by one, and of dead letters."""

_DIFFERENCE = f"""
SELECT status, queue, queue_state, sum(runs)::bigint AS runs FROM (
    SELECT status, {_QUEUE.format("")} AS queue, queue_state, 1 AS runs
    FROM {{s}}.runs WHERE ordinal IS NOT NULL
    UNION ALL SELECT status, queue, queue_state, -runs FROM {{s}}.tallies
) every GROUP BY status, queue, queue_state HAVING sum(runs) <> 0"""

SEED = f"INSERT INTO {{s}}.tallies {_DIFFERENCE};"
"""Adds what is missing to the tallies.

One statement sees the runs and the tallies as of one moment, so that commits need not wait for it.
"""

CHECK = f"SELECT count(*) FROM ({_DIFFERENCE}) wrong"

QUEUES = """
SELECT queue, queue_state, sum(runs)::bigint FROM {s}.tallies_v1()
WHERE queue_state IS NOT NULL GROUP BY queue, queue_state HAVING sum(runs) > 0"""

TALLY = f"""
WITH loose AS MATERIALIZED (
    SELECT u.ordinal, u.queue_state, CASE
        WHEN u.owner IS NOT NULL AND u.lease_until > coalesce(%(now)s::float8,
            (SELECT extract(epoch FROM clock_timestamp())::float8)) THEN 'held'
        WHEN u.queue_state IN {_STATES} THEN u.queue_state
        WHEN (SELECT position('{SAVED_BY_HAND}'::bytea IN c.header) > 0
            FROM {{s}}.records c WHERE c.run = u.ordinal AND c.seq = u.latest) THEN 'manager'
        WHEN u.epoch > 0 THEN 'ended' ELSE '' END AS hold
    FROM {{s}}.runs u WHERE ordinal IS NOT NULL AND {_LOOSE}
), every AS (
    SELECT status, CASE WHEN status <> 'running' THEN ''
        WHEN queue_state IN {_STATES} THEN queue_state ELSE 'loose' END AS hold, runs
    FROM {{s}}.tallies_v1()
    UNION ALL SELECT 'running', queue_state, -1 FROM loose WHERE queue_state IN {_STATES}
    UNION ALL SELECT 'running', hold, 1 FROM loose
), looked AS (
    SELECT ordinal, hold FROM loose WHERE hold IN ('held', 'ended')
    UNION ALL (SELECT ordinal, 'dead' FROM {{s}}.runs WHERE queue_state = 'dead'
        AND status = 'running' ORDER BY ordinal DESC LIMIT %(most)s)
)
SELECT status, hold, sum(runs)::bigint, CASE WHEN status = 'running' THEN (
    SELECT array_agg(ordinal) FROM (SELECT ordinal FROM looked WHERE looked.hold = every.hold
    ORDER BY ordinal DESC LIMIT %(most)s) newest) END
FROM every WHERE hold <> 'loose' GROUP BY status, hold HAVING sum(runs) > 0"""
"""Counts by status and hold, as `RunTally` has them.

Only runs are looked at that are stored as running and that a process holds or held."""
