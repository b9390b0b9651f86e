-- name: admit$
-- Take a place and bytes and write the job in `uploading`, all or nothing; answers admitted, backlog_full or staging_full.
SELECT spillway.admit(:job_id, :image_id, :owner, :upload_token, :held_bytes, :jobs_max, :staging_bytes_max,
    :lease_s, :deadline_s);

-- name: accept$
-- uploading to queued with its announcement, guarded by the upload token; false when the reservation is gone.
SELECT spillway.accept(:job_id, :upload_token, :source_bytes, :sha256, :format, :width, :height, :pipeline_version,
    :job_deadline_s);

-- name: renew_uploads
-- Extend the leases of the uploads that this process still has in hand, never past their deadline; returns those still held.
UPDATE spillway.jobs AS j
SET upload_lease_until = least(clock_timestamp() + make_interval(secs => :lease_s), j.upload_deadline_at)
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:upload_tokens AS uuid[])) AS held (id, token)
WHERE j.id = held.id AND j.upload_token = held.token AND j.state = 'uploading'
RETURNING j.id;

-- name: drop_upload$
-- uploading to dropped, guarded by the upload token; the place goes back at once.
SELECT spillway.drop_upload(:job_id, :upload_token);

-- name: upload_state$
-- State of a reservation asked by its token, after an answer was lost.
SELECT state FROM spillway.jobs WHERE id = :job_id AND upload_token = :upload_token;

-- name: claim^
-- queued and due to processing with the next fencing token and a lease; the parameters are fixed at the first claim.
UPDATE spillway.jobs
SET state = 'processing', claim_token = claim_token + 1, worker_id = :worker_id, claimed_at = clock_timestamp(),
    first_claimed_at = coalesce(first_claimed_at, clock_timestamp()),
    lease_until = clock_timestamp() + make_interval(secs => :lease_s),
    transform_params = coalesce(transform_params, CAST(:transform_params AS jsonb)), due_at = NULL
WHERE id = :job_id AND state = 'queued' AND due_at <= clock_timestamp()
RETURNING id, image_id, image_version, owner, claim_token, attempts_spent, deaths, source_bytes, source_sha256,
    source_format, transform_params;

-- name: extend_leases
-- Extend the leases of the jobs that this worker holds by token; returns each job still held with its state.
UPDATE spillway.jobs AS j
SET lease_until = clock_timestamp() + make_interval(secs => :lease_s)
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:claim_tokens AS bigint[])) AS held (id, token)
WHERE j.id = held.id AND j.claim_token = held.token AND j.state IN ('processing', 'cancelling')
RETURNING j.id, j.state;

-- name: complete$
-- processing to ready (or cancelling to cancelled), guarded by state and token; NULL when the claim was lost.
SELECT spillway.complete(:job_id, :claim_token, CAST(:variants AS jsonb));

-- name: fail$
-- processing to failed with a code, guarded by state and token; NULL when the claim was lost.
SELECT spillway.fail(:job_id, :claim_token, :code);

-- name: retry$
-- processing to queued after a delay, spending an attempt or not; NULL when the claim was lost.
SELECT spillway.retry(:job_id, :claim_token, :delay_s, :attempt_spent, :attempts_max);

-- name: hand_back_unheld
-- processing to queued for what this worker holds by the rows but not in its hands, after lost answers.
SELECT job_id FROM spillway.hand_back_unheld(:worker_id, CAST(:held_ids AS uuid[]));

-- name: cancel$
-- queued to cancelled, processing to cancelling; NULL when there is nothing to cancel.
SELECT spillway.cancel(:job_id, :owner);

-- name: replay$
-- failed to queued under the same id when a place is free; answers queued, not_failed, source_missing or backlog_full.
SELECT spillway.replay(:job_id, :jobs_max, :job_deadline_s);

-- name: expire$
-- ready, failed or cancelled to expired; true when the state moved.
UPDATE spillway.jobs SET state = 'expired' WHERE id = :job_id AND state IN ('ready', 'failed', 'cancelled')
RETURNING true;

-- name: find_job^
-- What an owner may see of a job; reservations and dropped ones are nobody's.
SELECT id, image_id, owner, state, accepted_at, finished_at, error_code, variants, source_sha256, source_bytes,
    source_format, source_width, source_height
FROM spillway.jobs
WHERE id = :job_id AND owner = :owner AND state NOT IN ('uploading', 'dropped');

-- name: export_jobs
-- Every stamp of the jobs admitted since a moment, for measurements; bounded by the caller's limit.
SELECT id AS job_id, owner, state, error_code, admitted_at, accepted_at, published_at, first_claimed_at, finished_at,
    released_at, attempts_spent, deaths, claim_token, source_bytes, source_width, source_height
FROM spillway.jobs
WHERE admitted_at >= :since
ORDER BY admitted_at
LIMIT :rows_max;
