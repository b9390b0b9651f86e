-- name: list_parked
-- Parked jobs, the longest parked first, and whether a live worker serves their version by now.
SELECT j.id AS job_id, j.image_id, j.owner, j.pipeline_version, j.accepted_at, j.parked_at, j.deadline_at,
    EXISTS (SELECT 1 FROM spillway.processes p WHERE p.role = 'worker'
        AND p.seen_at > clock_timestamp() - make_interval(secs => :seen_s)
        AND j.pipeline_version = ANY (p.pipeline_versions)) AS served
FROM spillway.jobs j
WHERE j.parked_at IS NOT NULL
ORDER BY j.parked_at, j.id LIMIT :rows_max;

-- name: count_parked$
-- How many jobs are parked, up to a limit.
SELECT count(*) FROM (SELECT 1 FROM spillway.jobs WHERE parked_at IS NOT NULL LIMIT :rows_max) AS parked;

-- name: is_version_served$
-- Whether a live worker serves a version of the pipeline.
SELECT EXISTS (SELECT 1 FROM spillway.processes p WHERE p.role = 'worker'
    AND p.seen_at > clock_timestamp() - make_interval(secs => :seen_s)
    AND CAST(:pipeline_version AS integer) = ANY (p.pipeline_versions));

-- name: announce_parked
-- Parked jobs that a live worker serves go to the outbox and are parked no more.
SELECT job_id FROM spillway.announce_parked(:seen_s, :rows_max);

-- name: reprocess$
-- The next version of an image from its published original, when a place is free; the answer is a ReprocessOutcome.
SELECT spillway.reprocess(:image_id, :job_id, :pipeline_version, :jobs_max, :owner_jobs_max, :job_deadline_s, :who);

-- name: standing_page
-- The next images by id, so many rows however few of them fit; what stands for each, and whether it fits the filter.
SELECT page.id AS image_id,
    coalesce(j.state = 'ready'
        AND (CAST(:owner AS text) IS NULL OR j.owner = :owner)
        AND (CAST(:version_below AS integer) IS NULL OR j.pipeline_version < :version_below)
        AND (CAST(:made_before AS timestamptz) IS NULL OR j.finished_at < :made_before), false) AS fits
FROM (
    SELECT i.id, i.ready_job_id FROM spillway.images i
    WHERE CAST(:after_id AS uuid) IS NULL OR i.id > :after_id
    ORDER BY i.id LIMIT :rows_max
) AS page
LEFT JOIN spillway.jobs j ON j.id = page.ready_job_id
ORDER BY page.id;

-- name: reprocess_outlook$
-- What reprocessing an image would answer if there were a place; changes nothing.
SELECT CASE
    WHEN i.id IS NULL THEN 'not_found'
    WHEN j.state IS DISTINCT FROM 'ready' OR j.erase_asked_at IS NOT NULL THEN 'not_ready'
    WHEN EXISTS (SELECT 1 FROM spillway.jobs o
        WHERE o.image_id = i.id AND o.holds_place AND o.pipeline_version = :pipeline_version) THEN 'in_work'
    ELSE 'queued' END
FROM (SELECT CAST(:image_id AS uuid) AS id) AS asked
LEFT JOIN spillway.images i ON i.id = asked.id
LEFT JOIN spillway.jobs j ON j.id = i.ready_job_id;

-- name: claim_superseded
-- Results whose last link has ended since a newer one stands for their image: jobs whose own objects are to go.
SELECT job_id, image_id FROM spillway.claim_superseded(:keep_s, :rows_max);

-- name: note_results_gone
-- The own objects of these superseded jobs are deleted.
WITH ours AS (
    SELECT id FROM spillway.jobs WHERE id = ANY (CAST(:job_ids AS uuid[])) AND state = 'ready' AND results_gone_at IS NULL
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE spillway.jobs j SET results_gone_at = clock_timestamp() FROM ours WHERE j.id = ours.id RETURNING j.id;
