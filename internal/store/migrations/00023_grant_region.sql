-- The region of a key that a device asks for.

-- +goose Up
ALTER TABLE device_grants ADD COLUMN region text NOT NULL DEFAULT ''; -- empty: that of the hub that makes the key
