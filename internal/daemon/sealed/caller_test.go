package sealed

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/dispatch/prefix"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/seal"
)

// newCaller is a caller whose hub is a function.
func newCaller(t testing.TB, hub func(*http.Request) (*http.Response, error)) *Caller {
	t.Helper()
	return &Caller{
		Hub: "https://hub.example", Keys: assert.Value(OpenKeyring(t.TempDir(), "https://hub.example", "cy"))(t),
		Mode: func() Mode { return Prefer }, Reach: func(r fleet.KeyReach) fleet.KeyReach { return r }, Send: hub,
		Refusal: func(_ *http.Response, document []byte) *fault.Fault {
			if f, ok := dialect.ParseFault(document); ok {
				return f
			}
			return fault.New(fault.CascadeExhausted, "no hub")
		},
		Clear: func(context.Context, *gateway.Call, fleet.KeyReach) (*gateway.Answer, error) {
			return nil, errors.New("sent in clear")
		},
		Report: func(string, ...any) {},
	}
}

func respond(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// A list is fetched once a minute while it is in use, and no call waits for that; statements
// that a list lacks are used for two hours.
func TestLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fetched, withheld, slow := 0, false, time.Duration(0)
		prekey := assert.Value(seal.NewPrekey())(t)
		c := newCaller(t, func(r *http.Request) (*http.Response, error) {
			fetched++
			assert.Equal(t, r.URL.String(), "https://hub.example/api/seals?family=chat&model=a+b%2Fc")
			assert.Equal(t, r.Header.Get("X-Kith-Reach"), "own")
			time.Sleep(slow)
			l := fleet.SealList{Now: time.Now(), Machines: []fleet.SealMachine{{ID: "m", Owner: "o", OwnerName: "ada", Name: "a\x1b[3\n", Class: "own", State: "ready"}}}
			if !withheld {
				l.Machines[0].Statement = assert.Value(accountOf(2).Sign("m", prekey, time.Now(), nil))(t)
			}
			l.Machines = append(l.Machines, l.Machines[0], fleet.SealMachine{ID: "n", Owner: fleet.MemberID(strings.Repeat("o", maxIDText+1))},
				fleet.SealMachine{ID: fleet.MachineID(strings.Repeat("m", maxIDText+1))})
			text, _ := json.Marshal(l)
			return respond(200, string(text)), nil
		})
		key := listKey{"a b/c", fleet.Chat, fleet.OwnOnly}
		get := func() *list {
			t.Helper()
			return assert.Value(c.lists.get(t.Context(), key, c.fetch))(t)
		}
		l := get()
		assert.That(t, len(l.machines) == 1 && l.machines[0].statement != nil && l.machines[0].Name == "a [3 " && l.skew == 0, l.machines)
		get()
		assert.Equal(t, fetched, 1)
		slow = 3 * time.Second
		time.Sleep(40 * time.Second)
		began := time.Now()
		get()
		get()
		assert.That(t, time.Since(began) == 0, "a call waits for a list in use")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.Equal(t, fetched, 2)
		assert.Equal(t, c.lists.of[key].fetched.Sub(began), slow)
		time.Sleep(2 * time.Minute)
		withheld = true
		assert.That(t, get().machines[0].statement != nil && fetched == 3, "the statement before")
		time.Sleep(2 * time.Hour)
		assert.That(t, get().machines[0].statement == nil && fetched == 4, "after two hours")
		c.lists.drop(key)
		get()
		assert.Equal(t, fetched, 5)
		c.Refresh()
		get()
		assert.Equal(t, fetched, 6)
		for i := range maxLists + 1 {
			c.lists.put(listKey{model: fleet.ModelID(fmt.Sprint(i))}, l)
		}
		assert.That(t, len(c.lists.of) <= maxLists, len(c.lists.of))
	})
}

// A hub that is silent while a call waits is given up; one that shows that it lives is not.
func TestSilentHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		ctx, cancel := context.WithCancelCause(t.Context())
		context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
		waited := []string{}
		call := &gateway.Call{Waiting: func(ahead int, left time.Duration) { waited = append(waited, fmt.Sprint(ahead, left)) }}
		in := &incoming{outgoing: &outgoing{Caller: newCaller(t, nil), call: call}, resp: &http.Response{Body: r}, cancel: cancel}
		go func() {
			for _, comment := range []string{"waiting 2 ahead, 41 s left", "waiting -9 ahead, 1 s left", "working", "group; machine=x; owner=y", "anything"} {
				time.Sleep(time.Minute)
				io.WriteString(w, ": "+comment+"\n\n")
			}
		}()
		began := time.Now()
		err := in.begin()
		assert.That(t, err != nil && time.Since(began) == 7*time.Minute, err, time.Since(began))
		assert.Fails(t, context.Cause(ctx), "sent nothing for 2m0s")
		assert.Equal(t, strings.Join(waited, ", "), "2 41s, -1 0s")
		assert.Equal(t, call.Trace.Route, "group; machine=x; owner=y")
	})
}

