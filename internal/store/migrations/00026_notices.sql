-- What members are notified of, and what of it each wants on the site and by mail.

-- +goose Up
CREATE TABLE notices (
    member_id text   NOT NULL REFERENCES members (id), -- who is notified
    kind      text   NOT NULL,
    subject   text   NOT NULL, -- the id of what it is about
    occasion  bigint NOT NULL, -- sets apart two notices of one subject
    at        bigint NOT NULL,
    text      text   NOT NULL,
    PRIMARY KEY (member_id, kind, subject, occasion)
);
CREATE INDEX notices_of_member ON notices (member_id, at);
CREATE INDEX notices_by_time ON notices (at);

-- A member without a row has seen nothing yet, and wants everything.
CREATE TABLE notice_members (
    member_id text   PRIMARY KEY REFERENCES members (id),
    seen      bigint NOT NULL DEFAULT 0, -- the member has seen the notices up to this time
    mailed    bigint NOT NULL DEFAULT 0, -- the mail server has taken those up to this time
    next_mail bigint NOT NULL DEFAULT 0, -- no mail before this time
    off_site  text   NOT NULL DEFAULT '', -- kinds that are not shown, with a space before and after each
    off_mail  text   NOT NULL DEFAULT ''  -- kinds that are not mailed
);

-- The last pass over what members are to be notified of, and the first; one row.
CREATE TABLE notice_passes (
    id    bigint PRIMARY KEY,
    at    bigint NOT NULL,
    first bigint NOT NULL
);

CREATE INDEX machines_by_seen ON machines (last_seen);
CREATE INDEX keys_by_end ON keys (expires);
