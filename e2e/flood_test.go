package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/enginetest"
)

// What one member may do to a hub at once (docs/performance.md).
const (
	floodAnswers = 150               // that are not read
	floodUploads = 190               // that do not end
	floodFew     = 8                 // answers that wait before the uploads come
	floodHeld    = 256 << 20         // bytes that the hub may hold for the member
	floodMemory  = 600 << 10         // KB that it may have
	floodBody    = 31 << 20          // bytes of an upload
	floodText    = 15 << 20 / 2      // bytes of an answer
	floodRest    = floodBody - 1<<20 // bytes of an upload that come
	// 99 % of another member's lists of models take at most floodModels and, since the
	// computer may be busy, floodBusy times as long as 99 % of the requests to a server
	// that does nothing. The goal is 50 ms; the bound finds a list that waits for the flood.
	floodModels, floodBusy = time.Second, 10
)

// flood DOUBLE MEMBER OTHER has the member leave answers of the double's unread
// and uploads unfinished, many at once, while the other lists models and makes
// calls: first the answers, then the uploads. What is refused is refused as full, the hub holds and takes no more
// memory than it may, the other is served all the time, and soon, and in the end
// nothing is held.
func flood(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 3, "flood DOUBLE MEMBER OTHER")
	of(ts).doubles[args[0]].engine.Set(enginetest.Behaviour{Text: strings.Repeat("word ", floodText/5)})
	address := strings.TrimPrefix(ts.Getenv("SITE"), "http://")
	ctx, cancel := context.WithCancel(context.Background())
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	var uploads sync.WaitGroup
	var served, full, reset, others atomic.Int64
	var other atomic.Value         // what one of the others met
	several := make(chan struct{}) // answers wait to be read
	// All uploads send their headers before one sends the rest of its body: the hub ends a
	// connection whose headers take 5 s, and 190 bodies can keep two cores busy for longer.
	var headers sync.WaitGroup
	headers.Add(floodUploads)
	one := func(length int, body io.Reader) {
		done, sent := func() {}, func() {}
		if length == floodBody {
			uploads.Add(1)
			done, sent = sync.OnceFunc(uploads.Done), sync.OnceFunc(headers.Done)
		}
		open.Go(func() {
			defer done()
			defer sent()
			conn, err := net.Dial("tcp", address)
			if err != nil {
				others.Add(1)
				other.Store(err.Error())
				return
			}
			defer conn.Close()
			_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
			answered := make(chan struct{})
			open.Go(func() {
				defer close(answered)
				line, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
				switch {
				case strings.Contains(line, " 200 "):
					if served.Add(1) == floodFew {
						close(several)
					}
				case strings.Contains(line, " 503 "):
					full.Add(1)
				case length == floodBody && errors.Is(err, syscall.ECONNRESET):
					reset.Add(1) // more came half a second after the refusal, which TCP dropped
				case ctx.Err() == nil:
					others.Add(1)
					other.Store(fmt.Sprintf("%q, %v, of %d bytes", line, err, length))
				}
				done()
			})
			fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
				ts.Getenv("KEY_"+args[1]), length)
			if length == floodBody {
				sent()
				headers.Wait()
			}
			if _, err := io.Copy(conn, body); err == nil && length == floodBody {
				done() // all of it that comes
			}
			<-ctx.Done()
			conn.Close()
			<-answered
		})
	}
	const asked = `{"model":"mine","messages":[{"role":"user","content":"x"}]}`
	for range floodAnswers {
		one(len(asked), strings.NewReader(asked))
	}
	took, idle := beside(ts, args[2], several)
	for range floodUploads {
		one(floodBody, io.MultiReader(strings.NewReader(`{"model":"mine","x":"`), io.LimitReader(xs{}, floodRest)))
	}
	over := make(chan struct{})
	go func() {
		uploads.Wait()
		close(over)
	}()
	models, nothing := beside(ts, args[2], over)
	took, idle = append(took, models...), append(idle, nothing...)
	slices.Sort(took)
	slices.Sort(idle)
	late, control := took[len(took)*99/100], idle[len(idle)*99/100]
	held := metric(ts, "kith_held_memory_bytes") + metric(ts, "kith_held_disk_bytes")
	peak := peakOf(ts, "hub")
	ts.Logf("%d answers unread, %d refused; %.0f MiB held; at most %d MiB of memory; GET /v1/models of another member: p50 %s, p99 %s of %d; a server that does nothing: p99 %s",
		served.Load(), full.Load(), held/(1<<20), peak>>10, took[len(took)/2], late, len(took), control)
	if most := floodModels + floodBusy*control; late > most {
		ts.Fatalf("99 %% of the lists of models took up to %s, and may take %s", late, most)
	}
	if served.Load() == 0 || full.Load() == 0 || others.Load() != 0 {
		ts.Fatalf("%d served, %d full, %d reset, %d otherwise: %v", served.Load(), full.Load(), reset.Load(), others.Load(), other.Load())
	}
	// Answers may still be refused now. The hub counts each before its client sees it.
	seen := full.Load() + reset.Load()
	if refused := metric(ts, "kith_held_refused_total"); float64(seen) > refused {
		ts.Fatalf("%d full or reset, of which the hub refused %.0f", seen, refused)
	}
	if held > floodHeld || held < floodHeld/2 {
		ts.Fatalf("%.0f bytes are held of one member, who may have %d", held, floodHeld)
	}
	if peak > floodMemory {
		ts.Fatalf("the hub took %d KB of memory, and may take %d", peak, floodMemory)
	}
	cancel()
	open.Wait()
	for limit := time.Now().Add(patience); metric(ts, "kith_held_memory_bytes")+metric(ts, "kith_held_disk_bytes") != 0; {
		if time.Now().After(limit) {
			ts.Fatalf("what is over is still held")
		}
		<-time.After(50 * time.Millisecond)
	}
}

