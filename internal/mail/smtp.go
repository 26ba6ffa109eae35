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

// transport delivers one message at a time to the mail server.
type transport struct {
	Config
	roots *x509.CertPool // to verify the server's certificate; nil: the system's
}

// deliver sends a message. It returns nil once the server has accepted the message, even
// if the connection then fails.
func (t transport) deliver(ctx context.Context, m Message) error {
	ctx, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel() // also closes the connection
	message, domain, err := t.write(m)
	if err != nil {
		return err
	}
	options := []mail.Option{
		mail.WithPort(t.Port), mail.WithHELO(domain), mail.WithTimeout(tryWithin), mail.WithoutNoop(), mail.WithoutSMTPUTF8(),
		mail.WithDialContextFunc(t.dialer(ctx)), mail.WithTLSPolicy(mail.TLSMandatory), mail.WithTLSConfig(t.tls()),
	}
	plain := mail.SMTPAuthPlain
	switch t.TLS {
	case Implicit:
		options = append(options, mail.WithSSL())
	case NoTLS:
		options = append(options, mail.WithTLSPolicy(mail.NoTLS))
		plain = mail.SMTPAuthPlainNoEnc
	}
	if t.User != "" {
		options = append(options, mail.WithUsername(t.User), mail.WithPassword(t.Password),
			mail.WithOpportunisticSMTPAuth(mail.SMTPAuthSCRAMSHA256, plain, mail.SMTPAuthLogin))
	}
	client, err := mail.NewClient(t.Host, options...)
	if err != nil {
		return err
	}
	err = client.DialAndSendWithContext(ctx, message)
	if message.IsDelivered() {
		return nil
	}
	return err
}

// write returns m in the form that go-mail sends, and the domain of the sender.
func (t transport) write(m Message) (message *mail.Msg, domain string, err error) {
	from, err := netmail.ParseAddress(t.From)
	if err != nil {
		return nil, "", errors.New("the sender address of messages is not valid")
	}
	_, domain, _ = strings.Cut(from.Address, "@")
	message = mail.NewMsg(mail.WithNoDefaultUserAgent())
	message.FromMailAddress(from)
	message.ToMailAddress(&netmail.Address{Address: m.To})
	message.Subject(m.Subject)
	message.SetDate()
	message.SetMessageIDWithValue(rand.Text() + "@" + domain)
	message.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: no automatic reply
	message.SetBodyString(mail.TypeTextPlain, m.Text)
	return message, domain, nil
}

func (t transport) tls() *tls.Config {
	return &tls.Config{ServerName: t.Host, MinVersion: tls.VersionTLS12, RootCAs: t.roots}
}

// dialer returns a function that connects to the server. It closes the connection when
// ctx ends.
func (t transport) dialer(ctx context.Context) mail.DialContextFunc {
	return func(dialing context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(dialing, network, address)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		if t.TLS != Implicit {
			return conn, nil
		}
		secured := tls.Client(conn, t.tls())
		return secured, secured.HandshakeContext(dialing)
	}
}

// cause returns why a message was not sent, without the server's reply, which may quote
// anything. final reports that a retry cannot help.
func cause(err error) (why string, final bool) {
	var refused *mail.SendError
	var answered *textproto.Error
	var garbled textproto.ProtocolError
	var network net.Error
	switch {
	case errors.As(err, &refused) && refused.ErrorCode() != 0:
		return fmt.Sprintf("%s: the server answered %d", refused.Reason, refused.ErrorCode()), refused.ErrorCode() >= 500
	case errors.As(err, &answered):
		return fmt.Sprintf("the server refused the sign-in: it answered %d", answered.Code), false
	case errors.As(err, &garbled):
		return "the server does not speak SMTP", false
	case errors.As(err, &network) && network.Timeout():
		return "the server was too slow", false
	case errors.As(err, &refused):
		return refused.Reason.String() + ": no answer that can be read", false
	}
	return err.Error(), false
}