// A hub that does not send the list of keys is given up, too.
func TestSilentList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCaller(t, func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, fault.New(fault.CascadeExhausted, "cannot be reached").Because(r.Context().Err())
		})
		began := time.Now()
		_, err := c.Do(t.Context(), newCall())
		assert.That(t, codeOf(err) == fault.CascadeExhausted && time.Since(began) == hubSilence, err, time.Since(began))
	})
}

// newCall is a streamed chat call of a local program.
func newCall() *gateway.Call {
	return &gateway.Call{Endpoint: fleet.ChatCompletions, Model: "m", Stream: true, Wait: -1, Waiting: func(int, time.Duration) {}}
}

func codeOf(err error) fault.Code { return fault.Of(err).Code }

// What the hub itself reports reaches the caller as one short line.
func TestHubText(t *testing.T) {
	const long = 1 << 16
	document := `{"error":{"code":"NOT_IN_CIRCLE","message":"a\u001b[31m\nb` + strings.Repeat("x", long) + `","param":"` + strings.Repeat("x", long) + `"}}`
	respondTo := func(status int, text string) *incoming {
		resp := respond(status, text)
		return &incoming{outgoing: &outgoing{Caller: newCaller(t, nil), call: newCall()}, resp: resp, cancel: func(error) {}}
	}
	in := respondTo(200, "data: "+document+"\n\n")
	for name, err := range map[string]error{"a frame": in.begin(), "a response": assert.Err(respondTo(403, document[:maxError-1000]+`"}}`).answer())} {
		f := fault.Of(err)
		assert.That(t, len(f.Message) < maxHubText+9 && len(f.Param) < maxNameText+9, name, len(f.Message), len(f.Param))
		assert.That(t, strings.HasPrefix(f.Message, "a [31m bxx"), name, f.Message[:40])
	}
	for text, want := range map[string]string{
		"own; machine=a; owner=b": "own; machine=a; owner=b", "group; machine=a\x1b": "group; machine=a ", "anything": "", "": "",
		"shared; machine=" + strings.Repeat("x", long): "shared; machine=" + strings.Repeat("x", maxHubText-16) + "…",
	} {
		got, is := routeOf(text)
		assert.That(t, got == want && is == (want != ""), text[:min(len(text), 99)], got)
	}
}

// A sender is for one prekey, not for all with its id.
func TestSender(t *testing.T) {
	c := newCaller(t, nil)
	statement := func() *seal.Statement {
		s := assert.Value(seal.ParseStatement(assert.Value(accountOf(2).Sign("m", assert.Value(seal.NewPrekey())(t), noon, nil))(t)))(t)
		s.KeyID = seal.KeyID{7}
		return s
	}
	one, other := statement(), statement()
	first := assert.Value(c.sender(one))(t)
	assert.That(t, first == assert.Value(c.sender(one))(t), "made for each call")
	assert.That(t, assert.Value(c.sender(other))(t).IsFor(other), "a call for one machine is sealed for another one")
}

// The marks are the first prefix and the last ones. Their lengths are never too short, and
// as coarse as that of the body.
func TestMarks(t *testing.T) {
	var all []prefix.Mark
	for i := range 100 {
		all = append(all, prefix.Mark{Sum: uint64(i), Bytes: i*256 + 1})
	}
	got := marks(all)
	assert.That(t, len(got) == 640 && got[7] == 0 && got[9] == 1 && got[17] == 37 && got[637] == 99 && got[639] == 100, got)
	assert.Equal(t, len(marks(all[:2])), 20)
	coarse := marks([]prefix.Mark{{Bytes: 256_001}, {Bytes: 258_000}})
	assert.That(t, bytes.Equal(coarse[8:10], []byte{3, 0xf0}) && bytes.Equal(coarse[18:], coarse[8:10]), coarse)
	long := marks([]prefix.Mark{{Bytes: 1 << 30}})
	assert.That(t, long[8] == 255 && long[9] == 255)
}

