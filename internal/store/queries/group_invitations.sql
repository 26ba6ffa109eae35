-- name: InsertInvitation :exec
INSERT INTO group_invitations (group_id, member_id, by_id, created, expires) VALUES ($1, $2, $3, $4, $5);

-- name: CountInvitations :one
SELECT
    (SELECT count(*) FROM group_invitations i WHERE i.group_id = sqlc.arg(group_id)) AS of_group,
    (SELECT count(*) FROM group_invitations i WHERE i.member_id = sqlc.arg(member)) AS of_member,
    (SELECT count(*) FROM group_invitations i WHERE i.member_id = sqlc.arg(member) AND i.by_id = sqlc.arg(by_id)) AS of_both;

-- The admins who invited a member and whom the member does not know. A member knows the
-- hub's operator, the members they share with, the owners of invites they accepted, and
-- the members of their orgs. Only the member's own actions count, because anyone can share with a member.
-- name: UnknownInviters :many
SELECT i.by_id FROM group_invitations i WHERE i.member_id = sqlc.arg(member) AND i.by_id <> ''
AND NOT EXISTS (SELECT 1 FROM shares s WHERE s.owner_id = i.member_id AND s.member_id = i.by_id)
AND NOT EXISTS (SELECT 1 FROM invite_uses u JOIN invites v ON v.id = u.invite_id WHERE u.member_id = i.member_id AND v.owner_id = i.by_id)
AND NOT EXISTS (SELECT 1 FROM group_members a JOIN group_members b ON b.group_id = a.group_id JOIN groups g ON g.id = a.group_id
    WHERE a.member_id = i.member_id AND b.member_id = i.by_id AND g.kind = 'org');

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

-- The invitations of one member, and those to the orgs whose admin the member is.
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

-- Joins of other members to the member's groups, since the member joined them.
-- name: Joins :many
SELECT g.name AS group_name, m.name AS member_name, j.at, cast(j.at > v.seen AS boolean) AS unseen FROM group_members v
JOIN group_joins j ON j.group_id = v.group_id JOIN groups g ON g.id = j.group_id JOIN members m ON m.id = j.member_id
LEFT JOIN group_joins own ON own.group_id = v.group_id AND own.member_id = v.member_id
WHERE v.member_id = sqlc.arg(viewer) AND j.at >= coalesce(own.at, 0) AND j.at > sqlc.arg(since) AND j.member_id <> v.member_id
ORDER BY j.at DESC, j.group_id, j.member_id LIMIT sqlc.arg(most);

-- name: SeeJoins :exec
UPDATE group_members SET seen = sqlc.arg(until) WHERE member_id = sqlc.arg(viewer) AND seen < sqlc.arg(until);
