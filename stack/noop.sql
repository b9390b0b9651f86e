-- name: consuming_workers$
-- How many workers say that the broker serves them.
SELECT count(*) FROM spillway.processes WHERE role = 'worker' AND broker_ok;

-- name: noop_left$
-- How many planted jobs of one measurement have not ended yet.
SELECT count(*) FROM spillway.jobs WHERE owner = :owner AND state IN ('queued', 'processing');

-- name: noop_traces$
-- What a measurement must not leave: places held, announcements not finished.
SELECT (SELECT sum(jobs_held) FROM spillway.gate) + (SELECT count(*) FROM spillway.outbox);
