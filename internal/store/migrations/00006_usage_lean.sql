-- +goose Up

-- Each index costs every call an insert, and nothing reads them: pages read
-- usage_days.
DROP INDEX usage_started;
DROP INDEX usage_by_member;
DROP INDEX usage_by_owner;
