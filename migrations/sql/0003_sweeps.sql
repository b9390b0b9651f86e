-- Why: sweeps that stay cheap however much is kept, and that take their locks in the one order.
-- * A volatile clock is no index condition: a sweep that found nothing read every row that was kept. All of them compare
--   with the moment their statement began, which is never later than the real one.
-- * An owner's row was waited for while the gate was held, once a sweep ended jobs of two owners.
-- * Jobs that messages name were looked at by every sweep for as long as they were kept.
-- Names and arguments stay, for the code of the last release.

-- Set while a message names the job: it expires with that message and no sweep need look at it.
ALTER TABLE spillway.jobs ADD COLUMN named_at timestamptz;
UPDATE spillway.jobs j SET named_at = a.attached_at FROM spillway.attachments a
    WHERE a.job_id = j.id AND a.message_id IS NOT NULL;
DROP INDEX spillway.jobs_final_by_age;
CREATE INDEX jobs_final_by_age ON spillway.jobs (state, finished_at)
    WHERE state IN ('ready', 'failed', 'cancelled') AND named_at IS NULL;

-- Locks the owners of these jobs, whose rows the caller has locked: several jobs may then end in one statement, which
-- waits for nothing after the gate.
CREATE FUNCTION spillway.lock_owners(p_jobs uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM spillway.owners o
    WHERE o.owner IN (SELECT j.owner FROM spillway.jobs j WHERE j.id = ANY (p_jobs))
    ORDER BY o.owner FOR UPDATE;
END $$;

-- As before, in the order of locks.
CREATE OR REPLACE FUNCTION spillway.hand_back_unheld(p_worker uuid, p_held uuid[]) RETURNS TABLE (job_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
    v_ids uuid[];
    v_job spillway.jobs;
BEGIN
    SELECT array_agg(found.id) INTO v_ids FROM (
        SELECT j.id FROM spillway.jobs j
        WHERE j.state IN ('processing', 'cancelling') AND j.worker_id = p_worker AND j.id <> ALL (p_held)
        ORDER BY j.id FOR UPDATE SKIP LOCKED
    ) AS found;
    PERFORM spillway.lock_owners(v_ids);
    FOR v_job IN SELECT * FROM spillway.jobs j WHERE j.id = ANY (v_ids) ORDER BY j.id LOOP
        job_id := v_job.id;
        PERFORM spillway.requeue_locked(v_job, 0, v_job.attempts_spent, v_job.deaths);
        RETURN NEXT;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION spillway.rescue(p_deaths_max integer, p_rows_max integer)
RETURNS TABLE (job_id uuid, next_state text, deaths integer) LANGUAGE plpgsql AS $$
DECLARE
    v_ids uuid[];
    v_job spillway.jobs;
BEGIN
    SELECT array_agg(found.id) INTO v_ids FROM (
        SELECT j.id FROM spillway.jobs j
        WHERE j.state IN ('processing', 'cancelling') AND j.lease_until < statement_timestamp()
        ORDER BY j.lease_until LIMIT p_rows_max FOR UPDATE SKIP LOCKED
    ) AS found;
    PERFORM spillway.lock_owners(v_ids);
    FOR v_job IN SELECT * FROM spillway.jobs j WHERE j.id = ANY (v_ids) ORDER BY j.lease_until LOOP
        job_id := v_job.id;
        deaths := v_job.deaths + 1;
        IF deaths >= p_deaths_max AND v_job.state = 'processing' THEN
            UPDATE spillway.jobs j SET deaths = rescue.deaths WHERE j.id = v_job.id;
            next_state := spillway.end_locked(v_job, 'failed', 'worker_lost', NULL);
        ELSE
            next_state := spillway.requeue_locked(v_job, 0, v_job.attempts_spent, deaths);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION spillway.fail_overdue(p_rows_max integer) RETURNS TABLE (job_id uuid) LANGUAGE plpgsql AS $$
DECLARE
    v_ids uuid[];
    v_job spillway.jobs;
BEGIN
    SELECT array_agg(found.id) INTO v_ids FROM (
        SELECT j.id FROM spillway.jobs j
        WHERE j.holds_place AND j.state = 'queued' AND j.deadline_at < statement_timestamp()
        ORDER BY j.accepted_at LIMIT p_rows_max FOR UPDATE SKIP LOCKED
    ) AS found;
    PERFORM spillway.lock_owners(v_ids);
    FOR v_job IN SELECT * FROM spillway.jobs j WHERE j.id = ANY (v_ids) ORDER BY j.accepted_at LOOP
        job_id := v_job.id;
        PERFORM spillway.end_locked(v_job, 'failed', 'deadline_exceeded', NULL);
        RETURN NEXT;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION spillway.drop_stale_uploads(p_rows_max integer) RETURNS TABLE (job_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
    v_ids uuid[];
    v_job spillway.jobs;
BEGIN
    SELECT array_agg(found.id) INTO v_ids FROM (
        SELECT j.id FROM spillway.jobs j
        WHERE j.state = 'uploading' AND j.upload_lease_until < statement_timestamp()
        ORDER BY j.upload_lease_until LIMIT p_rows_max FOR UPDATE SKIP LOCKED
    ) AS found;
    PERFORM 1 FROM spillway.idempotency_keys k WHERE k.job_id = ANY (v_ids)
        ORDER BY k.owner, k.operation, k.key FOR UPDATE;
    PERFORM spillway.lock_owners(v_ids);
    FOR v_job IN SELECT * FROM spillway.jobs j WHERE j.id = ANY (v_ids) ORDER BY j.upload_lease_until LOOP
        job_id := v_job.id;
        PERFORM spillway.drop_upload(v_job.id, v_job.upload_token);
        RETURN NEXT;
    END LOOP;
END $$;

-- Attach, as before; the job notes that it is named.
CREATE OR REPLACE FUNCTION spillway.attach(
    p_owner text, p_message uuid, p_attachments uuid[], p_attachments_max integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_free integer;
    v_known integer;
BEGIN
    -- Exclusive: two at once must not both find room.
    PERFORM 1 FROM spillway.messages WHERE id = p_message AND owner = p_owner FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'not_found';
    END IF;
    -- Jobs before attachments, as everywhere: none of them expires while it is being named.
    PERFORM 1 FROM spillway.jobs WHERE id IN (
        SELECT job_id FROM spillway.attachments WHERE id = ANY (p_attachments) AND owner = p_owner)
    ORDER BY id FOR NO KEY UPDATE;
    PERFORM 1 FROM spillway.attachments WHERE id = ANY (p_attachments) AND owner = p_owner ORDER BY id FOR UPDATE;
    SELECT count(*), count(*) FILTER (WHERE a.message_id IS NULL) INTO v_known, v_free
    FROM spillway.attachments a JOIN spillway.jobs j ON j.id = a.job_id AND j.state <> 'expired'
    WHERE a.id = ANY (p_attachments) AND a.owner = p_owner;
    IF v_known <> cardinality(p_attachments) THEN
        RETURN 'not_found';
    ELSIF v_free <> v_known THEN
        RETURN 'already_attached';
    ELSIF v_known + (SELECT count(*) FROM spillway.attachments WHERE message_id = p_message) > p_attachments_max THEN
        RETURN 'too_many';
    END IF;
    UPDATE spillway.attachments a SET message_id = p_message, attached_at = clock_timestamp()
    WHERE a.id = ANY (p_attachments);
    UPDATE spillway.jobs j SET named_at = clock_timestamp()
    FROM spillway.attachments a WHERE a.id = ANY (p_attachments) AND j.id = a.job_id;
    RETURN 'attached';
END $$;

-- Expire, as before.
CREATE OR REPLACE FUNCTION spillway.expire_due(
    p_ready_s double precision, p_failed_s double precision, p_cancelled_s double precision, p_rows_max integer
) RETURNS TABLE (job_id uuid) LANGUAGE plpgsql AS $$
DECLARE
    v_state text;
    v_keep_s double precision;
BEGIN
    RETURN QUERY
        WITH due AS (
            SELECT j.id FROM spillway.jobs j
            WHERE j.erase_asked_at IS NOT NULL AND j.state IN ('ready', 'failed', 'cancelled')
            ORDER BY j.erase_asked_at LIMIT p_rows_max FOR UPDATE SKIP LOCKED
        )
        UPDATE spillway.jobs j SET state = 'expired' FROM due WHERE j.id = due.id RETURNING j.id;
    FOREACH v_state IN ARRAY ARRAY['ready', 'failed', 'cancelled'] LOOP
        v_keep_s := CASE v_state WHEN 'ready' THEN p_ready_s WHEN 'failed' THEN p_failed_s ELSE p_cancelled_s END;
        RETURN QUERY
            WITH due AS (
                SELECT j.id FROM spillway.jobs j
                -- The states are said twice, so that a plan for any of them may use the partial index.
                WHERE j.state = v_state AND j.state IN ('ready', 'failed', 'cancelled') AND j.named_at IS NULL
                    AND j.finished_at < statement_timestamp() - make_interval(secs => v_keep_s)
                ORDER BY j.finished_at LIMIT p_rows_max FOR UPDATE SKIP LOCKED
            )
            UPDATE spillway.jobs j SET state = 'expired' FROM due WHERE j.id = due.id RETURNING j.id;
    END LOOP;
END $$;

-- Messages past their retention go, so many at most, and with them the final jobs they name.
CREATE OR REPLACE FUNCTION spillway.expire_messages(p_keep_s double precision, p_rows_max integer)
RETURNS TABLE (message_id uuid) LANGUAGE plpgsql AS $$
DECLARE
    v_due uuid[];
    v_jobs uuid[];
BEGIN
    SELECT array_agg(due.id) INTO v_due FROM (
        SELECT m.id FROM spillway.messages m
        WHERE m.created_at < statement_timestamp() - make_interval(secs => p_keep_s)
        ORDER BY m.created_at LIMIT p_rows_max FOR UPDATE SKIP LOCKED
    ) AS due;
    -- Statements of their own: they see every name that was given before the messages were locked.
    SELECT array_agg(a.job_id) INTO v_jobs FROM spillway.attachments a WHERE a.message_id = ANY (v_due);
    PERFORM 1 FROM spillway.jobs j WHERE j.id = ANY (v_jobs) ORDER BY j.id FOR NO KEY UPDATE;
    -- One still in work outlives its message and expires by its own age.
    UPDATE spillway.jobs j SET named_at = NULL,
        state = CASE WHEN j.state IN ('ready', 'failed', 'cancelled') THEN 'expired' ELSE j.state END
    WHERE j.id = ANY (v_jobs);
    UPDATE spillway.attachments a SET message_id = NULL, attached_at = NULL WHERE a.message_id = ANY (v_due);
    RETURN QUERY DELETE FROM spillway.messages m WHERE m.id = ANY (v_due) RETURNING m.id;
END $$;
