-- name: InsertMemberSkeleton :execrows
INSERT INTO member_skeletons (skeleton, member_id) VALUES ($1, $2) ON CONFLICT (skeleton) DO NOTHING;

-- name: InsertGroupSkeleton :execrows
INSERT INTO group_skeletons (skeleton, group_id) VALUES ($1, $2) ON CONFLICT (skeleton) DO NOTHING;

-- name: MemberBySkeleton :one
SELECT m.* FROM members m JOIN member_skeletons s ON s.member_id = m.id WHERE s.skeleton = $1;
