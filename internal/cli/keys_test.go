package cli

import (
	"net/http/httptest"
	"testing"

	"github.com/kith/kith/internal/assert"
)

func TestKeysLimit(t *testing.T) {
	key := `{"id":"key_1","name":"k","last_four":"wxyz","region":"home","reach":"all","manage":false,"state":"live","created":"2026-11-21T09:30:00Z","calls_30_days":1584,"per_day":2000,"calls_today":1201}`
	handler, log := double(t, words(key))
	server := httptest.NewServer(handler)
	defer server.Close()
	t.Setenv("KITH_HOME", t.TempDir())
	t.Setenv("KITH_HUB", server.URL)
	t.Setenv("KITH_API_KEY", "kith_home_secret")
	for calls, body := range map[string]string{"2000": `{"per_day":2000}`, "0": `{"per_day":0}`, "none": `{"per_day":null}`} {
		*log = nil
		got := kith(t, "", "keys", "limit", "key_1", "--per-day", calls)
		assert.Equal(t, got, said{0, "key key_1 is limited by the day (UTC): 1,201 of 2,000 calls are used today\n", ""}, calls)
		assert.Equal(t, (*log)[0], asked{"POST", "/api/keys/key_1/limit", "Bearer kith_home_secret", body}, calls)
	}
	*log = nil
	for _, calls := range []string{"-1", "many", ""} {
		check(t, kith(t, "", "keys", "limit", "key_1", "--per-day="+calls), said{exitWrongUse, "", "a number from 1, or none"})
	}
	check(t, kith(t, "", "keys", "limit", "key_1"), said{exitWrongUse, "", "per-day"})
	assert.Equal(t, len(*log), 0, "requests")

	handler, _ = double(t, words(`{"data":[`+key+`]}`))
	list := httptest.NewServer(handler)
	defer list.Close()
	t.Setenv("KITH_HUB", list.URL)
	assert.Contains(t, kith(t, "", "keys", "list").out, "1,201 of 2,000")
}
