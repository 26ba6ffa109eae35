package site

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// someFiles is a machine with two models in files, and two pulls.
func someFiles() fleet.ModelFiles {
	return fleet.ModelFiles{
		Files: []fleet.ModelFile{
			{ID: "words", Size: 3 << 20, State: fleet.FileLoaded},
			{ID: "<b>bold", Size: 1 << 30, State: fleet.FileUnloaded, Problem: "it needs more memory"},
		},
		Pulls: []fleet.ModelPull{
			{Model: "qwen3-4b", By: "laptop", At: time.Now(), State: fleet.PullRunning, File: "q.gguf", Done: 1 << 20, Total: 4 << 20},
			{Model: "ann/gone", By: "the site", At: time.Now(), State: fleet.PullFailed, Problem: "it is not there", Total: -1},
		},
		List:     []fleet.ListedModel{{Name: "qwen3-0.6b", Size: 639 << 20, Fits: true, About: "short answers"}, {Name: "qwen3-30b", Size: 18 << 30}},
		DiskFree: 5 << 30,
	}
}

// TestMachineFiles: the page of a machine shows its model files and pulls, with what can be
// done; what a machine cannot or may not do is said.
func TestMachineFiles(t *testing.T) {
	tn := newTown(t, nil)
	ada, path := tn.as("ada"), "/machines/"+tn.machine.ID+"?tab=models"
	tn.files = someFiles()
	page := ada.get(path).want(t, 200, ">in memory<", ">not loaded<", "&lt;b&gt;bold", "it needs more memory", "25 %, 1.0 MiB of 4.0 MiB", ">failed<", "it is not there",
		`aria-label="Unload: words"`, `aria-label="Load: &lt;b&gt;bold"`, `act=remove&amp;model=words"`, `aria-label="Try again: ann/gone"`, `aria-label="Cancel: qwen3-4b"`,
		`<option value="qwen3-0.6b">`, "5.0 GiB of disk space free")
	for _, lacks := range []string{"<b>bold", `value="qwen3-30b"`, `aria-label="Try again: qwen3-4b"`} {
		assert.Lacks(t, page.body, lacks, "the page")
	}
	for _, c := range []struct {
		err  error
		says string
	}{
		{fleet.ErrFilesOff, "lets its models be managed only there"}, {fleet.ErrFilesUnknown, "update kith there"}, {errors.New("broken"), "did not answer; try again."},
	} {
		tn.refuse = c.err
		page := ada.get(path).want(t, 200, c.says)
		assert.Lacks(t, page.body, `action="/machines/files"`, c.says)
	}
	tn.refuse = nil
	away := *tn.box()
	away.Online = false
	tn.snapshot = tn.snapshot.WithMachine(&away)
	assert.Lacks(t, ada.get(path).want(t, 200).body, "Model files", "an offline machine")
}

// TestFileActs: each act reaches the machine and is a notice that leads to its page; without a
// recent sign-in a page asks for the password.
func TestFileActs(t *testing.T) {
	tn := newTown(t, nil)
	tn.files = someFiles()
	ada, page := tn.as("ada"), "/machines/"+tn.machine.ID
	act := func(verb, model string, more ...string) seen {
		return ada.post("/machines/files", append([]string{"machine", tn.machine.ID, "act", verb, "model", model}, more...)...)
	}
	for verb, done := range map[string]string{
		"pull": "this page shows its progress", "cancel": "the partial download deleted", "remove": "words is removed", "load": "words is loaded", "unload": "words is unloaded",
	} {
		act(verb, "words").goes(t, page+"?tab=models")
		ada.get(page+"?tab=models").want(t, 200, done)
		ada.get("/machines/files?machine="+tn.machine.ID+"&act="+verb+"&model=words").want(t, 200, "words", `name="act" value="`+verb+`"`)
	}
	assert.Equal(t, len(tn.acts), 5, "acts")
	assert.Equal(t, tn.acts[0].By, "the site", "by")
	ada.get("/notices").want(t, 200, "As requested from the site, box loads words into memory.", `href="`+page+`"`)
	ada.get("/machines/files?machine="+tn.machine.ID+"&act=format&model=words").want(t, 400, "no such act")
	tn.as("bob").get("/machines/files?machine="+tn.machine.ID+"&act=load&model=words").want(t, 404, "no machine with the id")
	tn.refuse = fleet.FileRefusal("a call runs on it")
	act("unload", "words").want(t, 403, "refuses: a call runs on it", "Model files")
	tn.refuse = nil
}

