-- name: MoveEpoch :one
UPDATE epoch SET n = n + sqlc.arg(steps) WHERE id = 1 RETURNING n;

-- The newest change; its nonce is empty if it is not kept.
-- name: Position :one
SELECT e.n, coalesce(c.nonce, '') AS nonce FROM epoch e LEFT JOIN changes c ON c.epoch = e.n WHERE e.id = 1;

-- name: InsertChange :exec
INSERT INTO changes (epoch, nonce, kind, subject, at) VALUES ($1, $2, $3, $4, $5);

-- Keeps the newest of the old changes, because it may be the last one that a reader knows.
-- name: PruneChanges :exec
DELETE FROM changes WHERE epoch < (SELECT max(c.epoch) FROM changes c WHERE c.at < $1);

-- One statement, so that epoch and changes are consistent. known is the nonce of the
-- change that the reader knows.
-- name: ChangesAfter :many
SELECT e.n, coalesce(k.nonce, '') AS known, c.epoch, c.nonce, c.kind, c.subject
FROM epoch e LEFT JOIN changes k ON k.epoch = sqlc.arg(after) LEFT JOIN changes c ON c.epoch > sqlc.arg(after)
WHERE e.id = 1 ORDER BY c.epoch;
