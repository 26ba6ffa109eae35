-- name: InsertInvitation :exec
INSERT INTO group_invitations (group_id, member_id, by_id, created, expires) VALUES ($1, $2, $3, $4, $5);

-- name: CountInvitations :one
SELECT
    (SELECT count(*) FROM group_invitations i WHERE i.group_id = sqlc.arg(group_id)) AS of_group,
    (SELECT count(*) FROM group_invitations i WHERE i.member_id = sqlc.arg(member)) AS of_member;

-- name: PruneInvitations :exec
DELETE FROM group_invitations WHERE (group_id = $1 OR member_id = $2) AND expires <= sqlc.arg(now);

-- name: TakeInvitation :execrows
DELETE FROM group_invitations WHERE group_id = $1 AND member_id = $2 AND expires > sqlc.arg(now);

-- name: DeleteInvitation :execrows
DELETE FROM group_invitations WHERE group_id = $1 AND member_id = $2;

-- name: IsInGroup :one
SELECT EXISTS (SELECT 1 FROM group_members WHERE group_id = $1 AND member_id = $2);

-- name: DeleteInvitations :exec
DELETE FROM group_invitations WHERE group_id = $1;

-- Those of one member, and those of the orgs that the member runs.
-- name: SeenInvitations :many
SELECT i.group_id, i.member_id, i.by_id, i.created, i.expires, m.name AS member_name, cast(coalesce(b.name, '') AS text) AS by_name
FROM group_invitations i JOIN members m ON m.id = i.member_id LEFT JOIN members b ON b.id = i.by_id
LEFT JOIN group_members v ON v.group_id = i.group_id AND v.member_id = sqlc.arg(viewer) AND v.admin
WHERE i.expires > sqlc.arg(now) AND NOT m.disabled AND (i.member_id = sqlc.arg(viewer) OR v.member_id IS NOT NULL)
ORDER BY i.created, i.group_id, i.member_id;

-- name: InsertJoin :exec
INSERT INTO group_joins (group_id, member_id, at) VALUES ($1, $2, $3)
ON CONFLICT (group_id, member_id) DO UPDATE SET at = excluded.at;

-- name: PruneJoins :exec
DELETE FROM group_joins WHERE at <= $1;

-- name: DeleteJoins :exec
DELETE FROM group_joins WHERE group_id = $1;

-- name: NewJoins :many
SELECT g.name AS group_name, m.name AS member_name, j.at FROM group_members v
JOIN group_joins j ON j.group_id = v.group_id JOIN groups g ON g.id = j.group_id JOIN members m ON m.id = j.member_id
WHERE v.member_id = sqlc.arg(viewer) AND j.at > v.seen AND j.at > sqlc.arg(since) AND j.member_id <> v.member_id
ORDER BY j.at DESC, j.group_id, j.member_id LIMIT sqlc.arg(most);

-- name: CountNotices :one
SELECT
    (SELECT count(*) FROM group_invitations i WHERE i.member_id = sqlc.arg(viewer) AND i.expires > sqlc.arg(now)) AS invitations,
    (SELECT count(*) FROM group_members v JOIN group_joins j ON j.group_id = v.group_id
     WHERE v.member_id = sqlc.arg(viewer) AND j.at > v.seen AND j.at > sqlc.arg(since) AND j.member_id <> v.member_id) AS joins;

-- name: SeeJoins :exec
UPDATE group_members SET seen = sqlc.arg(until) WHERE member_id = sqlc.arg(viewer) AND seen < sqlc.arg(until);

-- Addresses of members of a group with a machine that it may reach, but not of
-- the one who joined.
-- name: AddressesOfGroup :many
SELECT e.* FROM group_members v JOIN members m ON m.id = v.member_id JOIN emails e ON e.member_id = v.member_id
WHERE v.group_id = sqlc.arg(group_id) AND v.member_id <> sqlc.arg(joined) AND NOT m.disabled AND e.verified > 0 AND EXISTS (
    SELECT 1 FROM machines x WHERE x.owner_id = v.member_id AND x.revoked = 0 AND NOT x.kept_out
      AND NOT EXISTS (SELECT 1 FROM keep_outs k WHERE k.group_id = v.group_id AND k.machine_id = x.id))
ORDER BY e.member_id LIMIT sqlc.arg(most);
