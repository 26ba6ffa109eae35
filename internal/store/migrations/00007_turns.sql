-- +goose Up

-- Turns of the responses dialect, each sealed under the id of its response, which
-- is stored as a hash only: they cannot be read without the id.
CREATE TABLE turns (
    hash      bytea  PRIMARY KEY CHECK (length(hash) = 32),
    member_id text   NOT NULL REFERENCES members (id),
    created   bigint NOT NULL,
    expires   bigint NOT NULL,
    size      bigint NOT NULL,
    sealed    bytea  NOT NULL
);
CREATE INDEX turns_of_member ON turns (member_id, created, hash, size);
CREATE INDEX turns_expires ON turns (expires);
