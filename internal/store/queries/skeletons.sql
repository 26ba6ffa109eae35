-- name: InsertMemberSkeleton :execrows
INSERT INTO member_skeletons (skeleton, member_id) VALUES ($1, $2) ON CONFLICT (skeleton) DO NOTHING;

-- name: InsertGroupSkeleton :execrows
INSERT INTO group_skeletons (skeleton, group_id) VALUES ($1, $2) ON CONFLICT (skeleton) DO NOTHING;

-- name: MembersWithoutSkeleton :many
SELECT m.id, m.name FROM members m
WHERE NOT EXISTS (SELECT 1 FROM member_skeletons s WHERE s.member_id = m.id) ORDER BY m.created, m.id;

-- name: GroupsWithoutSkeleton :many
SELECT g.id, g.name FROM groups g
WHERE NOT EXISTS (SELECT 1 FROM group_skeletons s WHERE s.group_id = g.id) ORDER BY g.created, g.id;
