-- name: InsertMachine :exec
INSERT INTO machines (id, owner_id, name, region, hash, last_four, created, last_seen, offers, generation, revoked, kept_out)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- Only a machine that may connect: it is not revoked, and its owner is not disabled.
-- name: MachineByHash :one
SELECT sqlc.embed(x), sqlc.embed(m) FROM machines x JOIN members m ON m.id = x.owner_id
WHERE x.hash = $1 AND x.revoked = 0 AND NOT m.disabled;

-- name: Machines :many
SELECT sqlc.embed(x), m.name AS owner_name FROM machines x JOIN members m ON m.id = x.owner_id
ORDER BY x.created, x.id;

-- name: MachinesOf :many
SELECT sqlc.embed(x), m.name AS owner_name FROM machines x JOIN members m ON m.id = x.owner_id
WHERE x.owner_id = $1 ORDER BY x.created, x.id;

-- name: CountMachines :one
SELECT count(*) FROM machines WHERE revoked = 0;

-- name: ListMachines :many
SELECT x.id, x.name, m.name AS owner_name, x.created, x.last_seen, x.revoked FROM machines x JOIN members m ON m.id = x.owner_id
WHERE lower(x.name) LIKE lower(cast(sqlc.arg(pattern) AS text)) ESCAPE '!' OR lower(m.name) LIKE lower(cast(sqlc.arg(pattern) AS text)) ESCAPE '!'
ORDER BY x.created DESC, x.id DESC;

-- name: ActiveMachines :many
SELECT sqlc.embed(x), m.name AS owner_name FROM machines x JOIN members m ON m.id = x.owner_id
WHERE x.region = $1 AND x.last_seen >= $2 AND x.revoked = 0 AND NOT m.disabled
ORDER BY x.created, x.id;

-- name: ActiveMachine :one
SELECT sqlc.embed(x), m.name AS owner_name FROM machines x JOIN members m ON m.id = x.owner_id
WHERE x.id = $1 AND x.revoked = 0 AND NOT m.disabled;

-- name: RevokeMachine :execrows
UPDATE machines SET revoked = $2 WHERE id = $1 AND revoked = 0;

-- At least now, in milliseconds, so that a commit lost by a failover cannot have used
-- the same number.
-- name: NextGeneration :one
UPDATE machines SET generation = CASE WHEN generation < sqlc.arg(now) THEN sqlc.arg(now) ELSE generation + 1 END
WHERE machines.id = $1 AND revoked = 0 AND owner_id IN (SELECT m.id FROM members m WHERE NOT m.disabled)
RETURNING generation;

-- name: SaveOffers :execrows
UPDATE machines SET offers = $2, last_seen = $3 WHERE id = $1;

-- name: InsertLoginToken :exec
INSERT INTO login_tokens (id, member_id, name, hash, created, expires, used) VALUES ($1, $2, $3, $4, $5, $6, $7);

-- name: RedeemLoginToken :one
UPDATE login_tokens SET used = sqlc.arg(now)
WHERE hash = $1 AND used = 0 AND expires > sqlc.arg(now)
RETURNING *;

-- name: RenameMachine :execrows
UPDATE machines SET name = $3 WHERE id = $1 AND owner_id = $2 AND revoked = 0;

-- name: ShowClass :execrows
UPDATE machines SET shows_class = sqlc.arg(shows_class) WHERE id = $1 AND owner_id = $2 AND revoked = 0;
