package credential

import (
	"bytes"
	"crypto/sha256"
	"encoding/json/v2"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

func TestMintAndParse(t *testing.T) {
	form := regexp.MustCompile(`^(kith|kithm|kitht|kithi|kithl|kithd)_[a-z0-9-]{1,16}_[0-9A-Za-z]{38}$`)
	seen := map[string]bool{}
	for _, kind := range []Kind{APIKey, MachineKey, LoginToken, InviteCode, LinkCode, DeviceCode} {
		for _, region := range []string{"eu", "us-east-1", "0", "a-region-of-16ch"} {
			s := Mint(kind, region)
			text := s.Reveal()
			if !form.MatchString(text) || seen[text] {
				t.Fatalf("minted a wrong or repeated text (%d characters)", len(text))
			}
			seen[text] = true
			p := assert.Value(Parse(text))(t)
			if p.Kind() != kind || p.Region() != region || p.Reveal() != text {
				t.Errorf("parsed %v %q, minted %v %q", p.Kind(), p.Region(), kind, region)
			}
			if p.Hash() != sha256.Sum256([]byte(text)) || p.Hash() != s.Hash() {
				t.Error("the hash is not the SHA-256 of the text")
			}
			assert.Equal(t, p.LastFour(), text[len(text)-4:], "last four")
		}
	}
}

// The form cannot change while secrets are in use. These checksums were computed apart
// from this package.
func TestTheFormStays(t *testing.T) {
	for _, text := range []string{
		"kith_eu_0123456789ABCDEFGHIJKLMNOPQRSTUV2hD1mP",
		"kithm_us-east-1_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz1QPFRv",
	} {
		if _, err := Parse(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestMintIsFair(t *testing.T) {
	const draws = 2000
	var count [256]int
	for range draws {
		text := Mint(APIKey, "eu").Reveal()
		for _, c := range []byte(text[len("kith_eu_"):][:randomLen]) {
			count[c]++
		}
	}
	want := draws * randomLen / len(alphabet) // 1032, standard deviation 32
	for _, c := range []byte(alphabet) {
		if count[c] < want-200 || count[c] > want+200 {
			t.Errorf("%q drawn %d times, expected about %d", c, count[c], want)
		}
	}
}

func TestMintRefusesAnImpossibleRegion(t *testing.T) {
	for _, region := range []string{"", "EU", "eu_west", "a-region-of-17-ch", "é", "eu "} {
		assert.That(t, !ValidRegion(region), region, "passes for a region")
		func() {
			defer func() {
				if why, want := fmt.Sprint(recover()), fmt.Sprintf("credential: %q cannot be a region", region); why != want {
					t.Errorf("minting for the region %q: %s", region, why)
				}
			}()
			Mint(APIKey, region)
		}()
	}
}

func TestEverySingleCharacterChangeIsRefused(t *testing.T) {
	for _, kind := range []Kind{APIKey, MachineKey, LoginToken, InviteCode, LinkCode, DeviceCode} {
		text := Mint(kind, "eu-1").Reveal()
		for i := range text {
			for c := range 256 {
				if byte(c) == text[i] {
					continue
				}
				if changed := text[:i] + string([]byte{byte(c)}) + text[i+1:]; parses(changed) {
					t.Fatalf("character %d of a %s changed to %q still parses", i, kind, rune(c))
				}
			}
			if parses(text[:i] + text[i+1:]) {
				t.Fatalf("character %d of a %s left out still parses", i, kind)
			}
			if i+1 < len(text) && text[i] != text[i+1] {
				swapped := text[:i] + string([]byte{text[i+1], text[i]}) + text[i+2:]
				if parses(swapped) {
					t.Fatalf("characters %d and %d of a %s swapped still parse", i, i+1, kind)
				}
			}
		}
	}
}

func TestGarbageNeverParses(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		body := make([]byte, randomLen+checksumLen)
		for i := range body {
			body[i] = alphabet[rng.IntN(len(alphabet))]
		}
		if parses("kith_eu_" + string(body)) {
			t.Fatal("a random text with the right shape parses") // one in 13 for 10^9 of them
		}
	}
	for _, text := range []string{
		"", "_", "__", "kith", "kith_", "kith_eu", "kith_eu_", "sk-abc", "Bearer x",
		"kith__" + strings.Repeat("0", 38),
		"kith_eu_" + strings.Repeat("0", 37), "kith_eu_" + strings.Repeat("0", 39),
		strings.Repeat("kith_", 100_000),
	} {
		if parses(text) {
			t.Errorf("%.40q parses", text)
		}
	}
	if text := Mint(APIKey, "eu").Reveal(); parses(" "+text) || parses(text+" ") || parses(text+"\n") {
		t.Error("a secret with space around it parses")
	}
}

// A correct checksum alone makes no secret: each of these is wrong in one place.
func TestTheChecksumDoesNotMakeTheForm(t *testing.T) {
	random := strings.Repeat("0", randomLen)
	if head := "kith_eu_" + random; !parses(head + checksum(head)) {
		t.Fatal("the right form does not parse")
	}
	for _, head := range []string{
		"kithx_eu_" + random, "Kith_eu_" + random, "_eu_" + random,
		"kith__" + random, "kith_EU_" + random, "kith_a-region-of-17-ch_" + random,
		"kith_eu_" + random[1:], "kith_eu_0" + random, "kith_eu_-" + random[1:], "kith_eu_" + random[1:] + "-",
	} {
		if _, err := Parse(head + checksum(head)); err != errForm {
			t.Errorf("%s: %v", head, err)
		}
	}
}

func TestErrorsHoldNothingOfTheText(t *testing.T) {
	for _, text := range []string{"hunter2", "kith_eu_hunter2", Mint(APIKey, "eu").Reveal() + "x", "kith_eu_" + strings.Repeat("h", 38)} {
		_, err := Parse(text)
		if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), text) {
			t.Errorf("error %v", err)
		}
	}
}

func TestRedaction(t *testing.T) {
	s := Mint(APIKey, "eu")
	type hidden struct{ inner Secret }   // fmt cannot call methods on inner
	type shown struct{ Inner Secret }    // it can on Inner
	type pointed struct{ Inner *Secret } // prints an address

	var got []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%U", "%t", "%p"} {
		for _, v := range []any{s, &s, hidden{s}, &hidden{s}, shown{s}, pointed{&s}, []Secret{s}, map[string]Secret{"k": s}, fmt.Errorf("cannot: %v", s)} {
			got = append(got, fmt.Sprintf(verb, v))
		}
	}
	got = append(got, fmt.Sprint(s), fmt.Sprintln(hidden{s}), s.String(), s.GoString())

	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		l := slog.New(h).With("with", s)
		l.Info("x", "secret", s, "hidden", hidden{s}, "shown", shown{s}, "any", slog.AnyValue(&s), slog.Group("g", "s", s))
	}
	got = append(got, log.String())
	assert.Contains(t, log.String(), "secret=kith_eu_[redacted]", "the log does not show the redacted form")

	encoded := assert.Value(json.Marshal(struct {
		S Secret
		P *Secret
		M map[string]Secret
	}{s, &s, map[string]Secret{"k": s}}))(t)
	assert.Contains(t, string(encoded), `"S":"kith_eu_[redacted]"`, "JSON", encoded)
	got = append(got, string(encoded))

	body := s.Reveal()[len("kith_eu_"):]
	for _, text := range got {
		for _, form := range []string{body, body[:8], fmt.Sprintf("%x", body), fmt.Sprintf("%X", body)} {
			if strings.Contains(text, form) {
				t.Fatalf("a printed form holds the secret: %q", strings.ReplaceAll(text, form, "<SECRET>"))
			}
		}
	}
	if got := fmt.Sprint(Secret{}); got != "[no secret]" || (Secret{}).Reveal() != "" || (Secret{}).LastFour() != "" {
		t.Errorf("the zero Secret prints %q", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("")
	f.Add("kith_eu_0123456789ABCDEFGHIJKLMNOPQRSTUV000000")
	f.Add(Mint(MachineKey, "us-east-1").Reveal())
	f.Add(Mint(LoginToken, "-").Reveal())
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			assert.Require(t, s == (Secret{}), "an error came with a secret")
			return
		}
		if s.Reveal() != text || !strings.HasPrefix(text, string(s.Kind())+"_"+s.Region()+"_") || !ValidRegion(s.Region()) {
			t.Fatalf("parsed %v from another text", s)
		}
	})
}

func parses(text string) bool {
	_, err := Parse(text)
	return err == nil
}
