-- Who has accepted which invite: a member does so once, and not again after the
-- share that it made has ended.

-- +goose Up
CREATE TABLE invite_uses (
    invite_id text NOT NULL REFERENCES invites (id) ON DELETE CASCADE,
    member_id text NOT NULL REFERENCES members (id),
    PRIMARY KEY (invite_id, member_id)
);
