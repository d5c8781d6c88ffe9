package app

import "github.com/parley-chat/parley/server/internal/terminal"

// person says where the commands of people find the server, and makes their tokens.
func (p *commandLine) person() (terminal.Config, error) {
	cfg, err := p.config()
	return terminal.Config{Listen: cfg.Listen, Issue: cfg.issuer(), Stdout: p.stdout, Stderr: p.stderr}, err
}
