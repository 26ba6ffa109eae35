-- Daily sums have the code of the refusal (empty: served) and the time that calls
-- waited.

-- +goose Up
DROP TABLE usage_days;
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
INSERT INTO usage_days (day, member_id, owner_id, machine_id, model, code, calls, waited_us, duration_us, tokens_in, tokens_out)
SELECT started - started % 86400000, member_id, owner_id, machine_id, model, code,
    count(*), sum(waited_us), sum(duration_us), sum(tokens_in), sum(tokens_out)
FROM usage
GROUP BY started - started % 86400000, member_id, owner_id, machine_id, model, code;
