-- An owner's usage is read from this index alone: the rows themselves lie apart,
-- and each would be looked up (SQLite: half the time). A caller's lie together.

-- +goose Up
DROP INDEX usage_days_by_owner;
CREATE INDEX usage_days_by_owner ON usage_days
    (owner_id, day, member_id, machine_id, model, code, calls, waited_us, duration_us, tokens_in, tokens_out);
