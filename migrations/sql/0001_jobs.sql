-- Why: the books of admission, the jobs and the outbox live in one database, so that a place, a job and
-- the intent to announce it can never disagree. The CHECKs and the trigger restate contracts/jobs.py.

CREATE SCHEMA spillway;

-- The admission books: one row, the hottest of the system. Nothing else is waited for while it is locked.
CREATE TABLE spillway.gate (
    id smallint PRIMARY KEY CHECK (id = 0),
    jobs_held integer NOT NULL DEFAULT 0 CHECK (jobs_held >= 0),
    staging_bytes bigint NOT NULL DEFAULT 0 CHECK (staging_bytes >= 0),
    failed_source_bytes bigint NOT NULL DEFAULT 0 CHECK (failed_source_bytes >= 0)
) WITH (fillfactor = 10);
INSERT INTO spillway.gate (id) VALUES (0);

CREATE TABLE spillway.tokens (
    id uuid PRIMARY KEY,
    owner text NOT NULL CHECK (length(owner) BETWEEN 1 AND 200),
    token_sha256 bytea NOT NULL UNIQUE CHECK (length(token_sha256) = 32),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamptz
);

-- An image and the pointer to its newest ready version, which only moves upwards.
CREATE TABLE spillway.images (
    id uuid PRIMARY KEY,
    owner text NOT NULL,
    ready_version integer NOT NULL DEFAULT 0,
    ready_job_id uuid,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE spillway.jobs (
    id uuid PRIMARY KEY,
    image_id uuid NOT NULL,
    image_version integer NOT NULL DEFAULT 1,
    owner text NOT NULL CHECK (length(owner) BETWEEN 1 AND 200),
    state text NOT NULL,
    -- Books: moved only together with the gate row.
    holds_place boolean NOT NULL,
    held_bytes bigint NOT NULL CHECK (held_bytes >= 0),
    bytes_book text NOT NULL CHECK (bytes_book IN ('staging', 'failed_source', 'none')),
    admitted_at timestamptz NOT NULL,
    released_at timestamptz,
    -- Upload: guarded by its token, alive while its lease is renewed.
    upload_token uuid NOT NULL,
    upload_lease_until timestamptz NOT NULL,
    upload_deadline_at timestamptz NOT NULL,
    swept_at timestamptz,
    -- Source: known at accept.
    source_bytes bigint,
    source_sha256 text,
    source_format text,
    source_width integer,
    source_height integer,
    accepted_at timestamptz,
    deadline_at timestamptz,
    -- Waiting and delivery.
    due_at timestamptz,
    published_at timestamptz,
    announced_count integer NOT NULL DEFAULT 0,
    announce_again_at timestamptz NOT NULL DEFAULT '-infinity',
    -- Work: claim_token is the fencing token and only rises; attempts and deaths are other counts.
    claim_token bigint NOT NULL DEFAULT 0,
    attempts_spent integer NOT NULL DEFAULT 0,
    deaths integer NOT NULL DEFAULT 0,
    worker_id uuid,
    lease_until timestamptz,
    first_claimed_at timestamptz,
    claimed_at timestamptz,
    -- Result.
    pipeline_version integer,
    transform_params jsonb,
    variants jsonb,
    error_code text,
    finished_at timestamptz,
    CONSTRAINT jobs_state_known CHECK (state IN (
        'uploading', 'dropped', 'queued', 'processing', 'cancelling', 'ready', 'failed', 'cancelled', 'expired')),
    CONSTRAINT jobs_place_while_unfinished CHECK (
        holds_place = (state IN ('uploading', 'queued', 'processing', 'cancelling'))),
    CONSTRAINT jobs_released_with_place CHECK (holds_place = (released_at IS NULL)),
    CONSTRAINT jobs_bytes_in_a_book CHECK ((bytes_book = 'none') = (held_bytes = 0)),
    CONSTRAINT jobs_source_known CHECK (
        state IN ('uploading', 'dropped')
        OR (source_bytes > 0 AND source_sha256 IS NOT NULL AND source_format IS NOT NULL
            AND accepted_at IS NOT NULL AND deadline_at IS NOT NULL AND pipeline_version IS NOT NULL)),
    CONSTRAINT jobs_due_while_queued CHECK (state <> 'queued' OR due_at IS NOT NULL),
    CONSTRAINT jobs_lease_while_working CHECK (
        (state IN ('processing', 'cancelling')) = (lease_until IS NOT NULL)),
    CONSTRAINT jobs_claimed_to_work CHECK (state NOT IN ('processing', 'cancelling', 'ready') OR claim_token > 0),
    CONSTRAINT jobs_ready_has_variants CHECK (state <> 'ready' OR variants IS NOT NULL),
    CONSTRAINT jobs_failed_has_code CHECK (
        (state = 'failed' AND error_code IS NOT NULL) OR (state <> 'failed' AND error_code IS NULL)
        OR state = 'expired'),
    CONSTRAINT jobs_finished_when_final CHECK (
        (state IN ('ready', 'failed', 'cancelled', 'expired')) = (finished_at IS NOT NULL))
);
-- One partial index for each sweep and for each list that a role reads again and again.
CREATE INDEX jobs_uploads_by_lease ON spillway.jobs (upload_lease_until) WHERE state = 'uploading';
CREATE INDEX jobs_dropped ON spillway.jobs (released_at) WHERE state = 'dropped';
CREATE INDEX jobs_unfinished ON spillway.jobs (state, accepted_at) WHERE holds_place;
CREATE INDEX jobs_working_by_lease ON spillway.jobs (lease_until) WHERE state IN ('processing', 'cancelling');
CREATE INDEX jobs_staging_to_clear ON spillway.jobs (finished_at)
    WHERE state IN ('ready', 'cancelled') AND held_bytes > 0;
CREATE INDEX jobs_by_owner ON spillway.jobs (owner, accepted_at);

-- The arrows of the state machine and no others; contracts/jobs.py is the same list.
CREATE TABLE spillway.arrows (
    state text NOT NULL,
    next_state text NOT NULL,
    PRIMARY KEY (state, next_state)
);
INSERT INTO spillway.arrows (state, next_state) VALUES
    ('uploading', 'queued'), ('uploading', 'dropped'),
    ('queued', 'processing'), ('queued', 'cancelled'), ('queued', 'failed'),
    ('processing', 'ready'), ('processing', 'failed'), ('processing', 'queued'), ('processing', 'cancelling'),
    ('cancelling', 'cancelled'),
    ('failed', 'queued'),
    ('ready', 'expired'), ('failed', 'expired'), ('cancelled', 'expired');

CREATE FUNCTION spillway.guard_arrow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM spillway.arrows WHERE state = OLD.state AND next_state = NEW.state) THEN
        RAISE EXCEPTION 'no arrow from % to %', OLD.state, NEW.state USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER jobs_guard_arrow BEFORE UPDATE OF state ON spillway.jobs FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION spillway.guard_arrow();

