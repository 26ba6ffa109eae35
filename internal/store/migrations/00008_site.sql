-- Sign-in of members, sessions, and requests that wait for a member's approval.

-- +goose Up
CREATE TABLE passwords (
    member_id text   PRIMARY KEY REFERENCES members (id),
    hash      text   NOT NULL CHECK (hash <> ''), -- argon2id, in its own encoding
    changed   bigint NOT NULL
);

-- Each works once, in place of a forgotten password.
CREATE TABLE recovery_codes (
    member_id text  NOT NULL REFERENCES members (id),
    hash      bytea NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (member_id, hash)
);

CREATE TABLE sessions (
    id        text   PRIMARY KEY CHECK (id <> ''), -- the SHA-256 of the cookie's token
    member_id text   NOT NULL, -- empty: before the sign-in
    data      bytea  NOT NULL,
    created   bigint NOT NULL,
    seen      bigint NOT NULL,
    expires   bigint NOT NULL
);
CREATE INDEX sessions_of_member ON sessions (member_id, created);
CREATE INDEX sessions_expire ON sessions (expires);

-- One-time links: to the account of a member, or, where member_id is empty, to
-- the account of a fresh hub's first operator.
CREATE TABLE links (
    hash      bytea  PRIMARY KEY CHECK (length(hash) = 32),
    member_id text   NOT NULL,
    created   bigint NOT NULL,
    expires   bigint NOT NULL,
    used      bigint NOT NULL
);
CREATE INDEX links_expire ON links (expires);

-- Sign-ins of machines and requests for keys (RFC 8628).
CREATE TABLE device_grants (
    id        text   PRIMARY KEY CHECK (id <> ''),
    hash      bytea  NOT NULL UNIQUE CHECK (length(hash) = 32), -- of the device's own code
    user_code text   NOT NULL UNIQUE CHECK (user_code <> ''),
    kind      text   NOT NULL CHECK (kind IN ('machine', 'key')),
    name      text   NOT NULL,
    reach     text   NOT NULL CHECK (reach IN ('all', 'shared', 'own')),
    client    text   NOT NULL,
    address   text   NOT NULL,
    state     text   NOT NULL CHECK (state IN ('waiting', 'approved', 'denied', 'used')),
    member_id text   NOT NULL, -- who approved or denied; empty: not decided yet
    created   bigint NOT NULL,
    expires   bigint NOT NULL
);
CREATE INDEX device_grants_expire ON device_grants (expires);

-- A member's last calls, newest first.
CREATE INDEX stories_of_member ON stories (member_id, started);