// Audio is not sealed: it is sent in clear, or with require not at all.
func TestAudio(t *testing.T) {
	c := newCaller(t, nil)
	call := &gateway.Call{Form: &dialect.Transcription{}, Endpoint: fleet.Transcriptions}
	assert.Fails(t, assert.Err(c.Do(t.Context(), call)), "sent in clear")
	assert.Equal(t, call.Trace.Sealed, "no; reason=audio")
	c.Mode = func() Mode { return Require }
	assert.Fails(t, assert.Err(c.Do(t.Context(), call)), "audio cannot be sealed")
	assert.Equal(t, call.Trace.Sealed, "no; reason=not_sent")
	assert.Fails(t, c.Refused(t.Context(), "m", fleet.Audio), "audio cannot be sealed")
	c.Mode = func() Mode { return Prefer }
	assert.OK(t, c.Refused(t.Context(), "m", fleet.Audio))
	c.Mode = func() Mode { return Off }
	assert.OK(t, c.Refused(t.Context(), "m", fleet.Chat))
	call.Trace.Sealed = ""
	assert.Fails(t, assert.Err(c.Do(t.Context(), call)), "sent in clear")
	assert.Equal(t, call.Trace.Sealed, "")
}

// Whatever the hub sends as the list of keys, it is a list, no list, or a fault.
func FuzzList(f *testing.F) {
	text, _ := json.Marshal(fleet.SealList{Machines: []fleet.SealMachine{{ID: "m", Statement: []byte("x"), Keys: []fleet.SealKey{{1}}}}})
	f.Add(200, string(text))
	f.Add(404, `{"error":{"code":"route_not_found","message":"x"}}`)
	c := newCaller(f, nil)
	f.Fuzz(func(t *testing.T, status int, text string) {
		c := &Caller{Hub: c.Hub, Keys: c.Keys, Refusal: c.Refusal,
			Send: func(*http.Request) (*http.Response, error) { return respond(status, text), nil }}
		l, err := c.fetch(t.Context(), listKey{})
		switch {
		case err != nil:
			assert.That(t, l == nil && errors.As(err, new(*fault.Fault)), err)
		case l.missing:
			assert.Equal(t, status, 404)
		default:
			assert.That(t, status == 200 && len(l.machines) <= maxListed)
			p, err := c.Keys.plan(question{Prefer, "m", fleet.Chat, noon, noon}, l.machines)
			assert.That(t, err == nil && len(p.to) <= seal.MaxRecipients, err)
		}
	})
}

// Whatever the hub sends as an answer, what comes out was sealed by the machine, in order
// and from the beginning; without the end there is a fault.
func FuzzIncoming(f *testing.F) {
	m := newMachine(f)
	h, body, sealed := m.sealFor(f, chatHead, seal.Body{Text: []byte(chatText)})
	call, _, err := m.opened(h, body)
	assert.OK(f, err)
	all := [][]byte{call.answer.Head(), call.answer.Chunk([]byte("one "), false), call.answer.Chunk([]byte("two"), false), call.answer.Chunk([]byte("3 2 1"), true)}
	var honest []byte
	for _, part := range all {
		honest = append(honest, frame(part)...)
	}
	for _, text := range []string{
		string(honest) + "data: [DONE]\n\n", ": working\n\n" + string(honest), string(honest[:len(honest)-30]), "data: [DONE]\n\n",
		`data: {"error":{"code":"machine_offline","message":"x"}}` + "\n\n", `data: {"id":"1"}` + "\n\n", "data:\n\n", "data: \n", "event: x\n",
		": waiting 2 ahead, 41 s left\r\n\r\ndata:AAAA\r\n\r\n", `data: {"error":{"code":"engine_error","message":"x","sealed":"` + base64.StdEncoding.EncodeToString(all[0]) + `"}}` + "\n",
	} {
		f.Add([]byte(text))
	}
	c := newCaller(f, nil)
	f.Fuzz(func(t *testing.T, text []byte) {
		trace := &gateway.Call{Waiting: func(ahead int, left time.Duration) { assert.That(t, ahead >= -1 && left >= 0 && left <= 24*time.Hour) }}
		in := &incoming{outgoing: &outgoing{Caller: c, call: trace}, sealed: sealed, resp: respond(200, string(text)), cancel: func(error) {}, trailer: http.Header{}}
		err := in.begin()
		var got []byte
		if err == nil {
			got, err = io.ReadAll(in)
		}
		assert.That(t, bytes.HasPrefix([]byte("one two"), got), string(got))
		assert.That(t, (err == nil) == (string(got) == "one two" && in.opener.Ended()), string(got), err)
		assert.That(t, (err == nil) == (in.trailer.Get("Kith-Usage") == "3 2"), in.trailer)
		assert.That(t, err == nil || errors.As(err, new(*fault.Fault)), err)
	})
}
