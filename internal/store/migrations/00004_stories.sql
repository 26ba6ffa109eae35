-- +goose Up

-- What one member may know of one past call, for a week: story is JSON, written
-- for that member alone, so no reading can tell it to another.
CREATE TABLE stories (
    call_id   text   NOT NULL CHECK (call_id <> ''),
    member_id text   NOT NULL CHECK (member_id <> ''),
    started   bigint NOT NULL,
    story     text   NOT NULL,
    PRIMARY KEY (call_id, member_id)
);
CREATE INDEX stories_started ON stories (started);
