-- A key is for inference; one that may manage its member's account says so.

-- +goose Up
ALTER TABLE keys ADD COLUMN manage boolean NOT NULL DEFAULT false;
ALTER TABLE device_grants ADD COLUMN manage boolean NOT NULL DEFAULT false;
