-- name: StartNode :exec
INSERT INTO nodes (name, incarnation, region, address, pin, version, state, beat, started)
VALUES ($1, $2, $3, $4, $5, $6, $7, 0, $8)
ON CONFLICT (name) DO UPDATE SET incarnation = excluded.incarnation, region = excluded.region, address = excluded.address,
    pin = excluded.pin, version = excluded.version, state = excluded.state, beat = excluded.beat, started = excluded.started;

-- name: Beat :execrows
UPDATE nodes SET beat = beat + 1 WHERE name = $1 AND incarnation = $2;

-- name: SetNodeState :execrows
UPDATE nodes SET state = $2 WHERE name = $1;

-- name: EndNode :exec
DELETE FROM nodes WHERE name = $1 AND incarnation = $2;

-- name: RemoveNode :exec
DELETE FROM nodes WHERE name = $1 AND incarnation = $2 AND beat = $3;

-- name: Nodes :many
SELECT * FROM nodes ORDER BY name;
