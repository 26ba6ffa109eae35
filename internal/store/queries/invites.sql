-- name: InsertInvite :exec
INSERT INTO invites (id, owner_id, hash, last_four, uses, used, created, expires, revoked, models, hours, concurrent, per_day)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: InvitesOf :many
SELECT * FROM invites WHERE owner_id = $1 ORDER BY created, id;

-- name: InviteByHash :one
SELECT sqlc.embed(i), o.name AS owner, o.disabled FROM invites i JOIN members o ON o.id = i.owner_id WHERE i.hash = $1;

-- name: RevokeInvite :execrows
UPDATE invites SET revoked = sqlc.arg(now) WHERE id = $1 AND owner_id = $2 AND revoked = 0;

-- name: UseInvite :one
UPDATE invites SET used = used + 1
WHERE hash = $1 AND used < uses AND revoked = 0 AND expires > sqlc.arg(now)
RETURNING *;
