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

-- A live machine of a member of the group.
-- name: MachineInGroup :one
SELECT x.id FROM machines x JOIN group_members g ON g.member_id = x.owner_id
WHERE g.group_id = sqlc.arg(group_id) AND x.id = sqlc.arg(machine) AND x.revoked = 0;

-- name: PutGroupMachine :exec
INSERT INTO group_machines (group_id, machine_id, rule) VALUES ($1, $2, $3)
ON CONFLICT (group_id, machine_id) DO UPDATE SET rule = excluded.rule;

-- name: DeleteGroupMachine :exec
DELETE FROM group_machines WHERE group_id = $1 AND machine_id = $2;

-- name: DeleteGroupMachines :exec
DELETE FROM group_machines WHERE group_id = $1;

-- name: GroupMachines :many
SELECT * FROM group_machines ORDER BY machine_id;

-- name: GroupMachinesOf :many
SELECT * FROM group_machines WHERE group_id = $1 ORDER BY machine_id;

-- For the viewer's groups: machines that are not revoked and whose owners are in the group.
-- name: GroupMachinesSeen :many
SELECT r.group_id, m.name AS owner, x.name AS machine, r.rule FROM group_machines r JOIN machines x ON x.id = r.machine_id
JOIN members m ON m.id = x.owner_id JOIN group_members g ON g.group_id = r.group_id AND g.member_id = m.id
JOIN group_members v ON v.group_id = r.group_id AND v.member_id = sqlc.arg(viewer)
WHERE x.revoked = 0 ORDER BY m.name, x.name;
