-- Why: the HTTP contract in full: keys that make a repeated upload the same job, owners with shares of their own,
-- messages that name attachments, retention, places taken before the bytes, and tokens with scopes.
-- The code of the first schema goes on working on this one: its functions keep their names and arguments.

-- Nobody admits or settles while the shares are counted. It is taken first, so that no weaker lock must be raised later.
LOCK TABLE spillway.jobs IN ACCESS EXCLUSIVE MODE;

-- One owner's share of the books; locked after the job and its key, before the gate.
CREATE TABLE spillway.owners (
    owner text PRIMARY KEY CHECK (length(owner) BETWEEN 1 AND 200),
    jobs_held integer NOT NULL DEFAULT 0 CHECK (jobs_held >= 0)
) WITH (fillfactor = 50);
INSERT INTO spillway.owners (owner, jobs_held)
    SELECT owner, count(*) FROM spillway.jobs WHERE holds_place GROUP BY owner;

ALTER TABLE spillway.tokens ADD COLUMN scopes text[] NOT NULL DEFAULT '{user}'
    CONSTRAINT tokens_scopes_known CHECK (scopes <@ ARRAY['user', 'admin', 'metrics'] AND cardinality(scopes) > 0);

-- The key of an upload: claimed with the place, it lives and dies with that reservation until the accept.
CREATE TABLE spillway.idempotency_keys (
    owner text NOT NULL,
    operation text NOT NULL CHECK (operation IN ('image', 'attachment')),
    key text NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    job_id uuid NOT NULL,
    fingerprint text,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (owner, operation, key)
);
CREATE INDEX idempotency_keys_by_job ON spillway.idempotency_keys (job_id);
CREATE INDEX idempotency_keys_by_expiry ON spillway.idempotency_keys (expires_at);

CREATE TABLE spillway.messages (
    id uuid PRIMARY KEY,
    owner text NOT NULL,
    body text NOT NULL CHECK (length(body) BETWEEN 1 AND 10000),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX messages_by_owner ON spillway.messages (owner, created_at DESC, id DESC);
CREATE INDEX messages_by_age ON spillway.messages (created_at);

-- An attachment is an image whose job belongs to a message, once one names it.
CREATE TABLE spillway.attachments (
    id uuid PRIMARY KEY,
    owner text NOT NULL,
    job_id uuid NOT NULL UNIQUE,
    message_id uuid REFERENCES spillway.messages (id) ON DELETE CASCADE,
    attached_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT attachments_attached CHECK ((message_id IS NULL) = (attached_at IS NULL))
);
CREATE INDEX attachments_by_message ON spillway.attachments (message_id, attached_at, id);

ALTER TABLE spillway.jobs
    -- A place taken before the bytes: they go straight to the store, under a key the client is given.
    ADD COLUMN declared_bytes bigint CHECK (declared_bytes > 0),
    ADD COLUMN declared_sha256 text,
    ADD COLUMN declared_media_type text,
    -- Counts what a reader can see change: with the window of the links it is the strong ETag.
    ADD COLUMN version integer NOT NULL DEFAULT 1,
    ADD COLUMN erase_asked_at timestamptz,
    ADD COLUMN expired_at timestamptz,
    -- When the store is to be looked at (again) for what a cancelled or expired job left: at once, a lease later for a
    -- late writer, and once more before the row goes.
    ADD COLUMN sweep_due_at timestamptz,
    ADD CONSTRAINT jobs_declared_whole CHECK (
        num_nonnulls(declared_bytes, declared_sha256, declared_media_type) IN (0, 3));
CREATE INDEX jobs_final_by_age ON spillway.jobs (state, finished_at) WHERE state IN ('ready', 'failed', 'cancelled');
CREATE INDEX jobs_expired ON spillway.jobs (expired_at) WHERE state = 'expired';
CREATE INDEX jobs_to_sweep ON spillway.jobs (sweep_due_at) WHERE sweep_due_at IS NOT NULL;
CREATE INDEX jobs_to_erase ON spillway.jobs (erase_asked_at)
    WHERE erase_asked_at IS NOT NULL AND state IN ('ready', 'failed', 'cancelled');
CREATE INDEX jobs_failed_sources ON spillway.jobs (finished_at) WHERE state = 'failed' AND bytes_book = 'failed_source';
CREATE INDEX jobs_listing ON spillway.jobs (owner, accepted_at DESC, id DESC)
    WHERE state NOT IN ('uploading', 'dropped');
CREATE INDEX jobs_by_image ON spillway.jobs (image_id);
DROP INDEX spillway.jobs_by_owner;

-- Every arrow is a change that readers see.
CREATE OR REPLACE FUNCTION spillway.guard_arrow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM spillway.arrows WHERE state = OLD.state AND next_state = NEW.state) THEN
        RAISE EXCEPTION 'no arrow from % to %', OLD.state, NEW.state USING ERRCODE = 'check_violation';
    END IF;
    IF TG_TABLE_NAME = 'jobs' THEN
        NEW.version := OLD.version + 1;
        NEW.sweep_due_at := CASE WHEN NEW.state IN ('cancelled', 'expired') THEN clock_timestamp() END;
        IF NEW.state = 'expired' THEN
            NEW.expired_at := clock_timestamp();
        END IF;
    END IF;
    RETURN NEW;
