-- name: Email :one
SELECT * FROM emails WHERE member_id = $1;

-- name: AskEmail :exec
INSERT INTO emails (member_id, address, folded, verified, asked, hash, expires) VALUES ($1, '', '', 0, $2, $3, $4)
ON CONFLICT (member_id) DO UPDATE SET asked = excluded.asked, hash = excluded.hash, expires = excluded.expires;

-- name: VerifyEmail :execrows
UPDATE emails SET address = asked, folded = sqlc.arg(folded), verified = sqlc.arg(now), asked = '', expires = 0
WHERE member_id = $1 AND hash = $2 AND asked <> '' AND expires > sqlc.arg(now);

-- name: DeleteEmail :execrows
DELETE FROM emails WHERE member_id = $1;

-- name: EmailsOf :many
SELECT * FROM emails WHERE folded = $1 AND verified > 0 ORDER BY verified, member_id LIMIT sqlc.arg(most);
