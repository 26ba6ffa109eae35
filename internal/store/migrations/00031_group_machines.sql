-- What a group's admins decided on a machine of a member: pinned, it counts as established;
-- excluded, the group does not reach it.

-- +goose Up
CREATE TABLE group_machines (
    group_id   text NOT NULL REFERENCES groups (id),
    machine_id text NOT NULL REFERENCES machines (id),
    rule       text NOT NULL CHECK (rule IN ('pinned', 'excluded')),
    PRIMARY KEY (group_id, machine_id)
);
