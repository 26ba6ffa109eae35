-- Sums of usage by the hour, kept for 13 weeks, and the ends of keys.

-- +goose Up
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

ALTER TABLE keys ADD COLUMN expires bigint NOT NULL DEFAULT 0; -- 0: never
ALTER TABLE device_grants ADD COLUMN key_expires bigint NOT NULL DEFAULT 0; -- of the key that a device asks for
