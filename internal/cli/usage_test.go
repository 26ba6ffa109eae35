package cli

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

const aPage = `{"days":7,"since":"2026-11-15",
"as_caller":{"total":{"calls":1200,"refused":3,"others":7,"waited_ms":2400000,"tokens_in":1234567,"tokens_out":999},
 "days":[{"day":"2026-11-16","calls":1199,"tokens_in":1234567,"tokens_out":999},{"day":"2026-11-18","calls":1}],
 "models":[{"model":"tiny","calls":1200,"refused":3,"waited_ms":2400000,"tokens_in":1234567,"tokens_out":999,"first_token_p50_ms":401,"first_token_p95_ms":2104}],
 "keys":[{"key":"key_1","name":"editor","calls":4},{"key":"machine mch_1 run","name":"","machine":"desk","program":"run","calls":3},{"key":"machine mch_1","name":"","machine":"desk","calls":2},{"key":"site of mem_1","name":"","calls":2},{"key":"key_2","name":"","calls":2},{"key":"","name":"","calls":1}],
 "machines":[{"machine":"mch_1","name":"desk","owner":"bob","calls":1197,"tokens_in":5,"tokens_out":6},{"machine":"mch_2","calls":1}],
 "codes":[{"code":"CAPACITY_FULL","calls":3}]},
"as_owner":{"total":{"calls":0},"days":[],"models":[],"machines":[],"codes":[]}}`

func TestUsage(t *testing.T) {
	handler, log := double(t, words(aPage))
	server := httptest.NewServer(handler)
	defer server.Close()
	t.Setenv("KITH_HOME", t.TempDir())
	t.Setenv("KITH_HUB", server.URL+"/v1")
	t.Setenv("KITH_API_KEY", "kith_home_secret")
	t.Setenv("TZ", "UTC")
	got := kith(t, "", "usage", "--days", "7")
	want := `Your calls  7 days, since 2026-11-15
1.2k calls, 1.2M tokens in, 999 out; 7 with others
MODEL   CALLS   FAILED   TOKENS-IN   TOKENS-OUT   WAITED   FIRST-P50   P95
tiny    1.2k    3        1.2M        999          2s       400ms       2.1s
MACHINE    CALLS   FAILED   TOKENS-IN   TOKENS-OUT   WAITED   FIRST-P50   P95
bob/desk   1.2k    0        5           6            -        -           -
(gone)     1       0        0           0            -        -           -
KEY                  CALLS   FAILED   TOKENS-IN   TOKENS-OUT   WAITED   FIRST-P50   P95
editor               4       0        0           0            -        -           -
desk, kith run       3       0        0           0            -        -           -
desk                 2       0        0           0            -        -           -
chat on this site    2       0        0           0            -        -           -
(no name)            2       0        0           0            -        -           -
a machine of yours   1       0        0           0            -        -           -
REASON             CODE            CALLS
No free capacity   CAPACITY_FULL   3

On your machines  7 days, since 2026-11-15
none
`
	assert.That(t, got.status == 0 && got.out == want, got.status, got.err, got.out)
	if asked := (*log)[0]; asked.path != "/api/usage?by=day&days=7&zone=UTC" || asked.bearer != "Bearer kith_home_secret" {
		t.Errorf("%+v", asked)
	}
	if got := kith(t, "", "usage", "--json"); got.status != 0 || strings.TrimSpace(got.out) != aPage {
		t.Errorf("%+v", got)
	}
}

func TestUsageNotSignedIn(t *testing.T) {
	t.Setenv("KITH_HOME", t.TempDir())
	t.Setenv("KITH_HUB", "")
	check(t, kith(t, "", "usage"), said{exitNotSignedIn, "", "is not signed in"})
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 models", 1: "1 model", 2: "2 models", 1200: "1.2k models"} {
		assert.Equal(t, count(n, "model"), want, n)
	}
}

func TestShort(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1.0k", 12_345: "12.3k", 99_949: "99.9k", 123_456: "123k", 999_499: "999k", 999_500: "1.0M", 4_000_000_000: "4.0G", 5e15: "5000T"} {
		assert.Equal(t, short(n), want, n)
	}
}

func TestBar(t *testing.T) {
	for n, want := range map[int64]string{0: "", 1: "▏", 500: strings.Repeat("█", 20), 1000: strings.Repeat("█", 40), 512: strings.Repeat("█", 20) + "▍"} {
		assert.Equal(t, bar(n, 1000), want, n)
	}
}
