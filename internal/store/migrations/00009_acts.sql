-- What operators did, for the audit log.

-- +goose Up
CREATE TABLE acts (
    id      text   PRIMARY KEY CHECK (id <> ''),
    at      bigint NOT NULL,
    by_id   text   NOT NULL, -- a member's id; empty: on the hub's own computer
    by_name text   NOT NULL,
    what    text   NOT NULL CHECK (what <> ''),
    subject text   NOT NULL
);
CREATE INDEX acts_by_time ON acts (at);