-- The outbox is the queue, RabbitMQ the delivery. available_at is the due time, or the end of a relay's lease.
CREATE TABLE spillway.outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id uuid NOT NULL REFERENCES spillway.jobs (id) ON DELETE CASCADE,
    available_at timestamptz NOT NULL,
    lease_token uuid,
    tries integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX outbox_by_time ON spillway.outbox (available_at, id);
CREATE INDEX outbox_by_job ON spillway.outbox (job_id);

-- Who is alive, by process start and never by name; what workers measured of themselves.
CREATE TABLE spillway.processes (
    id uuid PRIMARY KEY,
    role text NOT NULL CHECK (role IN ('api', 'relay', 'worker', 'janitor')),
    host text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    broker_ok boolean NOT NULL DEFAULT false,
    slots integer NOT NULL DEFAULT 0,
    prefetch integer NOT NULL DEFAULT 0,
    unacked integer NOT NULL DEFAULT 0,
    host_cores real NOT NULL DEFAULT 0,
    job_wall_s real,
    job_cpu_s real
);

-- The last measured capacity: kept through silence, so that it neither locks up at zero nor forgets.
CREATE TABLE spillway.capacity (
    id smallint PRIMARY KEY CHECK (id = 0),
    slots integer NOT NULL DEFAULT 0,
    jobs_per_s real NOT NULL DEFAULT 0,
    measured_at timestamptz
);
INSERT INTO spillway.capacity (id) VALUES (0);

