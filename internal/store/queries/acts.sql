-- One act may take several transactions; the first keeps it.
-- name: InsertAct :exec
INSERT INTO acts (id, at, by_id, by_name, what, subject) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO NOTHING;

-- name: Acts :many
SELECT * FROM acts WHERE at < sqlc.arg(before) ORDER BY at DESC, id DESC LIMIT sqlc.arg(most);