// xs is text without end.
type xs struct{}

func (xs) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// beside lists models and makes calls as a member until over, at least 100 times;
// each must be served. It returns how long each list took, and each of as many requests
// to a server that does nothing.
func beside(ts *testscript.TestScript, member string, over <-chan struct{}) (took, idle []time.Duration) {
	nothing := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer nothing.Close()
	ask := func(method, address, body string) time.Duration {
		r, err := http.NewRequest(method, address, strings.NewReader(body))
		ts.Check(err)
		r.Header.Set("Authorization", "Bearer "+ts.Getenv("KEY_"+member))
		r.Header.Set("Content-Type", "application/json")
		began := time.Now()
		response, err := http.DefaultClient.Do(r)
		ts.Check(err)
		text, err := io.ReadAll(response.Body)
		ts.Check(err)
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			ts.Fatalf("%s %s of %s beside the flood: %d %s", method, address, member, response.StatusCode, text)
		}
		return time.Since(began)
	}
	limit := time.After(2 * patience)
	for n := 0; ; n++ {
		select {
		case <-over:
			if n >= 100 {
				return took, idle
			}
		case <-limit:
			ts.Fatalf("the flood is not over after %s: %.0f bytes in memory, %.0f on disk, %.0f refused", 2*patience,
				metric(ts, "kith_held_memory_bytes"), metric(ts, "kith_held_disk_bytes"), metric(ts, "kith_held_refused_total"))
		default:
		}
		took = append(took, ask("GET", ts.Getenv("HUB")+"/models", ""))
		idle = append(idle, ask("GET", nothing.URL, ""))
		if n%10 == 0 {
			ask("POST", ts.Getenv("HUB")+"/chat/completions", `{"model":"theirs","messages":[{"role":"user","content":"x"}]}`)
		}
	}
}

// metric is a number of the hub's.
func metric(ts *testscript.TestScript, name string) (value float64) {
	response, err := http.Get("http://" + ts.Getenv("ADMIN") + "/metrics")
	ts.Check(err)
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			_, err := fmt.Sscan(rest, &value)
			ts.Check(err)
			return value
		}
	}
	ts.Fatalf("the hub reports no %s", name)
	return 0
}

// peakOf is the most memory that a process of the script's ever had, in KB; 0
// where the system does not say.
func peakOf(ts *testscript.TestScript, name string) (kb int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", of(ts).procs[name].cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, err := fmt.Sscan(rest, &kb)
			ts.Check(err)
		}
	}
	return kb
}
