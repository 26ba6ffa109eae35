package store_test

import (
	"errors"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// TestEndedConnections checks that every read and every transaction succeeds after an
// administrator closed all connections, in use or idle.
func TestEndedConnections(t *testing.T) {
	t.Parallel()
	address := storetest.Postgres(t)
	db, err := store.Open(t.Context(), store.Config{URL: address})
	ok(t, err)
	defer db.Close()
	ok(t, db.CreateMember(t.Context(), account.Member{ID: "mem_ann", Name: "ann", Created: time.Now()}))
	parsed, err := url.Parse(address)
	ok(t, err)
	of := "FROM pg_stat_activity WHERE datname = '" + strings.Trim(parsed.Path, "/") + "' AND pid <> pg_backend_pid()"
	end := "DO $$ BEGIN PERFORM pg_terminate_backend(pid) " + of + "; WHILE EXISTS (SELECT " + of + ") LOOP " +
		"PERFORM pg_sleep(0.002); PERFORM pg_stat_clear_snapshot(); END LOOP; END $$"
	all := func(calls int, each func(i int) error) {
		t.Helper()
		errs := make([]error, calls)
		var waiting sync.WaitGroup
		for i := range calls {
			waiting.Go(func() { errs[i] = each(i) })
		}
		waiting.Wait()
		for i, err := range errs {
			if err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		}
	}
	for name, each := range map[string]func(i int) error{
		"reads": func(int) error {
			_, err := db.Member(t.Context(), "mem_ann")
			return err
		},
		"transactions": func(i int) error {
			if err := db.ForgetTurn(t.Context(), [32]byte{byte(i)}, "mem_ann", time.Now()); !errors.Is(err, store.ErrNotFound) {
				return err
			}
			return nil
		},
		"usage": func(int) error {
			return db.HoursOfCaller(t.Context(), "mem_ann", time.Now(), func(account.UsageHour) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				all(16, each) // opens the pool's connections
				execute(t, address, end)
				all(200, each)
			}
		})
	}
}

// TestEndedOnWindows checks the error numbers of Windows for closed connections.
func TestEndedOnWindows(t *testing.T) {
	for number, ended := range map[syscall.Errno]bool{10053: true, 10054: true, 10061: false} {
		err := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("wsarecv", number)}
		assert.Equal(t, store.IsEnded(err), ended, err, "ended should be")
	}
}
