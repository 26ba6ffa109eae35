// Package mailtest is a mail server on loopback for tests. It returns the messages that
// it received, and can misbehave on request.
package mailtest

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"math/big"
	"mime/quotedprintable"
	"net"
	netmail "net/mail"
	"strings"
	"sync"
	"testing"
	"time"
)

// Message is a message that the server accepted.
type Message struct {
	From, To string // from the envelope
	Header   netmail.Header
	Head     string // the header, unparsed
	Text     string // decoded
	Secured  bool   // with TLS
	User     string // empty: not authenticated
}

// Server is a mail server. Set its fields before its first use, or through Misbehave.
type Server struct {
	// Messages receives each accepted message.
	Messages chan Message
	// User and Password are the required credentials; empty: none are required.
	User, Password string
	// Roots contains the server's certificate, for 127.0.0.1.
	Roots *x509.CertPool

	listener net.Listener
	secure   *tls.Config
	startTLS bool

	mu     sync.Mutex
	answer map[string]string // by command, in place of the correct reply
	silent bool
}

// Start starts a server that ends with the test. mode is "starttls", "implicit"
// or "none".
func Start(t testing.TB, mode string) *Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Messages: make(chan Message, 1000), answer: map[string]string{}, listener: listener, startTLS: mode == "starttls"}
	s.certify(t)
	if mode == "implicit" {
		listener = tls.NewListener(listener, s.secure)
	}
	ctx, end := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				s.serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		end()
		serving.Wait()
	})
	return s
}

// Port returns the server's port on 127.0.0.1.
func (s *Server) Port() int { return s.listener.Addr().(*net.TCPAddr).Port }

// Misbehave makes the server reply to a command, such as "RCPT" or "DATA", with the given
// line; an empty line restores the correct reply. The command "" stands for new
// connections, which the server then does not answer.
func (s *Server) Misbehave(command, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if command == "" {
		s.silent = line != ""
		return
	}
	delete(s.answer, command)
	if line != "" {
		s.answer[command] = line
	}
}

func (s *Server) certify(t testing.TB) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	s.Roots = x509.NewCertPool()
	s.Roots.AddCert(leaf)
	s.secure = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
}

type session struct {
	*Server
	conn    net.Conn
	lines   *bufio.Reader
	message Message
	secured bool
	user    string
}

func (t *session) write(line string) { _, _ = io.WriteString(t.conn, line+"\r\n") }

func (t *session) read() (string, bool) {
	line, err := t.lines.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err == nil
}

func (s *Server) serve(conn net.Conn) {
	t := &session{Server: s, conn: conn, lines: bufio.NewReader(conn)}
	_, t.secured = conn.(*tls.Conn)
	defer conn.Close()
	s.mu.Lock()
	silent := s.silent
	s.mu.Unlock()
	if !silent {
		t.write("220 mail.test ESMTP")
	}
	for {
		line, ok := t.read()
		if !ok {
			return
		}
		verb, rest, _ := strings.Cut(line, " ")
		verb = strings.ToUpper(verb)
		s.mu.Lock()
		other := s.answer[verb]
		s.mu.Unlock()
		switch {
		case silent:
		case other != "":
			t.write(other)
		case verb == "QUIT":
			t.write("221 bye")
			return
		default:
			t.answerTo(verb, rest)
		}
	}
}

func (t *session) answerTo(verb, rest string) {
	switch verb {
	case "EHLO":
		t.write("250-mail.test")
		if t.startTLS && !t.secured {
			t.write("250-STARTTLS")
		}
		if t.User != "" {
			t.write("250-AUTH PLAIN")
		}
		t.write("250 8BITMIME")
	case "STARTTLS":
		t.write("220 go on")
		secured := tls.Server(t.conn, t.secure)
		t.conn, t.lines, t.secured = secured, bufio.NewReader(secured), true
	case "AUTH":
		_, text, _ := strings.Cut(rest, " ")
		said, _ := base64.StdEncoding.DecodeString(text)
		if string(said) != "\x00"+t.User+"\x00"+t.Password {
			t.write("535 5.7.8 wrong: " + string(said[1:]))
			return
		}
		t.user = t.User
		t.write("235 welcome")
	case "MAIL", "RCPT":
		if t.User != "" && t.user == "" {
			t.write("530 sign in first")
			return
		}
		_, address, _ := strings.Cut(rest, "<")
		address, _, _ = strings.Cut(address, ">")
		if verb == "MAIL" {
			t.message = Message{From: address}
		} else {
			t.message.To = address
		}
		t.write("250 good")
	case "DATA":
		t.write("354 go on")
		t.take()
	case "RSET", "NOOP":
		t.write("250 good")
	default:
		t.write("500 what?")
	}
}

func (t *session) take() {
	var text strings.Builder
	for {
		line, ok := t.read()
		if !ok {
			return
		}
		if line == "." {
			break
		}
		text.WriteString(strings.TrimPrefix(line, ".") + "\r\n")
	}
	m := t.message
	m.Head, _, _ = strings.Cut(text.String(), "\r\n\r\n")
	parsed, err := netmail.ReadMessage(strings.NewReader(text.String()))
	if err != nil {
		t.write("554 not a message")
		return
	}
	body := parsed.Body
	if strings.EqualFold(parsed.Header.Get("Content-Transfer-Encoding"), "quoted-printable") {
		body = quotedprintable.NewReader(body)
	}
	decoded, _ := io.ReadAll(body)
	m.Header, m.Text, m.Secured, m.User = parsed.Header, strings.ReplaceAll(string(decoded), "\r\n", "\n"), t.secured, t.user
	t.write("250 taken")
	t.Messages <- m
}
