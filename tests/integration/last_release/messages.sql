-- The statements of the last release, as they were: what its processes go on to send while an upgrade is on its way.

-- name: create_message$
-- Write a message and name its attachments, all or nothing; answers attached, not_found, already_attached or too_many.
SELECT spillway.create_message(:id, :owner, :body, CAST(:attachment_ids AS uuid[]), :attachments_max);

-- name: attach$
-- Name attachments in a message that is there; answers attached, not_found, already_attached or too_many.
SELECT spillway.attach(:owner, :message_id, CAST(:attachment_ids AS uuid[]), :attachments_max);

-- name: find_message^
-- One of an owner's messages.
SELECT id, body, created_at FROM spillway.messages WHERE id = :message_id AND owner = :owner;

-- name: list_messages
-- One page of an owner's messages, newest first, after a cursor.
SELECT id, body, created_at FROM spillway.messages
WHERE owner = :owner AND (CAST(:before_at AS timestamptz) IS NULL
    OR (created_at, id) < (CAST(:before_at AS timestamptz), CAST(:before_id AS uuid)))
ORDER BY created_at DESC, id DESC
LIMIT :rows_max;

-- name: attachments_of
-- The attachments of these messages, in the order in which they were named.
SELECT a.id AS attachment_id, a.message_id, a.created_at AS attachment_created_at, m.created_at AS message_created_at,
    j.id, j.image_id, j.owner, j.state, j.version, j.accepted_at, j.finished_at, j.error_code, j.variants,
    j.source_sha256, j.source_bytes, j.source_format, j.source_width, j.source_height
FROM spillway.attachments a
JOIN spillway.jobs j ON j.id = a.job_id
LEFT JOIN spillway.messages m ON m.id = a.message_id
WHERE a.message_id = ANY (CAST(:message_ids AS uuid[]))
ORDER BY a.message_id, a.attached_at, a.id;

-- name: find_attachment^
-- One of an owner's attachments with its job.
SELECT a.id AS attachment_id, a.message_id, a.created_at AS attachment_created_at, m.created_at AS message_created_at,
    j.id, j.image_id, j.owner, j.state, j.version, j.accepted_at, j.finished_at, j.error_code, j.variants,
    j.source_sha256, j.source_bytes, j.source_format, j.source_width, j.source_height
FROM spillway.attachments a
JOIN spillway.jobs j ON j.id = a.job_id
LEFT JOIN spillway.messages m ON m.id = a.message_id
WHERE a.id = :attachment_id AND a.owner = :owner;
