-- name: PutPassword :exec
INSERT INTO passwords (member_id, hash, changed) VALUES ($1, $2, $3)
ON CONFLICT (member_id) DO UPDATE SET hash = excluded.hash, changed = excluded.changed;

-- name: Password :one
SELECT hash FROM passwords WHERE member_id = $1;

-- name: CountOperatorsWhoCanSignIn :one
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

-- Does not write a session again within a minute if its data is the same.
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

-- Deletes all but the newest link of a member. Mailed links are separate from others.
-- name: DropLinks :exec
DELETE FROM links WHERE member_id = $1 AND mailed = $2 OR expires <= sqlc.arg(now);

-- name: DropMailedLinks :exec
DELETE FROM links WHERE member_id = $1 AND mailed;
