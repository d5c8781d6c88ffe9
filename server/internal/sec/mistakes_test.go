package sec

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A mistake is what a careless change could do to a control: one text of a file becomes another, and the tests that
// match fails, of a package, must fail.
type mistake struct {
	name     string
	file     string
	from, to string
	in       string
	fails    string
	more     [2]string // a second change of the file
}

const own = "server/internal/sec"

// mistakes are seeded one at a time. Those of this package come first: they are built in seconds.
var mistakes = []mistake{
	{name: "aud is not checked", file: "server/auth/token.go", in: own, fails: "TestSec_S_0[24]",
		from: `jwt.WithAudience(audience), `, to: ``},
	{name: "iss is not checked", file: "server/auth/token.go", in: own, fails: "TestSec_S_02",
		from: `jwt.WithIssuer(Issuer), `, to: ``},
	{name: "a token needs no end", file: "server/auth/token.go", in: own, fails: "TestSec_S_02",
		from: `jwt.WithExpirationRequired(), `, to: ``,
		more: [2]string{`if len(t) == 0 || t[0] == '"' {`, `if len(t) > 0 && t[0] == '"' {`}},
	{name: "HS256 with the public key is taken", file: "server/auth/token.go", in: own, fails: "TestSec_S_01",
		from: `jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()})`,
		to:   `jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg(), "HS256"})`,
		more: [2]string{`		// Exact values only`, `		name, _ := t.Header["kid"].(string)
		if key := keys.verifier(name, now); key != nil && t.Method.Alg() == "HS256" {
			return []byte(key.private.Public().(ed25519.PublicKey)), nil
		}
		// Exact values only`}},
	{name: "alg none is taken", file: "server/auth/token.go", in: own, fails: "TestSec_S_01",
		from: `jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()})`,
		to:   `jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg(), "none"})`,
		more: [2]string{`		// Exact values only`, `		if t.Method.Alg() == "none" {
			return jwt.UnsafeAllowNoneSignatureType, nil
		}
		// Exact values only`}},
	{name: "the type of a token does not matter", file: "server/auth/token.go", in: own, fails: "TestSec_S_04",
		from: `t.Header["typ"] != tokenType || `, to: ``},
	{name: "rules that the token calls critical are passed over", file: "server/auth/token.go", in: own,
		fails: "TestSec_S_05",
		from:  ` || t.Header["crit"] != nil`, to: ``},
	{name: "clocks may differ by ten minutes", file: "server/auth/token.go", in: own, fails: "TestSec_S_0[28]",
		from: `leeway    = 30 * time.Second`, to: `leeway    = 10 * time.Minute`},
	{name: "a token has many texts", file: "server/auth/token.go", in: own, fails: "TestSec_S_0[13]",
		from: `strings.ContainsAny(token, "\r\n")`, to: `strings.Contains(token, "\n\r\n\r")`},
	{name: "long tokens are parsed", file: "server/auth/gate.go", in: own, fails: "TestSec_S_03",
		from: `if len(token) > maxToken {`, to: `if len(token) > maxToken<<10 {`},
	{name: "one of two headers is chosen", file: "server/auth/operator.go", in: own, fails: "TestSec_S_03",
		from: `len(values) > 1 || `, to: ``},
	{name: "a user's token is an operator's", file: "server/auth/operator.go", in: own, fails: "TestSec_S_04",
		from: `k.parse(token, OperatorAudience, now)`, to: `k.parse(token, Audience, now)`,
		more: [2]string{` || c.SessionID != ""`, ``}},
	{name: "the body is read first", file: "server/auth/gate.go", in: own, fails: "TestSec_S_36",
		from: `		p, err := g.admit(r)`, to: `		_, _ = r.Body.Read(make([]byte, 1))
		p, err := g.admit(r)`},
	{name: "who was refused is called all the same", file: "server/auth/gate.go", in: own, fails: "TestSec_S_0[1-5]",
		from: `			g.cfg.Refuse(w, r, err)
			return`, to: `			g.cfg.Refuse(w, r, err)`},
	{name: "a secret has a flag", file: "server/infra/config/table.go", in: own, fails: "TestSec_S_40",
		from: `{Name: "PARLEY_REDIS_PASSWORD", `, to: `{Name: "PARLEY_REDIS_PASSWORD", Flag: "redis-password", `},

	{name: "others may read the key", file: "server/auth/key.go", in: "server/auth", fails: "TestKeyFile",
		from: `mode&0o077 != 0`, to: `mode&0o002 != 0`},
	{name: "the key is printed", file: "server/auth/key.go", in: "server/auth", fails: "TestKeyIsNotPrinted",
		from: `return "key " + k.id }`, to: `return "key " + k.id + fmt.Sprint(k.ring.Load().entries[0].private.Seed()) }`},
	{name: "ended sessions go on", file: "server/auth/revoked.go", in: "server/auth", fails: "TestRevocation",
		from: `return ok && now.Before(s.until) &&`, to: `return ok && s.until.IsZero() &&`},
	{name: "codes may be guessed for ever", file: "server/identity/otp/otp.go", in: "server/identity/otp",
		fails: "TestSec_S_09", from: `row.Attempts >= maxAttempts`, to: `row.Attempts >= 100*maxAttempts`},
	{name: "who has no request makes attempts", file: "server/identity/otp/otp.go", in: "server/identity/otp",
		fails: "TestStrangersMakeNoAttempts",
		from:  `if !hmac.Equal([]byte(row.Request), []byte(request)) || request == "" ||`, to: `if request == "" ||`},
	{name: "a stolen refresh token is good for an hour", file: "server/identity/session/session.go",
		in: "server/identity/session", fails: "TestSec_S_12",
		from: `used != nil && now.Sub(time.UnixMilli(used.At)) <= Grace:`,
		to:   `used != nil && now.Sub(time.UnixMilli(used.At)) <= 360*Grace:`},
	{name: "service accounts speak for everybody", file: "server/identity/service/key.go",
		in: "server/identity/service", fails: "TestSpeakingForUsers",
		from: `if !p.Scopes.SpeakFor(user) || !there ||`, to: `if !there ||`},
	{name: "scopes of service accounts do not count", file: "server/internal/serviceapi/serviceapi.go",
		in: "server/internal/serviceapi", fails: "TestEveryProcedureIsDecided",
		from: `case named && p.Scopes.Has(scope) && (own || !forBackEnds):`,
		to:   `case named && scope == scopes[procedure] && (own || !forBackEnds):`},
	{name: "tokens for others are taken from an issuer", file: "server/identity/issuer/issuer.go",
		in: "server/identity/issuer", fails: "TestTokensOfAnIssuer",
		from: `if !slices.ContainsFunc(c.Audience, ours) {`, to: `if len(c.Audience) == 0 {`},
	{name: "a process that knows nothing admits", file: "server/auth/gate.go", in: "server/auth",
		fails: "TestUninformedAdmitsNobody",
		from:  `g.cfg.Informed != nil && !g.cfg.Informed(now)`, to: `g.cfg.Informed == nil && !g.cfg.Informed(now)`},
	{name: "tokens are logged", file: "server/infra/telemetry/redact.go", in: "server/infra/telemetry",
		fails: "TestSecretsAreNotLogged",
		from:  `"authorization", "token", `, to: `"authorization", `},
	{name: "page tokens are everybody's", file: "server/view/token.go", in: "server/view", fails: "TestSec_S_19",
		from: `r.key.Sign(body, purpose, user, query)`,
		to:   `r.key.Sign(body, purpose, "", query)`,
		more: [2]string{`r.key.Verify(token, purpose, user, query)`,
			`r.key.Verify(token, purpose, "", query)`}},
	{name: "streams have no bound", file: "server/delivery/streams.go", in: "server/delivery", fails: "TestSec_S_29",
		from: `len(mine) >= h.cfg.MaxStreams`, to: `len(mine) >= 1000*h.cfg.MaxStreams`},
	{name: "forged records are believed", file: "server/event/serde.go", in: "server/event", fails: "TestSec_S_42",
		from: ` ||
		e.GetChatId() != string(key) {`, to: ` {`},
	{name: "strangers read", file: "server/view/view.go", in: "server/internal/api", fails: "TestSec_S_16|TestForeignIDs",
		from: `if it == nil || row.Left() {`, to: `if it != nil && row.Left() {`},
	{name: "administrators do what owners do", file: "server/chat/plan/rules.go", in: "server/internal/api",
		fails: "TestSec_S_16",
		from: `	case s.Caller.Role != table.Owner:
		return command.OnlyOwnerChangesRoles`, to: `	case s.Caller.Role == table.Member:
		return command.OnlyOwnerChangesRoles`},
	{name: "others' streams are acknowledged", file: "server/delivery/streams.go", in: "server/internal/api",
		fails: "TestForeignIDs",
		from: `	if s == nil || s.owner.UserID != user {
		return nil, ErrStreamGone`, to: `	if s == nil {
		return nil, ErrStreamGone`},
	{name: "bodies have no bound", file: "server/internal/api/api.go", in: "server/internal/api",
		fails: "TestMalformed|TestSec_S_22",
		from: `		connect.WithReadMaxBytes(maxRequest),
`, to: ``},
	{name: "a message is sent by GET", file: "gen/parley/message/v1/messagev1connect/message_service.connect.go",
		in: "server/internal/api", fails: "TestMutationsRefuseGet",
		from: `		svc.SendMessage,
		connect.WithSchema(messageServiceMethods.ByName("SendMessage")),
`, to: `		svc.SendMessage,
		connect.WithIdempotency(connect.IdempotencyNoSideEffects),
		connect.WithSchema(messageServiceMethods.ByName("SendMessage")),
`},
	{name: "unknown errors tell what they are", file: "server/internal/api/errors.go", in: "server/internal/api",
		fails: "TestSec_S_37",
		from:  `reasonInternal, "internal error", map`, to: `reasonInternal, slog.AnyValue(what).String(), map`},
	{name: "requests of others are found by their ids", file: "server/store/table/idempotency_keys.go",
		in:    "server/internal/api",
		fails: "TestSec_S_53",
		from:  `[]string{procedure, user, parent, requestID}`, to: `[]string{procedure, user[:0], parent, requestID}`},
	{name: "topics have no roles", file: "server/topic/access.go", in: "server/internal/topicrpc", fails: "TestBindings",
		from: `if !ok || want != anyRole && b.Role != want && b.Role != admin {`, to: `if !ok {`},
	{name: "every page may call", file: "server/internal/app/http.go", in: "server/internal/app", fails: "TestSec_S_33",
		from: `AllowedOrigins: origins,`, to: `AllowedOrigins: []string{"*"},`},
	{name: "content is logged", file: "server/internal/api/interceptor.go", in: "server/internal/app",
		fails: "TestSec_S_38",
		from: `	markReached(ctx)
`, to: `	markReached(ctx)
	i.log.Info("entered")
`, more: [2]string{`	keyed, err := applyIdempotencyKey(msg.ProtoReflect(), header)`,
			`	i.log.Info("checked", "message", msg)
	keyed, err := applyIdempotencyKey(msg.ProtoReflect(), header)`}},
	{name: "a webhook's address is checked by its URL alone", file: "server/infra/egress/guard.go",
		in:    "server/infra/egress",
		fails: "TestSec_S_48",
		from:  `case named:`, to: `case named, at.IsValid():`},
	{name: "an address that NAT64 leads to does not matter", file: "server/infra/egress/addresses.go",
		in:    "server/infra/egress",
		fails: "TestSec_S_48",
		from:  `return public(netip.AddrFrom4([4]byte(b[12:])))`, to: `return true`, more: [2]string{`b := a.As16()`, ``}},
	{name: "6to4 is public", file: "server/infra/egress/addresses.go", in: "server/infra/egress", fails: "TestSec_S_48",
		from: `"2002::/16", `, to: ``},
}

