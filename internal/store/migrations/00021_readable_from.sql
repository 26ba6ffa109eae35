-- The oldest version of the tables that a kith has to know to run on these. A
-- migration that takes away or changes what an older kith uses sets it to its own
-- version; all others add, and leave it (docs/HACKING.md#migrations).

-- +goose Up
INSERT INTO meta (name, value) VALUES ('readable_from', '21');
