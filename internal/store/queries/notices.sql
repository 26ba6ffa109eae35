-- Inserts a notice unless the member has too many since a time.
-- name: AddNotice :execrows
INSERT INTO notices (member_id, kind, subject, occasion, at, text)
SELECT m.id, sqlc.arg(kind), sqlc.arg(subject), sqlc.arg(occasion), sqlc.arg(at), sqlc.arg(text) FROM members m
WHERE m.id = sqlc.arg(member) AND NOT m.disabled
  AND (SELECT count(*) FROM notices n WHERE n.member_id = m.id AND n.at > sqlc.arg(since)) < cast(sqlc.arg(most) AS bigint)
ON CONFLICT (member_id, kind, subject, occasion) DO NOTHING;

-- name: PruneNotices :exec
DELETE FROM notices WHERE at <= $1;

-- name: DeleteNoticesOfKind :exec
DELETE FROM notices WHERE member_id = $1 AND kind = $2;

-- name: Notices :many
SELECT n.*, cast(n.at > coalesce(s.seen, 0) AS boolean) AS unseen FROM notices n LEFT JOIN notice_members s ON s.member_id = n.member_id
WHERE n.member_id = sqlc.arg(member) AND n.at > sqlc.arg(since) AND n.at <= sqlc.arg(until) ORDER BY n.at DESC, n.kind, n.subject LIMIT sqlc.arg(most);

-- name: CountNotices :one
SELECT
    (SELECT count(*) FROM notices n WHERE n.member_id = sqlc.arg(viewer) AND n.at > coalesce(
        (SELECT s.seen FROM notice_members s WHERE s.member_id = sqlc.arg(viewer)), 0) AND NOT EXISTS (
        SELECT 1 FROM notice_members s WHERE s.member_id = sqlc.arg(viewer) AND s.off_site LIKE '% ' || n.kind || ' %')) AS notices,
    (SELECT count(*) FROM group_invitations i WHERE i.member_id = sqlc.arg(viewer) AND i.expires > sqlc.arg(now)) AS invitations,
    (SELECT count(*) FROM group_members v JOIN group_joins j ON j.group_id = v.group_id
     WHERE v.member_id = sqlc.arg(viewer) AND j.at > v.seen AND j.at > sqlc.arg(since) AND j.member_id <> v.member_id) AS joins,
    cast(coalesce((SELECT s.off_site FROM notice_members s WHERE s.member_id = sqlc.arg(viewer)), '') AS text) AS off_site;

-- name: SeeNotices :exec
INSERT INTO notice_members (member_id, seen) VALUES ($1, $2)
ON CONFLICT (member_id) DO UPDATE SET seen = excluded.seen WHERE notice_members.seen < excluded.seen;

-- name: NoticeMember :one
SELECT * FROM notice_members WHERE member_id = $1;

-- name: PutNoticeChoices :exec
INSERT INTO notice_members (member_id, off_site, off_mail) VALUES ($1, $2, $3)
ON CONFLICT (member_id) DO UPDATE SET off_site = excluded.off_site, off_mail = excluded.off_mail;

-- A pass in the future was made by a wrong clock.
-- name: ClaimNoticePass :execrows
INSERT INTO notice_passes (id, at, first) VALUES (1, sqlc.arg(now), sqlc.arg(now))
ON CONFLICT (id) DO UPDATE SET at = excluded.at WHERE notice_passes.at <= sqlc.arg(before) OR notice_passes.at > sqlc.arg(wrong);

-- name: FirstNoticePass :one
SELECT first FROM notice_passes WHERE id = 1;

-- Machines that were last seen in a span and have no notice about it yet.
-- name: MachinesOffline :many
SELECT x.id, x.name, x.owner_id, x.last_seen FROM machines x JOIN members m ON m.id = x.owner_id
WHERE x.last_seen > sqlc.arg(since) AND x.last_seen <= sqlc.arg(until) AND x.revoked = 0 AND NOT m.disabled AND NOT EXISTS (
    SELECT 1 FROM notices n WHERE n.member_id = x.owner_id AND n.kind = sqlc.arg(kind) AND n.subject = x.id AND n.occasion = x.last_seen)
ORDER BY x.last_seen DESC, x.id LIMIT sqlc.arg(most);

-- Keys that expire in a span and were created for longer than that span. A key's lifetime
-- is compared with the span's length.
-- name: KeysEnding :many
SELECT k.id, k.name, k.last_four, k.member_id, k.expires FROM keys k JOIN members m ON m.id = k.member_id
WHERE k.expires > sqlc.arg(since) AND k.expires <= sqlc.arg(until) AND k.expires - k.created > sqlc.arg(until) - sqlc.arg(since)
  AND k.revoked = 0 AND NOT m.disabled AND NOT EXISTS (
    SELECT 1 FROM notices n WHERE n.member_id = k.member_id AND n.kind = sqlc.arg(kind) AND n.subject = k.id AND n.occasion = k.expires)
ORDER BY k.expires, k.id LIMIT sqlc.arg(most);

-- The day's calls of each share with a daily limit, by model, unless there is a notice about it already.
-- name: DayOfLimitedShares :many
SELECT s.id, s.owner_id, s.member_id, o.name AS owner, m.name AS member, s.models, s.per_day, d.model, cast(sum(d.calls) AS bigint) AS calls
FROM shares s JOIN usage_days d ON d.member_id = s.member_id AND d.owner_id = s.owner_id
JOIN members o ON o.id = s.owner_id JOIN members m ON m.id = s.member_id
WHERE s.per_day > 0 AND d.day = sqlc.arg(day) AND NOT o.disabled AND NOT m.disabled AND NOT EXISTS (
    SELECT 1 FROM notices n WHERE n.member_id = s.owner_id AND n.kind = sqlc.arg(kind) AND n.subject = s.id AND n.occasion = d.day)
