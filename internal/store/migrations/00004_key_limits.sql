-- The calls a day of a key (docs/spec/api.md#key-day).
-- +goose Up
ALTER TABLE keys ADD COLUMN per_day bigint NOT NULL DEFAULT 0 CHECK (per_day >= 0); -- calls a day; 0: no limit
ALTER TABLE device_grants ADD COLUMN per_day bigint NOT NULL DEFAULT 0 CHECK (per_day >= 0); -- of the key
