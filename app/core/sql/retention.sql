-- name: expire_due
-- Final jobs past their retention, or asked to be erased, expire; never one that a living message names.
SELECT job_id FROM spillway.expire_due(:ready_s, :failed_s, :cancelled_s, :rows_max);

-- name: expire_messages
-- Messages past their retention go, and with them what they name.
SELECT message_id FROM spillway.expire_messages(:keep_s, :rows_max);

-- name: gone_to_sweep
-- Cancelled and expired jobs whose objects may still be there, and whether another job needs the image's original.
SELECT j.id, j.image_id,
    NOT EXISTS (SELECT 1 FROM spillway.jobs o
        WHERE o.image_id = j.image_id AND o.state NOT IN ('dropped', 'cancelled', 'expired')) AS image_gone
FROM spillway.jobs j
WHERE j.sweep_due_at <= statement_timestamp()
ORDER BY j.sweep_due_at LIMIT :rows_max;

-- name: note_objects_gone
-- The objects of these jobs were deleted just now: look again a lease after the end, and before the row goes.
WITH ours AS (
    SELECT id FROM spillway.jobs WHERE id = ANY (CAST(:job_ids AS uuid[])) AND state IN ('cancelled', 'expired')
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE spillway.jobs j SET sweep_due_at = CASE
    WHEN coalesce(expired_at, finished_at) + make_interval(secs => :lease_s) > clock_timestamp()
        THEN coalesce(expired_at, finished_at) + make_interval(secs => :lease_s)
    WHEN expired_at + make_interval(secs => :gone_s) > clock_timestamp()
        THEN expired_at + make_interval(secs => :gone_s)
    END
FROM ours WHERE j.id = ours.id RETURNING j.id;

-- name: delete_expired
-- Rows of expired jobs after their last sweep and the time they answer 410; keys, attachments and images go along.
WITH due AS (
    SELECT id, image_id FROM spillway.jobs
    WHERE state = 'expired' AND held_bytes = 0 AND sweep_due_at IS NULL
        AND expired_at < statement_timestamp() - make_interval(secs => :gone_s)
    ORDER BY expired_at LIMIT :rows_max FOR UPDATE SKIP LOCKED
), keys AS (
    DELETE FROM spillway.idempotency_keys k USING due WHERE k.job_id = due.id
), named AS (
    DELETE FROM spillway.attachments a USING due WHERE a.job_id = due.id
), images AS (
    DELETE FROM spillway.images i USING due WHERE i.id = due.image_id
        AND NOT EXISTS (SELECT 1 FROM spillway.jobs o WHERE o.image_id = i.id AND o.id NOT IN (SELECT id FROM due))
)
DELETE FROM spillway.jobs j USING due WHERE j.id = due.id RETURNING j.id;

-- name: delete_left_images^
-- Images of the next page of ids without any job: two sweeps at once each saw the other's job. None ever gets one again.
WITH page AS MATERIALIZED (
    SELECT i.id, i.created_at < statement_timestamp() - make_interval(secs => :lease_s)
        AND (SELECT 1 FROM spillway.jobs j WHERE j.image_id = i.id LIMIT 1) IS NULL AS alone
    FROM spillway.images i WHERE i.id > CAST(:after_id AS uuid) ORDER BY i.id LIMIT :rows_max
), gone AS (
    DELETE FROM spillway.images WHERE id IN (
        SELECT i.id FROM spillway.images i WHERE i.id = ANY (ARRAY(SELECT id FROM page WHERE alone))
        ORDER BY i.id FOR UPDATE SKIP LOCKED)
    RETURNING id
)
SELECT (SELECT count(*) FROM page) AS looked_at, (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last_id,
    (SELECT count(*) FROM gone) AS deleted;

-- name: delete_expired_keys
-- Keys past their lifetime.
DELETE FROM spillway.idempotency_keys
WHERE (owner, operation, key) IN (
    SELECT owner, operation, key FROM spillway.idempotency_keys WHERE expires_at < statement_timestamp()
    ORDER BY expires_at LIMIT :rows_max FOR UPDATE SKIP LOCKED)
RETURNING job_id;

-- name: claim_purges
-- Mark the oldest failed jobs' sources over the budget, and tell all that are marked and whose bytes are still booked.
SELECT job_id FROM spillway.claim_purges(:bytes_max, :rows_max);

-- name: delete_old_audit
-- Audit entries past their time, or older than as many as are kept; ids rise with time, so one bound says both.
DELETE FROM spillway.audit WHERE id IN (
    SELECT id FROM spillway.audit
    WHERE id <= greatest(
        (SELECT max(id) FROM spillway.audit) - CAST(:kept_rows AS bigint),
        (SELECT id FROM spillway.audit WHERE at < statement_timestamp() - make_interval(secs => :keep_s)
            ORDER BY at DESC LIMIT 1))
    ORDER BY id LIMIT :rows_max FOR UPDATE SKIP LOCKED)
RETURNING id;

-- name: delete_old_dead_letters
-- Dead letters not seen for long, or last seen before as many others as are kept.
DELETE FROM spillway.dead_letters WHERE (body_sha256, reason) IN (
    SELECT body_sha256, reason FROM spillway.dead_letters
    WHERE last_seen_at < greatest(
        statement_timestamp() - make_interval(secs => :keep_s),
        (SELECT last_seen_at FROM spillway.dead_letters
            ORDER BY last_seen_at DESC OFFSET CAST(:kept_rows AS bigint) - 1 LIMIT 1))
    ORDER BY last_seen_at LIMIT :rows_max FOR UPDATE SKIP LOCKED)
RETURNING body_sha256;
