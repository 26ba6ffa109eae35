-- name: InsertBackup :exec
INSERT INTO backups (id, at, file, bytes, fault) VALUES ($1, $2, $3, $4, $5);

-- name: LastBackup :one
SELECT * FROM backups ORDER BY at DESC, id DESC LIMIT 1;

-- name: LastGoodBackup :one
SELECT * FROM backups WHERE fault = '' ORDER BY at DESC, id DESC LIMIT 1;
