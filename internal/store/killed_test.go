package store_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
)

// writerPath is the database for a process that TestKilled starts, which writes usage to
// it until it is killed.
const writerPath = "KITH_TEST_WRITER"

// writeUsage writes batches of one to twenty records. After each batch it prints the ids
// of its calls, one on each line.
func writeUsage(path string) int {
	ctx := context.Background()
	db, err := store.Open(ctx, store.Config{Path: path})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		batch := make([]account.Usage, 1+rand.IntN(20))
		ids := make([]string, len(batch))
		for i := range batch {
			ids[i] = account.NewID("call_")
			batch[i] = account.Usage{
				CallID: ids[i], Attempt: 1, Started: time.Now(), MemberID: "mem_1", Model: "tiny",
				Status: 200, TokensIn: 3, TokensOut: 4,
			}
		}
		if err := db.RecordUsage(ctx, batch); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if _, err := io.WriteString(os.Stdout, strings.Join(ids, "\n")+"\n"); err != nil {
			return 1
		}
	}
}

// TestKilled checks that kill -9 at any time loses no record that was reported as
// written, counts none twice, and leaves a database that can be opened
// (spec/api.md#usage).
func TestKilled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kith.db")
	var written []string
	for range 6 {
		written = append(written, runAndKill(t, path)...)
		checkLedger(t, path, written)
	}
}

// runAndKill runs a writer, kills it at a random time after it printed that many lines,
// and returns all complete lines.
func runAndKill(t *testing.T, path string) []string {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), writerPath+"="+path)
	child.Stderr = os.Stderr
	out := assert.Value(child.StdoutPipe())(t)
	ok(t, child.Start())
	var written []string
	lines := bufio.NewReader(out)
	for last := rand.IntN(2000); ; last-- {
		line, err := lines.ReadString('\n')
		if err != nil {
			break // the end; an incomplete line promises nothing
		}
		if written = append(written, strings.TrimSuffix(line, "\n")); len(written) == 1 {
			cannotOpen(t, store.Config{Path: path}, "another kith process has it open")
		}
		if last == 0 {
			// The writer continues in the meantime, so the time of the kill is random.
			if err := child.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
	}
	if err := child.Wait(); child.ProcessState.Success() {
		t.Fatalf("the writer ended by itself: %v", err)
	}
	return written
}

func checkLedger(t *testing.T, path string, written []string) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{Path: path}) // this checks the file, too
	ok(t, err)
	defer db.Close()
	records, err := db.Usage(t.Context())
	ok(t, err)
	kept := make(map[string]bool)
	for _, u := range records {
		kept[u.CallID] = true
	}
	for _, id := range written {
		if !kept[id] {
			t.Fatalf("call %s, said to be written, is lost (%d written, %d stored)", id, len(written), len(kept))
		}
	}
	days, err := db.UsageDays(t.Context())
	ok(t, err)
	var calls, in, out int64
	for _, day := range days {
		calls, in, out = calls+day.Calls, in+day.TokensIn, out+day.TokensOut
	}
	if n := int64(len(records)); calls != n || in != 3*n || out != 4*n {
		t.Fatalf("%d records sum up to %d calls, %d tokens in, %d out", n, calls, in, out)
	}
}
