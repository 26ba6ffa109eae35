-- name: InsertMember :exec
INSERT INTO members (id, name, operator, disabled, created) VALUES ($1, $2, $3, $4, $5);

-- name: MemberByID :one
SELECT * FROM members WHERE id = $1;

-- name: MemberByName :one
SELECT * FROM members WHERE name = $1;

-- name: Members :many
SELECT * FROM members ORDER BY created, id;

-- name: CountMembers :one
SELECT count(*) AS members, cast(coalesce(sum(CASE WHEN disabled THEN 1 ELSE 0 END), 0) AS bigint) AS disabled FROM members m
WHERE lower(m.name) LIKE lower(cast(sqlc.arg(word1) AS text)) ESCAPE '!'
  AND lower(m.name) LIKE lower(cast(sqlc.arg(word2) AS text)) ESCAPE '!'
  AND lower(m.name) LIKE lower(cast(sqlc.arg(word3) AS text)) ESCAPE '!'
  AND lower(m.name) LIKE lower(cast(sqlc.arg(word4) AS text)) ESCAPE '!';

-- A page of the members, each with the number of its machines and when it last used the site, a
-- key, or a model. sort is the name of a column, after a "-" in reverse; else the newest come first.
-- name: ListMembers :many
SELECT l.id, l.name, l.operator, l.disabled, l.created, l.machines, cast(l.active AS bigint) AS active FROM (
    SELECT m.id, m.name, m.operator, m.disabled, m.created,
        (SELECT count(*) FROM machines x WHERE x.owner_id = m.id AND x.revoked = 0) AS machines,
        (SELECT max(t.at) FROM (
            SELECT coalesce(max(s.seen), 0) AS at FROM sessions s WHERE s.member_id = m.id
            UNION ALL SELECT coalesce(max(k.last_used), 0) FROM keys k WHERE k.member_id = m.id
            UNION ALL SELECT coalesce(max(h.hour), 0) FROM usage_hours h WHERE h.member_id = m.id) t) AS active
    FROM members m
    WHERE lower(m.name) LIKE lower(cast(sqlc.arg(word1) AS text)) ESCAPE '!'
      AND lower(m.name) LIKE lower(cast(sqlc.arg(word2) AS text)) ESCAPE '!'
      AND lower(m.name) LIKE lower(cast(sqlc.arg(word3) AS text)) ESCAPE '!'
      AND lower(m.name) LIKE lower(cast(sqlc.arg(word4) AS text)) ESCAPE '!'
      AND (cast(sqlc.arg(state) AS text) = '' OR m.disabled = (cast(sqlc.arg(state) AS text) = 'disabled'))
) l
ORDER BY
    CASE cast(sqlc.arg(sort) AS text) WHEN 'name' THEN lower(l.name) END,
    CASE cast(sqlc.arg(sort) AS text) WHEN '-name' THEN lower(l.name) END DESC,
    CASE cast(sqlc.arg(sort) AS text) WHEN 'state' THEN CASE WHEN l.disabled THEN 1 ELSE 0 END WHEN 'active' THEN l.active WHEN 'machines' THEN l.machines WHEN 'created' THEN l.created END,
    CASE cast(sqlc.arg(sort) AS text) WHEN '-state' THEN CASE WHEN l.disabled THEN 1 ELSE 0 END WHEN '-active' THEN l.active WHEN '-machines' THEN l.machines WHEN '-created' THEN l.created END DESC,
    l.created DESC, l.id DESC
LIMIT sqlc.arg(most) OFFSET sqlc.arg(skip);

-- name: SetMemberDisabled :execrows
UPDATE members SET disabled = $2 WHERE id = $1;

-- name: SetMemberOperator :execrows
UPDATE members SET operator = $2 WHERE id = $1;

-- name: CountOperators :one
SELECT count(*) FROM members WHERE operator AND NOT disabled;

-- The records that appear or disappear with a member. kind is a fleet.ChangeKind.
-- name: MemberFacts :many
SELECT cast('key' AS text) AS kind, k.id AS subject FROM keys k WHERE k.member_id = sqlc.arg(member) AND k.revoked = 0
UNION ALL
SELECT cast('machine' AS text), m.id FROM machines m WHERE m.owner_id = sqlc.arg(member) AND m.revoked = 0
UNION ALL
SELECT cast('shares' AS text), s.member_id FROM shares s WHERE s.owner_id = sqlc.arg(member)
UNION ALL
SELECT cast('group' AS text), g.group_id FROM group_members g WHERE g.member_id = sqlc.arg(member);

-- name: InsertMeta :exec
INSERT INTO meta (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING;

-- name: Meta :one
SELECT value FROM meta WHERE name = $1;
