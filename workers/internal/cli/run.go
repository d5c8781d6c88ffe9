package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/certificate"
	"github.com/parley-chat/parley/server/infra/cmdline"
	"github.com/parley-chat/parley/server/infra/memory"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/limit"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/workers/internal/jobs"
	"github.com/parley-chat/parley/workers/ops/opsctl"
	"github.com/parley-chat/parley/workers/pipeline"
)

func (p *program) runCommand() *cobra.Command {
	return &cobra.Command{
		Use: "run JOB...", Short: "run jobs: relay, fanout, projector, reconcile, registry, ops",
		Long: "  relay      brings committed events to Kafka, in order per chat\n" +
			"  fanout     passes what it reads there to the servers\n" +
			"  projector  keeps the tables that follow from events, and rebuilds them\n" +
			"  reconcile  completes what crashes left half done\n" +
			"  registry   serves the schemas of events\n" +
			"  ops        answers the commands of operators\n" +
			"  Any number of processes may run the same jobs.\n",
		ValidArgs: jobs.Names(), Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := p.settings()
			if err != nil {
				return err
			}
			cfg, err := s.jobs(args)
			if err != nil {
				return cmdline.Usage(err)
			}
			cfg.Logger = telemetry.NewLogger(p.stderr, s.LogFormat == "json")
			memory.Tune(s.GCPercent, s.MemoryPercent, p.environ)
			return jobs.Run(c.Context(), cfg)
		},
	}
}

// jobs builds what a process runs with.
func (s settings) jobs(names []string) (c jobs.Config, err error) {
	c = jobs.Config{
		Backend: *s.backend, Jobs: distinct(names), Listen: s.Listen, KeyFile: s.KeyFile, Name: s.WorkerName,
		Slots: s.RelaySlots,
		Registry: pipeline.Registry{
			Listen: s.Registry.Listen, Password: s.Registry.Password.Reveal(), WritePassword: s.Registry.WritePassword.Reveal(),
		},
		RegisterSchemas: s.Registry.Register, Operators: s.Operators.Listen,
		Certificates: []certificate.Files{{Cert: s.Links.Cert, Key: s.Links.Key}, {Cert: s.Kafka.Cert, Key: s.Kafka.Key}},
	}
	if s.Registry.Cert != "" && slices.Contains(names, jobs.Registry) {
		c.Certificates = append(c.Certificates, certificate.Files{Cert: s.Registry.Cert, Key: s.Registry.Key})
	}
	if err := c.Validate(); err != nil {
		return c, err
	}
	c.Search.Attempts = s.SearchAttempts
	if c.Search.Targets, err = search.ParseTargets(s.SearchTopics); err != nil {
		return c, fmt.Errorf("search-topics: %w", err)
	}
	if c.Limits, err = limit.ParseTable(s.Limits); err != nil {
		return c, err
	}
	if c.Registry.TLS, err = serverTLS(s.Registry.Cert, s.Registry.Key); err != nil {
		return c, err
	}
	c.Links, err = s.links()
	return c, err
}

func (s settings) links() (*tls.Config, error) {
	return backend.MutualTLS(s.Links.CA, s.Links.Cert, s.Links.Key)
}

// serverTLS is what the registry shows to its clients, nil for HTTP.
func serverTLS(cert, key string) (*tls.Config, error) {
	if cert == "" && key == "" {
		return nil, nil
	}
	if cert == "" || key == "" {
		return nil, errors.New("registry-cert and registry-key go together")
	}
	own, err := certificate.Open(cert, key, time.Now, nil)
	if err != nil {
		return nil, fmt.Errorf("registry-cert: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: own.OfServer}, nil
}

// operator says where a command of an operator finds the workers, and as whom.
func (p *program) operator() (opsctl.Config, error) {
	s, err := p.settings()
	if err != nil {
		return opsctl.Config{}, err
	}
	t, err := s.links()
	if err != nil {
		fmt.Fprintf(p.stderr, "workers: links: %v\n", err)
		return opsctl.Config{}, cmdline.Exit(cmdline.ExitUsage)
	}
	return opsctl.Config{
		Address: s.Operators.Address, Operator: s.Operators.Name, Token: s.Operators.Token.Reveal(), Key: s.key, TLS: t,
	}, nil
}

func (s settings) key() (*auth.Key, error) {
	if s.KeyFile == "" {
		return nil, errors.New("no key-file")
	}
	return auth.ReadKey(s.KeyFile)
}
