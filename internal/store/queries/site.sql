-- name: PutPassword :exec
INSERT INTO passwords (member_id, hash, changed) VALUES ($1, $2, $3)
ON CONFLICT (member_id) DO UPDATE SET hash = excluded.hash, changed = excluded.changed;

-- name: Password :one
SELECT hash FROM passwords WHERE member_id = $1;

-- name: OperatorsWithWayIn :one
SELECT count(*) FROM members m WHERE m.operator AND NOT m.disabled AND (
    EXISTS (SELECT 1 FROM passwords p WHERE p.member_id = m.id)
    OR EXISTS (SELECT 1 FROM passkeys k WHERE k.member_id = m.id)
    OR EXISTS (SELECT 1 FROM identities i WHERE i.member_id = m.id));

-- name: DropRecoveryCodes :exec
DELETE FROM recovery_codes WHERE member_id = $1;

-- name: InsertRecoveryCode :exec
INSERT INTO recovery_codes (member_id, hash) VALUES ($1, $2);

-- name: UseRecoveryCode :execrows
DELETE FROM recovery_codes WHERE member_id = $1 AND hash = $2;

-- name: RecoveryCodes :one
SELECT count(*) FROM recovery_codes WHERE member_id = $1;

-- name: InsertSession :exec
INSERT INTO sessions (id, member_id, data, created, seen, expires) VALUES ($1, $2, $3, $4, $5, $6);

-- A session that ended stays ended, and one that is seen again within a minute
-- with nothing new to keep is not written.
-- name: TouchSession :exec
UPDATE sessions SET data = $2, seen = $3, expires = $4
WHERE id = $1 AND (data <> $2 OR seen < cast($3 AS bigint) - 60000);

-- name: Session :one
SELECT * FROM sessions WHERE id = $1 AND expires > sqlc.arg(now);

-- name: SessionsOf :many
SELECT * FROM sessions WHERE member_id = $1 AND expires > sqlc.arg(now) ORDER BY created, id;

-- name: EndSession :many
DELETE FROM sessions WHERE id = $1 RETURNING member_id;

-- name: EndSessionOf :execrows
DELETE FROM sessions WHERE member_id = $1 AND id = $2;

-- name: EndSessionsOf :exec
DELETE FROM sessions WHERE member_id = $1 AND id <> sqlc.arg(keep);

-- name: PruneSessions :exec
DELETE FROM sessions WHERE expires <= sqlc.arg(now);

-- name: InsertLink :exec
INSERT INTO links (hash, member_id, created, expires, used, mailed) VALUES ($1, $2, $3, $4, 0, $5);

-- name: Link :one
SELECT * FROM links WHERE hash = $1 AND used = 0 AND expires > sqlc.arg(now);

-- name: UseLink :one
UPDATE links SET used = sqlc.arg(now) WHERE hash = $1 AND used = 0 AND expires > sqlc.arg(now)
RETURNING member_id;

-- A member's newest link is the only one that works; of those mailed, too.
-- name: DropLinks :exec
DELETE FROM links WHERE member_id = $1 AND mailed = $2 OR expires <= sqlc.arg(now);

-- name: DropMailedLinks :exec
DELETE FROM links WHERE member_id = $1 AND mailed;

-- name: InsertGrant :exec
INSERT INTO device_grants (id, hash, user_code, kind, name, reach, client, address, state, member_id, created, expires)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'waiting', '', $9, $10);

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

-- name: RevokeOwnKey :execrows
UPDATE keys SET revoked = $3 WHERE id = $1 AND member_id = $2 AND revoked = 0;

-- name: RenameMachine :execrows
UPDATE machines SET name = $3 WHERE id = $1 AND owner_id = $2 AND revoked = 0;

-- name: StoriesOf :many
SELECT story FROM stories
WHERE member_id = $1 AND started <= sqlc.arg(before) AND (started < sqlc.arg(before) OR call_id < sqlc.arg(before_id))
ORDER BY started DESC, call_id DESC LIMIT sqlc.arg(most);
