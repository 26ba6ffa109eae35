-- +goose Up

-- Traces of past calls, kept for a week: story is JSON, written for that member
-- alone.
CREATE TABLE stories (
    call_id   text   NOT NULL CHECK (call_id <> ''),
    member_id text   NOT NULL CHECK (member_id <> ''),
    started   bigint NOT NULL,
    story     text   NOT NULL,
    PRIMARY KEY (call_id, member_id)
);
CREATE INDEX stories_started ON stories (started);
