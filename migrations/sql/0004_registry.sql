-- Why: what failed can be looked at and done again by people, and what they did can be read afterwards.
-- * A source that is to be deleted is marked in its row first: a replay that comes after the mark is refused, one that
--   came before it has taken the job away. Before, a replay in between lost its source.
-- * The bytes of a source that was found missing stayed booked as a failed job's for as long as the job was kept.
-- * What the broker gave up on was only logged.
-- Names and arguments stay, for the code of the last release.

ALTER TABLE spillway.jobs
    -- The source is gone or on its way out: no replay from here on. Its bytes leave their book when the object is gone.
    ADD COLUMN source_gone_at timestamptz;
CREATE INDEX jobs_failed ON spillway.jobs (finished_at, id) WHERE state = 'failed';
CREATE INDEX jobs_sources_going ON spillway.jobs (source_gone_at)
    WHERE state = 'failed' AND source_gone_at IS NOT NULL AND held_bytes > 0;

-- Who did what to which job by hand, and what the job was before. Outlives the job; bounded in age and in rows.
CREATE TABLE spillway.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    who text NOT NULL CHECK (length(who) BETWEEN 1 AND 200),
    action text NOT NULL CHECK (length(action) BETWEEN 1 AND 40),
    job_id uuid NOT NULL,
    owner text NOT NULL,
    state_before text NOT NULL,
    error_code_before text,
    attempts_before integer NOT NULL,
    deaths_before integer NOT NULL,
    finished_before timestamptz
);
CREATE INDEX audit_by_job ON spillway.audit (job_id, id);
CREATE INDEX audit_by_age ON spillway.audit (at);

-- What the broker gave up on, without its bytes: equal bodies with one reason are one row that is counted up.
CREATE TABLE spillway.dead_letters (
    body_sha256 text NOT NULL CHECK (length(body_sha256) = 64),
    reason text NOT NULL CHECK (length(reason) BETWEEN 1 AND 40),
    body_bytes bigint NOT NULL CHECK (body_bytes >= 0),
    job_id uuid,
    seen_count bigint NOT NULL DEFAULT 1 CHECK (seen_count > 0),
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (body_sha256, reason)
);
CREATE INDEX dead_letters_by_age ON spillway.dead_letters (last_seen_at);

-- Whether a job could start anew: what it was made from is still there and stays.
CREATE FUNCTION spillway.has_source(p_job spillway.jobs) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT p_job.held_bytes > 0 AND p_job.source_gone_at IS NULL;
$$;

-- Jobs as those see them who look after the service: of every owner, without reservations.
CREATE VIEW spillway.registry AS
SELECT j.id AS job_id, j.image_id, j.owner, j.state, j.error_code, j.pipeline_version, j.accepted_at, j.finished_at,
    j.attempts_spent, j.deaths, j.claim_token, j.source_bytes, j.source_format, spillway.has_source(j) AS has_source
FROM spillway.jobs j
WHERE j.state NOT IN ('uploading', 'dropped');

-- Notes what a job was before somebody changed it by hand; the caller has locked its row.
CREATE FUNCTION spillway.note_audit(p_job spillway.jobs, p_who text, p_action text) RETURNS void LANGUAGE sql AS $$
    INSERT INTO spillway.audit (who, action, job_id, owner, state_before, error_code_before, attempts_before,
        deaths_before, finished_before)
    VALUES (p_who, p_action, p_job.id, p_job.owner, p_job.state, p_job.error_code, p_job.attempts_spent,
        p_job.deaths, p_job.finished_at);
$$;

-- The end of work, as before; a source that was found missing is in no book of failed jobs. What may still lie under
-- its key (a file that is not the accepted one) is deleted by the janitor, which then gives the bytes back.
CREATE OR REPLACE FUNCTION spillway.end_locked(p_job spillway.jobs, p_state text, p_code text, p_variants jsonb)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_state text := CASE WHEN p_job.state = 'cancelling' THEN 'cancelled' ELSE p_state END;
    v_gone boolean := v_state = 'failed' AND p_code = 'source_missing';
    v_failed boolean := v_state = 'failed' AND NOT v_gone AND p_job.held_bytes > 0;
    v_now timestamptz;
BEGIN
    IF v_state = 'ready' THEN
        UPDATE spillway.images SET ready_version = p_job.image_version, ready_job_id = p_job.id
        WHERE id = p_job.image_id AND ready_version < p_job.image_version;
    END IF;
    DELETE FROM spillway.outbox WHERE job_id = p_job.id;
    -- Not below nothing: an admit of the release before the shares that was on its way then is in none.
    UPDATE spillway.owners SET jobs_held = greatest(jobs_held - 1, 0) WHERE owner = p_job.owner;
    UPDATE spillway.gate SET jobs_held = jobs_held - 1,
        staging_bytes = staging_bytes - CASE WHEN v_failed THEN p_job.held_bytes ELSE 0 END,
        failed_source_bytes = failed_source_bytes + CASE WHEN v_failed THEN p_job.held_bytes ELSE 0 END
    WHERE id = 0;
    v_now := clock_timestamp();
    UPDATE spillway.jobs SET state = v_state, holds_place = false, released_at = v_now, finished_at = v_now,
        error_code = CASE WHEN v_state = 'failed' THEN p_code END,
        variants = CASE WHEN v_state = 'ready' THEN p_variants END,
        bytes_book = CASE WHEN v_failed THEN 'failed_source' ELSE bytes_book END,
        source_gone_at = CASE WHEN v_gone THEN v_now ELSE source_gone_at END,
        lease_until = NULL, due_at = NULL
    WHERE id = p_job.id;
    RETURN v_state;
