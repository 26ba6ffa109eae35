package sim

import (
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// agent is a coding agent's session, with the requests that Claude Code makes: a long
// system prompt, tools, and after each answer the result of a tool.
type agent struct {
	w        *world
	by       *member
	via      *seat // nil: the world's node
	messages []agentMessage
}

type agentMessage struct {
	Role    string `json:"role"`
	Content any    `json:"content"`
}

type agentBlock struct {
	Type    string            `json:"type"`
	Text    string            `json:"text,omitempty"`
	ID      string            `json:"id,omitempty"`
	Name    string            `json:"name,omitempty"`
	Input   map[string]string `json:"input,omitempty"`
	Use     string            `json:"tool_use_id,omitempty"`
	Content string            `json:"content,omitempty"`
}

// file returns n bytes of text.
func file(n int) string { return strings.Repeat("if err != nil { return err } ", n/29+1)[:n] }

func (w *world) addAgent(by *member) *agent {
	return &agent{w: w, by: by, messages: []agentMessage{{"user", "Find out why the test fails."}}}
}

// turn makes the session's next call. When its answer is complete the channel gets what
// is wrong with it, or "".
func (a *agent) turn() <-chan string {
	body, err := json.Marshal(struct {
		Model    string         `json:"model"`
		Max      int            `json:"max_tokens"`
		Stream   bool           `json:"stream"`
		System   string         `json:"system"`
		Tools    []any          `json:"tools"`
		Messages []agentMessage `json:"messages"`
	}{"m", 1000, true, "tag-agent " + file(20_000), []any{
		map[string]any{"name": "read", "description": file(2000), "input_schema": map[string]string{"type": "object"}},
	}, a.messages}, json.Deterministic(true))
	a.w.must(err)
	r, err := http.NewRequestWithContext(a.w.t.Context(), http.MethodPost, hubURL+"/v1/messages", strings.NewReader(string(body)))
	a.w.must(err)
	r.Header.Set("Authorization", "Bearer "+a.by.secret)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Anthropic-Version", "2023-06-01")
	id := fmt.Sprintf("toolu_%d", len(a.messages))
	a.messages = append(a.messages,
		agentMessage{"assistant", []agentBlock{{Type: "text", Text: "I read the next file."}, {Type: "tool_use", ID: id, Name: "read", Input: map[string]string{"path": id + ".go"}}}},
		agentMessage{"user", []agentBlock{{Type: "tool_result", Use: id, Content: id + file(1500)}}},
	)
	client := a.w.client
	if via := a.via; via != nil {
		client = clientOf(func() *network { return via.Load().net })
	}
	wrong := make(chan string, 1)
	go func() {
		response, err := client.Do(r)
		if err != nil {
			wrong <- err.Error()
			return
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(text), "message_stop") {
			wrong <- fmt.Sprintf("%s %v %s", response.Status, err, text)
			return
		}
		wrong <- ""
	}()
	return wrong
}

// ran returns where the session's calls ran, oldest first.
func (a *agent) ran() (on []*machine) {
	for _, r := range a.w.runs.of("agent") {
		on = append(on, r.machine)
	}
	return on
}

// addTwins adds two machines of the member that are alike: without what is known of
// their caches the draw decides between them.
func (w *world) addTwins(owner *member) (one, two *machine) {
	w.timing = &enginetest.Timing{Start: 200 * time.Millisecond, Prefill: 500, Decode: 50}
	one, two = w.addMachine(owner, "one", 1, "m"), w.addMachine(owner, "two", 1, "m")
	w.set(enginetest.Behaviour{Text: "I read the next file."})
	return one, two
}

// An agent's session of ten turns computes at most a third of the tokens of its prompts.
func TestAgentSessionStaysWithItsCache(t *testing.T) {
	inBubble(t, func(w *world) {
		ann := w.addMember("ann")
		one, two := w.addTwins(ann)
		session := w.addAgent(ann)
		for i := range 10 {
			if wrong := <-session.turn(); wrong != "" {
				w.t.Fatalf("turn %d: %s", i+1, wrong)
			}
			time.Sleep(3 * time.Second)
		}
		for i, m := range session.ran() {
			if m != session.ran()[0] {
				w.t.Errorf("turn %d ran on %s", i+1, m.name)
			}
		}
		x, y := one.engine.Counts(), two.engine.Counts()
		if prompt, computed := x.Prompt+y.Prompt, x.Computed+y.Computed; 3*computed > prompt || prompt < 50_000 {
			w.t.Errorf("%d of %d tokens were computed", computed, prompt)
		}
		w.settled()
	})
}

// Sessions whose calls come to different hub nodes stay with the machines that have their
// caches, wherever those are connected.
func TestPeersShareWhatIsCached(t *testing.T) {
	inCluster(t, 3, func(w *world, seats []*seat) {
		ann := w.addMember("ann")
		one, two := w.addTwins(ann)
		one.moveTo(seats[1])
		two.moveTo(seats[2])
		var calls int
		turn := func(session *agent, via *seat) *machine {
			session.via = via
			if wrong := <-session.turn(); wrong != "" {
				w.t.Fatalf("call %d: %s", calls+1, wrong)
			}
			calls++
			time.Sleep(3 * time.Second)
			return session.ran()[calls-1]
		}
		used := map[*machine]int{}
		for i := range 8 {
			member := w.addMember(fmt.Sprint("member", i)) // prompts of two members are not compared
			w.share(ann, member)
			session := w.addAgent(member)
			first := turn(session, seats[i%3])
			used[first]++
			for k := range 3 {
				if m := turn(session, seats[(i+1+k)%3]); m != first {
					w.t.Errorf("session %d began on %s and went on on %s", i, first.name, m.name)
				}
			}
		}
		assert.Equal(w.t, len(used), 2, "only", "machines were used")
		w.settled()
	})
}

// When the machine that has a session's cache dies, between two turns or in one, the
// session goes on at another machine, with one cold turn and no error.
func TestSessionMovesWhenItsMachineDies(t *testing.T) {
	for name, during := range map[string]bool{"between turns": false, "during a turn": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				ann := w.addMember("ann")
				one, two := w.addTwins(ann)
				session := w.addAgent(ann)
				turn := func() {
					if wrong := <-session.turn(); wrong != "" {
						w.t.Fatal(wrong)
					}
					time.Sleep(3 * time.Second)
				}
				for range 4 {
					turn()
				}
				dies, other := session.ran()[0], one
				if dies == one {
					other = two
				}
				if during {
					wrong := session.turn()
					for len(session.ran()) < 5 {
						time.Sleep(10 * time.Millisecond)
						synctest.Wait()
					}
					dies.setAway(true)
					if text := <-wrong; text != "" {
						w.t.Fatal(text)
					}
					time.Sleep(3 * time.Second)
				} else {
					dies.setAway(true)
					turn()
				}
				cold := other.engine.Counts()
				if cold.Runs != 1 || cold.Computed != cold.Prompt {
					w.t.Errorf("the first turn at the other machine: %+v", cold)
				}
				dies.setAway(false)
				dies.engine.Forget()
				w.routable(dies)
				for range 3 {
					turn()
				}
				warm := other.engine.Counts()
				if warm.Runs != 4 || warm.Computed-cold.Computed > 4*1000 {
					w.t.Errorf("three more turns: %+v", warm)
				}
				w.settled()
			})
		})
	}
}
