-- name: demo_job^
-- What the row of a job says, and how many announcements of it wait.
SELECT j.state, j.error_code, j.claim_token, j.deaths, j.attempts_spent, j.version, j.image_id,
    j.published_at IS NOT NULL AS published,
    (SELECT count(*) FROM spillway.outbox o WHERE o.job_id = j.id)::integer AS announcements
FROM spillway.jobs j WHERE j.id = :job_id;
