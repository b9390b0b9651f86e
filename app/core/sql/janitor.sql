-- name: rescue
-- Expired leases: processing back to queued with a death counted, or failed at the limit; cancelling to cancelled.
SELECT job_id, next_state, deaths FROM spillway.rescue(:deaths_max, :rows_max);

-- name: drop_stale_uploads
-- Reservations whose lease ran out: uploading to dropped, places back.
SELECT job_id FROM spillway.drop_stale_uploads(:rows_max);

-- name: fail_overdue
-- Queued jobs past their deadline end failed.
SELECT job_id FROM spillway.fail_overdue(:rows_max);

-- name: staging_to_clear
-- Jobs whose staging object is no longer needed: dropped ones, ready and cancelled ones.
(SELECT id, state FROM spillway.jobs WHERE state = 'dropped' AND held_bytes > 0 ORDER BY released_at LIMIT :rows_max)
UNION ALL
(SELECT id, state FROM spillway.jobs WHERE state IN ('ready', 'cancelled') AND held_bytes > 0
 ORDER BY finished_at LIMIT :rows_max);

-- name: give_bytes_back$
-- The staging objects of these jobs are gone: their bytes leave the book, once.
SELECT spillway.give_bytes_back(CAST(:job_ids AS uuid[]));

-- name: dropped_to_delete
-- Dropped rows swept once already and a lease ago: a late writer of theirs has had its time. The row of a place outlives
-- its link, and for as long again: whoever began to send with the link's last second may still be sending.
SELECT id FROM spillway.jobs
WHERE state = 'dropped' AND held_bytes = 0 AND swept_at < clock_timestamp() - make_interval(secs => :lease_s)
    AND (declared_bytes IS NULL OR upload_deadline_at + (upload_deadline_at - admitted_at) < clock_timestamp())
ORDER BY released_at LIMIT :rows_max;

-- name: delete_dropped
-- Rows of dropped reservations, after their second sweep.
DELETE FROM spillway.jobs WHERE id = ANY (CAST(:job_ids AS uuid[])) AND state = 'dropped' AND held_bytes = 0
RETURNING id;

-- name: delivery_census^
-- How many messages the broker should hold, how many workers say they hold, and whether a later row overtook an earlier.
WITH published AS (
    SELECT count(*) FILTER (WHERE j.state = 'queued') AS waiting,
        count(*) AS in_delivery,
        min(j.published_at) FILTER (WHERE j.state = 'queued') AS oldest_waiting
    FROM spillway.jobs j
    -- A parked job has no message on purpose.
    WHERE j.holds_place AND j.published_at IS NOT NULL AND j.parked_at IS NULL
)
SELECT p.waiting, p.in_delivery,
    (SELECT coalesce(sum(unacked), 0) FROM spillway.processes
     WHERE role = 'worker' AND seen_at > clock_timestamp() - make_interval(secs => :seen_s)) AS unacked,
    EXISTS (SELECT 1 FROM spillway.jobs j WHERE j.holds_place AND j.state <> 'queued'
        AND j.published_at > p.oldest_waiting + make_interval(secs => :lease_s)) AS overtaken
FROM published p;

-- name: announce_again
-- The oldest unclaimed published jobs are written to the outbox once more, each at doubling intervals.
WITH lost AS (
    SELECT j.id FROM spillway.jobs j
    WHERE j.holds_place AND j.state = 'queued' AND j.published_at < clock_timestamp() - make_interval(secs => :quiet_s)
        AND j.announce_again_at < clock_timestamp() AND j.parked_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM spillway.outbox o WHERE o.job_id = j.id)
    ORDER BY j.accepted_at LIMIT :rows_max FOR UPDATE SKIP LOCKED
), marked AS (
    UPDATE spillway.jobs j SET announced_count = j.announced_count + 1,
        announce_again_at = clock_timestamp() + make_interval(secs => :quiet_s * 2 ^ least(j.announced_count + 1, 10))
    FROM lost WHERE j.id = lost.id RETURNING j.id
)
INSERT INTO spillway.outbox (job_id, available_at) SELECT id, clock_timestamp() FROM marked
RETURNING job_id;

-- name: gauges^
-- All that a scrape shows, in one statement: unfinished jobs by state, the books, capacity, and ages in seconds (zero when
-- there is none) of the oldest accepted job that no worker has started, the oldest due announcement, and the oldest snapshot
-- of a client (of other roles only where this one may see them), which keeps dead rows alive.
SELECT held.*, g.jobs_held, g.staging_bytes, c.jobs_per_s,
    coalesce((SELECT extract(epoch FROM clock_timestamp() - accepted_at) FROM spillway.jobs
        WHERE holds_place AND state = 'queued' AND first_claimed_at IS NULL ORDER BY accepted_at LIMIT 1), 0)::double precision
        AS unstarted_s,
    coalesce((SELECT extract(epoch FROM clock_timestamp() - available_at) FROM spillway.outbox
        WHERE available_at < clock_timestamp() ORDER BY available_at LIMIT 1), 0)::double precision AS unpublished_s,
    coalesce((SELECT extract(epoch FROM clock_timestamp() - min(xact_start)) FROM pg_stat_activity
        WHERE backend_xmin IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid()), 0)::double precision
        AS snapshot_s
FROM spillway.gate g CROSS JOIN spillway.capacity c CROSS JOIN (
    SELECT count(*) FILTER (WHERE state = 'uploading') AS uploading, count(*) FILTER (WHERE state = 'queued') AS queued,
        count(*) FILTER (WHERE state = 'processing') AS processing, count(*) FILTER (WHERE state = 'cancelling') AS cancelling
    FROM spillway.jobs WHERE holds_place
) AS held
WHERE g.id = 0 AND c.id = 0;

-- name: announce_one$
-- A dead letter's job, when it still waits and has no announcement on its way.
INSERT INTO spillway.outbox (job_id, available_at)
SELECT j.id, clock_timestamp() FROM spillway.jobs j
WHERE j.id = :job_id AND j.state = 'queued' AND NOT EXISTS (SELECT 1 FROM spillway.outbox o WHERE o.job_id = j.id)
RETURNING true;

-- name: note_dead_letter$
-- Write down what the broker gave up on, or count it up when an equal body was there for the same reason.
INSERT INTO spillway.dead_letters AS d (body_sha256, reason, body_bytes, job_id)
VALUES (:body_sha256, :reason, :body_bytes, :job_id)
ON CONFLICT (body_sha256, reason) DO UPDATE SET seen_count = d.seen_count + 1, last_seen_at = clock_timestamp()
RETURNING seen_count;
