-- Hub nodes that share the database, and the random nonce of each change: a
-- fail-over that loses commits can reach the same epoch again with other changes.

-- +goose Up
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

ALTER TABLE changes ADD COLUMN nonce text NOT NULL DEFAULT '';
