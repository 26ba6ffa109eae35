-- name: EndSessions :execrows
DELETE FROM sessions;

-- name: DropAllLinks :exec
DELETE FROM links;

-- name: DropLoginTokens :exec
DELETE FROM login_tokens WHERE used = 0;

-- name: DropDeviceGrants :exec
DELETE FROM device_grants;

-- name: DropCeremonies :exec
DELETE FROM ceremonies;

-- name: RevokedKeys :many
SELECT id, revoked FROM keys WHERE revoked <> 0;

-- name: RevokedMachines :many
SELECT id, revoked FROM machines WHERE revoked <> 0;

-- name: DisabledMembers :many
SELECT id FROM members WHERE disabled;

-- name: KeepKeyRevoked :execrows
UPDATE keys SET revoked = $2 WHERE id = $1 AND revoked = 0;

-- name: KeepMachineRevoked :execrows
UPDATE machines SET revoked = $2 WHERE id = $1 AND revoked = 0;

-- name: KeepMemberDisabled :execrows
UPDATE members SET disabled = true WHERE id = $1 AND NOT disabled;

-- The content of a restored database, for the operator.
-- name: CountRestored :one
SELECT (SELECT count(*) FROM members) AS members, (SELECT count(*) FROM keys WHERE revoked = 0) AS keys,
    (SELECT count(*) FROM machines WHERE revoked = 0) AS machines;

-- name: DropMeta :exec
DELETE FROM meta WHERE name = $1;
