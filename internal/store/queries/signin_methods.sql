-- name: InsertPasskey :exec
INSERT INTO passkeys (id, member_id, name, credential, public_key, synced, signs, created, used)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: PasskeysOf :many
SELECT * FROM passkeys WHERE member_id = $1 ORDER BY created, id;

-- If the authenticator has a counter, it increases with each use, so that a cloned
-- authenticator and a repeated assertion are refused.
-- name: UsePasskey :execrows
UPDATE passkeys SET signs = $2, used = $3 WHERE id = $1 AND (signs < $2 OR signs = 0 AND $2 = 0);

-- name: DeletePasskey :execrows
DELETE FROM passkeys WHERE member_id = $1 AND id = $2;

-- name: InsertIdentity :exec
INSERT INTO identities (id, member_id, issuer, subject, shown, created) VALUES ($1, $2, $3, $4, $5, $6);

-- name: Identity :one
SELECT * FROM identities WHERE issuer = $1 AND subject = $2;

-- name: IdentitiesOf :many
SELECT * FROM identities WHERE member_id = $1 ORDER BY created, id;

-- name: DeleteIdentity :execrows
DELETE FROM identities WHERE member_id = $1 AND id = $2;

-- Locks a member's row, so that one of two transactions waits.
-- name: LockMember :execrows
UPDATE members SET disabled = disabled WHERE id = $1;

-- name: CountSignInMethods :one
SELECT cast(
    (SELECT count(*) FROM passwords p WHERE p.member_id = m.id)
    + (SELECT count(*) FROM passkeys k WHERE k.member_id = m.id)
    + (SELECT count(*) FROM identities i WHERE i.member_id = m.id) AS bigint)
FROM members m WHERE m.id = $1;

-- name: InsertCeremony :exec
INSERT INTO ceremonies (hash, kind, member_id, data, expires) VALUES ($1, $2, $3, $4, $5);

-- name: TakeCeremony :one
DELETE FROM ceremonies WHERE hash = $1 AND kind = $2 AND expires > sqlc.arg(now) RETURNING *;

-- name: PruneCeremonies :exec
DELETE FROM ceremonies WHERE expires <= sqlc.arg(now);
