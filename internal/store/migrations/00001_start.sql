-- For SQLite and PostgreSQL. Ids are text made by the caller, times
-- are bigint Unix milliseconds (0: never), durations bigint microseconds, hashes
-- the 32 bytes of a SHA-256. No SQL time functions, no arrays.

-- +goose Up
CREATE TABLE meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE members (
    id       text    PRIMARY KEY CHECK (id <> ''),
    name     text    NOT NULL UNIQUE CHECK (name <> ''),
    operator boolean NOT NULL,
    disabled boolean NOT NULL,
    created  bigint  NOT NULL
);

CREATE TABLE keys (
    id        text   PRIMARY KEY CHECK (id <> ''),
    member_id text   NOT NULL REFERENCES members (id),
    name      text   NOT NULL,
    region    text   NOT NULL,
    reach     text   NOT NULL CHECK (reach IN ('all', 'shared', 'own')),
    hash      bytea  NOT NULL UNIQUE CHECK (length(hash) = 32),
    last_four text   NOT NULL,
    created   bigint NOT NULL,
    last_used bigint NOT NULL,
    revoked   bigint NOT NULL
);
CREATE INDEX keys_of_member ON keys (member_id, created);

CREATE TABLE machines (
    id         text   PRIMARY KEY CHECK (id <> ''),
    owner_id   text   NOT NULL REFERENCES members (id),
    name       text   NOT NULL CHECK (name <> ''),
    region     text   NOT NULL,
    hash       bytea  NOT NULL UNIQUE CHECK (length(hash) = 32),
    last_four  text   NOT NULL,
    created    bigint NOT NULL,
    last_seen  bigint NOT NULL,
    offers     bytea,
    generation bigint NOT NULL,
    revoked    bigint NOT NULL
);
-- A revoked machine gives its name back.
CREATE UNIQUE INDEX machine_names ON machines (owner_id, name) WHERE revoked = 0;
CREATE INDEX machines_seen ON machines (region, last_seen);
CREATE INDEX machines_of_owner ON machines (owner_id, created);

CREATE TABLE login_tokens (
    id        text   PRIMARY KEY CHECK (id <> ''),
    member_id text   NOT NULL REFERENCES members (id),
    name      text   NOT NULL,
    hash      bytea  NOT NULL UNIQUE CHECK (length(hash) = 32),
    created   bigint NOT NULL,
    expires   bigint NOT NULL,
    used      bigint NOT NULL
);

CREATE TABLE shares (
    id         text   PRIMARY KEY CHECK (id <> ''),
    owner_id   text   NOT NULL REFERENCES members (id),
    member_id  text   NOT NULL REFERENCES members (id),
    models     text   NOT NULL, -- a JSON list
    hours      text   NOT NULL,
    concurrent bigint NOT NULL CHECK (concurrent >= 0),
    per_day    bigint NOT NULL CHECK (per_day >= 0),
    created    bigint NOT NULL,
    UNIQUE (owner_id, member_id),
    CHECK (owner_id <> member_id)
);
CREATE INDEX shares_to_member ON shares (member_id);

CREATE TABLE groups (
    id      text   PRIMARY KEY CHECK (id <> ''),
    name    text   NOT NULL UNIQUE CHECK (name <> ''),
    kind    text   NOT NULL CHECK (kind IN ('org', 'open')),
    created bigint NOT NULL
);

CREATE TABLE group_members (
    group_id  text    NOT NULL REFERENCES groups (id),
    member_id text    NOT NULL REFERENCES members (id),
    admin     boolean NOT NULL,
    PRIMARY KEY (group_id, member_id)
);
CREATE INDEX groups_of_member ON group_members (member_id);

-- Machines that their owners keep out of a group.
CREATE TABLE keep_outs (
    group_id   text NOT NULL REFERENCES groups (id),
    machine_id text NOT NULL REFERENCES machines (id),
    PRIMARY KEY (group_id, machine_id)
);

-- No foreign keys: usage stays when what it names is deleted.
CREATE TABLE usage (
    call_id       text    NOT NULL CHECK (call_id <> ''),
    attempt       bigint  NOT NULL CHECK (attempt >= 0),
    started       bigint  NOT NULL,
    member_id     text    NOT NULL,
    key_id        text    NOT NULL,
    machine_id    text    NOT NULL,
    owner_id      text    NOT NULL,
    model         text    NOT NULL,
    endpoint      text    NOT NULL,
    stream        boolean NOT NULL,
    status        bigint  NOT NULL,
    code          text    NOT NULL,
    waited_us     bigint  NOT NULL CHECK (waited_us >= 0),
    first_byte_us bigint  NOT NULL CHECK (first_byte_us >= 0),
    duration_us   bigint  NOT NULL CHECK (duration_us >= 0),
    tokens_in     bigint  NOT NULL CHECK (tokens_in >= 0),
    tokens_out    bigint  NOT NULL CHECK (tokens_out >= 0),
    tokens_how    text    NOT NULL,
    PRIMARY KEY (call_id, attempt)
);
CREATE INDEX usage_started ON usage (started);
CREATE INDEX usage_by_member ON usage (member_id, started);
CREATE INDEX usage_by_owner ON usage (owner_id, started);

-- Sums of usage, kept as its records are written; day is midnight UTC.
CREATE TABLE usage_days (
    day         bigint NOT NULL,
    member_id   text   NOT NULL,
    owner_id    text   NOT NULL,
    machine_id  text   NOT NULL,
    model       text   NOT NULL,
    calls       bigint NOT NULL,
    served      bigint NOT NULL,
    duration_us bigint NOT NULL,
    tokens_in   bigint NOT NULL CHECK (tokens_in >= 0),
    tokens_out  bigint NOT NULL CHECK (tokens_out >= 0),
    PRIMARY KEY (day, member_id, owner_id, machine_id, model)
);
CREATE INDEX usage_days_by_member ON usage_days (member_id, day);
CREATE INDEX usage_days_by_owner ON usage_days (owner_id, day);

-- One row; a change of who may reach which machine increments n.
CREATE TABLE epoch (
    id bigint PRIMARY KEY CHECK (id = 1),
    n  bigint NOT NULL
);
INSERT INTO epoch (id, n) VALUES (1, 0);

CREATE TABLE changes (
    epoch   bigint PRIMARY KEY,
    kind    text   NOT NULL,
    subject text   NOT NULL,
    at      bigint NOT NULL
);
CREATE INDEX changes_at ON changes (at);
