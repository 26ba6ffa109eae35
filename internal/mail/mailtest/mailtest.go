// Package mailtest is a mail server on loopback for tests: what was sent to it
// can be looked at, and it can be made to misbehave.
package mailtest

import (
	"bufio"
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

// Letter is one that was taken.
type Letter struct {
	From, To string // of the envelope
	Header   netmail.Header
	Head     string // the header as it came
	Text     string // decoded
	Secured  bool   // by TLS
	User     string // who signed in; empty: nobody
}

// Server is a mail server. Its fields are set before it is first used, or through
// Misbehave.
type Server struct {
	// Letters are those taken, as they come.
	Letters chan Letter
	// User and Password are whom it lets in; empty: it asks nobody.
	User, Password string
	// Roots hold its certificate, which is for 127.0.0.1.
	Roots *x509.CertPool

	listener net.Listener
	secure   *tls.Config
	startTLS bool

	mu     sync.Mutex
	answer map[string]string // to a command, in the place of what is right
	silent bool
	conns  map[net.Conn]bool
	seen   int
}

// Start starts a server that ends with the test. mode is "starttls", "implicit"
// or "none".
func Start(t testing.TB, mode string) *Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Letters: make(chan Letter, 1000), answer: map[string]string{}, conns: map[net.Conn]bool{}, listener: listener, startTLS: mode == "starttls"}
	s.certify(t)
	if mode == "implicit" {
		listener = tls.NewListener(listener, s.secure)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[conn] = true
			s.seen++
			s.mu.Unlock()
			serving.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		s.mu.Lock()
		for conn := range s.conns {
			_ = conn.Close()
		}
		s.mu.Unlock()
		serving.Wait()
	})
	return s
}

// Port is where it listens, on 127.0.0.1.
func (s *Server) Port() int { return s.listener.Addr().(*net.TCPAddr).Port }

// Seen is how many connections came.
func (s *Server) Seen() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// Misbehave answers a command, such as "RCPT" or "DATA", with that line from now
// on; an empty line makes it behave. The command "" is a connection, and any
// answer to it is silence.
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

// talk is one connection.
type talk struct {
	*Server
	conn    net.Conn
	lines   *bufio.Reader
	letter  Letter
	secured bool
	user    string
}

func (t *talk) say(line string) { _, _ = io.WriteString(t.conn, line+"\r\n") }

func (t *talk) hear() (string, bool) {
	line, err := t.lines.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err == nil
}

func (s *Server) serve(conn net.Conn) {
	t := &talk{Server: s, conn: conn, lines: bufio.NewReader(conn)}
	_, t.secured = conn.(*tls.Conn)
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	s.mu.Lock()
	silent := s.silent
	s.mu.Unlock()
	if !silent {
		t.say("220 mail.test ESMTP")
	}
	for {
		line, ok := t.hear()
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
			t.say(other)
		case verb == "QUIT":
			t.say("221 bye")
			return
		default:
			t.obey(verb, rest)
		}
	}
}

func (t *talk) obey(verb, rest string) {
	switch verb {
	case "EHLO":
		t.say("250-mail.test")
		if t.startTLS && !t.secured {
			t.say("250-STARTTLS")
		}
		if t.User != "" {
			t.say("250-AUTH PLAIN")
		}
		t.say("250 8BITMIME")
	case "STARTTLS":
		t.say("220 go on")
		secured := tls.Server(t.conn, t.secure)
		t.conn, t.lines, t.secured = secured, bufio.NewReader(secured), true
	case "AUTH":
		_, text, _ := strings.Cut(rest, " ")
		said, _ := base64.StdEncoding.DecodeString(text)
		if string(said) != "\x00"+t.User+"\x00"+t.Password {
			t.say("535 5.7.8 wrong: " + string(said[1:]))
			return
		}
		t.user = t.User
		t.say("235 welcome")
	case "MAIL", "RCPT":
		if t.User != "" && t.user == "" {
			t.say("530 sign in first")
			return
		}
		_, address, _ := strings.Cut(rest, "<")
		address, _, _ = strings.Cut(address, ">")
		if verb == "MAIL" {
			t.letter = Letter{From: address}
		} else {
			t.letter.To = address
		}
		t.say("250 good")
	case "DATA":
		t.say("354 go on")
		t.take()
	case "RSET", "NOOP":
		t.say("250 good")
	default:
		t.say("500 what?")
	}
}

// take reads a letter up to its end.
func (t *talk) take() {
	var text strings.Builder
	for {
		line, ok := t.hear()
		if !ok {
			return
		}
		if line == "." {
			break
		}
		text.WriteString(strings.TrimPrefix(line, ".") + "\r\n")
	}
	l := t.letter
	l.Head, _, _ = strings.Cut(text.String(), "\r\n\r\n")
	message, err := netmail.ReadMessage(strings.NewReader(text.String()))
	if err != nil {
		t.say("554 not a letter")
		return
	}
	body := message.Body
	if strings.EqualFold(message.Header.Get("Content-Transfer-Encoding"), "quoted-printable") {
		body = quotedprintable.NewReader(body)
	}
	decoded, _ := io.ReadAll(body)
	l.Header, l.Text, l.Secured, l.User = message.Header, strings.ReplaceAll(string(decoded), "\r\n", "\n"), t.secured, t.user
	t.say("250 taken")
	t.Letters <- l
}
