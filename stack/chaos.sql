-- name: make_journal#
-- A journal beneath the code, in databases of chaos runs only: every change of a job, as the database saw it.
CREATE SCHEMA IF NOT EXISTS chaos;
CREATE TABLE chaos.steps (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id uuid NOT NULL,
    state_before text,
    state_after text,
    claim_token bigint NOT NULL,
    attempts_before integer NOT NULL,
    attempts_after integer NOT NULL,
    deaths integer NOT NULL,
    held_before boolean NOT NULL,
    held_after boolean NOT NULL,
    admitted_at timestamptz NOT NULL,
    released_at timestamptz,
    result_changed boolean NOT NULL
);
CREATE TABLE chaos.pointers (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    image_id uuid NOT NULL,
    version_before integer NOT NULL,
    version_after integer NOT NULL
);
CREATE FUNCTION chaos.note_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_old spillway.jobs := CASE WHEN TG_OP = 'INSERT' THEN NEW ELSE OLD END;
    v_new spillway.jobs := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
    v_result boolean := (v_old.finished_at, v_old.variants, v_old.error_code)
        IS DISTINCT FROM (v_new.finished_at, v_new.variants, v_new.error_code);
BEGIN
    IF TG_OP = 'UPDATE' AND NOT v_result
        AND (v_old.state, v_old.claim_token, v_old.attempts_spent, v_old.deaths, v_old.holds_place, v_old.released_at)
        IS NOT DISTINCT FROM
        (v_new.state, v_new.claim_token, v_new.attempts_spent, v_new.deaths, v_new.holds_place, v_new.released_at)
    THEN
        RETURN NULL;
    END IF;
    INSERT INTO chaos.steps (job_id, state_before, state_after, claim_token, attempts_before, attempts_after, deaths,
        held_before, held_after, admitted_at, released_at, result_changed)
    VALUES (v_new.id, CASE WHEN TG_OP <> 'INSERT' THEN v_old.state END,
        CASE WHEN TG_OP <> 'DELETE' THEN v_new.state END, v_new.claim_token,
        v_old.attempts_spent, v_new.attempts_spent, v_new.deaths,
        TG_OP <> 'INSERT' AND v_old.holds_place, TG_OP <> 'DELETE' AND v_new.holds_place,
        v_new.admitted_at, v_new.released_at, v_result);
    RETURN NULL;
END $$;
CREATE FUNCTION chaos.note_pointer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos.pointers (image_id, version_before, version_after)
    VALUES (NEW.id, OLD.ready_version, NEW.ready_version);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_note_job AFTER INSERT OR UPDATE OR DELETE ON spillway.jobs
    FOR EACH ROW EXECUTE FUNCTION chaos.note_job();
CREATE TRIGGER chaos_note_pointer AFTER UPDATE OF ready_version ON spillway.images
    FOR EACH ROW EXECUTE FUNCTION chaos.note_pointer();

-- name: journal_steps
-- Everything the journal holds of jobs, in order.
SELECT extract(epoch FROM at)::double precision AS at_s, job_id, state_before, state_after, claim_token,
    attempts_before, attempts_after, deaths, held_before, held_after,
    extract(epoch FROM admitted_at)::double precision AS admitted_s,
    extract(epoch FROM released_at)::double precision AS released_s, result_changed
FROM chaos.steps ORDER BY seq;

-- name: journal_pointers
-- Every move of an image's pointer, in order.
SELECT image_id, version_before, version_after FROM chaos.pointers ORDER BY seq;

-- name: final_jobs
-- Every job as it ended, reservations included.
SELECT id AS job_id, image_id, image_version, owner, state, error_code, claim_token, attempts_spent, deaths,
    source_sha256, holds_place, held_bytes, bytes_book, variants
FROM spillway.jobs ORDER BY admitted_at;

-- name: final_pointers
-- Where each image's pointer stands.
SELECT id AS image_id, ready_version, ready_job_id FROM spillway.images;

-- name: final_books^
-- The admission books, and what the rows say that they should be.
SELECT g.jobs_held, g.staging_bytes, g.failed_source_bytes,
    count(j.id) FILTER (WHERE j.holds_place) AS rows_held,
    coalesce(sum(j.held_bytes) FILTER (WHERE j.bytes_book = 'staging'), 0)::bigint AS rows_staging_bytes,
    coalesce(sum(j.held_bytes) FILTER (WHERE j.bytes_book = 'failed_source'), 0)::bigint AS rows_failed_source_bytes,
    (SELECT count(*) FROM spillway.owners o WHERE o.jobs_held <> (
        SELECT count(*) FROM spillway.jobs h WHERE h.owner = o.owner AND h.holds_place)) AS owners_off
FROM spillway.gate g LEFT JOIN spillway.jobs j ON true
GROUP BY g.id, g.jobs_held, g.staging_bytes, g.failed_source_bytes;

-- name: restless_jobs$
-- Jobs that are not at rest: unfinished, reservations, and bytes in staging that a sweep has yet to give back.
SELECT count(*) FROM spillway.jobs
WHERE holds_place OR state = 'dropped' OR (held_bytes > 0 AND bytes_book = 'staging');

-- name: waiting_jobs
-- Some jobs whose message is worth repeating: the newest that wait or are in work, and some that have ended.
(SELECT id FROM spillway.jobs WHERE state IN ('queued', 'processing') ORDER BY admitted_at DESC LIMIT :rows_max)
UNION ALL
(SELECT id FROM spillway.jobs WHERE state IN ('ready', 'failed', 'cancelled') ORDER BY finished_at DESC LIMIT :rows_max);
