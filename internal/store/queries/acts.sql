-- One act may take several transactions; the first keeps it.
-- name: InsertAct :exec
INSERT INTO acts (id, at, by_id, by_name, what, subject) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO NOTHING;

-- name: Acts :many
SELECT * FROM acts WHERE at <= sqlc.arg(before) AND (at < sqlc.arg(before) OR id < sqlc.arg(before_id))
ORDER BY at DESC, id DESC LIMIT sqlc.arg(most);

-- name: InsertBackup :exec
INSERT INTO backups (id, at, file, bytes, fault) VALUES ($1, $2, $3, $4, $5);

-- name: LastBackup :one
SELECT * FROM backups ORDER BY at DESC, id DESC LIMIT 1;

