package securitylog_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// Each event is counted, written with what is known of it and nothing else, and passed on; what
// every client does all the time is not for the log of every day.
func TestRecord(t *testing.T) {
	var text bytes.Buffer
	var passed []securitylog.Event
	l := securitylog.New(slog.New(slog.NewTextHandler(&text, nil)), func(_ context.Context, e securitylog.Event) {
		passed = append(passed, e)
	})
	stolen := securitylog.Event{Kind: securitylog.RefreshReused, User: "ann", Session: "ses_1", Client: "192.0.2.0/24"}
	for _, e := range []securitylog.Event{stolen, {Kind: securitylog.Refreshed}, {Kind: securitylog.CodeRequested},
		{Kind: securitylog.SessionEnded, User: "ann", Reason: "revoked"}} {
		l.Record(t.Context(), e)
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	testkit.Equal(t, "lines", len(lines), 2)
	for i, want := range []string{
		`level=WARN msg="security: refresh token reused" user_id=ann session_id=ses_1 client=192.0.2.0/24`,
		`level=INFO msg="security: session ended" user_id=ann reason=revoked`,
	} {
		if !strings.HasSuffix(lines[i], want) {
			t.Errorf("%s, expected %s", lines[i], want)
		}
	}
	testkit.Equal(t, "passed on", len(passed), 4)
	testkit.Equal(t, "the first", passed[0], stolen)
	for kind, n := range map[securitylog.Kind]int64{securitylog.RefreshReused: 1, securitylog.Refreshed: 1,
		securitylog.SignedIn: 0} {
		testkit.Equal(t, kind.String(), l.Count(kind), n)
	}
}
