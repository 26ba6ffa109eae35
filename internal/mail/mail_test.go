package mail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/mail/mailtest"
)

// record is a log that may be read while it is written.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func (r *record) log() *slog.Logger { return slog.New(slog.NewTextHandler(r, nil)) }

var message = Message{MemberID: "mem_1", To: "ada@example.org", Subject: "kith: a test", Text: "Hello Ωmega,\n\n.a line that begins with a dot\nhttps://hub.example/welcome/canary-link\n"}

func configOf(server *mailtest.Server, tls TLS) Config {
	return Config{Host: "127.0.0.1", Port: server.Port(), From: "kith <kith@hub.example>", TLS: tls}
}

// TestDelivers: a message arrives unchanged, over each kind of connection.
func TestDelivers(t *testing.T) {
	for _, mode := range []TLS{StartTLS, Implicit, NoTLS, ""} {
		for _, user := range []string{"", "hub"} {
			t.Run(string(mode)+"/"+user, func(t *testing.T) {
				kind := mode
				if kind == "" {
					kind = StartTLS
				}
				server := mailtest.Start(t, string(kind))
				c := configOf(server, mode)
				if user != "" {
					server.User, server.Password = "hub", "s3cret/+&"
					c.User, c.Password = server.User, server.Password
				}
				assert.OK(t, (transport{c, server.Roots}).deliver(t.Context(), message))
				got := <-server.Messages
				if got.From != "kith@hub.example" || got.To != message.To || got.Text != message.Text || got.User != user || got.Secured != (kind != NoTLS) {
					t.Errorf("came %+v", got)
				}
				for name, want := range map[string]string{
					"From": `"kith" <kith@hub.example>`, "To": "<ada@example.org>", "Subject": message.Subject, "Auto-Submitted": "auto-generated",
					"Content-Type": "text/plain; charset=UTF-8", "User-Agent": "", "X-Mailer": "",
				} {
					assert.Equal(t, got.Header.Get(name), want, name)
				}
				if id := got.Header.Get("Message-ID"); !strings.HasSuffix(id, "@hub.example>") || got.Header.Get("Date") == "" {
					t.Errorf("Message-ID %q, Date %q", id, got.Header.Get("Date"))
				}
			})
		}
	}
}

// TestRefusesWithoutTLS: if TLS is configured, neither the password nor a message is
// sent without it, or to a server with another certificate.
func TestRefusesWithoutTLS(t *testing.T) {
	bare := mailtest.Start(t, "none")
	bare.User, bare.Password = "hub", "s3cret"
	c := configOf(bare, StartTLS)
	c.User, c.Password = "hub", "s3cret"
	assert.Fails(t, (transport{c, bare.Roots}).deliver(t.Context(), message), "STARTTLS", "a server without STARTTLS")
	for _, mode := range []TLS{StartTLS, Implicit} {
		server := mailtest.Start(t, string(mode))
		if err := (transport{configOf(server, mode), nil}).deliver(t.Context(), message); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s, an untrusted certificate: %v", mode, err)
		}
		other := mailtest.Start(t, string(mode))
		if err := (transport{configOf(server, mode), other.Roots}).deliver(t.Context(), message); err == nil {
			t.Errorf("%s: another's certificate was taken", mode)
		}
		assert.That(t, len(server.Messages) == 0, mode, "a message was sent")
	}
	assert.That(t, len(bare.Messages) == 0, "a message was sent in the clear")
}

// TestCauses: each failure has its cause, which holds no text of the server, as that
// may quote an address or a password.
func TestCauses(t *testing.T) {
	server := mailtest.Start(t, "none")
	c := transport{configOf(server, NoTLS), nil}
	for _, fault := range []struct {
		command, line, why string
		final              bool
	}{
		{"RCPT", "550 no ada@example.org here", "RCPT TO command: the server answered 550", true},
		{"RCPT", "451 ada@example.org later", "the server answered 451", false},
		{"MAIL", "552 canary", "MAIL FROM command: the server answered 552", true},
		{"DATA", "421 canary", "the server answered 421", false},
		{"EHLO", "554 canary", "it answered 554", false},
		{"MAIL", "canary", "MAIL FROM command: no answer that can be read", false},
	} {
		server.Misbehave(fault.command, fault.line)
		err := c.deliver(t.Context(), message)
		server.Misbehave(fault.command, "")
		if err == nil {
			t.Errorf("%s: sent", fault.line)
			continue
		}
		why, final := cause(err)
		if !strings.Contains(why, fault.why) || final != fault.final || strings.Contains(why, "ada@") || strings.Contains(why, "canary") {
			t.Errorf("%s: %q, final %t", fault.line, why, final)
		}
	}
	server.User, server.Password = "hub", "right"
	c.User, c.Password = "hub", "canary-password"
	if why, final := cause(c.deliver(t.Context(), message)); final || !strings.Contains(why, "535") || strings.Contains(why, "canary") {
		t.Errorf("a wrong password: %q, final %t", why, final)
	}
	server.Misbehave("AUTH", "canary")
	if why, final := cause(c.deliver(t.Context(), message)); final || why != "the server does not speak SMTP" {
		t.Errorf("no SMTP: %q, final %t", why, final)
	}
	assert.That(t, len(server.Messages) == 0, "a message was sent")
	away := c
	away.Port = 1
	if why, final := cause(away.deliver(t.Context(), message)); final || !strings.Contains(why, "refused") {
		t.Errorf("no server: %q, final %t", why, final)
	}
	// A server that says nothing is left when the time of the try is over.
	server.Misbehave("", "silence")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.deliver(ctx, message) }()
	cancel()
	if err := <-done; err == nil {
		t.Error("a silent server took it")
	}
}

