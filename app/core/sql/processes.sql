-- name: report_process$
-- A process says that it lives and what it measured of itself; by process start, never by name.
INSERT INTO spillway.processes AS p (id, role, host, broker_ok, slots, prefetch, unacked, host_cores, job_wall_s, job_cpu_s,
    pipeline_versions)
VALUES (:id, :role, :host, :broker_ok, :slots, :prefetch, :unacked, :host_cores, :job_wall_s, :job_cpu_s,
    CAST(:pipeline_versions AS integer[]))
ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp(), broker_ok = excluded.broker_ok, slots = excluded.slots,
    prefetch = excluded.prefetch, unacked = excluded.unacked, host_cores = excluded.host_cores,
    job_wall_s = excluded.job_wall_s, job_cpu_s = excluded.job_cpu_s, pipeline_versions = excluded.pipeline_versions
RETURNING true;

-- name: forget_process$
-- A process that stops cleanly leaves the register.
DELETE FROM spillway.processes WHERE id = :id RETURNING true;

-- name: forget_dead_processes
-- Processes not seen for long leave the register.
DELETE FROM spillway.processes WHERE seen_at < clock_timestamp() - make_interval(secs => :keep_s) RETURNING id;

-- name: estimate_capacity^
-- Jobs a second that the live workers can do: the smaller of slots by wall time and host cores by CPU time.
-- With no worker alive, or none that has measured, the last non-zero value stays.
WITH live AS (
    SELECT slots, host, host_cores, job_wall_s, job_cpu_s FROM spillway.processes
    WHERE role = 'worker' AND seen_at > clock_timestamp() - make_interval(secs => :seen_s)
), measured AS (
    SELECT (SELECT coalesce(sum(slots), 0) FROM live) AS slots,
        (SELECT sum(slots / job_wall_s) FROM live WHERE job_wall_s > 0) AS by_slots,
        (SELECT sum(cores) FROM (SELECT max(host_cores) AS cores FROM live GROUP BY host) AS hosts)
            / (SELECT avg(job_cpu_s) FROM live WHERE job_cpu_s > 0) AS by_cores
)
UPDATE spillway.capacity c
SET slots = CASE WHEN m.slots > 0 THEN m.slots ELSE c.slots END,
    jobs_per_s = coalesce(nullif(least(m.by_slots, m.by_cores), 0), c.jobs_per_s),
    measured_at = CASE WHEN m.by_slots > 0 THEN clock_timestamp() ELSE c.measured_at END
FROM measured m
WHERE c.id = 0
RETURNING c.slots, c.jobs_per_s;

-- name: snapshot^
-- What admission decides on and readiness tells: books, capacity, who is alive, and whether anything can be written.
SELECT g.jobs_held, g.staging_bytes, g.failed_source_bytes, c.slots, c.jobs_per_s,
    (SELECT count(*) FROM spillway.processes p WHERE p.role = 'worker' AND p.broker_ok
        AND p.seen_at > clock_timestamp() - make_interval(secs => :seen_s)) AS workers,
    (SELECT count(*) FROM spillway.processes p WHERE p.role = 'relay' AND p.broker_ok
        AND p.seen_at > clock_timestamp() - make_interval(secs => :seen_s)) AS relays,
    (SELECT count(*) FROM spillway.processes p WHERE p.role = 'janitor'
        AND p.seen_at > clock_timestamp() - make_interval(secs => :seen_s)) AS janitors,
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS read_only
FROM spillway.gate g CROSS JOIN spillway.capacity c
WHERE g.id = 0 AND c.id = 0;
