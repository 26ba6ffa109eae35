-- name: InsertGrant :exec
INSERT INTO device_grants (id, hash, user_code, kind, name, reach, region, client, address, state, member_id, created, expires, key_expires, manage, per_day)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'waiting', '', $10, $11, $12, $13, $14);

-- name: PruneGrants :exec
DELETE FROM device_grants WHERE expires <= sqlc.arg(before);

-- name: GrantByUserCode :one
SELECT * FROM device_grants WHERE user_code = $1 AND state = 'waiting' AND expires > sqlc.arg(now);

-- name: GrantByHash :one
SELECT * FROM device_grants WHERE hash = $1;

-- name: WaitingGrants :many
SELECT * FROM device_grants WHERE state = 'waiting' AND expires > sqlc.arg(now) ORDER BY created, id;

-- name: DecideGrant :one
UPDATE device_grants SET state = $2, member_id = $3
WHERE user_code = $1 AND state = 'waiting' AND expires > sqlc.arg(now)
RETURNING *;

-- name: UseGrant :one
UPDATE device_grants SET state = 'used' WHERE hash = $1 AND state = 'approved' AND expires > sqlc.arg(now)
RETURNING *;
