-- name: lease_announcements
-- Take due announcements for one relay: a lease is a later available_at under the relay's token.
UPDATE spillway.outbox AS o
SET available_at = clock_timestamp() + make_interval(secs => :lease_s), lease_token = :lease_token, tries = o.tries + 1
FROM (
    SELECT id FROM spillway.outbox WHERE available_at <= statement_timestamp()
    ORDER BY available_at, id LIMIT :rows_max FOR UPDATE SKIP LOCKED
) AS due
WHERE o.id = due.id
RETURNING o.id, o.job_id, o.tries, (SELECT j.pipeline_version FROM spillway.jobs j WHERE j.id = o.job_id);

-- name: finish_announcements
-- Confirmed by the broker: the rows go, guarded by the lease token, and the jobs count as published.
WITH ours AS (
    -- Jobs before their announcements, as wherever a job ends.
    SELECT j.id FROM spillway.jobs j
    WHERE j.id IN (
        SELECT o.job_id FROM spillway.outbox o WHERE o.id = ANY (CAST(:ids AS bigint[])) AND o.lease_token = :lease_token)
    ORDER BY j.id FOR NO KEY UPDATE
), confirmed AS (
    DELETE FROM spillway.outbox o USING ours
    WHERE o.job_id = ours.id AND o.id = ANY (CAST(:ids AS bigint[])) AND o.lease_token = :lease_token
    RETURNING o.job_id
)
UPDATE spillway.jobs j SET published_at = clock_timestamp() FROM confirmed c
WHERE j.id = c.job_id
RETURNING j.id;

-- name: return_announcements
-- Not confirmed: the rows are tried again after a pause that doubles with their tries, so a bad one never holds back others.
UPDATE spillway.outbox
SET lease_token = NULL,
    available_at = clock_timestamp() + make_interval(secs => least(:cap_s, :base_s * 2 ^ least(tries - 1, 10)))
WHERE id IN (
    -- A row that somebody ends just now is not waited for: he holds the gate.
    SELECT id FROM spillway.outbox WHERE id = ANY (CAST(:ids AS bigint[])) AND lease_token = :lease_token
    ORDER BY id FOR UPDATE SKIP LOCKED)
RETURNING id;
