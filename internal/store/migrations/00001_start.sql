-- The tables, for SQLite and PostgreSQL. Ids are text made by the caller, times are
-- bigint Unix milliseconds (0: never), durations bigint microseconds, hashes the 32
-- bytes of a SHA-256; last_four are the last characters of a secret, to recognize it
-- by. No SQL time functions, no arrays.

-- +goose Up
CREATE TABLE meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);
-- The oldest version of the tables that a kith has to know to run on these. A
-- migration that takes away or changes what an older kith uses sets it to its own
-- version; all others add, and leave it (docs/HACKING.md#migrations).
INSERT INTO meta (name, value) VALUES ('readable_from', '1');

CREATE TABLE members (
    id       text    PRIMARY KEY CHECK (id <> ''),
    name     text    NOT NULL UNIQUE CHECK (name <> ''),
    operator boolean NOT NULL,
    disabled boolean NOT NULL,
    created  bigint  NOT NULL
);
CREATE INDEX members_by_time ON members (created, id);

-- What members' names look like (account.Skeletons): no new name looks like another.
CREATE TABLE member_skeletons (
    skeleton  text PRIMARY KEY,
    member_id text NOT NULL REFERENCES members (id) ON DELETE CASCADE
);
CREATE INDEX skeletons_of_member ON member_skeletons (member_id);

CREATE TABLE keys (
    id        text    PRIMARY KEY CHECK (id <> ''),
    member_id text    NOT NULL REFERENCES members (id),
    name      text    NOT NULL,
    region    text    NOT NULL,
    reach     text    NOT NULL CHECK (reach IN ('all', 'shared', 'own')),
    manage    boolean NOT NULL DEFAULT false, -- it may manage its member's account, not only make calls
    hash      bytea   NOT NULL UNIQUE CHECK (length(hash) = 32),
    last_four text    NOT NULL,
    created   bigint  NOT NULL,
    expires   bigint  NOT NULL DEFAULT 0,
    last_used bigint  NOT NULL,
    revoked   bigint  NOT NULL
);
CREATE INDEX keys_of_member ON keys (member_id, created);
CREATE INDEX keys_by_end ON keys (expires);

CREATE TABLE machines (
    id         text    PRIMARY KEY CHECK (id <> ''),
    owner_id   text    NOT NULL REFERENCES members (id),
    name       text    NOT NULL CHECK (name <> ''),
    region     text    NOT NULL,
    kept_out   boolean NOT NULL DEFAULT false, -- of every group that its owner is in or joins later
    hash       bytea   NOT NULL UNIQUE CHECK (length(hash) = 32), -- of its credential
    last_four  text    NOT NULL,
    created    bigint  NOT NULL,
    last_seen  bigint  NOT NULL,
    offers     bytea, -- its last advertisement, JSON
    generation bigint  NOT NULL, -- of its newest tunnel; each tunnel's is greater
    revoked    bigint  NOT NULL
);
-- A revoked machine gives its name back.
CREATE UNIQUE INDEX machine_names ON machines (owner_id, name) WHERE revoked = 0;
CREATE INDEX machines_seen ON machines (region, last_seen);
CREATE INDEX machines_by_seen ON machines (last_seen);
CREATE INDEX machines_of_owner ON machines (owner_id, created);
CREATE INDEX machines_by_time ON machines (created, id);

CREATE TABLE login_tokens (
    id        text   PRIMARY KEY CHECK (id <> ''),
    member_id text   NOT NULL REFERENCES members (id),
    name      text   NOT NULL, -- of the machine that it makes
    hash      bytea  NOT NULL UNIQUE CHECK (length(hash) = 32),
    created   bigint NOT NULL,
    expires   bigint NOT NULL,
    used      bigint NOT NULL
);

-- A member gets calls run on the owner's machines, within the limits.
CREATE TABLE shares (
    id         text   PRIMARY KEY CHECK (id <> ''),
    owner_id   text   NOT NULL REFERENCES members (id),
    member_id  text   NOT NULL REFERENCES members (id),
    models     text   NOT NULL, -- a JSON list; empty: all
    hours      text   NOT NULL, -- as fleet.ParseHours reads them; empty: always
    concurrent bigint NOT NULL CHECK (concurrent >= 0), -- calls at once; 0: no limit
    per_day    bigint NOT NULL CHECK (per_day >= 0), -- calls a day; 0: no limit
    created    bigint NOT NULL,
    UNIQUE (owner_id, member_id),
    CHECK (owner_id <> member_id)
);
CREATE INDEX shares_to_member ON shares (member_id);

-- A member who accepts an invite gets a share of its owner's machines, with these
-- limits.
CREATE TABLE invites (
    id         text   PRIMARY KEY CHECK (id <> ''),
    owner_id   text   NOT NULL REFERENCES members (id),
    hash       bytea  NOT NULL UNIQUE CHECK (length(hash) = 32),
    last_four  text   NOT NULL,
    uses       bigint NOT NULL CHECK (uses > 0), -- how many members may accept it
    used       bigint NOT NULL CHECK (used >= 0 AND used <= uses), -- how many did
    models     text   NOT NULL DEFAULT '[]', -- a JSON list
    hours      text   NOT NULL DEFAULT '',
    concurrent bigint NOT NULL DEFAULT 0 CHECK (concurrent >= 0),
    per_day    bigint NOT NULL DEFAULT 0 CHECK (per_day >= 0),
    created    bigint NOT NULL,
    expires    bigint NOT NULL,
    revoked    bigint NOT NULL
);
CREATE INDEX invites_of_owner ON invites (owner_id, created);

-- Who has accepted which invite: a member does so once, and not again after the
-- share that it made has ended.
CREATE TABLE invite_uses (
    invite_id text NOT NULL REFERENCES invites (id) ON DELETE CASCADE,
    member_id text NOT NULL REFERENCES members (id),
    PRIMARY KEY (invite_id, member_id)
);

CREATE TABLE groups (
    id      text   PRIMARY KEY CHECK (id <> ''),
    name    text   NOT NULL UNIQUE CHECK (name <> ''),
    kind    text   NOT NULL CHECK (kind IN ('org', 'open')),
    created bigint NOT NULL
);

-- What groups' names look like, as of members'.
CREATE TABLE group_skeletons (
    skeleton text PRIMARY KEY,
    group_id text NOT NULL REFERENCES groups (id) ON DELETE CASCADE
);
CREATE INDEX skeletons_of_group ON group_skeletons (group_id);

CREATE TABLE group_members (
    group_id  text    NOT NULL REFERENCES groups (id),
    member_id text    NOT NULL REFERENCES members (id),
    admin     boolean NOT NULL,
    seen      bigint  NOT NULL DEFAULT 0, -- the member has seen the joins up to this time
    PRIMARY KEY (group_id, member_id)
);
CREATE INDEX groups_of_member ON group_members (member_id);

-- Invitations to orgs, each of which its member accepts or declines.
CREATE TABLE group_invitations (
    group_id  text   NOT NULL REFERENCES groups (id),
    member_id text   NOT NULL REFERENCES members (id), -- who is invited
    by_id     text   NOT NULL, -- the admin who invites; empty: the hub's operator
    created   bigint NOT NULL,
    expires   bigint NOT NULL,
    PRIMARY KEY (group_id, member_id)
);
CREATE INDEX group_invitations_of_member ON group_invitations (member_id, created);

-- The last time that a member joined a group, for the notices of its other members;
-- kept for 30 days.
CREATE TABLE group_joins (
    group_id  text   NOT NULL REFERENCES groups (id),
    member_id text   NOT NULL REFERENCES members (id),
    at        bigint NOT NULL,
    PRIMARY KEY (group_id, member_id)
);
CREATE INDEX group_joins_by_group ON group_joins (group_id, at);
CREATE INDEX group_joins_by_time ON group_joins (at);

-- An owner's limits for calls of a group's members on the owner's machines, with
-- the columns of shares.
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

-- What a group's admins decided on a machine of a member: pinned, it counts as
-- established; excluded, the group does not reach it.
CREATE TABLE group_machines (
    group_id   text NOT NULL REFERENCES groups (id),
    machine_id text NOT NULL REFERENCES machines (id),
    rule       text NOT NULL CHECK (rule IN ('pinned', 'excluded')),
    PRIMARY KEY (group_id, machine_id)
);

-- Machines that their owners keep out of a group.
CREATE TABLE keep_outs (
    group_id   text NOT NULL REFERENCES groups (id),
    machine_id text NOT NULL REFERENCES machines (id),
    PRIMARY KEY (group_id, machine_id)
);

-- One record an attempt. No foreign keys: usage stays when what it names is deleted.
-- No other index: each costs every call an insert, and pages read the sums below. On
-- PostgreSQL the table has partitions (partitionUsage).
CREATE TABLE usage (
    call_id       text    NOT NULL CHECK (call_id <> ''),
    attempt       bigint  NOT NULL CHECK (attempt >= 0),
    started       bigint  NOT NULL,
    member_id     text    NOT NULL,
    key_id        text    NOT NULL,
    machine_id    text    NOT NULL,
    owner_id      text    NOT NULL,
    group_id      text    NOT NULL DEFAULT '', -- by which the call reached the machine; empty: none
    model         text    NOT NULL,
    endpoint      text    NOT NULL,
    stream        boolean NOT NULL,
    status        bigint  NOT NULL,
    code          text    NOT NULL, -- of the refusal; empty: served
    waited_us     bigint  NOT NULL CHECK (waited_us >= 0),
    first_byte_us bigint  NOT NULL CHECK (first_byte_us >= 0),
    duration_us   bigint  NOT NULL CHECK (duration_us >= 0),
    tokens_in     bigint  NOT NULL CHECK (tokens_in >= 0),
    tokens_out    bigint  NOT NULL CHECK (tokens_out >= 0),
    tokens_how    text    NOT NULL, -- account.TokensHow: who counted
    PRIMARY KEY (call_id, attempt)
);

-- Sums of usage by the day, kept as its records are written.
CREATE TABLE usage_days (
    day         bigint NOT NULL, -- midnight UTC
    member_id   text   NOT NULL,
    owner_id    text   NOT NULL,
    machine_id  text   NOT NULL,
    model       text   NOT NULL,
    code        text   NOT NULL,
    calls       bigint NOT NULL,
    waited_us   bigint NOT NULL CHECK (waited_us >= 0),
    duration_us bigint NOT NULL CHECK (duration_us >= 0),
    tokens_in   bigint NOT NULL CHECK (tokens_in >= 0),
    tokens_out  bigint NOT NULL CHECK (tokens_out >= 0),
    PRIMARY KEY (member_id, day, owner_id, machine_id, model, code)
);
CREATE INDEX usage_days_by_owner ON usage_days (owner_id, day);
CREATE INDEX usage_days_by_day ON usage_days (day);

-- Sums of usage by the hour, kept for 13 weeks.
CREATE TABLE usage_hours (
    member_id  text   NOT NULL,
    hour       bigint NOT NULL, -- its begin
    owner_id   text   NOT NULL,
    machine_id text   NOT NULL,
    key_id     text   NOT NULL,
    model      text   NOT NULL,
    code       text   NOT NULL,
    first_ms   bigint NOT NULL, -- the step of the time to the first token; 0: not measured
    calls      bigint NOT NULL,
    waited_us  bigint NOT NULL CHECK (waited_us >= 0),
    tokens_in  bigint NOT NULL CHECK (tokens_in >= 0),
    tokens_out bigint NOT NULL CHECK (tokens_out >= 0),
    PRIMARY KEY (member_id, hour, owner_id, machine_id, key_id, model, code, first_ms)
);
CREATE INDEX usage_hours_by_owner ON usage_hours (owner_id, hour);
CREATE INDEX usage_hours_by_hour ON usage_hours (hour);

-- How many calls ran on an owner's machines by a group.
CREATE TABLE group_days (
    day      bigint NOT NULL, -- midnight UTC
    group_id text   NOT NULL,
    owner_id text   NOT NULL,
    calls    bigint NOT NULL,
    PRIMARY KEY (day, group_id, owner_id)
);

-- Traces of past calls, kept for a week.
CREATE TABLE stories (
    call_id   text   NOT NULL CHECK (call_id <> ''),
    member_id text   NOT NULL CHECK (member_id <> ''),
    started   bigint NOT NULL,
    story     text   NOT NULL, -- JSON, written for that member alone
    PRIMARY KEY (call_id, member_id)
);
CREATE INDEX stories_started ON stories (started);
-- A member's last calls, newest first.
CREATE INDEX stories_of_member ON stories (member_id, started);

-- Turns of the responses dialect, each sealed under the id of its response, which
-- is stored as a hash only: they cannot be read without the id.
CREATE TABLE turns (
    hash      bytea  PRIMARY KEY CHECK (length(hash) = 32),
    member_id text   NOT NULL REFERENCES members (id),
    created   bigint NOT NULL,
    expires   bigint NOT NULL,
    size      bigint NOT NULL, -- of sealed, in bytes
    sealed    bytea  NOT NULL
);
CREATE INDEX turns_of_member ON turns (member_id, created, hash, size);
CREATE INDEX turns_expires ON turns (expires);

-- How fast machines run models, as hubs measured it.
CREATE TABLE speeds (
    machine_id text   NOT NULL REFERENCES machines (id),
    model      text   NOT NULL,
    measured   bigint NOT NULL,
    samples    text   NOT NULL, -- JSON
    PRIMARY KEY (machine_id, model)
);
CREATE INDEX speeds_measured ON speeds (measured);

-- The secrets of fingerprints of prompts.
CREATE TABLE prefix_keys (
    day    bigint PRIMARY KEY,
    secret bytea  NOT NULL
);

CREATE TABLE passwords (
    member_id text   PRIMARY KEY REFERENCES members (id),
    hash      text   NOT NULL CHECK (hash <> ''), -- argon2id, in its own encoding
    changed   bigint NOT NULL
);

-- Each works once, in place of a forgotten password.
CREATE TABLE recovery_codes (
    member_id text  NOT NULL REFERENCES members (id),
    hash      bytea NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (member_id, hash)
);

CREATE TABLE passkeys (
    id         text    PRIMARY KEY CHECK (id <> ''),
    member_id  text    NOT NULL REFERENCES members (id),
    name       text    NOT NULL CHECK (name <> ''),
    credential bytea   NOT NULL UNIQUE CHECK (length(credential) BETWEEN 1 AND 1023), -- its id, the authenticator's
    public_key bytea   NOT NULL CHECK (length(public_key) > 0), -- COSE
    synced     boolean NOT NULL, -- it may be on more than one device (backup eligible)
    signs      bigint  NOT NULL CHECK (signs >= 0), -- the authenticator's counter; 0: it has none
    created    bigint  NOT NULL,
    used       bigint  NOT NULL
);
CREATE INDEX passkeys_of_member ON passkeys (member_id, created);

-- Accounts at the hub's OpenID provider, bound by the provider's issuer and its
-- subject, never by an address.
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

CREATE TABLE sessions (
    id        text   PRIMARY KEY CHECK (id <> ''), -- the SHA-256 of the cookie's token
    member_id text   NOT NULL, -- empty: before the sign-in
    data      bytea  NOT NULL,
    created   bigint NOT NULL,
    seen      bigint NOT NULL,
    expires   bigint NOT NULL
);
CREATE INDEX sessions_of_member ON sessions (member_id, created);
CREATE INDEX sessions_expire ON sessions (expires);

-- One-time links: to the account of a member, or, where member_id is empty, to
-- the account of a fresh hub's first operator.
CREATE TABLE links (
    hash      bytea   PRIMARY KEY CHECK (length(hash) = 32),
    member_id text    NOT NULL,
    mailed    boolean NOT NULL DEFAULT false, -- requested by e-mail: does not replace one that an operator made
    created   bigint  NOT NULL,
    expires   bigint  NOT NULL,
    used      bigint  NOT NULL
);
CREATE INDEX links_expire ON links (expires);

-- Members' e-mail addresses, and the one-time links that are mailed to them.
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

-- Sign-ins of machines and requests for keys (RFC 8628) that wait for a member's
-- approval.
CREATE TABLE device_grants (
    id          text    PRIMARY KEY CHECK (id <> ''),
    hash        bytea   NOT NULL UNIQUE CHECK (length(hash) = 32), -- of the device's own code
    user_code   text    NOT NULL UNIQUE CHECK (user_code <> ''),
    kind        text    NOT NULL CHECK (kind IN ('machine', 'key')),
    name        text    NOT NULL, -- of the machine or key
    region      text    NOT NULL DEFAULT '', -- of the key; empty: that of the hub that makes it
    reach       text    NOT NULL CHECK (reach IN ('all', 'shared', 'own')), -- of the key
    manage      boolean NOT NULL DEFAULT false, -- of the key
    key_expires bigint  NOT NULL DEFAULT 0,
    client      text    NOT NULL, -- the program that asks, as it names itself
    address     text    NOT NULL, -- from where it asks
    state       text    NOT NULL CHECK (state IN ('waiting', 'approved', 'denied', 'used')),
    member_id   text    NOT NULL, -- who approved or denied; empty: not decided yet
    created     bigint  NOT NULL,
    expires     bigint  NOT NULL
);
CREATE INDEX device_grants_expire ON device_grants (expires);

-- What members are notified of.
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

-- What operators did, for the audit log.
CREATE TABLE acts (
    id      text   PRIMARY KEY CHECK (id <> ''),
    at      bigint NOT NULL,
    by_id   text   NOT NULL, -- a member's id; empty: on the hub's own computer
    by_name text   NOT NULL,
    what    text   NOT NULL CHECK (what <> ''),
    subject text   NOT NULL
);
CREATE INDEX acts_by_time ON acts (at);

CREATE TABLE backups (
    id    text   PRIMARY KEY CHECK (id <> ''),
    at    bigint NOT NULL,
    file  text   NOT NULL CHECK (file <> ''),
    bytes bigint NOT NULL CHECK (bytes >= 0),
    fault text   NOT NULL -- what the check of the copy found; empty: none
);
CREATE INDEX backups_by_time ON backups (at);

-- One row; a change of who may reach which machine increments n.
CREATE TABLE epoch (
    id bigint PRIMARY KEY CHECK (id = 1),
    n  bigint NOT NULL
);
INSERT INTO epoch (id, n) VALUES (1, 0);

-- Which record changed with each epoch; kept for a day.
CREATE TABLE changes (
    epoch   bigint PRIMARY KEY,
    nonce   text   NOT NULL DEFAULT '', -- random: a fail-over that loses commits can reach an epoch again
    kind    text   NOT NULL, -- fleet.ChangeKind
    subject text   NOT NULL, -- an id
    at      bigint NOT NULL
);
CREATE INDEX changes_at ON changes (at);

-- Hub nodes that share the database.
CREATE TABLE nodes (
    name        text   PRIMARY KEY CHECK (name <> ''),
    incarnation text   NOT NULL CHECK (incarnation <> ''), -- random, one for each start
    region      text   NOT NULL,
    address     text   NOT NULL, -- where other nodes reach it
    pin         text   NOT NULL, -- SHA-256 of its certificate's public key
    version     text   NOT NULL,
    state       text   NOT NULL,
    beat        bigint NOT NULL, -- grows while the node runs
    started     bigint NOT NULL
);
