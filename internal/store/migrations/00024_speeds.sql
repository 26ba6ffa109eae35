-- How fast machines run models, as hubs measured it, and the secrets of fingerprints of prompts.

-- +goose Up
CREATE TABLE speeds (
    machine_id text   NOT NULL REFERENCES machines (id),
    model      text   NOT NULL,
    measured   bigint NOT NULL,
    samples    text   NOT NULL,
    PRIMARY KEY (machine_id, model)
);
CREATE INDEX speeds_measured ON speeds (measured);

CREATE TABLE prefix_keys (
    day    bigint PRIMARY KEY,
    secret bytea  NOT NULL
);
