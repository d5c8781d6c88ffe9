package app

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/auth/keyctl"
)

// keysCommand are the commands on the file of keys.
func (p *commandLine) keysCommand() *cobra.Command {
	return keyctl.Command(keyctl.Config{Stdout: p.stdout, Clock: time.Now, Path: func() (string, error) {
		cfg, err := p.config()
		return cfg.keyPath(), err
	}})
}
