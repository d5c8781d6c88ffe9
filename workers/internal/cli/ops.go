package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/config"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/workers/ops/opsctl"
)

var opsUsage = fmt.Sprintf(opsctl.Usage, "workers")

// opsClient is how the commands of operators find the service and who they are.
type opsClient struct {
	address, operator string
	token             config.Secret
}

// operate runs a command of an operator, and returns the exit code.
func (s settings) operate(ctx context.Context, stdout, stderr io.Writer) int {
	t, err := engine.MutualTLS(s.jobs.LinkCA, s.jobs.LinkCert, s.jobs.LinkKey)
	if err != nil {
		fmt.Fprintf(stderr, "workers: links: %v\n", err)
		return exitUsage
	}
	return opsctl.Run(ctx, opsctl.Config{
		Program: "workers", Address: s.ops.address, Operator: s.ops.operator, Token: s.ops.token.Reveal(), Key: s.key, TLS: t, Stdout: stdout, Stderr: stderr,
	}, s.args)
}

func (s settings) key() (*auth.Key, error) {
	if s.jobs.KeyFile == "" {
		return nil, errors.New("no key-file")
	}
	return auth.ReadKey(s.jobs.KeyFile)
}
