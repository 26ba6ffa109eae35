-- name: InsertUsage :execrows
INSERT INTO usage (call_id, attempt, started, member_id, key_id, machine_id, owner_id, model, endpoint, stream,
    status, code, waited_us, first_byte_us, duration_us, tokens_in, tokens_out, tokens_how, group_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
ON CONFLICT (call_id, attempt) DO NOTHING;

-- name: AddUsageDay :exec
INSERT INTO usage_days (day, member_id, owner_id, machine_id, model, code, calls, waited_us, duration_us, tokens_in, tokens_out)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (member_id, day, owner_id, machine_id, model, code) DO UPDATE SET
    calls = usage_days.calls + excluded.calls,
    waited_us = usage_days.waited_us + excluded.waited_us,
    duration_us = usage_days.duration_us + excluded.duration_us,
    tokens_in = usage_days.tokens_in + excluded.tokens_in,
    tokens_out = usage_days.tokens_out + excluded.tokens_out;

-- name: AddUsageHour :exec
INSERT INTO usage_hours (member_id, hour, owner_id, machine_id, key_id, model, code, first_ms, calls, waited_us, tokens_in, tokens_out)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (member_id, hour, owner_id, machine_id, key_id, model, code, first_ms) DO UPDATE SET
    calls = usage_hours.calls + excluded.calls,
    waited_us = usage_hours.waited_us + excluded.waited_us,
    tokens_in = usage_hours.tokens_in + excluded.tokens_in,
    tokens_out = usage_hours.tokens_out + excluded.tokens_out;

-- name: PruneUsageHours :exec
DELETE FROM usage_hours WHERE hour < $1;

-- name: CallsOfKeys :many
SELECT key_id, cast(sum(calls) AS bigint) AS calls FROM usage_hours
WHERE member_id = $1 AND hour >= sqlc.arg(since) AND key_id <> '' GROUP BY key_id;

-- Only calls that ran on a machine.
-- name: DayOfKeys :many
SELECT key_id, cast(sum(calls) AS bigint) AS calls FROM usage_hours
WHERE member_id = $1 AND hour >= sqlc.arg(day) AND key_id <> '' AND machine_id <> '' GROUP BY key_id;

-- name: Usage :many
SELECT * FROM usage ORDER BY started DESC, call_id, attempt;

-- name: UsageDays :many
SELECT * FROM usage_days ORDER BY day, member_id, owner_id, machine_id, model, code;

-- The day's calls of each share's member on machines of the share's owner.
-- name: CallsOfShares :many
SELECT s.id, d.model, cast(sum(d.calls) AS bigint) AS calls
FROM usage_days d JOIN shares s ON s.member_id = d.member_id AND s.owner_id = d.owner_id
WHERE d.day = sqlc.arg(day) GROUP BY s.id, d.model;

-- name: CallsOfSharesTo :many
SELECT s.id, d.model, cast(sum(d.calls) AS bigint) AS calls
FROM usage_days d JOIN shares s ON s.member_id = d.member_id AND s.owner_id = d.owner_id
WHERE d.member_id = sqlc.arg(member) AND d.day = sqlc.arg(day) GROUP BY s.id, d.model;

-- The sums of all members.
-- name: DaysOfHub :many
SELECT day, model, code, cast(owner_id <> '' AND owner_id <> member_id AS boolean) AS crossed, cast(sum(calls) AS bigint) AS calls,
    cast(sum(waited_us) AS bigint) AS waited_us, cast(sum(tokens_in) AS bigint) AS tokens_in, cast(sum(tokens_out) AS bigint) AS tokens_out
FROM usage_days WHERE day >= $1 GROUP BY 1, 2, 3, 4 ORDER BY 1;

-- name: HoursOfHub :many
SELECT hour, model, code, first_ms, cast(owner_id <> '' AND owner_id <> member_id AS boolean) AS crossed, cast(sum(calls) AS bigint) AS calls,
    cast(sum(waited_us) AS bigint) AS waited_us, cast(sum(tokens_in) AS bigint) AS tokens_in, cast(sum(tokens_out) AS bigint) AS tokens_out
FROM usage_hours WHERE hour >= $1 GROUP BY 1, 2, 3, 4, 5 ORDER BY 1;

-- name: MembersByDays :many
SELECT cast((day - cast(sqlc.arg(since) AS bigint)) / cast(sqlc.arg(length) AS bigint) AS bigint) AS step, count(DISTINCT member_id) AS members
FROM usage_days WHERE day >= sqlc.arg(since) GROUP BY 1;

-- name: MembersByHours :many
SELECT cast((hour - cast(sqlc.arg(since) AS bigint)) / cast(sqlc.arg(length) AS bigint) AS bigint) AS step, count(DISTINCT member_id) AS members
FROM usage_hours WHERE hour >= sqlc.arg(since) GROUP BY 1;

-- name: MembersSinceDay :one
SELECT count(DISTINCT member_id) FROM usage_days WHERE day >= $1;

-- name: MembersSinceHour :one
SELECT count(DISTINCT member_id) FROM usage_hours WHERE hour >= $1;
