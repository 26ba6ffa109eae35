-- An owner's limits for calls of a group's members on the owner's machines, with
-- the columns of shares, and the number of calls.

-- +goose Up
CREATE TABLE group_limits (
    group_id   text   NOT NULL REFERENCES groups (id),
    owner_id   text   NOT NULL REFERENCES members (id),
    models     text   NOT NULL, -- a JSON list
    hours      text   NOT NULL,
    concurrent bigint NOT NULL CHECK (concurrent >= 0),
    per_day    bigint NOT NULL CHECK (per_day >= 0),
    PRIMARY KEY (group_id, owner_id)
);
CREATE INDEX group_limits_of_owner ON group_limits (owner_id);

-- The group by which a call reached its machine; empty: none.
ALTER TABLE usage ADD COLUMN group_id text NOT NULL DEFAULT '';

-- How many calls ran on an owner's machines by a group, kept as the records of
-- usage are written; day is midnight UTC.
CREATE TABLE group_days (
    day      bigint NOT NULL,
    group_id text   NOT NULL,
    owner_id text   NOT NULL,
    calls    bigint NOT NULL,
    PRIMARY KEY (day, group_id, owner_id)
);
