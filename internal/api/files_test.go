package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// notes returns the texts of ada's notices of acts on model files, oldest first.
func (w *world) notes() (texts []string) {
	for _, n := range good[List[Notice]](w, "ada", "GET", "/api/notices", "").Data {
		if n.Kind == account.NoticeFiles {
			assert.Equal(w.t, n.Subject, w.machine.ID, "the subject")
			texts = append(texts, n.Text)
		}
	}
	slices.Sort(texts)
	return texts
}

// TestFiles: an owner's acts reach the machine with who asked, each is a notice, and looking
// is none.
func TestFiles(t *testing.T) {
	w := newWorld(t)
	laptop := account.Machine{ID: account.NewID("mch_"), OwnerID: w.members["ada"].ID, Name: "laptop", Region: "home", Hash: [32]byte{2}, Created: time.Now()}
	check(t, w.db.CreateMachine(t.Context(), laptop))
	path := "/api/machines/" + w.machine.ID + "/models"
	got := good[MachineFiles](w, "ada", "GET", path, "")
	assert.That(t, got.Machine == "box" && len(got.Files) == 1 && got.Files[0].ID == "words" && len(got.Pulls) == 1, got)
	assert.Equal(t, len(w.notes()), 0, "notices of looking")
	good[MachineFiles](w, "ada", "POST", path, `{"act":"pull","model":"https://files.test/words.gguf?signature=abc"}`)
	w.from = fleet.MachineID(laptop.ID)
	for _, act := range []string{"cancel", "remove", "load", "unload"} {
		good[MachineFiles](w, "ada", "POST", path, `{"act":"`+act+`","model":"words"}`)
	}
	assert.Equal(t, w.acts[1], fleet.FileAct{Act: fleet.ActPull, Model: "https://files.test/words.gguf?signature=abc", By: "the site"}, "the act")
	assert.Equal(t, w.acts[2], fleet.FileAct{Act: fleet.ActCancel, Model: "words", By: "laptop"}, "the act")
	assert.Same(t, w.notes(), []string{
		"As requested from laptop, box ended its pull of words.",
		"As requested from laptop, box freed the memory of words.",
		"As requested from laptop, box loads words into memory.",
		"As requested from laptop, box removed words.",
		"As requested from the site, box pulls https://files.test/words.gguf.",
	})
}

// TestFilesExample: what a reader pastes takes no key.
func TestFilesExample(t *testing.T) {
	d := Describe()
	for _, op := range d.Operations {
		text, err := d.Call("https://hub.example", op)
		check(t, err)
		noKey := strings.HasSuffix(op.Path, "/models") && op.Path != "/api/models"
		assert.Equal(t, strings.Contains(text, "Bearer $MACHINE_CREDENTIAL"), noKey, op.Method, op.Path)
	}
}

// TestFilesRefused: by whom, and in what words.
func TestFilesRefused(t *testing.T) {
	w := newWorld(t)
	w.keys = map[string]string{"manage of ada": "ada"} // a key of scope manage
	path := "/api/machines/" + w.machine.ID + "/models"
	load := `{"act":"load","model":"words"}`
	for _, method := range []string{"GET", "POST"} {
		got := w.ask("manage of ada", method, path, map[string]string{"POST": load}[method])
		assert.That(t, got.status == 403 && strings.Contains(got.body, "no API key may"), method, got)
		got = w.ask("bob", method, path, map[string]string{"POST": load}[method]) // a friend
		assert.That(t, got.status == 404 && got.code == "not_found", method, got)
	}
	for _, body := range []string{`{"act":"list","model":"words"}`, `{"act":"format","model":"words"}`, `{"act":"load","model":""}`, `{"act":"load"}`,
		`{"act":"pull","model":"` + strings.Repeat("x", fleet.MaxReference+1) + `"}`, `{"act":"load","model":"words","by":"the site"}`} {
		got := w.ask("ada", "POST", path, body)
		assert.Equal(t, got.status, 400, body, got)
	}
	assert.Equal(t, len(w.acts), 0, "acts that came to the machine")
	for _, c := range []struct {
		err    error
		status int
		code   string
		text   string
	}{
		{fleet.ErrNotConnected, 503, "machine_offline", `machine \"box\" is not connected: manage its models on the machine itself, or wait until it is connected`},
		{fleet.ErrFilesOff, 403, "not_allowed", `[hub] remote = false`},
		{fleet.ErrFilesUnknown, 403, "not_allowed", `update kith there`},
		{fleet.FileRefusal("a call runs on it"), 403, "not_allowed", `machine \"box\" refuses: a call runs on it`},
		{errors.New("broken"), 503, "machine_offline", `did not answer; try again`},
	} {
		w.refuse = c.err
		got := w.ask("ada", "POST", path, load)
		assert.That(t, got.status == c.status && got.code == c.code && strings.Contains(got.body, c.text), c.err, got)
	}
	assert.Equal(t, len(w.notes()), 0, "notices of refused acts")
	w.refuse = nil

	// No act is without its notice.
	now := time.Now().UTC()
	var many []account.Notice
	for i := range account.NoticesADay {
		many = append(many, account.Notice{MemberID: w.members["ada"].ID, Kind: account.NoticeAccess, Subject: fmt.Sprint(i), Occasion: now, Text: "noise"})
	}
	check(t, w.db.AddNotices(t.Context(), many, now))
	acts := len(w.acts)
	got := w.ask("ada", "POST", path, load)
	assert.That(t, got.status == 429 && strings.Contains(got.body, "would not be notified of this") && len(w.acts) == acts, got)
}