END $$;

-- The share of an owner, always counted, bounded when a bound is given. NULL does not bind.
CREATE FUNCTION spillway.take_share(p_owner text, p_owner_jobs_max integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO spillway.owners AS o (owner, jobs_held) VALUES (p_owner, 1)
    ON CONFLICT (owner) DO UPDATE SET jobs_held = o.jobs_held + 1
    WHERE p_owner_jobs_max IS NULL OR o.jobs_held < p_owner_jobs_max;
    RETURN FOUND;
END $$;

-- Admit, whole: key, share, gate and row, all or nothing. Answers admitted, key_taken, owner_limit, backlog_full or
-- staging_full. An expired key is as good as none. What a later no undoes never leaves this statement.
CREATE FUNCTION spillway.admit(
    p_job uuid, p_image uuid, p_owner text, p_token uuid, p_bytes bigint,
    p_jobs_max integer, p_bytes_max bigint, p_owner_jobs_max integer,
    p_lease_s double precision, p_deadline_s double precision,
    p_operation text, p_key text, p_key_s double precision,
    p_declared_bytes bigint, p_declared_sha256 text, p_declared_media_type text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_answer text;
BEGIN
    IF p_key IS NOT NULL THEN
        DELETE FROM spillway.idempotency_keys
        WHERE owner = p_owner AND operation = p_operation AND key = p_key AND expires_at < clock_timestamp();
        INSERT INTO spillway.idempotency_keys (owner, operation, key, job_id, expires_at)
        VALUES (p_owner, p_operation, p_key, p_job, clock_timestamp() + make_interval(secs => p_key_s))
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN 'key_taken';
        END IF;
    END IF;
    IF NOT spillway.take_share(p_owner, p_owner_jobs_max) THEN
        v_answer := 'owner_limit';
    ELSE
        v_answer := spillway.admit_at_gate(p_job, p_image, p_owner, p_token, p_bytes, p_jobs_max, p_bytes_max,
            p_lease_s, p_deadline_s);
        IF v_answer = 'admitted' THEN
            IF p_declared_bytes IS NOT NULL THEN
                UPDATE spillway.jobs SET declared_bytes = p_declared_bytes, declared_sha256 = p_declared_sha256,
                    declared_media_type = p_declared_media_type WHERE id = p_job;
            END IF;
            RETURN v_answer;
        END IF;
        UPDATE spillway.owners SET jobs_held = jobs_held - 1 WHERE owner = p_owner;
    END IF;
    IF p_key IS NOT NULL THEN
        DELETE FROM spillway.idempotency_keys WHERE owner = p_owner AND operation = p_operation AND key = p_key;
    END IF;
    RETURN v_answer;
END $$;

ALTER FUNCTION spillway.admit(uuid, uuid, text, uuid, bigint, integer, bigint, double precision, double precision)
    RENAME TO admit_at_gate;
-- The last release's admit: no key, no bound on the owner, but its share is counted.
CREATE FUNCTION spillway.admit(
    p_job uuid, p_image uuid, p_owner text, p_token uuid, p_bytes bigint,
    p_jobs_max integer, p_bytes_max bigint, p_lease_s double precision, p_deadline_s double precision
) RETURNS text LANGUAGE sql AS $$
    SELECT spillway.admit(p_job, p_image, p_owner, p_token, p_bytes, p_jobs_max, p_bytes_max, NULL,
        p_lease_s, p_deadline_s, NULL, NULL, NULL, NULL, NULL, NULL);
$$;

-- Accept, whole: also completes the key, and makes the attachment when the upload is one.
CREATE FUNCTION spillway.accept(
    p_job uuid, p_token uuid, p_bytes bigint, p_sha256 text, p_format text, p_width integer, p_height integer,
    p_pipeline_version integer, p_job_deadline_s double precision, p_attachment uuid
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    -- The key comes after the job row and before the gate, which accept() touches last: so it is locked here first.
    PERFORM 1 FROM spillway.jobs WHERE id = p_job AND upload_token = p_token AND state = 'uploading' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE spillway.idempotency_keys SET fingerprint = p_sha256 WHERE job_id = p_job;
    IF p_attachment IS NOT NULL THEN
        INSERT INTO spillway.attachments (id, owner, job_id)
        SELECT p_attachment, owner, id FROM spillway.jobs WHERE id = p_job;
    END IF;
    RETURN spillway.accept(p_job, p_token, p_bytes, p_sha256, p_format, p_width, p_height, p_pipeline_version,
        p_job_deadline_s);
END $$;

-- The end of work, as before, and the owner's share.
CREATE OR REPLACE FUNCTION spillway.end_locked(p_job spillway.jobs, p_state text, p_code text, p_variants jsonb)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_state text := CASE WHEN p_job.state = 'cancelling' THEN 'cancelled' ELSE p_state END;
    v_failed boolean := v_state = 'failed' AND p_job.held_bytes > 0;
    v_now timestamptz;
BEGIN
    IF v_state = 'ready' THEN
        UPDATE spillway.images SET ready_version = p_job.image_version, ready_job_id = p_job.id
        WHERE id = p_job.image_id AND ready_version < p_job.image_version;
    END IF;
    DELETE FROM spillway.outbox WHERE job_id = p_job.id;
    -- Not below nothing: an admit of the last release that was on its way through the migration is in no share.
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
        lease_until = NULL, due_at = NULL
    WHERE id = p_job.id;
    RETURN v_state;
END $$;

-- Drop, as before, and the key and the owner's share with it.
CREATE OR REPLACE FUNCTION spillway.drop_upload(p_job uuid, p_token uuid) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_owner text;
BEGIN
    SELECT owner INTO v_owner FROM spillway.jobs
    WHERE id = p_job AND upload_token = p_token AND state = 'uploading' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM spillway.idempotency_keys WHERE job_id = p_job;
    UPDATE spillway.owners SET jobs_held = greatest(jobs_held - 1, 0) WHERE owner = v_owner;
    UPDATE spillway.gate SET jobs_held = jobs_held - 1 WHERE id = 0;
    UPDATE spillway.jobs SET state = 'dropped', holds_place = false, released_at = clock_timestamp()
    WHERE id = p_job;
    RETURN true;
END $$;

-- Replay, as before, within the owner's share.
CREATE OR REPLACE FUNCTION spillway.replay(p_job uuid, p_jobs_max integer, p_job_deadline_s double precision)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
    v_now timestamptz;
BEGIN
    SELECT * INTO v_job FROM spillway.jobs WHERE id = p_job FOR UPDATE;
    IF NOT FOUND OR v_job.state <> 'failed' THEN
        RETURN 'not_failed';
    ELSIF v_job.held_bytes = 0 THEN
        RETURN 'source_missing';
    END IF;
    PERFORM spillway.take_share(v_job.owner, NULL);
    UPDATE spillway.gate SET jobs_held = jobs_held + 1, staging_bytes = staging_bytes + v_job.held_bytes,
        failed_source_bytes = failed_source_bytes - v_job.held_bytes
    WHERE id = 0 AND (p_jobs_max IS NULL OR jobs_held < p_jobs_max);
    IF NOT FOUND THEN
        UPDATE spillway.owners SET jobs_held = jobs_held - 1 WHERE owner = v_job.owner;
        RETURN 'backlog_full';
    END IF;
    v_now := clock_timestamp();
    UPDATE spillway.jobs SET state = 'queued', holds_place = true, admitted_at = v_now, released_at = NULL,
        finished_at = NULL, error_code = NULL, attempts_spent = 0, deaths = 0, bytes_book = 'staging',
        due_at = v_now, deadline_at = v_now + make_interval(secs => p_job_deadline_s), published_at = NULL,
        announced_count = 0, announce_again_at = '-infinity'
    WHERE id = p_job;
    INSERT INTO spillway.outbox (job_id, available_at) VALUES (p_job, v_now);
    PERFORM pg_notify('spillway_outbox', '');
    RETURN 'queued';
END $$;

-- The objects that held these jobs' bytes are gone: the bytes leave whichever book they are in, once.
CREATE OR REPLACE FUNCTION spillway.give_bytes_back(p_jobs uuid[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_staging bigint;
    v_failed bigint;
    v_rows integer;
BEGIN
    PERFORM 1 FROM spillway.jobs WHERE id = ANY (p_jobs) ORDER BY id FOR UPDATE;
    SELECT coalesce(sum(held_bytes) FILTER (WHERE bytes_book = 'staging'), 0),
        coalesce(sum(held_bytes) FILTER (WHERE bytes_book = 'failed_source'), 0)
    INTO v_staging, v_failed
    FROM spillway.jobs WHERE id = ANY (p_jobs) AND NOT holds_place;
    UPDATE spillway.jobs SET held_bytes = 0, bytes_book = 'none', swept_at = clock_timestamp()
    WHERE id = ANY (p_jobs) AND NOT holds_place AND bytes_book <> 'none';
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    UPDATE spillway.gate SET staging_bytes = staging_bytes - v_staging,
        failed_source_bytes = failed_source_bytes - v_failed
    WHERE id = 0 AND v_staging + v_failed > 0;
    RETURN v_rows;
END $$;

-- Erase an image: unfinished jobs are cancelled first, what is final expires at once, its keys go.
-- NULL: no such image of this owner. 'stopping': a worker still holds a job; ask again. 'erased': all states are final
-- and expired, the objects may be deleted (and are swept once more after a lease).
CREATE FUNCTION spillway.erase_image(p_image uuid, p_owner text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
    v_found boolean := false;
    v_stopping boolean := false;
BEGIN
    FOR v_job IN SELECT * FROM spillway.jobs
        WHERE image_id = p_image AND owner = p_owner AND state NOT IN ('uploading', 'dropped')
        ORDER BY id FOR UPDATE
    LOOP
        v_found := true;
        DELETE FROM spillway.idempotency_keys WHERE job_id = v_job.id;
        UPDATE spillway.jobs SET erase_asked_at = coalesce(erase_asked_at, clock_timestamp()) WHERE id = v_job.id;
        IF v_job.state = 'queued' THEN
            PERFORM spillway.end_locked(v_job, 'cancelled', NULL, NULL);
        END IF;
        IF v_job.state IN ('processing', 'cancelling') THEN
            UPDATE spillway.jobs SET state = 'cancelling' WHERE id = v_job.id AND state = 'processing';
            v_stopping := true;
        ELSE
            UPDATE spillway.jobs SET state = 'expired' WHERE id = v_job.id AND state <> 'expired';
        END IF;
    END LOOP;
    RETURN CASE WHEN NOT v_found THEN NULL WHEN v_stopping THEN 'stopping' ELSE 'erased' END;
END $$;

-- Attach: names uploads of one owner in one of its messages, which holds so many at most; answers attached, not_found,
-- already_attached or too_many.
CREATE FUNCTION spillway.attach(p_owner text, p_message uuid, p_attachments uuid[], p_attachments_max integer)
RETURNS text LANGUAGE plpgsql AS $$
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
    ORDER BY id FOR SHARE;
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
    RETURN 'attached';
END $$;

-- Create a message and name its attachments, all or nothing.
CREATE FUNCTION spillway.create_message(
    p_id uuid, p_owner text, p_body text, p_attachments uuid[], p_attachments_max integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_answer text;
BEGIN
    INSERT INTO spillway.messages (id, owner, body) VALUES (p_id, p_owner, p_body);
    v_answer := spillway.attach(p_owner, p_id, p_attachments, p_attachments_max);
    IF v_answer <> 'attached' THEN
        DELETE FROM spillway.messages WHERE id = p_id;
    END IF;
    RETURN v_answer;
END $$;

-- Expire: final jobs past their retention, never one that a living message names, and those asked to be erased while
-- a worker still held them; state first, objects later.
CREATE FUNCTION spillway.expire_due(
    p_ready_s double precision, p_failed_s double precision, p_cancelled_s double precision, p_rows_max integer
) RETURNS TABLE (job_id uuid) LANGUAGE plpgsql AS $$
DECLARE
    v_state text;
    v_keep_s double precision;
    v_due uuid[];
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
        -- Two statements: naming an attachment locks its job, so the second one sees every name given before the lock.
        SELECT array_agg(due.id) INTO v_due FROM (
            SELECT j.id FROM spillway.jobs j
            WHERE j.state = v_state AND j.finished_at < clock_timestamp() - make_interval(secs => v_keep_s)
                AND NOT EXISTS (
                    SELECT 1 FROM spillway.attachments a WHERE a.job_id = j.id AND a.message_id IS NOT NULL)
            ORDER BY j.finished_at LIMIT p_rows_max FOR UPDATE SKIP LOCKED
        ) AS due;
        RETURN QUERY
            UPDATE spillway.jobs j SET state = 'expired'
            WHERE j.id = ANY (v_due) AND NOT EXISTS (
                SELECT 1 FROM spillway.attachments a WHERE a.job_id = j.id AND a.message_id IS NOT NULL)
            RETURNING j.id;
    END LOOP;
END $$;

-- Messages past their retention: their attachments are free to expire, then the message goes.
CREATE FUNCTION spillway.expire_messages(p_keep_s double precision, p_rows_max integer)
RETURNS TABLE (message_id uuid) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
        WITH due AS (
            SELECT m.id FROM spillway.messages m
            WHERE m.created_at < clock_timestamp() - make_interval(secs => p_keep_s)
            ORDER BY m.created_at LIMIT p_rows_max FOR UPDATE SKIP LOCKED
        ), ended AS (
            UPDATE spillway.jobs j SET state = 'expired'
            FROM spillway.attachments a, due
            WHERE a.message_id = due.id AND j.id = a.job_id AND j.state IN ('ready', 'failed', 'cancelled')
            RETURNING j.id
        ), unnamed AS (
            -- One still in work outlives its message and expires by its own age.
            UPDATE spillway.attachments a SET message_id = NULL, attached_at = NULL
            FROM due WHERE a.message_id = due.id RETURNING a.id
        )
        SELECT due.id FROM due;
    DELETE FROM spillway.messages m
    WHERE m.created_at < clock_timestamp() - make_interval(secs => p_keep_s)
        AND NOT EXISTS (SELECT 1 FROM spillway.attachments a WHERE a.message_id = m.id);
END $$;
