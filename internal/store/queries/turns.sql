-- name: InsertTurn :exec
INSERT INTO turns (hash, member_id, created, expires, size, sealed) VALUES ($1, $2, $3, $4, $5, $6);

-- Keeps a member's newest turns within both limits.
-- name: TrimTurns :exec
DELETE FROM turns WHERE hash IN (
    SELECT newest.hash FROM (
        SELECT t.hash, row_number() OVER (ORDER BY t.created DESC, t.hash) AS place, sum(t.size) OVER (ORDER BY t.created DESC, t.hash) AS total
        FROM turns AS t WHERE t.member_id = sqlc.arg(member)
    ) AS newest
    WHERE newest.place > cast(sqlc.arg(most) AS bigint) OR newest.total > cast(sqlc.arg(bytes) AS bigint)
);

-- name: Turn :one
SELECT created, expires, sealed FROM turns WHERE hash = $1 AND member_id = $2 AND expires > $3;

-- name: DeleteTurn :execrows
DELETE FROM turns WHERE hash = $1 AND member_id = $2 AND expires > $3;

-- name: PruneTurns :exec
DELETE FROM turns WHERE expires <= $1;

-- name: TurnSize :one
SELECT size FROM turns WHERE hash = $1 AND member_id = $2 AND expires > $3;
