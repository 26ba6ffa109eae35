-- name: InsertShare :exec
INSERT INTO shares (id, owner_id, member_id, models, hours, concurrent, per_day, created)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- A null argument keeps the value. In a new row it means no limit.
-- name: PutShare :one
INSERT INTO shares (id, owner_id, member_id, models, hours, concurrent, per_day, created)
VALUES (sqlc.arg(id), sqlc.arg(owner_id), sqlc.arg(member_id),
    coalesce(cast(sqlc.narg(models) AS text), '[]'), coalesce(cast(sqlc.narg(hours) AS text), ''),
    coalesce(cast(sqlc.narg(concurrent) AS bigint), 0), coalesce(cast(sqlc.narg(per_day) AS bigint), 0), sqlc.arg(created))
ON CONFLICT (owner_id, member_id) DO UPDATE SET
    models = coalesce(cast(sqlc.narg(models) AS text), shares.models),
    hours = coalesce(cast(sqlc.narg(hours) AS text), shares.hours),
    concurrent = coalesce(cast(sqlc.narg(concurrent) AS bigint), shares.concurrent),
    per_day = coalesce(cast(sqlc.narg(per_day) AS bigint), shares.per_day)
RETURNING *;

-- name: DeleteShare :execrows
DELETE FROM shares WHERE owner_id = $1 AND member_id = $2;

-- name: NamedShares :many
SELECT sqlc.embed(s), o.name AS owner, m.name AS member, cast(o.disabled OR m.disabled AS boolean) AS disabled
FROM shares s JOIN members o ON o.id = s.owner_id JOIN members m ON m.id = s.member_id
WHERE s.owner_id = sqlc.arg(viewer) OR s.member_id = sqlc.arg(viewer) ORDER BY s.created, s.id;

-- name: LiveShares :many
SELECT s.* FROM shares s JOIN members o ON o.id = s.owner_id JOIN members m ON m.id = s.member_id
WHERE NOT o.disabled AND NOT m.disabled ORDER BY s.created, s.id;

-- name: LiveSharesTo :many
SELECT s.* FROM shares s JOIN members o ON o.id = s.owner_id JOIN members m ON m.id = s.member_id
WHERE s.member_id = $1 AND NOT o.disabled AND NOT m.disabled ORDER BY s.created, s.id;
