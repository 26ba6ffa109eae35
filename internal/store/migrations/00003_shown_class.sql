-- Owners may let others see the sizes of a machine's GPUs and memory.

-- +goose Up
ALTER TABLE machines ADD COLUMN shows_class boolean NOT NULL DEFAULT false;
