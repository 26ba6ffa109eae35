-- The groups that a member may see: open groups, the member's own, and those with an
-- invitation for the member.
-- name: SeenGroups :many
SELECT sqlc.embed(g), v.admin, (
    SELECT count(*) FROM group_members x JOIN members m ON m.id = x.member_id WHERE x.group_id = g.id AND NOT m.disabled
) AS size
FROM groups g LEFT JOIN group_members v ON v.group_id = g.id AND v.member_id = sqlc.arg(viewer)
WHERE (g.kind = 'open' OR v.member_id IS NOT NULL OR EXISTS (
    SELECT 1 FROM group_invitations i WHERE i.group_id = g.id AND i.member_id = sqlc.arg(viewer) AND i.expires > sqlc.arg(now)))
  AND (cast(sqlc.arg(name) AS text) = '' OR g.name = cast(sqlc.arg(name) AS text))
ORDER BY g.created, g.id;

-- name: FellowMembers :many
SELECT g.group_id, g.admin, m.name FROM group_members g
JOIN members m ON m.id = g.member_id JOIN group_members v ON v.group_id = g.group_id
WHERE v.member_id = sqlc.arg(viewer) AND NOT m.disabled ORDER BY m.created, m.id;

-- name: KeepOutsBy :many
SELECT k.group_id, x.id, x.name FROM keep_outs k JOIN machines x ON x.id = k.machine_id
WHERE x.owner_id = sqlc.arg(owner) AND x.revoked = 0 ORDER BY x.created, x.id;

-- name: JoinGroup :execrows
INSERT INTO group_members (group_id, member_id, admin, seen)
SELECT g.id, cast(sqlc.arg(member) AS text), false, cast(sqlc.arg(seen) AS bigint) FROM groups g WHERE g.id = sqlc.arg(group_id) AND g.kind = 'open';

-- name: AdminKind :one
SELECT g.kind FROM groups g JOIN group_members a ON a.group_id = g.id
WHERE g.id = sqlc.arg(group_id) AND a.member_id = sqlc.arg(member) AND a.admin;

-- name: OtherAdmins :one
SELECT count(*) FROM group_members a JOIN members m ON m.id = a.member_id
WHERE a.group_id = sqlc.arg(group_id) AND a.member_id <> sqlc.arg(member) AND a.admin AND NOT m.disabled;

-- name: GroupSize :one
SELECT count(*) FROM group_members WHERE group_id = $1;

-- name: DeleteKeepOuts :exec
DELETE FROM keep_outs WHERE group_id = $1;

-- name: DeleteGroupMembers :exec
DELETE FROM group_members WHERE group_id = $1;

-- name: DeleteGroup :execrows
DELETE FROM groups WHERE id = $1;

-- name: OwnMachine :one
SELECT sqlc.embed(x), m.name AS owner_name FROM machines x JOIN members m ON m.id = x.owner_id
WHERE x.id = $1 AND x.owner_id = $2 AND x.revoked = 0;

-- name: SetKeptOut :execrows
UPDATE machines SET kept_out = sqlc.arg(kept_out) WHERE id = $1 AND owner_id = $2 AND revoked = 0;

-- name: CountGroupsOf :one
SELECT count(*) FROM group_members WHERE member_id = $1;
