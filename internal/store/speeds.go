package store

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store/internal/query"
)

// speedLife is how long a measured speed is stored.
const speedLife = 30 * 24 * time.Hour

// SaveSpeeds stores measured speeds, unless newer ones are stored, and deletes those that
// are too old.
func (db *DB) SaveSpeeds(ctx context.Context, speeds []account.Speed, now time.Time) error {
	return db.transact(ctx, func(q *query.Queries) error {
		batch := db.flavor.batch(ctx)
		for _, s := range speeds {
			if err := q.PutSpeed(batch, s.MachineID, s.Model, millis(s.Measured), s.Samples); err != nil {
				return err
			}
		}
		return q.PruneSpeeds(ctx, millis(now.Add(-speedLife)))
	}, "store %d measured speeds", len(speeds))
}

// Speeds returns the speeds that were measured at since or later.
func (db *DB) Speeds(ctx context.Context, since time.Time) ([]account.Speed, error) {
	rows, err := db.query.SpeedsSince(ctx, millis(since))
	return convert(rows, func(row query.Speed) account.Speed {
		return account.Speed{MachineID: row.MachineID, Model: row.Model, Measured: timeOf(row.Measured), Samples: row.Samples}
	}), db.wrap(err, "read the measured speeds")
}

// prefixKeySize is the length of a secret of PrefixKey.
const prefixKeySize = 32

// PrefixKey returns the secret of a day (UTC) for the fingerprints of prompts. All hubs
// get the same secret, which the first call creates. Secrets from more than a day before
// are deleted.
func (db *DB) PrefixKey(ctx context.Context, day time.Time) (secret []byte, err error) {
	day = dayOf(day)
	err = db.transact(ctx, func(q *query.Queries) (err error) {
		made := make([]byte, prefixKeySize)
		_, _ = rand.Read(made) // never fails
		if err = q.AddPrefixKey(ctx, millis(day), made); err != nil {
			return err
		}
		if secret, err = q.PrefixKey(ctx, millis(day)); err != nil {
			return err
		}
		return q.PrunePrefixKeys(ctx, millis(day.AddDate(0, 0, -1)))
	}, "read the day's secret of fingerprints")
	return secret, err
}
