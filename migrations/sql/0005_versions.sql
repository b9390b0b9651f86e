-- Why: the pipeline changes, and images outlive it. A job says which version of it may work on it, and waits, parked, for
-- a worker of that version. A new job makes an image's next result from its published original; what the image shows
-- moves to the newest result, upwards only, and what it showed before goes when the last link to it has ended.
-- Names and arguments stay, for the code of the last release.

ALTER TABLE spillway.processes
    -- Which versions of the pipeline a worker serves. The last release's workers do not say it, and serve the first.
    ADD COLUMN pipeline_versions integer[] NOT NULL DEFAULT '{1}';

ALTER TABLE spillway.jobs
    -- The upload's own job, for a job that makes another result of its image: it reads the published original, and its
    -- result lives exactly as long as that job. NULL for the upload's own.
    ADD COLUMN first_job_id uuid,
    -- A worker that does not serve its version had its message; it waits for one that does.
    ADD COLUMN parked_at timestamptz,
    -- The version as which it was claimed. The last release's claims do not say it.
    ADD COLUMN claimed_as integer,
    -- A newer result stands for the image and this one's own objects are deleted; `variants` names the newer ones.
    ADD COLUMN results_gone_at timestamptz,
    ADD CONSTRAINT jobs_parked_while_queued CHECK (parked_at IS NULL OR state = 'queued'),
    ADD CONSTRAINT jobs_first_is_an_earlier_one CHECK (first_job_id IS NULL OR image_version > 1);
-- When the pointer last left a result or passed one over whose objects are still there; NULL when there is none.
ALTER TABLE spillway.images ADD COLUMN superseded_at timestamptz;

CREATE INDEX jobs_by_first ON spillway.jobs (first_job_id) WHERE first_job_id IS NOT NULL;
CREATE UNIQUE INDEX jobs_version_once ON spillway.jobs (image_id, image_version) WHERE image_version > 1;
CREATE INDEX jobs_parked ON spillway.jobs (parked_at) WHERE parked_at IS NOT NULL;
CREATE INDEX images_superseded ON spillway.images (superseded_at) WHERE superseded_at IS NOT NULL;
-- As before, without the results that expire with their image's first job and that no sweep by age need look at.
DROP INDEX spillway.jobs_final_by_age;
CREATE INDEX jobs_final_by_age ON spillway.jobs (state, finished_at)
    WHERE state IN ('ready', 'failed', 'cancelled') AND named_at IS NULL
        AND NOT (state = 'ready' AND first_job_id IS NOT NULL);

-- Jobs as their owners see them. One that is ready shows what stands for its image now, and its version counts that too;
-- it is kept from the end of the image's first job on, or as long as the message that names that one.
CREATE VIEW spillway.job_views AS
SELECT j.id, j.image_id, j.image_version, j.owner, j.state,
    j.version + greatest(coalesce(i.ready_version, 0) - j.image_version, 0) AS version,
    j.accepted_at, j.finished_at, j.error_code, coalesce(standing.variants, j.variants) AS variants,
    j.source_sha256, j.source_bytes, j.source_format, j.source_width, j.source_height,
    CASE WHEN j.state = 'ready' THEN coalesce(first.finished_at, j.finished_at) ELSE j.finished_at END AS kept_from,
    m.created_at AS message_created_at, i.ready_job_id
FROM spillway.jobs j
LEFT JOIN spillway.images i ON i.id = j.image_id
LEFT JOIN spillway.jobs standing
    ON standing.id = i.ready_job_id AND standing.id <> j.id AND standing.state = 'ready' AND j.state = 'ready'
LEFT JOIN spillway.jobs first ON first.id = j.first_job_id
LEFT JOIN spillway.attachments a
    ON a.job_id = CASE WHEN j.state = 'ready' THEN coalesce(j.first_job_id, j.id) ELSE j.id END
LEFT JOIN spillway.messages m ON m.id = a.message_id;