// TestFileActsAreConfirmed: a while after the sign-in a page asks for the password.
func TestFileActsAreConfirmed(t *testing.T) {
	tn := newTown(t, nil)
	tn.as("ada").post("/account/password", "password", aPassword).goes(t, "/account")
	synctest.Test(t, func(t *testing.T) {
		tn.site.limits, tn.site.Passwords = newLimits(), api.New(api.Config{}).Passwords
		time.Sleep(time.Until(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))) // later than all records in the store
		send := tn.inProcess("192.0.2.1")
		form := []string{"machine", tn.machine.ID, "act", "remove", "model", "words"}
		ada := tn.inProcessAs("192.0.2.1", setCookie(t, send("/signin", "name", "ada", "password", aPassword).header, "kith"))
		ada(filesPath, form...).goes(t, "/machines/"+tn.machine.ID+"?tab=models")
		time.Sleep(recentFor)
		acts := len(tn.acts)
		ada(filesPath, form...).goes(t, "/machines/files?act=remove&machine="+tn.machine.ID+"&model=words")
		ada(filesPath, append(form, "old", "wrong password")...).want(t, 403, "the current password is wrong")
		assert.Equal(t, len(tn.acts), acts, "acts without the password")
		ada(filesPath, append(form, "old", aPassword)...).goes(t, "/machines/"+tn.machine.ID+"?tab=models")
		assert.Equal(t, len(tn.acts), acts+1, "acts with it")
	})
}

// TestLiveFiles: an open page follows a pull, and is loaded again when it has other buttons.
func TestLiveFiles(t *testing.T) {
	tn := newTown(t, nil)
	tn.files = someFiles()
	ada, path := tn.as("ada"), "/machines/"+tn.machine.ID
	watch := &filesWatch{site: tn.site, who: fleet.Caller{Member: fleet.MemberID(tn.members["ada"].ID), Name: "ada"}, machine: fleet.MachineID(tn.machine.ID)}
	assert.Equal(t, watch.look(t.Context()), filesBusy, "the pause while a pull runs")
	l := ada.listen("/live" + path)
	shape := l.expect(true, map[string][]string{
		"state-" + tn.machine.ID: {"ready", "good"}, "running-" + tn.machine.ID: {"0 of 3 slots"}, "queue-" + tn.machine.ID: {"0"},
		"file-0": {"in memory", "good"}, "file-1": {"not loaded"}, "pull-0": {"25 %, 1.0 MiB of 4.0 MiB"}, "pull-1": {"failed", "bad"},
	}).Shape
	ada.get(path).want(t, 200, `data-stream="/live`+path+`"`, `data-shape="`+shape+`"`)

	tn.site.live.changed.Store(false)
	change := func(change func(*fleet.ModelFiles)) {
		tn.filing.Lock()
		defer tn.filing.Unlock()
		tn.files = someFiles()
		change(&tn.files)
	}
	change(func(f *fleet.ModelFiles) { f.DiskFree++ })
	watch.look(t.Context())
	assert.That(t, !tn.site.live.changed.Load(), "the free disk alone changed the page")
	change(func(f *fleet.ModelFiles) { f.Pulls[0].Done = 2 << 20 })
	watch.look(t.Context())
	assert.That(t, tn.site.live.changed.Load(), "progress does not change the page")
	now := watch.now.Load().content()
	assert.Equal(t, now.texts["pull-0"].text, "50 %, 2.0 MiB of 4.0 MiB", "progress")
	before := filesView{Asked: true}
	before.ModelFiles = someFiles()
	assert.Equal(t, now.shape, before.content().shape, "progress changed the shape")
	change(func(f *fleet.ModelFiles) { f.Pulls, f.Files[0].State = nil, fleet.FileUnloaded })
	assert.Equal(t, watch.look(t.Context()), filesIdle, "the pause without a pull")
	assert.That(t, watch.now.Load().content().shape != now.shape, "another button, the same shape")
	ada.get("/live"+path).goes(t, path) // a person opened the address
	tn.as("bob").get("/live"+path).want(t, 404)
}

// TestFilesNotice can be switched off.
func TestFilesNotice(t *testing.T) {
	tn := newTown(t, nil)
	tn.as("ada").get("/account").want(t, 200, "changed from elsewhere", `value="`+string(account.NoticeFiles)+`"`)
}
