-- name: InsertKey :exec
INSERT INTO keys (id, member_id, name, region, reach, hash, last_four, created, last_used, revoked, expires, manage, per_day)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- Only a key that is not revoked and whose member is not disabled. It may have expired.
-- name: KeyByHash :one
SELECT sqlc.embed(k), sqlc.embed(m) FROM keys k JOIN members m ON m.id = k.member_id
WHERE k.hash = $1 AND k.revoked = 0 AND NOT m.disabled;

-- Only a key that is not revoked and whose member is not disabled. It may have expired.
-- name: Key :one
SELECT k.* FROM keys k JOIN members m ON m.id = k.member_id
WHERE k.id = $1 AND k.revoked = 0 AND NOT m.disabled;

-- name: Keys :many
SELECT * FROM keys WHERE member_id = $1 ORDER BY created, id;

-- name: RevokeKey :execrows
UPDATE keys SET revoked = $2 WHERE id = $1 AND revoked = 0;

-- name: TouchKey :exec
UPDATE keys SET last_used = $2 WHERE id = $1 AND last_used < $2;

-- name: RevokeOwnKey :execrows
UPDATE keys SET revoked = $3 WHERE id = $1 AND member_id = $2 AND revoked = 0;

-- name: LimitOwnKey :execrows
UPDATE keys SET per_day = $3 WHERE id = $1 AND member_id = $2 AND revoked = 0;
