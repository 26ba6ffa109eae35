package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unicode/utf16"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/enginetest"
)

// tap records what goes to and from the hub.
type tap struct {
	mu   sync.Mutex
	seen bytes.Buffer
}

// Write records bytes.
func (t *tap) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen.Write(p)
}

// wiretap puts a proxy before the hub that records every byte: $SITE and $HUB are the
// proxy's from now on.
func wiretap(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 0, "wiretap")
	hub := strings.TrimPrefix(ts.Getenv("SITE"), "http://")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { l.Close() })
	t := new(tap)
	of(ts).tap = t
	go enginetest.Relay(l, hub, t, t)
	ts.Setenv("SITE", "http://"+l.Addr().String())
	ts.Setenv("HUB", "http://"+l.Addr().String()+"/v1")
}

// sees WHERE WORD... searches the hub's memory, disk (its data folder and its log) or wire
// (what the wiretap recorded) for each of the words, in every form that it may have.
func sees(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, false, len(args) >= 2, "sees memory|disk|wire WORD...")
	var places map[string][]byte
	switch args[0] {
	case "memory":
		places = map[string][]byte{}
		for _, pid := range family(of(ts).procs["hub"].cmd.Process.Pid) {
			memory(ts, pid, places)
		}
		if len(places) == 0 {
			ts.Fatalf("the hub has no memory")
		}
	case "disk":
		places = map[string][]byte{"the log": []byte(of(ts).procs["hub"].said())}
		ts.Check(filepath.WalkDir(ts.MkAbs("hub"), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() {
				places[path], err = os.ReadFile(path)
			}
			return err
		}))
	case "wire":
		t := of(ts).tap
		t.mu.Lock()
		defer t.mu.Unlock()
		places = map[string][]byte{"the wire": t.seen.Bytes()}
	}
	for _, word := range args[1:] {
		found := ""
		for form, text := range forms(word) {
			for place, all := range places {
				if bytes.Contains(all, text) {
					found = fmt.Sprintf("%s as %s in %s", word, form, place)
				}
			}
		}
		if neg && found != "" {
			ts.Fatalf("the hub sees %s", found)
		}
		if !neg && found == "" {
			ts.Fatalf("%s is not in the hub's %s: the search is blind", word, args[0])
		}
	}
}

// family returns a process and those that it started: several nodes, and their database.
func family(pid int) []int {
	all := []int{pid}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // a valid pattern
	for _, path := range threads {
		children, _ := os.ReadFile(path) // none, if it has ended
		for child := range strings.FieldsSeq(string(children)) {
			if n, err := strconv.Atoi(child); err == nil {
				all = append(all, family(n)...)
			}
		}
	}
	return all
}

// memory adds the writable memory of a process, by its addresses.
func memory(ts *testscript.TestScript, pid int, places map[string][]byte) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	ts.Check(err)
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	ts.Check(err)
	defer mem.Close()
	lines := bufio.NewScanner(bytes.NewReader(maps))
	for lines.Scan() {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x %s", &from, &to, &mode); n != 3 || !strings.HasPrefix(mode, "rw") {
			continue
		}
		text := make([]byte, to-from)
		n, _ := mem.ReadAt(text, from) // a part that is gone, or was never used
		places[fmt.Sprintf("%x of process %d", from, pid)] = text[:n]
	}
}

// forms returns how a word may be written.
func forms(word string) map[string][]byte {
	all := map[string][]byte{"text": []byte(word), "hex": []byte(hex.EncodeToString([]byte(word)))}
	for skip := range 3 { // where the word begins within a group of base64
		part := word[skip:]
		part = part[:len(part)/3*3]
		all[fmt.Sprint("base64, ", skip)] = []byte(base64.StdEncoding.EncodeToString([]byte(part)))
		all[fmt.Sprint("base64url, ", skip)] = []byte(base64.URLEncoding.EncodeToString([]byte(part)))
	}
	var wide, escaped []byte
	for _, unit := range utf16.Encode([]rune(word)) {
		wide = append(wide, byte(unit), byte(unit>>8))
		escaped = fmt.Appendf(escaped, `\u%04x`, unit)
	}
	all["UTF-16"], all["JSON escapes"] = wide, escaped
	return all
}
