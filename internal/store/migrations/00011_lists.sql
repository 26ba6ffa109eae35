-- Indexes for an operator's lists, and a record of backups.

-- +goose Up
CREATE INDEX members_by_time ON members (created, id);
CREATE INDEX machines_by_time ON machines (created, id);

CREATE TABLE backups (
    id    text   PRIMARY KEY CHECK (id <> ''),
    at    bigint NOT NULL,
    file  text   NOT NULL CHECK (file <> ''),
    bytes bigint NOT NULL CHECK (bytes >= 0),
    fault text   NOT NULL -- what the check of the copy found; empty: none
);
CREATE INDEX backups_by_time ON backups (at);