-- Every arrow is a change that readers see, as before, and ends a parking. A claim of the last release, which does not
-- say as which version it claims, takes no job but an upload's own of the first version: it changes no row.
CREATE OR REPLACE FUNCTION spillway.guard_arrow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM spillway.arrows WHERE state = OLD.state AND next_state = NEW.state) THEN
        RAISE EXCEPTION 'no arrow from % to %', OLD.state, NEW.state USING ERRCODE = 'check_violation';
    END IF;
    IF TG_TABLE_NAME = 'jobs' THEN
        IF NEW.state = 'processing' AND NEW.claimed_as IS NULL
            AND (OLD.first_job_id IS NOT NULL OR OLD.pipeline_version <> 1) THEN
            RETURN NULL;
        END IF;
        NEW.claimed_as := CASE WHEN NEW.state <> 'queued' THEN NEW.claimed_as END;
        NEW.parked_at := NULL;
        NEW.version := OLD.version + 1;
        NEW.sweep_due_at := CASE WHEN NEW.state IN ('cancelled', 'expired') THEN clock_timestamp() END;
        IF NEW.state = 'expired' THEN
            NEW.expired_at := clock_timestamp();
        END IF;
    END IF;
    RETURN NEW;
END $$;

-- The end of work, as before. A pointer that leaves a result, or finds that it has passed one, says so to the sweep of
-- objects. A result that comes when its image is no longer kept goes at once.
CREATE OR REPLACE FUNCTION spillway.end_locked(p_job spillway.jobs, p_state text, p_code text, p_variants jsonb)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_state text := CASE WHEN p_job.state = 'cancelling' THEN 'cancelled' ELSE p_state END;
    v_gone boolean := v_state = 'failed' AND p_code = 'source_missing';
    v_failed boolean := v_state = 'failed' AND NOT v_gone AND p_job.held_bytes > 0;
    v_now timestamptz;
BEGIN
    IF v_state = 'ready' THEN
        UPDATE spillway.images SET ready_version = p_job.image_version, ready_job_id = p_job.id,
            superseded_at = CASE WHEN ready_version > 0 THEN clock_timestamp() END
        WHERE id = p_job.image_id AND ready_version < p_job.image_version;
        IF NOT FOUND THEN
            UPDATE spillway.images SET superseded_at = clock_timestamp()
            WHERE id = p_job.image_id AND ready_version > p_job.image_version;
        END IF;
    END IF;
    DELETE FROM spillway.outbox WHERE job_id = p_job.id;
    -- Not below nothing: an admit of the release before the shares that was on its way then is in none.
    UPDATE spillway.owners SET jobs_held = greatest(jobs_held - 1, 0) WHERE owner = p_job.owner;
    UPDATE spillway.gate SET jobs_held = jobs_held - 1,
        staging_bytes = staging_bytes - CASE WHEN v_failed THEN p_job.held_bytes ELSE 0 END,
        failed_source_bytes = failed_source_bytes + CASE WHEN v_failed THEN p_job.held_bytes ELSE 0 END
    WHERE id = 0;
    v_now := clock_timestamp();
    UPDATE spillway.jobs j SET state = v_state, holds_place = false, released_at = v_now, finished_at = v_now,
        error_code = CASE WHEN v_state = 'failed' THEN p_code END,
        variants = CASE WHEN v_state = 'ready' THEN p_variants END,
        bytes_book = CASE WHEN v_failed THEN 'failed_source' ELSE j.bytes_book END,
        source_gone_at = CASE WHEN v_gone THEN v_now ELSE j.source_gone_at END,
        erase_asked_at = CASE
            WHEN v_state = 'ready' AND j.first_job_id IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM spillway.jobs f WHERE f.id = j.first_job_id AND f.state = 'ready')
                THEN coalesce(j.erase_asked_at, v_now)
            ELSE j.erase_asked_at END,
        lease_until = NULL, due_at = NULL
    WHERE j.id = p_job.id;
    RETURN v_state;
END $$;

-- Whether a job could start anew, as before; the source of a later version is the published original.
CREATE OR REPLACE FUNCTION spillway.has_source(p_job spillway.jobs) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT (p_job.held_bytes > 0 OR p_job.first_job_id IS NOT NULL) AND p_job.source_gone_at IS NULL;
$$;

