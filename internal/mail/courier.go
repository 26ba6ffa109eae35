package mail

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"net/textproto"
	"strings"

	"github.com/wneessen/go-mail"
)

// courier carries one letter at a time to the mail server.
type courier struct {
	Config
	roots *x509.CertPool // that the server's certificate is held to; nil: the system's
}

// deliver hands a letter over. It is gone once the server took it, whatever
// happens to the connection after.
func (c courier) deliver(ctx context.Context, l Letter) error {
	ctx, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel() // closes the connection, too
	message, domain, err := c.write(l)
	if err != nil {
		return err
	}
	options := []mail.Option{
		mail.WithPort(c.Port), mail.WithHELO(domain), mail.WithTimeout(tryWithin), mail.WithoutNoop(), mail.WithoutSMTPUTF8(),
		mail.WithDialContextFunc(c.dialer(ctx)), mail.WithTLSPolicy(mail.TLSMandatory), mail.WithTLSConfig(c.tls()),
	}
	plain := mail.SMTPAuthPlain
	switch c.TLS {
	case Implicit:
		options = append(options, mail.WithSSL())
	case NoTLS:
		options = append(options, mail.WithTLSPolicy(mail.NoTLS))
		plain = mail.SMTPAuthPlainNoEnc
	}
	if c.User != "" {
		options = append(options, mail.WithUsername(c.User), mail.WithPassword(c.Password),
			mail.WithOpportunisticSMTPAuth(mail.SMTPAuthSCRAMSHA256, plain, mail.SMTPAuthLogin))
	}
	client, err := mail.NewClient(c.Host, options...)
	if err != nil {
		return err
	}
	err = client.DialAndSendWithContext(ctx, message)
	if message.IsDelivered() {
		return nil
	}
	return err
}

// write is the letter as a message, and the domain that it comes from.
func (c courier) write(l Letter) (m *mail.Msg, domain string, err error) {
	from, err := netmail.ParseAddress(c.From)
	if err != nil {
		return nil, "", errors.New("the address that letters come from is none")
	}
	_, domain, _ = strings.Cut(from.Address, "@")
	m = mail.NewMsg(mail.WithNoDefaultUserAgent())
	m.FromMailAddress(from)
	m.ToMailAddress(&netmail.Address{Address: l.To})
	m.Subject(l.Subject)
	m.SetDate()
	m.SetMessageIDWithValue(rand.Text() + "@" + domain)
	m.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: no machine answers it
	m.SetBodyString(mail.TypeTextPlain, l.Text)
	return m, domain, nil
}

func (c courier) tls() *tls.Config {
	return &tls.Config{ServerName: c.Host, MinVersion: tls.VersionTLS12, RootCAs: c.roots}
}

// dialer connects to the server; the connection ends with ctx, in whatever the
// two are stuck.
func (c courier) dialer(ctx context.Context) mail.DialContextFunc {
	return func(dialing context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(dialing, network, address)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		if c.TLS != Implicit {
			return conn, nil
		}
		secured := tls.Client(conn, c.tls())
		return secured, secured.HandshakeContext(dialing)
	}
}

// cause says why a letter was not sent, without what the server said, which may
// quote anything; final: it never will be.
func cause(err error) (why string, final bool) {
	var refused *mail.SendError
	var answered *textproto.Error
	var garbled textproto.ProtocolError
	var network net.Error
	switch {
	case errors.As(err, &refused) && refused.ErrorCode() != 0:
		return fmt.Sprintf("%s: the server answered %d", refused.Reason, refused.ErrorCode()), refused.ErrorCode() >= 500
	case errors.As(err, &answered):
		return fmt.Sprintf("the server did not let us in: it answered %d", answered.Code), false
	case errors.As(err, &garbled):
		return "the server does not speak SMTP", false
	case errors.As(err, &network) && network.Timeout():
		return "the server was too slow", false
	case errors.As(err, &refused):
		return refused.Reason.String() + ": no answer that can be read", false
	}
	return err.Error(), false
}