END $$;

-- Replay: a failed job with its source starts anew under the same id, with fresh counts, within every bound of an
-- upload; NULL does not bind. Answers queued, not_failed, source_missing, owner_limit, staging_full or backlog_full.
CREATE FUNCTION spillway.replay(
    p_job uuid, p_jobs_max integer, p_bytes_max bigint, p_owner_jobs_max integer,
    p_job_deadline_s double precision, p_who text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
    v_gate spillway.gate;
    v_now timestamptz;
BEGIN
    SELECT * INTO v_job FROM spillway.jobs WHERE id = p_job FOR UPDATE;
    IF NOT FOUND OR v_job.state <> 'failed' THEN
        RETURN 'not_failed';
    ELSIF NOT spillway.has_source(v_job) THEN
        RETURN 'source_missing';
    ELSIF NOT spillway.take_share(v_job.owner, p_owner_jobs_max) THEN
        RETURN 'owner_limit';
    END IF;
    UPDATE spillway.gate SET jobs_held = jobs_held + 1, staging_bytes = staging_bytes + v_job.held_bytes,
        failed_source_bytes = failed_source_bytes - v_job.held_bytes
    WHERE id = 0 AND (p_jobs_max IS NULL OR jobs_held < p_jobs_max)
        AND (p_bytes_max IS NULL OR staging_bytes + v_job.held_bytes <= p_bytes_max);
    IF NOT FOUND THEN
        UPDATE spillway.owners SET jobs_held = jobs_held - 1 WHERE owner = v_job.owner;
        SELECT * INTO STRICT v_gate FROM spillway.gate WHERE id = 0;
        RETURN CASE WHEN p_bytes_max IS NOT NULL AND v_gate.staging_bytes + v_job.held_bytes > p_bytes_max
            THEN 'staging_full' ELSE 'backlog_full' END;
    END IF;
    v_now := clock_timestamp();
    UPDATE spillway.jobs SET state = 'queued', holds_place = true, admitted_at = v_now, released_at = NULL,
        finished_at = NULL, error_code = NULL, attempts_spent = 0, deaths = 0, bytes_book = 'staging',
        due_at = v_now, deadline_at = v_now + make_interval(secs => p_job_deadline_s), published_at = NULL,
        announced_count = 0, announce_again_at = '-infinity'
    WHERE id = p_job;
    PERFORM spillway.note_audit(v_job, p_who, 'replay');
    INSERT INTO spillway.outbox (job_id, available_at) VALUES (p_job, v_now);
    PERFORM pg_notify('spillway_outbox', '');
    RETURN 'queued';
END $$;

-- The last release's replay: it knows one bound and nobody's name.
CREATE OR REPLACE FUNCTION spillway.replay(p_job uuid, p_jobs_max integer, p_job_deadline_s double precision)
RETURNS text LANGUAGE sql AS $$
    SELECT spillway.replay(p_job, p_jobs_max, NULL, NULL, p_job_deadline_s, 'unknown');
$$;

-- Cancel by hand, a job of any owner, noted before it happens. NULL: not found or already final.
CREATE FUNCTION spillway.cancel_by_hand(p_job uuid, p_who text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
BEGIN
    SELECT * INTO v_job FROM spillway.jobs
    WHERE id = p_job AND state IN ('queued', 'processing', 'cancelling') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM spillway.note_audit(v_job, p_who, 'cancel');
    RETURN spillway.cancel(p_job, v_job.owner);
END $$;

-- Marks the sources that are to go: the oldest ones over the budget. Answers them together with those that were marked
-- before and are still booked, so that a purge which a crash cut short is taken up again.
CREATE FUNCTION spillway.claim_purges(p_bytes_max bigint, p_rows_max integer) RETURNS TABLE (job_id uuid)
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE spillway.jobs j SET source_gone_at = clock_timestamp()
    FROM (
        SELECT o.id FROM spillway.jobs o
        JOIN (
            SELECT s.id, sum(s.held_bytes) OVER (ORDER BY s.finished_at DESC, s.id) AS newer_bytes
            FROM spillway.jobs s
            WHERE s.state = 'failed' AND s.bytes_book = 'failed_source' AND s.source_gone_at IS NULL
                AND (SELECT g.failed_source_bytes FROM spillway.gate g WHERE g.id = 0) > p_bytes_max
        ) AS ranked ON ranked.id = o.id
        -- Said again of the row that is locked: a replay may have taken it meanwhile.
        WHERE ranked.newer_bytes > p_bytes_max AND o.state = 'failed' AND o.source_gone_at IS NULL
        ORDER BY o.finished_at LIMIT p_rows_max FOR UPDATE OF o SKIP LOCKED
    ) AS due
    WHERE j.id = due.id;
    RETURN QUERY
        SELECT j.id FROM spillway.jobs j
        WHERE j.state = 'failed' AND j.source_gone_at IS NOT NULL AND j.held_bytes > 0
        ORDER BY j.source_gone_at LIMIT p_rows_max;
END $$;
