-- Invitations to orgs, each of which its member accepts or declines, and who
-- joined a group lately, for the notices of its other members.

-- +goose Up
CREATE TABLE group_invitations (
    group_id  text   NOT NULL REFERENCES groups (id),
    member_id text   NOT NULL REFERENCES members (id), -- who is invited
    by_id     text   NOT NULL, -- the admin who invites; empty: the hub's operator
    created   bigint NOT NULL,
    expires   bigint NOT NULL,
    PRIMARY KEY (group_id, member_id)
);
CREATE INDEX group_invitations_of_member ON group_invitations (member_id, created);

-- The last time that a member joined a group; kept for 30 days.
CREATE TABLE group_joins (
    group_id  text   NOT NULL REFERENCES groups (id),
    member_id text   NOT NULL REFERENCES members (id),
    at        bigint NOT NULL,
    PRIMARY KEY (group_id, member_id)
);
CREATE INDEX group_joins_by_group ON group_joins (group_id, at);
CREATE INDEX group_joins_by_time ON group_joins (at);

-- A member has seen the joins up to this time. Of a membership from before this
-- migration no join was recorded.
ALTER TABLE group_members ADD COLUMN seen bigint NOT NULL DEFAULT 0;
