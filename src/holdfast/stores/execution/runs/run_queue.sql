-- The queue of all tenants: it contains only when to examine a run; see leases.py.

-- name: put
INSERT INTO run_queue (tenant, run_id, agent, kind, due_at) VALUES (:tenant_id, :run_id, :agent_id, :kind, :due_at)
ON CONFLICT (tenant, run_id) DO UPDATE SET kind = :kind, due_at = :due_at;

-- name: remove
DELETE FROM run_queue WHERE tenant = :tenant_id AND run_id = :run_id;

-- name: peek
-- The next runs to examine, oldest first: pending runs, pauses that have ended, expired leases, and leases that end later than
-- any lease may, because the clock has gone back since. Each part uses an index.
SELECT tenant, run_id/*pg ::text*/, due_at FROM (
    SELECT * FROM (
        SELECT tenant, run_id, due_at FROM run_queue/*index*/
        WHERE kind = 'ready'/*where*/ AND (due_at, run_id) > (:after_at, :after_id /*pg ::uuid*/)
        ORDER BY due_at, run_id LIMIT :limit) AS ready
    UNION ALL
    SELECT * FROM (
        SELECT tenant, run_id, due_at FROM run_queue/*index*/
        WHERE kind = 'paused'/*where*/ AND (due_at, run_id) > (:after_at, :after_id /*pg ::uuid*/) AND due_at <= :now_at
        ORDER BY due_at, run_id LIMIT :limit) AS paused
    UNION ALL
    SELECT * FROM (
        SELECT tenant, run_id, due_at FROM run_queue/*index*/
        WHERE kind = 'leased'/*where*/ AND (due_at, run_id) > (:after_at, :after_id /*pg ::uuid*/) AND due_at <= :now_at
        ORDER BY due_at, run_id LIMIT :limit) AS run_out
    UNION ALL
    SELECT * FROM (
        SELECT tenant, run_id, due_at FROM run_queue/*index*/
        WHERE kind = 'leased'/*where*/ AND (due_at, run_id) > (:after_at, :after_id /*pg ::uuid*/) AND due_at > :horizon_at
        ORDER BY due_at, run_id LIMIT :limit) AS impossible
) AS found
ORDER BY due_at, run_id
LIMIT :limit;
