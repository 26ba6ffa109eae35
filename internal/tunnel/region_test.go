package tunnel

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// After a 421 from a hub of another region, the daemon retries that hub slowly and
// connects to no other. The state shows where to sign in.
func TestHubOfAnotherRegion(t *testing.T) {
	for header, want := range map[string]string{
		"https://us.example":     "kith login --hub https://us.example",
		"http://us.example":      "sign in again", // the credential would be sent unencrypted
		"https://us.example?a=b": "sign in again",
		"":                       "sign in again",
	} {
		synctest.Test(t, func(t *testing.T) {
			h := serveHub(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(HeaderHub, header)
				w.WriteHeader(http.StatusMisdirectedRequest)
			})
			m := newMachine(h, echo)
			m.run(t)
			for range 3 {
				if s := m.until(t, Lost); s.Retry < maxRetryAfter || s.Retry > maxRetryAfter*3/2 || !strings.Contains(s.Err.Error(), want) {
					t.Errorf("%q: lost for %v: %v", header, s.Retry, s.Err)
				}
				before := time.Now()
				if m.until(t, Dialing); time.Since(before) < maxRetryAfter {
					t.Errorf("%q: dialled after %v", header, time.Since(before))
				}
			}
		})
	}
}
