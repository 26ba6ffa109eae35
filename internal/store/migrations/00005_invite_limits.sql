-- +goose Up

-- The limits of the shares that an invite makes, as shares have them.
ALTER TABLE invites ADD COLUMN models text NOT NULL DEFAULT '[]'; -- a JSON list
ALTER TABLE invites ADD COLUMN hours text NOT NULL DEFAULT '';
ALTER TABLE invites ADD COLUMN concurrent bigint NOT NULL DEFAULT 0 CHECK (concurrent >= 0);
ALTER TABLE invites ADD COLUMN per_day bigint NOT NULL DEFAULT 0 CHECK (per_day >= 0);
