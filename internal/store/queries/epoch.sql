-- name: MoveEpoch :one
UPDATE epoch SET n = n + sqlc.arg(steps) WHERE id = 1 RETURNING n;

-- name: Epoch :one
SELECT n FROM epoch WHERE id = 1;

-- name: InsertChange :exec
INSERT INTO changes (epoch, kind, subject, at) VALUES ($1, $2, $3, $4);

-- name: PruneChanges :exec
DELETE FROM changes WHERE at < $1;

-- One statement, so that epoch and changes are consistent.
-- name: ChangesAfter :many
SELECT e.n, c.epoch, c.kind, c.subject FROM epoch e LEFT JOIN changes c ON c.epoch > sqlc.arg(after)
WHERE e.id = 1 ORDER BY c.epoch;
