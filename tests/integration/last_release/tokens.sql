-- The statements of the last release, as they were: what its processes go on to send while an upgrade is on its way.

-- name: create_token$
-- Store a token's hash for an owner.
INSERT INTO spillway.tokens (id, owner, token_sha256, scopes)
VALUES (:id, :owner, :token_sha256, CAST(:scopes AS text[])) RETURNING id;

-- name: list_tokens
-- All tokens, without their hashes.
SELECT id, owner, scopes, created_at, revoked_at FROM spillway.tokens ORDER BY created_at LIMIT :rows_max;

-- name: revoke_token$
-- A token stops working; true when it was live.
UPDATE spillway.tokens SET revoked_at = clock_timestamp() WHERE id = :id AND revoked_at IS NULL RETURNING true;

-- name: token_identity^
-- The owner and scopes of a live token by its hash.
SELECT owner, scopes FROM spillway.tokens WHERE token_sha256 = :token_sha256 AND revoked_at IS NULL;
