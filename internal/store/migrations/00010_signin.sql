-- Sign-in methods beside the password: passkeys, and accounts at the hub's OpenID
-- provider; and sign-ins between their two steps.

-- +goose Up
CREATE TABLE passkeys (
    id         text    PRIMARY KEY CHECK (id <> ''),
    member_id  text    NOT NULL REFERENCES members (id),
    name       text    NOT NULL CHECK (name <> ''),
    credential bytea   NOT NULL UNIQUE CHECK (length(credential) BETWEEN 1 AND 1023), -- its id, the authenticator's
    public_key bytea   NOT NULL CHECK (length(public_key) > 0), -- COSE
    synced     boolean NOT NULL, -- it may be on more than one device (backup eligible)
    signs      bigint  NOT NULL CHECK (signs >= 0), -- the authenticator's counter; 0: it has none
    created    bigint  NOT NULL,
    used       bigint  NOT NULL -- 0: never
);
CREATE INDEX passkeys_of_member ON passkeys (member_id, created);

-- Bound by the provider's issuer and its subject, never by an address.
CREATE TABLE identities (
    id        text   PRIMARY KEY CHECK (id <> ''),
    member_id text   NOT NULL REFERENCES members (id),
    issuer    text   NOT NULL CHECK (issuer <> ''),
    subject   text   NOT NULL CHECK (subject <> ''),
    shown     text   NOT NULL, -- what the provider called the account when it was bound
    created   bigint NOT NULL,
    UNIQUE (issuer, subject)
);
CREATE INDEX identities_of_member ON identities (member_id, created);

-- State between the two steps of a sign-in; each is used once.
CREATE TABLE ceremonies (
    hash      bytea  PRIMARY KEY CHECK (length(hash) = 32), -- of what the second step brings
    kind      text   NOT NULL CHECK (kind <> ''),
    member_id text   NOT NULL, -- empty: not known yet
    data      bytea  NOT NULL,
    expires   bigint NOT NULL
);
CREATE INDEX ceremonies_expire ON ceremonies (expires);
