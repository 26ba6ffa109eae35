-- name: InsertStory :exec
INSERT INTO stories (call_id, member_id, started, story) VALUES ($1, $2, $3, $4)
ON CONFLICT (call_id, member_id) DO NOTHING;

-- name: PruneStories :exec
DELETE FROM stories WHERE started < $1;

-- name: Story :one
SELECT story FROM stories WHERE call_id = $1 AND member_id = $2;

-- name: StoriesOf :many
SELECT story FROM stories
WHERE member_id = $1 AND started <= sqlc.arg(before) AND (started < sqlc.arg(before) OR call_id < sqlc.arg(before_id))
ORDER BY started DESC, call_id DESC LIMIT sqlc.arg(most);
