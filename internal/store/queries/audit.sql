-- An act may take several transactions; the first records it.
-- name: InsertAct :exec
INSERT INTO acts (id, at, by_id, by_name, what, subject) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO NOTHING;

-- name: Acts :many
SELECT * FROM acts WHERE at <= sqlc.arg(before) AND (at < sqlc.arg(before) OR id < sqlc.arg(before_id))
ORDER BY at DESC, id DESC LIMIT sqlc.arg(most);
