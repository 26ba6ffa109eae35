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

-- name: InsertInviteUse :execrows
INSERT INTO invite_uses (invite_id, member_id) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: CountOpenInvites :one
SELECT count(*) FROM invites WHERE owner_id = $1 AND used < uses AND revoked = 0 AND expires > sqlc.arg(now);

-- Deletes an owner's invites that are used up, expired or revoked, except the newest ones.
-- name: PruneInvites :exec
DELETE FROM invites WHERE invites.owner_id = sqlc.arg(owner) AND (invites.used >= invites.uses OR invites.revoked <> 0 OR invites.expires <= sqlc.arg(now)) AND invites.id NOT IN (
    SELECT i.id FROM invites i WHERE i.owner_id = sqlc.arg(owner) AND (i.used >= i.uses OR i.revoked <> 0 OR i.expires <= sqlc.arg(now))
    ORDER BY i.created DESC, i.id DESC LIMIT sqlc.arg(most)
);
