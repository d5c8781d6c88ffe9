package port

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/parley-chat/parley/server/infra/durable"
)

// File is the name of the file with the credentials of readers, in the form that
// librdkafka reads (kcat -F).
const File = "kafka.properties"

// User is the name of the clients, and Mechanism their SASL mechanism.
const (
	User      = "reader"
	Mechanism = "SCRAM-SHA-256"
)

// Credentials say how others read the log.
type Credentials struct{ Address, Password string }

// Properties are the credentials as librdkafka takes them.
func (c Credentials) Properties() string {
	return fmt.Sprintf("bootstrap.servers=%s\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=%s\nsasl.username=%s\nsasl.password=%s\n",
		c.Address, Mechanism, User, c.Password)
}

// JavaProperties are the credentials as Java's clients take them.
func (c Credentials) JavaProperties() string {
	return fmt.Sprintf("bootstrap.servers=%s\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=%s\nsasl.jaas.config=%s required username=\"%s\" password=\"%s\";\n",
		c.Address, Mechanism, "org.apache.kafka.common.security.scram.ScramLoginModule", User, c.Password)
}

// Options are what a client of a reader needs.
func (c Credentials) Options() []kgo.Opt {
	return []kgo.Opt{kgo.SASL(scram.Auth{User: User, Pass: c.Password}.AsSha256Mechanism())}
}

// Load reads the credentials in a data directory.
func Load(dir string) (Credentials, error) {
	f, err := os.Open(filepath.Join(dir, File))
	if err != nil {
		return Credentials{}, err
	}
	defer func() { _ = f.Close() }()
	var c Credentials
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		switch key, value, _ := strings.Cut(lines.Text(), "="); key {
		case "bootstrap.servers":
			c.Address = value
		case "sasl.password":
			c.Password = value
		}
	}
	if err := lines.Err(); err != nil {
		return c, err
	}
	if len(c.Password) < 16 {
		return c, fmt.Errorf("%s has no password", filepath.Join(dir, File))
	}
	return c, nil
}

// Password returns the readers' password of a data directory, and makes one where there
// is none.
func Password(dir string) (string, error) {
	c, err := Load(dir)
	switch {
	case err == nil:
		return c.Password, nil
	case errors.Is(err, fs.ErrPermission):
		return "", err
	}
	return rand.Text(), nil // a broken file need not be kept
}

// Save writes the credentials, for their owner only, and makes them durable: a password that is
// lost with the power cannot be told from none, and programs would have to be given another.
func (c Credentials) Save(dir string) error {
	return durable.Replace(filepath.Join(dir, File), []byte(c.Properties()))
}
