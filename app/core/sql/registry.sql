-- name: failed_jobs
-- One page of failed jobs of all owners that fit a filter, newest failure first, after a cursor; NULL filters nothing.
SELECT * FROM spillway.registry
WHERE state = 'failed'
    AND (CAST(:owner AS text) IS NULL OR owner = CAST(:owner AS text))
    AND (CAST(:code AS text) IS NULL OR error_code = CAST(:code AS text))
    AND (CAST(:since AS timestamptz) IS NULL OR finished_at >= CAST(:since AS timestamptz))
    AND (CAST(:until AS timestamptz) IS NULL OR finished_at < CAST(:until AS timestamptz))
    AND (CAST(:pipeline_version AS integer) IS NULL OR pipeline_version = CAST(:pipeline_version AS integer))
    AND (CAST(:before_at AS timestamptz) IS NULL
        OR (finished_at, job_id) < (CAST(:before_at AS timestamptz), CAST(:before_id AS uuid)))
ORDER BY finished_at DESC, job_id DESC
LIMIT :rows_max;

-- name: failed_jobs_in_turn
-- The same, oldest failure first: the order in which they are replayed, since the oldest sources go first.
SELECT * FROM spillway.registry
WHERE state = 'failed'
    AND (CAST(:owner AS text) IS NULL OR owner = CAST(:owner AS text))
    AND (CAST(:code AS text) IS NULL OR error_code = CAST(:code AS text))
    AND (CAST(:since AS timestamptz) IS NULL OR finished_at >= CAST(:since AS timestamptz))
    AND (CAST(:until AS timestamptz) IS NULL OR finished_at < CAST(:until AS timestamptz))
    AND (CAST(:pipeline_version AS integer) IS NULL OR pipeline_version = CAST(:pipeline_version AS integer))
    AND (CAST(:after_at AS timestamptz) IS NULL
        OR (finished_at, job_id) > (CAST(:after_at AS timestamptz), CAST(:after_id AS uuid)))
ORDER BY finished_at, job_id
LIMIT :rows_max;

-- name: count_failed_jobs$
-- How many failed jobs fit a filter, counted up to a bound.
SELECT count(*) FROM (
    SELECT 1 FROM spillway.registry
    WHERE state = 'failed'
        AND (CAST(:owner AS text) IS NULL OR owner = CAST(:owner AS text))
        AND (CAST(:code AS text) IS NULL OR error_code = CAST(:code AS text))
        AND (CAST(:since AS timestamptz) IS NULL OR finished_at >= CAST(:since AS timestamptz))
        AND (CAST(:until AS timestamptz) IS NULL OR finished_at < CAST(:until AS timestamptz))
        AND (CAST(:pipeline_version AS integer) IS NULL OR pipeline_version = CAST(:pipeline_version AS integer))
    LIMIT :rows_max
) AS found;

-- name: find_registered^
-- One job of any owner.
SELECT * FROM spillway.registry WHERE job_id = :job_id;

-- name: database_now$
-- The moment by the clock that stamps failures: what failed before it can be told from what fails again after it.
SELECT clock_timestamp();

-- name: cancel_by_hand$
-- queued to cancelled, processing to cancelling, for a job of any owner and noted in the audit; NULL when it is final.
SELECT spillway.cancel_by_hand(:job_id, :who);

-- name: audit_of_job
-- What was done to a job by hand, newest first.
SELECT at, who, action, state_before, error_code_before, attempts_before, deaths_before, finished_before
FROM spillway.audit WHERE job_id = :job_id ORDER BY id DESC LIMIT :rows_max;

-- name: list_dead_letters
-- What the broker gave up on, last seen first.
SELECT body_sha256, reason, body_bytes, job_id, seen_count, first_seen_at, last_seen_at
FROM spillway.dead_letters ORDER BY last_seen_at DESC, body_sha256 LIMIT :rows_max;
