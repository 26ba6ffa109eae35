package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/llama"
)

// TestDevEngineFails: a start whose engine cannot be unpacked, as on a full disk, ends at
// once with the cause.
func TestDevEngineFails(t *testing.T) {
	if err := llama.Available(); err != nil {
		t.Fatalf("%v: use `make test`, or scripts/fetch-llama.sh and go test -tags llama", err)
	}
	dir := shortDir(t)
	t.Setenv("KITH_HOME", dir)
	write(t, filepath.Join(dir, "engine"), "a file where the libraries belong")
	got := kith(t, "", "dev", "--data", dir, "--listen", "127.0.0.1:0", "--local", "127.0.0.1:0", "--json")
	check(t, got, said{1, "", "cannot run the small model: cannot unpack the inference libraries: "})
}

// TestDevFailure: what to do about a full disk.
func TestDevFailure(t *testing.T) {
	full := syscall.ENOSPC
	if runtime.GOOS == "windows" {
		full = errDiskFull
	}
	for _, err := range []error{
		fmt.Errorf("cannot reserve 32 MiB: %w", full), errors.New("cannot bring the database's tables up to date: database or disk is full (13)"),
	} {
		if got := devFailure(err, "/data"); !errors.Is(got, err) || !strings.HasSuffix(got.Error(), "make room on the disk of /data (it takes about 100 MB), or choose another folder with --data") {
			t.Error(got)
		}
	}
	if other := errors.New("cannot listen"); devFailure(other, "/data") != other || devFailure(nil, "/data") != nil {
		t.Error("another error is changed")
	}
}

// TestSlowStart: a start that takes longer than 2 s says what it waits for until it is up.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := &app{err: screen{&out}}
		said := func() string {
			a.waiting.Lock() // held while it is written
			defer a.waiting.Unlock()
			return out.String()
		}
		a.progress("starting the hub")
		done := make(chan struct{})
		go func() {
			a.sayWhenSlow(context.Background(), "/data", newOwnEngines(nil, true, nil))
			close(done)
		}()
		time.Sleep(slowStart - time.Millisecond)
		synctest.Wait()
		assert.Equal(t, said(), "", "early")
		time.Sleep(time.Millisecond)
		synctest.Wait()
		a.progress("connecting the daemon to the hub")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		want := "kith: still starting the hub after 2s; the log is in /data/log\nkith: still connecting the daemon to the hub after 12s; the log is in /data/log\n"
		assert.Equal(t, said(), want)
		a.progress("")
		<-done
		assert.Equal(t, said(), want, "once it is up")
	})
}
