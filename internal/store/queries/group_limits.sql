-- A null argument keeps the value. In a new row it means no limit.
-- name: PutGroupLimits :one
INSERT INTO group_limits (group_id, owner_id, models, hours, concurrent, per_day)
SELECT g.group_id, g.member_id,
    coalesce(cast(sqlc.narg(models) AS text), '[]'), coalesce(cast(sqlc.narg(hours) AS text), ''),
    coalesce(cast(sqlc.narg(concurrent) AS bigint), 0), coalesce(cast(sqlc.narg(per_day) AS bigint), 0)
FROM group_members g WHERE g.group_id = sqlc.arg(group_id) AND g.member_id = sqlc.arg(owner_id)
ON CONFLICT (group_id, owner_id) DO UPDATE SET
    models = coalesce(cast(sqlc.narg(models) AS text), group_limits.models),
    hours = coalesce(cast(sqlc.narg(hours) AS text), group_limits.hours),
    concurrent = coalesce(cast(sqlc.narg(concurrent) AS bigint), group_limits.concurrent),
    per_day = coalesce(cast(sqlc.narg(per_day) AS bigint), group_limits.per_day)
RETURNING *;

-- name: GroupLimits :many
SELECT * FROM group_limits ORDER BY group_id, owner_id;

-- name: GroupLimitsOf :many
SELECT * FROM group_limits WHERE group_id = $1 ORDER BY owner_id;

-- name: GroupLimitsBy :many
SELECT * FROM group_limits WHERE owner_id = $1 ORDER BY group_id;

-- name: DeleteGroupLimits :exec
DELETE FROM group_limits WHERE group_id = $1;

-- name: AddGroupDay :exec
INSERT INTO group_days (day, group_id, owner_id, calls) VALUES ($1, $2, $3, $4)
ON CONFLICT (day, group_id, owner_id) DO UPDATE SET calls = group_days.calls + excluded.calls;

-- name: CallsOfGroups :many
SELECT * FROM group_days WHERE day = $1;

-- name: CallsOfGroup :many
SELECT * FROM group_days WHERE day = $1 AND group_id = $2;
