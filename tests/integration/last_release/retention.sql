-- The statements of the last release, as they were: what its processes go on to send while an upgrade is on its way.

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

-- name: delete_expired_keys
-- Keys past their lifetime.
DELETE FROM spillway.idempotency_keys
WHERE (owner, operation, key) IN (
    SELECT owner, operation, key FROM spillway.idempotency_keys WHERE expires_at < statement_timestamp()
    ORDER BY expires_at LIMIT :rows_max FOR UPDATE SKIP LOCKED)
RETURNING job_id;

-- name: failed_sources_over_budget
-- The oldest failed jobs whose sources, with all older ones, exceed the budget of bytes.
SELECT id FROM (
    SELECT id, finished_at, sum(held_bytes) OVER (ORDER BY finished_at DESC, id) AS newer_bytes
    FROM spillway.jobs WHERE state = 'failed' AND bytes_book = 'failed_source'
        AND (SELECT failed_source_bytes FROM spillway.gate WHERE id = 0) > :bytes_max
) AS sources
WHERE newer_bytes > :bytes_max ORDER BY finished_at LIMIT :rows_max;
