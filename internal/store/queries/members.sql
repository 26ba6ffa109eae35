-- name: InsertMember :exec
INSERT INTO members (id, name, operator, disabled, created) VALUES ($1, $2, $3, $4, $5);

-- name: MemberByID :one
SELECT * FROM members WHERE id = $1;

-- name: MemberByName :one
SELECT * FROM members WHERE name = $1;

-- name: Members :many
SELECT * FROM members ORDER BY created, id;

-- name: CountMembers :one
SELECT count(*) AS members, cast(coalesce(sum(CASE WHEN disabled THEN 1 ELSE 0 END), 0) AS bigint) AS disabled FROM members;

-- name: MembersBefore :many
SELECT * FROM members
WHERE created <= sqlc.arg(before) AND (created < sqlc.arg(before) OR id < sqlc.arg(before_id))
  AND lower(name) LIKE lower(cast(sqlc.arg(pattern) AS text)) ESCAPE '!'
ORDER BY created DESC, id DESC LIMIT sqlc.arg(most);

-- The number of a member's machines, and when the member last used the site, a key, or a model.
-- name: MemberActivity :one
SELECT (SELECT count(*) FROM machines m WHERE m.owner_id = sqlc.arg(member) AND m.revoked = 0) AS machines,
    cast(coalesce((SELECT max(s.seen) FROM sessions s WHERE s.member_id = sqlc.arg(member)), 0) AS bigint) AS seen,
    cast(coalesce((SELECT max(k.last_used) FROM keys k WHERE k.member_id = sqlc.arg(member)), 0) AS bigint) AS used,
    cast(coalesce((SELECT max(h.hour) FROM usage_hours h WHERE h.member_id = sqlc.arg(member)), 0) AS bigint) AS called;

-- name: SetMemberDisabled :execrows
UPDATE members SET disabled = $2 WHERE id = $1;

-- name: SetMemberOperator :execrows
UPDATE members SET operator = $2 WHERE id = $1;

-- name: CountOperators :one
SELECT count(*) FROM members WHERE operator AND NOT disabled;

-- The records that appear or disappear with a member. kind is a fleet.ChangeKind.
-- name: MemberFacts :many
SELECT cast('key' AS text) AS kind, k.id AS subject FROM keys k WHERE k.member_id = sqlc.arg(member) AND k.revoked = 0
UNION ALL
SELECT cast('machine' AS text), m.id FROM machines m WHERE m.owner_id = sqlc.arg(member) AND m.revoked = 0
UNION ALL
SELECT cast('shares' AS text), s.member_id FROM shares s WHERE s.owner_id = sqlc.arg(member)
UNION ALL
SELECT cast('group' AS text), g.group_id FROM group_members g WHERE g.member_id = sqlc.arg(member);

-- name: InsertMeta :exec
INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING;

-- name: Meta :one
SELECT value FROM meta WHERE name = $1;
