-- name: InsertStory :exec
INSERT INTO stories (call_id, member_id, started, story) VALUES ($1, $2, $3, $4)
ON CONFLICT (call_id, member_id) DO NOTHING;

-- name: PruneStories :exec
DELETE FROM stories WHERE started < $1;

-- name: Story :one
SELECT story FROM stories WHERE call_id = $1 AND member_id = $2;

-- name: UsageOfCall :one
SELECT u.started, u.member_id, u.key_id, u.group_id, u.model, u.endpoint, u.stream, u.status, u.code, u.waited_us, u.duration_us, u.tokens_in, u.tokens_out,
    cast(coalesce(m.name, '') AS text) AS caller, cast(coalesce(o.name, '') AS text) AS owner, cast(coalesce(c.name, '') AS text) AS machine
FROM usage u LEFT JOIN members m ON m.id = u.member_id LEFT JOIN members o ON o.id = u.owner_id LEFT JOIN machines c ON c.id = u.machine_id
WHERE u.call_id = $1 AND (u.member_id = $2 OR u.owner_id = $2) AND u.started >= $3
ORDER BY u.attempt DESC LIMIT 1;

-- name: StoriesOf :many
SELECT story FROM stories
WHERE member_id = $1 AND started <= sqlc.arg(before) AND (started < sqlc.arg(before) OR call_id < sqlc.arg(before_id))
ORDER BY started DESC, call_id DESC LIMIT sqlc.arg(most);

-- name: DropStoryOfOpenCall :exec
-- Only if the call's record is not there either.
DELETE FROM stories WHERE stories.call_id = $1 AND NOT EXISTS (SELECT 1 FROM usage WHERE usage.call_id = $1);
