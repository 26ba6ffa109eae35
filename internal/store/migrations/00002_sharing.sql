-- +goose Up

-- Kept out of every group that its owner is in or joins later.
ALTER TABLE machines ADD COLUMN kept_out boolean NOT NULL DEFAULT false;

-- A member who accepts an invite gets a share of its owner's machines.
CREATE TABLE invites (
    id        text   PRIMARY KEY CHECK (id <> ''),
    owner_id  text   NOT NULL REFERENCES members (id),
    hash      bytea  NOT NULL UNIQUE CHECK (length(hash) = 32),
    last_four text   NOT NULL,
    uses      bigint NOT NULL CHECK (uses > 0),
    used      bigint NOT NULL CHECK (used >= 0 AND used <= uses),
    created   bigint NOT NULL,
    expires   bigint NOT NULL,
    revoked   bigint NOT NULL
);
CREATE INDEX invites_of_owner ON invites (owner_id, created);
