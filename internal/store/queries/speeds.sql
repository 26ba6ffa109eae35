-- name: PutSpeed :exec
INSERT INTO speeds (machine_id, model, measured, samples) VALUES ($1, $2, $3, $4)
ON CONFLICT (machine_id, model) DO UPDATE SET measured = excluded.measured, samples = excluded.samples WHERE excluded.measured >= speeds.measured;

-- name: SpeedsSince :many
SELECT * FROM speeds WHERE measured >= $1 ORDER BY machine_id, model;

-- name: PruneSpeeds :exec
DELETE FROM speeds WHERE measured < $1;

-- name: AddPrefixKey :exec
INSERT INTO prefix_keys (day, secret) VALUES ($1, $2) ON CONFLICT (day) DO NOTHING;

-- name: PrefixKey :one
SELECT secret FROM prefix_keys WHERE day = $1;

-- name: PrunePrefixKeys :exec
DELETE FROM prefix_keys WHERE day < $1;
