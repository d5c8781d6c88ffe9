package sender

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/smtp"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/infra/loopback"
)

// SMTP is the way by mail.
type SMTP struct {
	Address        string // host:port of the server that takes mail of this installation
	From           string // address, as user@domain or Name <user@domain>
	User, Password string // "" for a server that asks for none
	// Implicit has TLS from the first byte on, as on port 465. Otherwise the connection is
	// upgraded by STARTTLS, and nothing is said on one that cannot be, but to a server on this
	// machine.
	Implicit bool
	TLS      *tls.Config // nil: the system's authorities, and the host of Address
	Clock    func() time.Time
}

var _ Way = (*SMTP)(nil)

// Check returns in one line what is wrong with the settings.
func (s *SMTP) Check() error {
	if _, _, err := net.SplitHostPort(s.Address); err != nil {
		return errors.New("the mail server's address must be host:port")
	}
	if _, err := mail.ParseAddress(s.From); err != nil || strings.ContainsAny(s.From, "\r\n") {
		return errors.New("the sender of mail must be user@domain, or Name <user@domain>")
	}
	return nil
}

// Kinds implements Way.
func (*SMTP) Kinds() []identifier.Kind { return []identifier.Kind{identifier.Email} }

// Send implements Way.
func (s *SMTP) Send(ctx context.Context, m otp.Message) error {
	from, err := mail.ParseAddress(s.From)
	if err != nil {
		return fmt.Errorf("mail: %w", s.Check())
	}
	host, _, _ := net.SplitHostPort(s.Address)
	c, err := s.dial(ctx, host)
	if err != nil {
		return fmt.Errorf("mail: connect to %s: %w", s.Address, err)
	}
	defer c.Close()
	if s.User != "" {
		if err := c.Auth(smtp.PlainAuth("", s.User, s.Password, host)); err != nil {
			return fmt.Errorf("mail: sign in at %s: %w", s.Address, err)
		}
	}
	if err := deliver(c, from.Address, m.To.Value(), s.text(from, m)); err != nil {
		return fmt.Errorf("mail: %s does not take it: %w", s.Address, withoutAddress(err, m))
	}
	return nil
}

// dial connects, with TLS wherever that may be read by others.
func (s *SMTP) dial(ctx context.Context, host string) (*smtp.Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", s.Address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // a connection that is open has deadlines
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.TLS != nil {
		config = s.TLS.Clone()
	}
	config.ServerName = host
	if s.Implicit {
		conn = tls.Client(conn, config)
	}
	c, err := smtp.NewClient(conn, host)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	if s.Implicit {
		return c, nil
	}
	ok, _ := c.Extension("STARTTLS")
	switch {
	case ok:
		err = c.StartTLS(config)
	case !loopback.Is(conn.RemoteAddr().String()):
		err = errors.New("it does not offer STARTTLS")
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func deliver(c *smtp.Client, from, to string, text []byte) error {
	if err := c.Mail(from); err != nil {
		return err
	}
	if err := c.Rcpt(to); err != nil {
		return err
	}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_ = c.Quit() // the mail was taken, however the server takes its leave
	return nil
}

// text is the mail. An identifier in normal form has no line break and no blank. The code
// comes last, so that a person who sees the subject and the first line of a mail on a
// locked screen does not see it.
func (s *SMTP) text(from *mail.Address, m otp.Message) []byte {
	_, domain, _ := strings.Cut(from.Address, "@")
	var b strings.Builder
	for _, h := range [][2]string{
		{"From", from.String()}, {"To", m.To.Value()}, {"Subject", "Your code to sign in"},
		{"Date", s.Clock().UTC().Format(time.RFC1123Z)}, {"Message-ID", "<" + rand.Text() + "@" + domain + ">"},
		{"MIME-Version", "1.0"}, {"Content-Type", "text/plain; charset=utf-8"}, {"Auto-Submitted", "auto-generated"},
	} {
		b.WriteString(h[0] + ": " + h[1] + "\r\n")
	}
	fmt.Fprintf(&b, "\r\nSomebody, probably you, asked for a code to sign in with this address. It is good for a few\r\n"+
		"minutes, and once. Do not give it to anyone. If you did not ask for it, you need not do anything.\r\n\r\n%s\r\n", m.Code)
	return []byte(b.String())
}

// withoutAddress is an error of a mail server, which may repeat whom the mail is for: errors
// get into the log.
func withoutAddress(err error, m otp.Message) error {
	return errors.New(strings.ReplaceAll(strings.ReplaceAll(err.Error(), m.To.Value(), "(address)"), m.Code, "(code)"))
}