// TestRetries: a message is tried four times with growing pauses, and others do not
// wait for it; a final refusal is not tried again, and nothing is sent late.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log record
		s := New(Config{Host: "h"}, log.log())
		var tried []string
		began := time.Now()
		s.deliver = func(_ context.Context, m Message) error {
			tried = append(tried, fmt.Sprintf("%s at %s", m.MemberID, time.Since(began)))
			if m.MemberID == "well" {
				return nil
			}
			return errors.New("down")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		if last, why := s.Health(); !last.IsZero() || why != "" {
			t.Errorf("at first: %v %s", last, why)
		}
		s.Send(Message{MemberID: "down"})
		time.Sleep(time.Second)
		s.Send(Message{MemberID: "short", Until: time.Now().Add(time.Minute)})
		s.Send(Message{MemberID: "well"})
		synctest.Wait()
		if last, why := s.Health(); why == "" && last.IsZero() {
			t.Errorf("then: %v %s", last, why)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		want := "down at 0s, short at 1s, well at 1s, down at 30s, short at 31s, down at 2m30s, down at 12m30s"
		assert.Equal(t, strings.Join(tried, ", "), want, "tried")
		if last, why := s.Health(); why != "down" || !last.Equal(began.Add(12*time.Minute+30*time.Second)) {
			t.Errorf("after it failed: %v %s", last, why)
		}
		s.Send(Message{MemberID: "well"})
		synctest.Wait()
		if _, why := s.Health(); why != "" {
			t.Error("not well after one went out")
		}
		s.Send(Message{MemberID: "down"})
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if text := log.String(); strings.Count(text, `msg="mail sent" member=well`) != 2 || !strings.Contains(text, "could not be sent in time") || !strings.Contains(text, "messages=1") {
			t.Error(text)
		}
	})
}

// TestQueueIsBounded: while the server accepts nothing, Send neither waits nor
// keeps more than it may.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log record
		s := New(Config{Host: "h"}, log.log())
		s.deliver = func(ctx context.Context, _ Message) error { <-ctx.Done(); return ctx.Err() }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		for range maxWaiting + 50 {
			s.Send(message)
		}
		if n := strings.Count(log.String(), "the queue is full"); n != 50 && n != 49 { // the first may be under way
			t.Errorf("%d were dropped", n)
		}
		if strings.Contains(log.String(), "ada@") || strings.Contains(log.String(), "canary") {
			t.Error("the log holds a part of a message")
		}
		cancel()
		<-ended
	})
}

func TestNoServer(t *testing.T) {
	s := New(Config{}, slog.Default())
	if s != nil {
		t.Fatal("a sender without a server")
	}
	s.Send(message)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	assert.Lacks(t, fmt.Sprint((Config{Host: "h", Password: "canary"}).LogValue()), "canary")
}

func TestAddress(t *testing.T) {
	for typed, want := range map[string]string{
		"ada@example.org": "ada@example.org", " Ada.L+kith@EXAMPLE.org\t": "Ada.L+kith@EXAMPLE.org", "a@localhost": "a@localhost",
		"o'hara@xn--bcher-kva.example": "o'hara@xn--bcher-kva.example",
	} {
		if got, ok := Address(typed); !ok || got != want {
			t.Errorf("%q: %q %t", typed, got, ok)
		}
	}
	for _, bad := range []string{
		"", "ada", "@example.org", "ada@", "ada@@example.org", "a@b@c", "Ada <ada@example.org>", "<ada@example.org>", "ada@example.org, eve@example.org",
		"ada@example.org\r\nBcc: eve@example.org", "ada\n@example.org", "ada@example.org\x00", "ada@example.org>", "ada @example.org", `"a b"@example.org`,
		"ada@[127.0.0.1]", "adа@example.org", "ada@exámple.org", "ada@KELVIN\u212a.org", "ada(x)@example.org", "ada@example.org SIZE=1", "a..b@example.org",
		strings.Repeat("a", 65) + "@example.org", "a@" + strings.Repeat("b.", 130) + "org", "ada@exa_mple.org", "ada@example.org%0aBcc:x",
	} {
		if got, ok := Address(bad); ok {
			t.Errorf("%q is taken, as %q", bad, got)
		}
	}
}
