-- An act may take several transactions. The first of them records it.
-- name: InsertAct :exec
INSERT INTO acts (id, at, by_id, by_name, what, subject) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO NOTHING;

-- name: Acts :many
SELECT * FROM acts WHERE at <= sqlc.arg(before) AND (at < sqlc.arg(before) OR id < sqlc.arg(before_id)) AND at >= sqlc.arg(since)
  AND (cast(sqlc.arg(who) AS text) = '' OR by_name = sqlc.arg(who) OR sqlc.arg(who) = '-' AND by_id = '')
  AND (cast(sqlc.arg(what) AS text) = '' OR what = sqlc.arg(what))
ORDER BY at DESC, id DESC LIMIT sqlc.arg(most);

-- The names and the kinds of acts in the audit log, as choices for a filter.
-- name: ActFields :many
SELECT cast('who' AS text) AS field, by_name AS value FROM acts WHERE by_id <> ''
UNION SELECT cast('what' AS text), what FROM acts ORDER BY 1, 2;
