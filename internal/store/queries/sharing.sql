-- name: InsertShare :exec
INSERT INTO shares (id, owner_id, member_id, models, hours, concurrent, per_day, created)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- What is null stays as it is; of a share that is not there yet it is no limit.
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

-- name: SharesOf :many
SELECT * FROM shares WHERE owner_id = sqlc.arg(member) OR member_id = sqlc.arg(member) ORDER BY created, id;

-- name: NamedShares :many
SELECT sqlc.embed(s), o.name AS owner, m.name AS member
FROM shares s JOIN members o ON o.id = s.owner_id JOIN members m ON m.id = s.member_id
WHERE s.owner_id = sqlc.arg(viewer) OR s.member_id = sqlc.arg(viewer) ORDER BY s.created, s.id;

-- name: LiveShares :many
SELECT s.* FROM shares s JOIN members o ON o.id = s.owner_id JOIN members m ON m.id = s.member_id
WHERE NOT o.disabled AND NOT m.disabled ORDER BY s.created, s.id;

-- name: LiveSharesTo :many
SELECT s.* FROM shares s JOIN members o ON o.id = s.owner_id JOIN members m ON m.id = s.member_id
WHERE s.member_id = $1 AND NOT o.disabled AND NOT m.disabled ORDER BY s.created, s.id;

-- name: InsertGroup :exec
INSERT INTO groups (id, name, kind, created) VALUES ($1, $2, $3, $4);

-- name: GroupByID :one
SELECT * FROM groups WHERE id = $1;

-- name: GroupByName :one
SELECT * FROM groups WHERE name = $1;

-- name: Groups :many
SELECT * FROM groups ORDER BY created, id;

-- name: InsertGroupMember :exec
INSERT INTO group_members (group_id, member_id, admin, seen) VALUES ($1, $2, $3, $4);

-- name: DeleteGroupMember :execrows
DELETE FROM group_members WHERE group_id = $1 AND member_id = $2;

-- name: SetGroupAdmin :execrows
UPDATE group_members SET admin = $3 WHERE group_id = $1 AND member_id = $2;

-- name: GroupMembers :many
SELECT g.* FROM group_members g JOIN members m ON m.id = g.member_id
WHERE NOT m.disabled OR cast(sqlc.arg(disabled_too) AS boolean) ORDER BY m.created, m.id;

-- name: GroupMembersOf :many
SELECT g.* FROM group_members g JOIN members m ON m.id = g.member_id
WHERE g.group_id = $1 AND (NOT m.disabled OR cast(sqlc.arg(disabled_too) AS boolean)) ORDER BY m.created, m.id;

-- name: InsertKeepOut :exec
INSERT INTO keep_outs (group_id, machine_id) VALUES ($1, $2) ON CONFLICT (group_id, machine_id) DO NOTHING;

-- name: DeleteKeepOut :exec
DELETE FROM keep_outs WHERE group_id = $1 AND machine_id = $2;

-- name: KeepOuts :many
SELECT * FROM keep_outs ORDER BY machine_id;

-- name: KeepOutsOf :many
SELECT * FROM keep_outs WHERE group_id = $1 ORDER BY machine_id;
