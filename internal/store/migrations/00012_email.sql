-- Members' e-mail addresses, and the one-time links that are mailed to them.

-- +goose Up
CREATE TABLE emails (
    member_id text   PRIMARY KEY REFERENCES members (id),
    address   text   NOT NULL, -- the member proved that it is theirs; empty: none yet
    folded    text   NOT NULL, -- the same in lower case, to be found by; any number of members may have one
    verified  bigint NOT NULL, -- when; 0: there is none
    asked     text   NOT NULL, -- a link was mailed there; empty: none waits
    hash      bytea  NOT NULL, -- of that link's code
    expires   bigint NOT NULL  -- and when it does
);
CREATE INDEX emails_of_address ON emails (folded);

-- A link that was requested by e-mail does not replace one that an operator made.
ALTER TABLE links ADD COLUMN mailed boolean NOT NULL DEFAULT false;
