-- name: jobs_of_objects
-- What the rows say of the jobs that objects are named after.
SELECT id, image_id, state, held_bytes, sweep_due_at IS NOT NULL AS sweep_due, results_gone_at IS NOT NULL AS results_gone
FROM spillway.jobs WHERE id = ANY (CAST(:job_ids AS uuid[]));

-- name: images_of_objects
-- Whether anything still needs what is published of these images, or will sweep it.
SELECT image_id, bool_or(state NOT IN ('cancelled', 'expired') OR sweep_due_at IS NOT NULL) AS needed
FROM spillway.jobs WHERE image_id = ANY (CAST(:image_ids AS uuid[])) GROUP BY image_id;

-- name: sources_expected
-- Jobs whose staged file must be there, by id: unfinished ones, and failed ones that may be replayed.
SELECT id, state, version, pipeline_version, held_bytes, coalesce(finished_at, accepted_at) AS since
FROM spillway.jobs
WHERE id > :after AND held_bytes > 0 AND (
        (holds_place AND state IN ('queued', 'processing', 'cancelling'))
        OR (state = 'failed' AND bytes_book = 'failed_source' AND source_gone_at IS NULL))
    AND (CAST(:job_ids AS uuid[]) IS NULL OR id = ANY (CAST(:job_ids AS uuid[])))
ORDER BY id LIMIT :rows_max;

-- name: results_expected
-- The jobs that images' pointers name, by image, with the keys that must be there; not while a next one is in work.
SELECT j.id, j.image_id, j.version, j.variants, j.finished_at AS since
FROM spillway.images i JOIN spillway.jobs j ON j.id = i.ready_job_id
WHERE i.id > :after AND i.id <= :upto AND j.state = 'ready'
    AND (CAST(:image_ids AS uuid[]) IS NULL OR i.id = ANY (CAST(:image_ids AS uuid[])))
    AND NOT EXISTS (SELECT 1 FROM spillway.jobs n WHERE n.image_id = i.id AND n.holds_place)
ORDER BY i.id LIMIT :rows_max;

-- name: books_and_sums^
-- The books beside the sums that they stand for, both as of one moment.
SELECT g.jobs_held, g.staging_bytes, g.failed_source_bytes,
    count(*) FILTER (WHERE j.holds_place) AS jobs_held_sum,
    coalesce(sum(j.held_bytes) FILTER (WHERE j.bytes_book = 'staging'), 0)::bigint AS staging_bytes_sum,
    coalesce(sum(j.held_bytes) FILTER (WHERE j.bytes_book = 'failed_source'), 0)::bigint AS failed_source_bytes_sum
FROM spillway.gate g LEFT JOIN spillway.jobs j ON j.holds_place OR j.held_bytes > 0
WHERE g.id = 0
GROUP BY g.id;

-- name: janitors_alive$
-- Janitors seen lately, whatever else is missing.
SELECT count(*) FROM spillway.processes
WHERE role = 'janitor' AND seen_at > clock_timestamp() - make_interval(secs => :seen_s);

-- name: shares_that_differ
-- Owners whose share is not the count over their rows, both as of one moment.
SELECT coalesce(o.owner, c.owner) AS owner, coalesce(o.jobs_held, 0) AS jobs_held, coalesce(c.jobs, 0) AS jobs_held_sum
FROM spillway.owners o
FULL JOIN (SELECT owner, count(*)::integer AS jobs FROM spillway.jobs WHERE holds_place GROUP BY owner) AS c
    ON c.owner = o.owner
WHERE coalesce(o.jobs_held, 0) <> coalesce(c.jobs, 0)
ORDER BY 1 LIMIT :rows_max;

-- name: needless_announcements
-- Announcements of jobs that do not wait, in no relay's hands.
SELECT o.id, o.job_id, j.state, o.created_at AS since
FROM spillway.outbox o JOIN spillway.jobs j ON j.id = o.job_id
WHERE j.state <> 'queued' AND o.created_at < statement_timestamp() - make_interval(secs => :age_s)
    AND (o.lease_token IS NULL OR o.available_at < statement_timestamp())
ORDER BY o.id LIMIT :rows_max;

-- name: never_announced
-- Jobs that wait and are due, without an announcement, past or to come.
SELECT j.id, j.version, j.due_at AS since
FROM spillway.jobs j
WHERE j.holds_place AND j.state = 'queued' AND j.published_at IS NULL AND j.parked_at IS NULL
    AND j.due_at < statement_timestamp() - make_interval(secs => :age_s)
    AND NOT EXISTS (SELECT 1 FROM spillway.outbox o WHERE o.job_id = j.id)
ORDER BY j.due_at LIMIT :rows_max;

