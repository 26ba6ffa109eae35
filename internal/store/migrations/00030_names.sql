-- What the names of members and groups look like (account.Skeletons): no new name looks
-- like another. Names that were given before stay, also where two look alike; Open adds
-- the skeletons that are missing.

-- +goose Up
CREATE TABLE member_skeletons (
    skeleton  text PRIMARY KEY,
    member_id text NOT NULL REFERENCES members (id) ON DELETE CASCADE
);
CREATE INDEX skeletons_of_member ON member_skeletons (member_id);

CREATE TABLE group_skeletons (
    skeleton text PRIMARY KEY,
    group_id text NOT NULL REFERENCES groups (id) ON DELETE CASCADE
);
CREATE INDEX skeletons_of_group ON group_skeletons (group_id);
