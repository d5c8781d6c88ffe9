package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/parley-chat/parley/server/kafka/port"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// printKafka says how to read the embedded log with other programs. It needs the file
// of credentials only, so it works while a server runs. It asks that server for the topic
// that messages are published to since the last migration.
func printKafka(ctx context.Context, cfg Config, stdout io.Writer) error {
	if cfg.Engine.Distributed() {
		return errors.New("the brokers are not Parley's own: ask whoever runs them")
	}
	path := filepath.Join(cfg.DataDir, port.File)
	c, err := port.Load(cfg.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not there yet: the server makes it at its first start", path)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, `With kcat, and all that stands on librdkafka:

  kcat -F %s -C -e -q -t %s -X isolation.level=read_committed -f '%%t/%%p @%%o %%k %%S bytes\n'

With Kafka's own commands and other clients in Java, as a file of properties:

%s
Readers may read all topics and use groups of their own. They change nothing.
`, path, versions.Published(ctx, c.Address, "messages.persisted", c.Options()...), c.JavaProperties())
	return err
}
