package engine_test

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	settings "github.com/parley-chat/parley/server/config"
	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/kafka"
	registryapi "github.com/parley-chat/parley/server/registry/api"
	"github.com/parley-chat/parley/server/store/dynamo/tables"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
)

// DynamoDB's first errors are told in one line without the SDK's layers; others stay.
func TestExplainStore(t *testing.T) {
	cfg := engine.Config{Prefix: "p_", Endpoint: "http://h"}
	other := errors.New("something else")
	for says, err := range map[string]error{
		"workers tables apply": fmt.Errorf("x: %w", wire.ErrNoTables),
		"no credentials":       errors.New("operation error DynamoDB: GetItem, get identity: get credentials: failed to refresh"),
		"http://h cannot be reached: connection refused": fmt.Errorf("request send failed: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}),
		"http://h is not signed by an authority":         fmt.Errorf("request send failed: %w", x509.UnknownAuthorityError{}),
		"something else":                                 other,
	} {
		if got := engine.ExplainStore(cfg, err); !strings.Contains(got.Error(), says) || strings.Contains(got.Error(), "operation error") {
			t.Errorf("%v", got)
		}
	}
	if engine.ExplainStore(cfg, nil) != nil {
		t.Error("an error without one")
	}
}

// What the table of settings says by itself is what the packages say.
func TestDefaultsAgree(t *testing.T) {
	v, _, err := settings.Read(settings.Workers, nil, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"PARLEY_DYNAMODB_PREFIX": tables.DefaultPrefix, "PARLEY_REGISTRY_LISTEN": registryapi.DefaultListen, "PARLEY_REPLICATION": fmt.Sprint(kafka.Replication),
	} {
		if v.Get(name) != want {
			t.Errorf("%s is %q, not %q", name, v.Get(name), want)
		}
	}
}