-- name: waiting_in_the_broker^
-- Published jobs that have waited for so long and are not about to be announced again.
SELECT count(*) AS jobs, min(j.published_at) AS since
FROM spillway.jobs j
WHERE j.holds_place AND j.state = 'queued' AND j.published_at < statement_timestamp() - make_interval(secs => :quiet_s)
    AND j.announce_again_at < statement_timestamp() AND j.parked_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM spillway.outbox o WHERE o.job_id = j.id);

-- name: mark_for_sweep
-- Cancelled and expired jobs of these ids or images: the janitor's step looks at their objects once more.
WITH ours AS (
    SELECT id FROM spillway.jobs
    WHERE (id = ANY (CAST(:job_ids AS uuid[])) OR image_id = ANY (CAST(:image_ids AS uuid[])))
        AND state IN ('cancelled', 'expired') AND sweep_due_at IS NULL
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE spillway.jobs j SET sweep_due_at = clock_timestamp() FROM ours WHERE j.id = ours.id RETURNING j.id;

-- name: mark_source_gone$
-- A failed job has no source any more: no replay from here on. True when the row moved.
UPDATE spillway.jobs SET source_gone_at = clock_timestamp()
WHERE id = :job_id AND state = 'failed' AND version = :version AND source_gone_at IS NULL
RETURNING true;

-- name: mend_books$
-- The books become the sums, if they differ by exactly this and nobody has written the books since the rows were summed.
WITH summed AS (
    SELECT g.xmin AS seen, g.jobs_held + :jobs_held AS jobs_held, g.staging_bytes + :staging_bytes AS staging_bytes,
        g.failed_source_bytes + :failed_source_bytes AS failed_source_bytes
    FROM spillway.gate g LEFT JOIN spillway.jobs j ON j.holds_place OR j.held_bytes > 0
    WHERE g.id = 0
    GROUP BY g.id, g.xmin
    HAVING count(*) FILTER (WHERE j.holds_place) = g.jobs_held + :jobs_held
        AND coalesce(sum(j.held_bytes) FILTER (WHERE j.bytes_book = 'staging'), 0) = g.staging_bytes + :staging_bytes
        AND coalesce(sum(j.held_bytes) FILTER (WHERE j.bytes_book = 'failed_source'), 0)
            = g.failed_source_bytes + :failed_source_bytes
)
UPDATE spillway.gate g SET jobs_held = s.jobs_held, staging_bytes = s.staging_bytes,
    failed_source_bytes = s.failed_source_bytes
FROM summed s WHERE g.id = 0 AND g.xmin = s.seen
RETURNING true;

-- name: write_gate_anew#
-- The gate's row, when it is not there, with its books as the sums. Whoever moves rows moves the books in the same
-- transaction, missing or not: behind the lock the rows are summed as they are once all of those have ended, and whoever
-- comes later finds the row.
DO $mend$
BEGIN
    LOCK TABLE spillway.gate IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO spillway.gate (id, jobs_held, staging_bytes, failed_source_bytes)
    SELECT 0, count(*) FILTER (WHERE holds_place),
        coalesce(sum(held_bytes) FILTER (WHERE bytes_book = 'staging'), 0),
        coalesce(sum(held_bytes) FILTER (WHERE bytes_book = 'failed_source'), 0)
    FROM spillway.jobs WHERE holds_place OR held_bytes > 0
    ON CONFLICT DO NOTHING;
END $mend$;

-- name: open_share!
-- An owner whose rows hold places has a share to be mended.
INSERT INTO spillway.owners (owner, jobs_held) VALUES (:owner, 0) ON CONFLICT DO NOTHING;

-- name: mend_share$
-- An owner's share becomes the count, if it differs by exactly this and nobody has written it since the rows were counted.
WITH counted AS (
    SELECT o.owner, o.xmin AS seen, o.jobs_held + :jobs_held AS jobs_held FROM spillway.owners o
    WHERE o.owner = :owner AND o.jobs_held + :jobs_held = (
        SELECT count(*) FROM spillway.jobs j WHERE j.owner = o.owner AND j.holds_place)
)
UPDATE spillway.owners o SET jobs_held = c.jobs_held
FROM counted c WHERE o.owner = c.owner AND o.xmin = c.seen
RETURNING true;

-- name: delete_needless_announcement$
-- An announcement goes, if its job still does not wait; jobs before their announcements, as everywhere.
WITH ours AS (
    SELECT j.id FROM spillway.jobs j
    WHERE j.id = (SELECT o.job_id FROM spillway.outbox o WHERE o.id = :announcement_id) AND j.state <> 'queued'
    FOR NO KEY UPDATE
)
DELETE FROM spillway.outbox o USING ours WHERE o.job_id = ours.id AND o.id = :announcement_id
RETURNING true;