-- Replay, as before; a later version of an image has no bytes in any book.
CREATE OR REPLACE FUNCTION spillway.replay(
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
        finished_at = NULL, error_code = NULL, attempts_spent = 0, deaths = 0,
        bytes_book = CASE WHEN held_bytes > 0 THEN 'staging' ELSE 'none' END,
        due_at = v_now, deadline_at = v_now + make_interval(secs => p_job_deadline_s), published_at = NULL,
        announced_count = 0, announce_again_at = '-infinity'
    WHERE id = p_job;
    PERFORM spillway.note_audit(v_job, p_who, 'replay');
    INSERT INTO spillway.outbox (job_id, available_at) VALUES (p_job, v_now);
    PERFORM pg_notify('spillway_outbox', '');
    RETURN 'queued';
END $$;

-- Reprocess: the image's next version, read from its published original, when a place is free; NULL does not bind.
-- Nothing that anybody sees of the image changes before it is ready. Answers queued, not_found, not_ready (nothing stands
-- for the image, or it is about to go), in_work (a job of this pipeline version is on its way already), owner_limit or
-- backlog_full.
CREATE FUNCTION spillway.reprocess(
    p_image uuid, p_job uuid, p_pipeline_version integer, p_jobs_max integer, p_owner_jobs_max integer,
    p_job_deadline_s double precision, p_who text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_standing spillway.jobs;
    v_made spillway.jobs;
    v_now timestamptz;
BEGIN
    -- All jobs of the image: none is erased, expires or is made meanwhile.
    PERFORM 1 FROM spillway.jobs WHERE image_id = p_image ORDER BY id FOR UPDATE;
    SELECT j.* INTO v_standing FROM spillway.images i JOIN spillway.jobs j ON j.id = i.ready_job_id WHERE i.id = p_image;
    IF NOT FOUND THEN
        RETURN CASE WHEN EXISTS (SELECT 1 FROM spillway.images WHERE id = p_image) THEN 'not_ready' ELSE 'not_found' END;
    ELSIF v_standing.state <> 'ready' OR v_standing.erase_asked_at IS NOT NULL THEN
        RETURN 'not_ready';
    ELSIF EXISTS (SELECT 1 FROM spillway.jobs
        WHERE image_id = p_image AND holds_place AND pipeline_version = p_pipeline_version) THEN
        RETURN 'in_work';
    ELSIF NOT spillway.take_share(v_standing.owner, p_owner_jobs_max) THEN
        RETURN 'owner_limit';
    END IF;
    UPDATE spillway.gate SET jobs_held = jobs_held + 1
    WHERE id = 0 AND (p_jobs_max IS NULL OR jobs_held < p_jobs_max);
    IF NOT FOUND THEN
        UPDATE spillway.owners SET jobs_held = jobs_held - 1 WHERE owner = v_standing.owner;
        RETURN 'backlog_full';
    END IF;
    v_now := clock_timestamp();
    INSERT INTO spillway.jobs (id, image_id, image_version, owner, state, holds_place, held_bytes, bytes_book,
        admitted_at, upload_token, upload_lease_until, upload_deadline_at, source_bytes, source_sha256, source_format,
        source_width, source_height, first_job_id)
    VALUES (p_job, p_image, (SELECT max(image_version) + 1 FROM spillway.jobs WHERE image_id = p_image),
        v_standing.owner, 'uploading', true, 0, 'none', v_now, gen_random_uuid(), v_now, v_now, v_standing.source_bytes,
        v_standing.source_sha256, v_standing.source_format, v_standing.source_width, v_standing.source_height,
        coalesce(v_standing.first_job_id, v_standing.id))
    RETURNING * INTO v_made;
    UPDATE spillway.jobs SET state = 'queued', accepted_at = v_now, due_at = v_now,
        deadline_at = v_now + make_interval(secs => p_job_deadline_s), pipeline_version = p_pipeline_version
    WHERE id = p_job;
    PERFORM spillway.note_audit(v_standing, p_who, 'reprocess');
    PERFORM spillway.note_audit(v_made, p_who, 'reprocess');
    INSERT INTO spillway.outbox (job_id, available_at) VALUES (p_job, v_now);
    PERFORM pg_notify('spillway_outbox', '');
    RETURN 'queued';
END $$;

-- Locks these first jobs with every later version of their images; answers those of them that it has whole. Others are in
-- somebody's hands, or got a version meanwhile, and are left to the next sweep.
CREATE FUNCTION spillway.lock_versions(p_first uuid[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_locked uuid[];
BEGIN
    SELECT coalesce(array_agg(held.id), '{}') INTO v_locked FROM (
        SELECT j.id FROM spillway.jobs j WHERE j.id = ANY (p_first) OR j.first_job_id = ANY (p_first)
        ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED
    ) AS held;
    -- A statement of its own: it sees the version that was made before the locks were had.
    RETURN (
        SELECT coalesce(array_agg(f.id), '{}') FROM unnest(p_first) AS f (id)
        WHERE f.id = ANY (v_locked) AND NOT EXISTS (
            SELECT 1 FROM spillway.jobs j WHERE j.first_job_id = f.id AND j.id <> ALL (v_locked)));
END $$;

-- Ends the time of images whose rows the caller has locked whole: what is final expires, what is not when it is.
CREATE FUNCTION spillway.expire_whole(p_first uuid[]) RETURNS SETOF uuid LANGUAGE plpgsql AS $$
BEGIN
    UPDATE spillway.jobs SET erase_asked_at = coalesce(erase_asked_at, clock_timestamp())
    WHERE first_job_id = ANY (p_first) AND holds_place;
    RETURN QUERY
        UPDATE spillway.jobs j SET state = 'expired', named_at = NULL
        WHERE (j.id = ANY (p_first) OR j.first_job_id = ANY (p_first)) AND j.state IN ('ready', 'failed', 'cancelled')
        RETURNING j.id;
END $$;

-- Expire, as before; an image's results go together, when its first job's time is over.
CREATE OR REPLACE FUNCTION spillway.expire_due(
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
        SELECT array_agg(due.id) INTO v_due FROM (
            SELECT j.id FROM spillway.jobs j
            -- The conditions of the partial index are said again, so that a plan for any state may use it.
            WHERE j.state = v_state AND j.state IN ('ready', 'failed', 'cancelled') AND j.named_at IS NULL
                AND NOT (j.state = 'ready' AND j.first_job_id IS NOT NULL)
                AND j.finished_at < statement_timestamp() - make_interval(secs => v_keep_s)
            ORDER BY j.finished_at LIMIT p_rows_max
        ) AS due;
        CONTINUE WHEN v_due IS NULL;
        v_due := spillway.lock_versions(v_due);
        -- Said again of the rows that are locked: one may have been named, or have started anew.
        RETURN QUERY SELECT spillway.expire_whole(
            ARRAY (SELECT j.id FROM spillway.jobs j
                WHERE j.id = ANY (v_due) AND j.state = v_state AND j.named_at IS NULL
                    AND j.finished_at < statement_timestamp() - make_interval(secs => v_keep_s)));
    END LOOP;
END $$;

-- Messages past their retention go, as before, and with them the images that they name, in all versions.
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
    v_jobs := spillway.lock_versions(v_jobs);
    -- A message with an image that cannot go now stays whole.
    SELECT array_agg(d.id) INTO v_due FROM unnest(v_due) AS d (id)
    WHERE NOT EXISTS (
        SELECT 1 FROM spillway.attachments a WHERE a.message_id = d.id AND a.job_id <> ALL (v_jobs));
    SELECT array_agg(a.job_id) INTO v_jobs FROM spillway.attachments a WHERE a.message_id = ANY (v_due);
    PERFORM spillway.expire_whole(v_jobs);
    -- One still in work outlives its message and expires by its own age.
    UPDATE spillway.jobs j SET named_at = NULL WHERE j.id = ANY (v_jobs) AND j.named_at IS NOT NULL;
    UPDATE spillway.attachments a SET message_id = NULL, attached_at = NULL WHERE a.message_id = ANY (v_due);
    RETURN QUERY DELETE FROM spillway.messages m WHERE m.id = ANY (v_due) RETURNING m.id;
END $$;

-- Erase an image, as before, but all its rows are locked and all its keys are gone before the first of them takes share
-- and gate: nothing is waited for after these. A version made while the others were waited for is seen by the loop.
CREATE OR REPLACE FUNCTION spillway.erase_image(p_image uuid, p_owner text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_job spillway.jobs;
    v_found boolean := false;
BEGIN
    PERFORM 1 FROM spillway.jobs WHERE image_id = p_image AND owner = p_owner ORDER BY id FOR UPDATE;
    DELETE FROM spillway.idempotency_keys WHERE job_id IN (
        SELECT id FROM spillway.jobs
        WHERE image_id = p_image AND owner = p_owner AND state NOT IN ('uploading', 'dropped'));
    FOR v_job IN SELECT * FROM spillway.jobs
        WHERE image_id = p_image AND owner = p_owner AND state NOT IN ('uploading', 'dropped')
        ORDER BY id FOR UPDATE
    LOOP
        v_found := true;
        UPDATE spillway.jobs SET erase_asked_at = coalesce(erase_asked_at, clock_timestamp()) WHERE id = v_job.id;
        IF v_job.state = 'queued' THEN
            PERFORM spillway.end_locked(v_job, 'cancelled', NULL, NULL);
        END IF;
        IF v_job.state IN ('processing', 'cancelling') THEN
            UPDATE spillway.jobs SET state = 'cancelling' WHERE id = v_job.id AND state = 'processing';
        ELSE
            UPDATE spillway.jobs SET state = 'expired' WHERE id = v_job.id AND state <> 'expired';
        END IF;
    END LOOP;
    RETURN CASE
        WHEN NOT v_found THEN NULL
        WHEN EXISTS (SELECT 1 FROM spillway.jobs
            WHERE image_id = p_image AND owner = p_owner AND state NOT IN ('uploading', 'dropped', 'expired'))
            THEN 'stopping'
        ELSE 'erased' END;
END $$;

-- Parked jobs that some live worker serves now are announced, and count as announced from here on.
CREATE FUNCTION spillway.announce_parked(p_seen_s double precision, p_rows_max integer) RETURNS TABLE (job_id uuid)
LANGUAGE plpgsql AS $$
DECLARE
    v_ids uuid[];
BEGIN
    SELECT array_agg(found.id) INTO v_ids FROM (
        SELECT j.id FROM spillway.jobs j
        WHERE j.parked_at IS NOT NULL AND j.state = 'queued'
            AND j.pipeline_version IN (
                SELECT unnest(p.pipeline_versions) FROM spillway.processes p
                WHERE p.role = 'worker' AND p.seen_at > clock_timestamp() - make_interval(secs => p_seen_s))
            AND NOT EXISTS (SELECT 1 FROM spillway.outbox o WHERE o.job_id = j.id)
        ORDER BY j.parked_at LIMIT p_rows_max FOR UPDATE SKIP LOCKED
    ) AS found;
    UPDATE spillway.jobs j SET parked_at = NULL, published_at = NULL WHERE j.id = ANY (v_ids);
    RETURN QUERY
        INSERT INTO spillway.outbox AS o (job_id, available_at) SELECT unnest(v_ids), clock_timestamp()
        RETURNING o.job_id;
    IF v_ids IS NOT NULL THEN
        PERFORM pg_notify('spillway_outbox', '');
    END IF;
END $$;

-- Results that the pointer has left for so long that no link to them is valid: their rows name the standing result from
-- here on, whoever reads them, and their own objects are to go.
CREATE FUNCTION spillway.claim_superseded(p_keep_s double precision, p_rows_max integer)
RETURNS TABLE (job_id uuid, image_id uuid) LANGUAGE plpgsql AS $$
DECLARE
    v_images uuid[];
    v_ids uuid[];
BEGIN
    SELECT array_agg(due.id) INTO v_images FROM (
        SELECT i.id FROM spillway.images i
        WHERE i.superseded_at < statement_timestamp() - make_interval(secs => p_keep_s)
        ORDER BY i.superseded_at LIMIT p_rows_max
    ) AS due;
    SELECT array_agg(found.id) INTO v_ids FROM (
        SELECT j.id FROM spillway.jobs j JOIN spillway.images i ON i.id = j.image_id
        WHERE j.image_id = ANY (v_images) AND j.state = 'ready' AND j.image_version < i.ready_version
        ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
    ) AS found;
    UPDATE spillway.jobs j SET variants = standing.variants
    FROM spillway.images i JOIN spillway.jobs standing ON standing.id = i.ready_job_id AND standing.state = 'ready'
    WHERE j.id = ANY (v_ids) AND j.state = 'ready' AND i.id = j.image_id
        AND j.variants IS DISTINCT FROM standing.variants;
    RETURN QUERY
        SELECT j.id, j.image_id FROM spillway.jobs j
        WHERE j.id = ANY (v_ids) AND j.state = 'ready' AND j.results_gone_at IS NULL
        ORDER BY j.id LIMIT p_rows_max;
    -- What has no such result any more was erased or has expired, or was swept before.
    UPDATE spillway.images i SET superseded_at = NULL
    WHERE i.id = ANY (v_images) AND i.superseded_at < statement_timestamp() - make_interval(secs => p_keep_s)
        AND NOT EXISTS (SELECT 1 FROM spillway.jobs j
            WHERE j.image_id = i.id AND j.state = 'ready' AND j.image_version < i.ready_version
                AND j.results_gone_at IS NULL);
END $$;