-- Admit: a place, the bytes and the job row in `uploading`, all or nothing. The answer is a code, never an error.
-- Bounds that are NULL do not bind. admitted_at is read while the gate row is held, so that the intervals
-- [admitted_at, released_at) of any history overlap at most jobs_max times.
CREATE FUNCTION spillway.admit(
    p_job uuid, p_image uuid, p_owner text, p_token uuid, p_bytes bigint,
    p_jobs_max integer, p_bytes_max bigint, p_lease_s double precision, p_deadline_s double precision
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_gate spillway.gate;
BEGIN
    UPDATE spillway.gate SET jobs_held = jobs_held + 1, staging_bytes = staging_bytes + p_bytes
    WHERE id = 0 AND (p_jobs_max IS NULL OR jobs_held < p_jobs_max)
        AND (p_bytes_max IS NULL OR staging_bytes + p_bytes <= p_bytes_max);
    IF NOT FOUND THEN
        SELECT * INTO STRICT v_gate FROM spillway.gate WHERE id = 0;
        RETURN CASE WHEN p_bytes_max IS NOT NULL AND v_gate.staging_bytes + p_bytes > p_bytes_max
            THEN 'staging_full' ELSE 'backlog_full' END;
    END IF;
    v_now := clock_timestamp();
    INSERT INTO spillway.jobs (id, image_id, owner, state, holds_place, held_bytes, bytes_book, admitted_at,
        upload_token, upload_lease_until, upload_deadline_at)
    VALUES (p_job, p_image, p_owner, 'uploading', true, p_bytes, 'staging', v_now, p_token,
        v_now + make_interval(secs => least(p_lease_s, p_deadline_s)), v_now + make_interval(secs => p_deadline_s));
    RETURN 'admitted';
END $$;

-- Accept: the job becomes durable work and its announcement is written in the same statement.
CREATE FUNCTION spillway.accept(
    p_job uuid, p_token uuid, p_bytes bigint, p_sha256 text, p_format text, p_width integer, p_height integer,
    p_pipeline_version integer, p_job_deadline_s double precision
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_job spillway.jobs;
BEGIN
    SELECT * INTO v_job FROM spillway.jobs
    WHERE id = p_job AND upload_token = p_token AND state = 'uploading' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE spillway.jobs SET state = 'queued', source_bytes = p_bytes, source_sha256 = p_sha256,
        source_format = p_format, source_width = p_width, source_height = p_height, held_bytes = p_bytes,
        accepted_at = v_now, due_at = v_now, deadline_at = v_now + make_interval(secs => p_job_deadline_s),
        pipeline_version = p_pipeline_version
    WHERE id = p_job;
    INSERT INTO spillway.images (id, owner) VALUES (v_job.image_id, v_job.owner);
    INSERT INTO spillway.outbox (job_id, available_at) VALUES (p_job, v_now);
    PERFORM pg_notify('spillway_outbox', '');
    IF v_job.held_bytes <> p_bytes THEN
        UPDATE spillway.gate SET staging_bytes = staging_bytes - v_job.held_bytes + p_bytes WHERE id = 0;
    END IF;
    RETURN true;
END $$;

-- The end of work on a job whose row the caller has locked and whose old state it has checked: the place goes
-- back, and the bytes of a failed job's source move to their own book. A job that was asked to stop ends
-- `cancelled`, whatever the worker made of it.
CREATE FUNCTION spillway.end_locked(p_job spillway.jobs, p_state text, p_code text, p_variants jsonb)
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

-- Work goes back to the queue: a row whose lock the caller holds, with a new announcement when it is due.
CREATE FUNCTION spillway.requeue_locked(p_job spillway.jobs, p_delay_s double precision, p_attempts integer,
    p_deaths integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_due timestamptz := clock_timestamp() + make_interval(secs => p_delay_s);
BEGIN
    IF p_job.state = 'cancelling' THEN
        RETURN spillway.end_locked(p_job, 'cancelled', NULL, NULL);
    END IF;
    IF p_job.deadline_at <= clock_timestamp() THEN
        RETURN spillway.end_locked(p_job, 'failed', 'deadline_exceeded', NULL);
    END IF;
    UPDATE spillway.jobs SET state = 'queued', due_at = v_due, published_at = NULL, lease_until = NULL,
        worker_id = NULL, attempts_spent = p_attempts, deaths = p_deaths,
        announced_count = 0, announce_again_at = '-infinity'
    WHERE id = p_job.id;
    DELETE FROM spillway.outbox WHERE job_id = p_job.id;
    INSERT INTO spillway.outbox (job_id, available_at) VALUES (p_job.id, v_due);
    IF p_delay_s <= 0 THEN
        PERFORM pg_notify('spillway_outbox', '');
    END IF;
    RETURN 'queued';
END $$;

-- Complete: guarded by state and token. NULL means that the claim is no longer this worker's: nothing changed.
CREATE FUNCTION spillway.complete(p_job uuid, p_token bigint, p_variants jsonb)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
BEGIN
    SELECT * INTO v_job FROM spillway.jobs
    WHERE id = p_job AND claim_token = p_token AND state IN ('processing', 'cancelling') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN spillway.end_locked(v_job, 'ready', NULL, p_variants);
END $$;

-- Fail: final, with a code of the closed set.
CREATE FUNCTION spillway.fail(p_job uuid, p_token bigint, p_code text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
BEGIN
    SELECT * INTO v_job FROM spillway.jobs
    WHERE id = p_job AND claim_token = p_token AND state IN ('processing', 'cancelling') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    RETURN spillway.end_locked(v_job, 'failed', p_code, NULL);
END $$;

-- Retry (an attempt is spent) or hand back (none is): the limit of attempts ends it `failed`.
CREATE FUNCTION spillway.retry(
    p_job uuid, p_token bigint, p_delay_s double precision, p_attempt_spent boolean, p_attempts_max integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
    v_attempts integer;
BEGIN
    SELECT * INTO v_job FROM spillway.jobs
    WHERE id = p_job AND claim_token = p_token AND state IN ('processing', 'cancelling') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    v_attempts := v_job.attempts_spent + CASE WHEN p_attempt_spent THEN 1 ELSE 0 END;
    IF p_attempt_spent AND v_attempts >= p_attempts_max THEN
        UPDATE spillway.jobs SET attempts_spent = v_attempts WHERE id = p_job;
        RETURN spillway.end_locked(v_job, 'failed', 'retries_exhausted', NULL);
    END IF;
    RETURN spillway.requeue_locked(v_job, p_delay_s, v_attempts, v_job.deaths);
END $$;

-- Hand back what a worker holds by the rows but not in its hands: claims whose answer was lost in an outage.
-- No attempt and no death is counted.
CREATE FUNCTION spillway.hand_back_unheld(p_worker uuid, p_held uuid[]) RETURNS TABLE (job_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
BEGIN
    FOR v_job IN SELECT * FROM spillway.jobs j
        WHERE j.state IN ('processing', 'cancelling') AND j.worker_id = p_worker AND j.id <> ALL (p_held)
        FOR UPDATE SKIP LOCKED
    LOOP
        job_id := v_job.id;
        PERFORM spillway.requeue_locked(v_job, 0, v_job.attempts_spent, v_job.deaths);
        RETURN NEXT;
    END LOOP;
END $$;

-- Rescue: jobs whose lease ran out go back with a death counted, or end `failed(worker_lost)` at the limit.
CREATE FUNCTION spillway.rescue(p_deaths_max integer, p_rows_max integer)
RETURNS TABLE (job_id uuid, next_state text, deaths integer) LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
BEGIN
    FOR v_job IN SELECT * FROM spillway.jobs j
        WHERE j.state IN ('processing', 'cancelling') AND j.lease_until < clock_timestamp()
        ORDER BY j.lease_until LIMIT p_rows_max FOR UPDATE SKIP LOCKED
    LOOP
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

-- Cancel: a queued job at once, a processing one by asking its worker. NULL: not found or already final.
CREATE FUNCTION spillway.cancel(p_job uuid, p_owner text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
BEGIN
    SELECT * INTO v_job FROM spillway.jobs
    WHERE id = p_job AND owner = p_owner AND state IN ('queued', 'processing', 'cancelling') FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF v_job.state = 'queued' THEN
        RETURN spillway.end_locked(v_job, 'cancelled', NULL, NULL);
    END IF;
    UPDATE spillway.jobs SET state = 'cancelling' WHERE id = p_job AND state = 'processing';
    RETURN 'cancelling';
END $$;

-- Overdue: queued jobs past their deadline end `failed(deadline_exceeded)`, parked ones too.
CREATE FUNCTION spillway.fail_overdue(p_rows_max integer) RETURNS TABLE (job_id uuid) LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
BEGIN
    FOR v_job IN SELECT * FROM spillway.jobs j
        WHERE j.holds_place AND j.state = 'queued' AND j.deadline_at < clock_timestamp()
        ORDER BY j.accepted_at LIMIT p_rows_max FOR UPDATE SKIP LOCKED
    LOOP
        job_id := v_job.id;
        PERFORM spillway.end_locked(v_job, 'failed', 'deadline_exceeded', NULL);
        RETURN NEXT;
    END LOOP;
END $$;

-- Drop: a reservation ends without a job. The place goes back at once, the bytes when the object is gone.
CREATE FUNCTION spillway.drop_upload(p_job uuid, p_token uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM spillway.jobs
    WHERE id = p_job AND upload_token = p_token AND state = 'uploading' FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE spillway.gate SET jobs_held = jobs_held - 1 WHERE id = 0;
    UPDATE spillway.jobs SET state = 'dropped', holds_place = false, released_at = clock_timestamp()
    WHERE id = p_job;
    RETURN true;
END $$;

-- Uploads whose lease ran out: their process is dead, or lost them.
CREATE FUNCTION spillway.drop_stale_uploads(p_rows_max integer) RETURNS TABLE (job_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
BEGIN
    FOR v_job IN SELECT * FROM spillway.jobs j
        WHERE j.state = 'uploading' AND j.upload_lease_until < clock_timestamp()
        ORDER BY j.upload_lease_until LIMIT p_rows_max FOR UPDATE SKIP LOCKED
    LOOP
        job_id := v_job.id;
        PERFORM spillway.drop_upload(v_job.id, v_job.upload_token);
        RETURN NEXT;
    END LOOP;
END $$;

-- The staging objects of these jobs are gone: their bytes leave the book, once.
CREATE FUNCTION spillway.give_bytes_back(p_jobs uuid[]) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_bytes bigint;
    v_rows integer;
BEGIN
    PERFORM 1 FROM spillway.jobs WHERE id = ANY (p_jobs) ORDER BY id FOR UPDATE;
    SELECT coalesce(sum(held_bytes), 0) INTO v_bytes FROM spillway.jobs
    WHERE id = ANY (p_jobs) AND bytes_book = 'staging' AND state IN ('ready', 'cancelled', 'dropped');
    UPDATE spillway.jobs SET held_bytes = 0, bytes_book = 'none', swept_at = clock_timestamp()
    WHERE id = ANY (p_jobs) AND bytes_book = 'staging' AND state IN ('ready', 'cancelled', 'dropped');
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    UPDATE spillway.gate SET staging_bytes = staging_bytes - v_bytes WHERE id = 0 AND v_bytes > 0;
    RETURN v_rows;
END $$;

-- Replay: a failed job with its source starts anew under the same id, with fresh counts, when there is a place.
CREATE FUNCTION spillway.replay(p_job uuid, p_jobs_max integer, p_job_deadline_s double precision)
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
    UPDATE spillway.gate SET jobs_held = jobs_held + 1, staging_bytes = staging_bytes + v_job.held_bytes,
        failed_source_bytes = failed_source_bytes - v_job.held_bytes
    WHERE id = 0 AND (p_jobs_max IS NULL OR jobs_held < p_jobs_max);
    IF NOT FOUND THEN
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
