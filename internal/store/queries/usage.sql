-- name: InsertUsage :execrows
INSERT INTO usage (call_id, attempt, started, member_id, key_id, machine_id, owner_id, model, endpoint, stream,
    status, code, waited_us, first_byte_us, duration_us, tokens_in, tokens_out, tokens_how)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
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

-- name: Usage :many
SELECT * FROM usage ORDER BY started DESC, call_id, attempt;

-- name: UsageDays :many
SELECT * FROM usage_days ORDER BY day, member_id, owner_id, machine_id, model, code;

-- name: UsageDaysOf :many
SELECT * FROM usage_days WHERE member_id = sqlc.arg(member) AND day >= sqlc.arg(since)
ORDER BY day, owner_id, machine_id, model, code;

-- What the members of shares called on the machines of those shares' owners that day.
-- name: CallsOfShares :many
SELECT s.id, d.model, cast(sum(d.calls) AS bigint) AS calls
FROM usage_days d JOIN shares s ON s.member_id = d.member_id AND s.owner_id = d.owner_id
WHERE d.day = sqlc.arg(day) GROUP BY s.id, d.model;

-- name: CallsOfSharesTo :many
SELECT s.id, d.model, cast(sum(d.calls) AS bigint) AS calls
FROM usage_days d JOIN shares s ON s.member_id = d.member_id AND s.owner_id = d.owner_id
WHERE d.member_id = sqlc.arg(member) AND d.day = sqlc.arg(day) GROUP BY s.id, d.model;

-- What ran on an owner's machines, whoever called: CallersOn says who.
-- name: UsageDaysOn :many
SELECT day, cast(CASE WHEN member_id = owner_id THEN owner_id ELSE '' END AS text) AS caller, machine_id, model, code,
    cast(sum(calls) AS bigint) AS calls, cast(sum(waited_us) AS bigint) AS waited_us, cast(sum(duration_us) AS bigint) AS duration_us,
    cast(sum(tokens_in) AS bigint) AS tokens_in, cast(sum(tokens_out) AS bigint) AS tokens_out
FROM usage_days WHERE owner_id = sqlc.arg(owner) AND day >= sqlc.arg(since)
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5;

-- Who called on an owner's machines, those who called most first.
-- name: CallersOn :many
SELECT d.member_id, cast(coalesce(m.name, '') AS text) AS name, cast(sum(d.calls) AS bigint) AS calls,
    cast(sum(CASE WHEN d.code = '' THEN 0 ELSE d.calls END) AS bigint) AS refused, cast(sum(d.waited_us) AS bigint) AS waited_us,
    cast(sum(d.tokens_in) AS bigint) AS tokens_in, cast(sum(d.tokens_out) AS bigint) AS tokens_out
FROM usage_days d LEFT JOIN members m ON m.id = d.member_id
WHERE d.owner_id = sqlc.arg(owner) AND d.day >= sqlc.arg(since)
GROUP BY d.member_id, m.name ORDER BY calls DESC, d.member_id LIMIT sqlc.arg(most);

-- Whose machines a member's calls ran on.
-- name: OwnersOf :many
SELECT d.owner_id, cast(coalesce(m.name, '') AS text) AS name, cast(sum(d.calls) AS bigint) AS calls,
    cast(sum(CASE WHEN d.code = '' THEN 0 ELSE d.calls END) AS bigint) AS refused, cast(sum(d.waited_us) AS bigint) AS waited_us,
    cast(sum(d.tokens_in) AS bigint) AS tokens_in, cast(sum(d.tokens_out) AS bigint) AS tokens_out
FROM usage_days d LEFT JOIN members m ON m.id = d.owner_id
WHERE d.member_id = sqlc.arg(member) AND d.owner_id <> '' AND d.day >= sqlc.arg(since)
GROUP BY d.owner_id, m.name ORDER BY calls DESC, d.owner_id LIMIT sqlc.arg(most);