GROUP BY s.id, s.owner_id, s.member_id, o.name, m.name, s.models, s.per_day, d.model ORDER BY s.id, d.model;

-- name: SpentGroupLimits :many
SELECT l.group_id, l.owner_id, g.name, l.per_day FROM group_limits l
JOIN group_days d ON d.group_id = l.group_id AND d.owner_id = l.owner_id JOIN groups g ON g.id = l.group_id JOIN members o ON o.id = l.owner_id
WHERE l.per_day > 0 AND d.day = sqlc.arg(day) AND d.calls >= l.per_day AND NOT o.disabled AND NOT EXISTS (
    SELECT 1 FROM notices n WHERE n.member_id = l.owner_id AND n.kind = sqlc.arg(kind) AND n.subject = l.group_id AND n.occasion = d.day)
ORDER BY l.group_id, l.owner_id;

-- Keys with a daily limit that is used up, unless there is a notice about it already. Only
-- calls that ran on a machine count.
-- name: SpentKeys :many
SELECT k.id, k.name, k.last_four, k.member_id, k.per_day FROM keys k
JOIN usage_hours h ON h.member_id = k.member_id AND h.key_id = k.id JOIN members m ON m.id = k.member_id
WHERE k.per_day > 0 AND k.revoked = 0 AND h.hour >= sqlc.arg(day) AND h.machine_id <> '' AND NOT m.disabled AND NOT EXISTS (
    SELECT 1 FROM notices n WHERE n.member_id = k.member_id AND n.kind = sqlc.arg(kind) AND n.subject = k.id AND n.occasion = sqlc.arg(day))
GROUP BY k.id, k.name, k.last_four, k.member_id, k.per_day HAVING sum(h.calls) >= k.per_day ORDER BY k.id;

-- name: OperatorsSince :many
SELECT id FROM members WHERE operator AND NOT disabled AND created <= $1 ORDER BY created, id;

-- Members with a verified address who may be mailed now and have notices from between
-- their last mail, or the verification, and a time.
-- name: MembersToMail :many
SELECT m.id, m.name, e.address, e.verified, cast(coalesce(s.mailed, 0) AS bigint) AS mailed, cast(coalesce(s.off_mail, '') AS text) AS off_mail
FROM emails e JOIN members m ON m.id = e.member_id LEFT JOIN notice_members s ON s.member_id = e.member_id
WHERE e.verified > 0 AND NOT m.disabled AND coalesce(s.next_mail, 0) <= sqlc.arg(now) AND (EXISTS (
    SELECT 1 FROM notices n WHERE n.member_id = m.id AND n.at > sqlc.arg(since) AND n.at <= sqlc.arg(until) AND n.at > e.verified AND n.at > coalesce(s.mailed, 0))
  OR EXISTS (
    SELECT 1 FROM group_invitations i WHERE i.member_id = m.id AND i.expires > sqlc.arg(now)
      AND i.created > sqlc.arg(since) AND i.created <= sqlc.arg(until) AND i.created > e.verified AND i.created > coalesce(s.mailed, 0))
  OR EXISTS (
    SELECT 1 FROM group_members v JOIN group_joins j ON j.group_id = v.group_id
    WHERE v.member_id = m.id AND j.member_id <> m.id AND j.at > v.seen
      AND j.at > sqlc.arg(since) AND j.at <= sqlc.arg(until) AND j.at > e.verified AND j.at > coalesce(s.mailed, 0)))
ORDER BY coalesce(s.next_mail, 0), m.id LIMIT sqlc.arg(most);

-- name: ClaimMail :execrows
INSERT INTO notice_members (member_id, next_mail) VALUES (sqlc.arg(member), sqlc.arg(next))
ON CONFLICT (member_id) DO UPDATE SET next_mail = excluded.next_mail WHERE notice_members.next_mail <= sqlc.arg(now);

-- name: SetMailed :exec
UPDATE notice_members SET mailed = $2, next_mail = $3 WHERE member_id = $1 AND mailed < $2;

-- Joins to small groups that reach a machine of the member.
-- name: JoinsToMail :many
SELECT g.name AS group_name, m.name AS member_name, j.at FROM group_members v
JOIN group_joins j ON j.group_id = v.group_id JOIN groups g ON g.id = j.group_id JOIN members m ON m.id = j.member_id
WHERE v.member_id = sqlc.arg(member) AND j.at > v.seen AND j.at > sqlc.arg(since) AND j.at <= sqlc.arg(until) AND j.member_id <> v.member_id
  AND (SELECT count(*) FROM group_members c WHERE c.group_id = v.group_id) <= cast(sqlc.arg(small) AS bigint) AND EXISTS (
    SELECT 1 FROM machines x WHERE x.owner_id = v.member_id AND x.revoked = 0 AND NOT x.kept_out
      AND NOT EXISTS (SELECT 1 FROM keep_outs k WHERE k.group_id = v.group_id AND k.machine_id = x.id))
ORDER BY j.at DESC, j.group_id, j.member_id LIMIT sqlc.arg(most);
