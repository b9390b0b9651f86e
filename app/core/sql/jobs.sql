-- name: admit$
-- Take key, share, place and bytes and write the job in `uploading`, all or nothing; the answer is an AdmitOutcome.
SELECT spillway.admit(:job_id, :image_id, :owner, :upload_token, :held_bytes, :jobs_max, :staging_bytes_max,
    :owner_jobs_max, :lease_s, :deadline_s, :operation, :key, :key_s,
    :declared_bytes, :declared_sha256, :declared_media_type);

-- name: accept$
-- uploading to queued with its announcement, key and attachment; false when the reservation is gone.
SELECT spillway.accept(:job_id, :upload_token, :source_bytes, :sha256, :format, :width, :height, :pipeline_version,
    :job_deadline_s, :attachment_id);

-- name: find_key^
-- The job that an Idempotency-Key stands for, with what is known of its upload; expired keys are as good as none.
SELECT k.job_id, k.fingerprint, j.state, j.image_id, a.id AS attachment_id
FROM spillway.idempotency_keys k
JOIN spillway.jobs j ON j.id = k.job_id
LEFT JOIN spillway.attachments a ON a.job_id = k.job_id
WHERE k.owner = :owner AND k.operation = :operation AND k.key = :key AND k.expires_at >= clock_timestamp();

-- name: find_place^
-- A place taken before the bytes, for its completion: what was declared, and the token that accepts it.
SELECT id, image_id, upload_token, declared_bytes, declared_sha256, declared_media_type,
    extract(epoch FROM upload_deadline_at - clock_timestamp())::double precision AS left_s
FROM spillway.jobs
WHERE id = :job_id AND owner = :owner AND state = 'uploading' AND declared_bytes IS NOT NULL;

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
-- queued, due and of a version that the worker serves to processing with the next fencing token and a lease; the
-- parameters are fixed at the first claim. A job that a worker died of is only for one that does nothing beside it.
UPDATE spillway.jobs
SET state = 'processing', claim_token = claim_token + 1, worker_id = :worker_id, claimed_at = clock_timestamp(),
    claimed_as = pipeline_version,
    first_claimed_at = coalesce(first_claimed_at, clock_timestamp()),
    lease_until = clock_timestamp() + make_interval(secs => :lease_s),
    transform_params = coalesce(transform_params, CAST(:transform_params AS jsonb)), due_at = NULL
WHERE id = :job_id AND state = 'queued' AND due_at <= clock_timestamp()
    AND pipeline_version = ANY (CAST(:pipeline_versions AS integer[])) AND (deaths = 0 OR :alone)
RETURNING id, image_id, owner, claim_token, attempts_spent, deaths, source_bytes, source_sha256, source_format,
    transform_params, pipeline_version, first_job_id IS NOT NULL AS reads_original;

-- name: is_suspect$
-- Whether a claim fails only because a worker has died of this job.
SELECT EXISTS (
    SELECT FROM spillway.jobs
    WHERE id = :job_id AND state = 'queued' AND due_at <= clock_timestamp() AND deaths > 0
        AND pipeline_version = ANY (CAST(:pipeline_versions AS integer[]))
);

-- name: park$
-- A queued job whose version this worker does not serve is parked; its version, or NULL when it is none of that.
UPDATE spillway.jobs SET parked_at = clock_timestamp()
WHERE id = :job_id AND state = 'queued' AND parked_at IS NULL
    AND pipeline_version <> ALL (CAST(:pipeline_versions AS integer[]))
RETURNING pipeline_version;

-- name: extend_leases
-- Extend the leases of the jobs that this worker holds by token; returns each job still held with its state.
WITH ours AS (
    SELECT j.id FROM spillway.jobs j
    JOIN unnest(CAST(:job_ids AS uuid[]), CAST(:claim_tokens AS bigint[])) AS held (id, token)
        ON j.id = held.id AND j.claim_token = held.token
    WHERE j.state IN ('processing', 'cancelling')
    ORDER BY j.id FOR NO KEY UPDATE OF j
)
UPDATE spillway.jobs AS j SET lease_until = clock_timestamp() + make_interval(secs => :lease_s)
FROM ours WHERE j.id = ours.id
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
-- failed to queued under the same id within every bound of an upload, noted in the audit; the answer is a ReplayOutcome.
SELECT spillway.replay(:job_id, :jobs_max, :staging_bytes_max, :owner_jobs_max, :job_deadline_s, :who);

-- name: find_job^
-- What an owner may see of a job; reservations and dropped ones are nobody's.
SELECT v.id, v.image_id, v.owner, v.state, v.version, v.accepted_at, v.finished_at, v.kept_from, v.error_code, v.variants,
    v.source_sha256, v.source_bytes, v.source_format, v.source_width, v.source_height, v.message_created_at
FROM spillway.job_views v
WHERE v.id = :job_id AND v.owner = :owner AND v.state NOT IN ('uploading', 'dropped');

-- name: find_image^
-- The job that stands for an owner's image: the one its pointer names, or else the newest.
SELECT v.id, v.image_id, v.owner, v.state, v.version, v.accepted_at, v.finished_at, v.kept_from, v.error_code, v.variants,
    v.source_sha256, v.source_bytes, v.source_format, v.source_width, v.source_height, v.message_created_at
FROM spillway.job_views v
WHERE v.image_id = :image_id AND v.owner = :owner AND v.state NOT IN ('uploading', 'dropped')
ORDER BY (v.id IS NOT DISTINCT FROM v.ready_job_id) DESC, v.image_version DESC
LIMIT 1;

-- name: jobs_of_image
-- The ids of all jobs of an owner's image.
SELECT id FROM spillway.jobs WHERE image_id = :image_id AND owner = :owner ORDER BY id;

-- name: list_jobs
-- One page of an owner's jobs, newest first, after a cursor; NULL state means all.
SELECT v.id, v.image_id, v.owner, v.state, v.version, v.accepted_at, v.finished_at, v.kept_from, v.error_code, v.variants,
    v.source_sha256, v.source_bytes, v.source_format, v.source_width, v.source_height, v.message_created_at
FROM spillway.job_views v
WHERE v.owner = :owner AND v.state NOT IN ('uploading', 'dropped')
    AND (CAST(:states AS text[]) IS NULL OR v.state = ANY (CAST(:states AS text[])))
    AND (CAST(:before_at AS timestamptz) IS NULL
        OR (v.accepted_at, v.id) < (CAST(:before_at AS timestamptz), CAST(:before_id AS uuid)))
ORDER BY v.accepted_at DESC, v.id DESC
LIMIT :rows_max;

-- name: changed_jobs
-- Which of these jobs have another version by now or are gone, for all the clients of a process that wait for a change.
SELECT known.id, known.version
FROM unnest(CAST(:job_ids AS uuid[]), CAST(:versions AS integer[])) AS known (id, version)
LEFT JOIN spillway.job_views v ON v.id = known.id
WHERE v.version IS DISTINCT FROM known.version;

-- name: erase_image$
-- Cancel and expire every job of an owner's image; NULL when there is none, else stopping or erased.
SELECT spillway.erase_image(:image_id, :owner);

-- name: export_jobs
-- Every stamp of the jobs admitted since a moment, for measurements; bounded by the caller's limit.
SELECT id AS job_id, owner, state, error_code, admitted_at, accepted_at, published_at, first_claimed_at, finished_at,
    released_at, attempts_spent, deaths, claim_token, source_bytes, source_width, source_height
FROM spillway.jobs
WHERE admitted_at >= :since
ORDER BY admitted_at
LIMIT :rows_max;