// text returns a mistake's file with the mistake in it.
func (m mistake) text(t *testing.T) (path, text string) {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = string(b)
	for _, change := range [][2]string{{m.from, m.to}, m.more} {
		if change[0] == "" {
			continue
		}
		if n := strings.Count(text, change[0]); n != 1 {
			t.Errorf("%s: %q stands %d times in %s", m.name, change[0], n, m.file)
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	return path, text
}

// Every mistake can still be made, and there are enough of them.
func TestMistakesCanBeMade(t *testing.T) {
	if len(mistakes) < 30 {
		t.Errorf("%d mistakes", len(mistakes))
	}
	for _, m := range mistakes {
		if m.text(t); m.from == m.to || m.fails == "" {
			t.Errorf("%s is not a mistake", m.name)
		}
	}
}

// Each mistake is noticed. PARLEY_SECURITY_MISTAKES is the number to try, or "all"; PARLEY_EXPLORE_SEED rotates the
// choice. A few are those of this package, which are built fast.
func TestMistakesAreNoticed(t *testing.T) {
	how := os.Getenv("PARLEY_SECURITY_MISTAKES")
	if how == "" {
		t.Skip("not run: PARLEY_SECURITY_MISTAKES is not set")
	}
	chosen := mistakes
	if how != "all" {
		n, err := strconv.Atoi(how)
		if err != nil || n < 1 || n > len(mistakes) {
			t.Fatalf("PARLEY_SECURITY_MISTAKES=%q", how)
		}
		fast := 0
		for fast < len(mistakes) && mistakes[fast].in == own {
			fast++
		}
		seed, _ := strconv.Atoi(os.Getenv("PARLEY_EXPLORE_SEED")) // none is 0
		chosen = nil
		for i := range n {
			chosen = append(chosen, mistakes[(seed+i)%fast])
		}
	}
	for _, m := range chosen {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), m.try)
	}
}

func (m mistake) try(t *testing.T) {
	path, text := m.text(t)
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{changed: text, overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-vet=off", "-count=1", "-timeout=5m",
		"-run", m.fails, "./"+m.in)
	cmd.Dir, cmd.WaitDelay = root, time.Minute
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PARLEY_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.CombinedOutput()
	said := fmt.Sprintf("%s in %s\n%.4000s", m.name, m.file, out)
	switch {
	case err == nil:
		t.Errorf("not noticed: %s", said)
	case strings.Contains(string(out), "[build failed]") || strings.Contains(string(out), "no tests to run"):
		t.Errorf("not tried: %s", said)
	case !strings.Contains(string(out), "--- FAIL") && !strings.Contains(string(out), "panic:"):
		t.Errorf("no test failed: %s", said)
	}
}
