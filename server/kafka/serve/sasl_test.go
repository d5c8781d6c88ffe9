package serve_test

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/parley-chat/parley/server/infra/testkit"
)

func handshake(version int16, mechanism string) *kmsg.SASLHandshakeRequest {
	req := kmsg.NewPtrSASLHandshakeRequest()
	req.SetVersion(version)
	req.Mechanism = mechanism
	return req
}

// token sends one message of the mechanism, and returns the answer.
func (c *raw) token(t *testing.T, version int16, message []byte) *kmsg.SASLAuthenticateResponse {
	t.Helper()
	req := kmsg.NewPtrSASLAuthenticateRequest()
	req.SetVersion(version)
	req.SASLAuthBytes = message
	return testkit.Value(c.send(req))(t).(*kmsg.SASLAuthenticateResponse)
}

func mechanismOf(name, user, pass string) sasl.Mechanism {
	auth := scram.Auth{User: user, Pass: pass}
	if name == "SCRAM-SHA-512" {
		return auth.AsSha512Mechanism()
	}
	return auth.AsSha256Mechanism()
}

// exchange shows a password, and returns the last answer.
func exchange(t *testing.T, c *raw, version int16, m sasl.Mechanism) *kmsg.SASLAuthenticateResponse {
	t.Helper()
	hello := testkit.Value(c.send(handshake(1, m.Name())))(t).(*kmsg.SASLHandshakeResponse)
	testkit.Equal(t, "handshake", hello.ErrorCode, 0)
	session, message, err := m.Authenticate(t.Context(), "")
	testkit.Must(t, err)
	for {
		res := c.token(t, version, message)
		if res.ErrorCode != 0 {
			return res
		}
		var done bool
		if done, message, err = session.Challenge(res.SASLAuthBytes); err != nil {
			t.Fatal(err)
		}
		if done {
			return res
		}
	}
}

// The right password opens the connection, in each mechanism and version, and the client verifies the server.
func TestSCRAM(t *testing.T) {
	b := start(t, nil)
	large := usual(int16(kmsg.Metadata), 9).(*kmsg.MetadataRequest) // than a request may be before the password
	large.Topics[0].Topic = kmsg.StringPtr(strings.Repeat("a", 70<<10))
	for _, name := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		for version := range int16(3) {
			c := b.raw(t)
			testkit.Equal(t, "code", exchange(t, c, version, mechanismOf(name, "reader", password)).ErrorCode, 0)
			testkit.Value(c.send(large))(t)
			// A second time is not part of the protocol.
			res := testkit.Value(c.send(handshake(1, name)))(t).(*kmsg.SASLHandshakeResponse)
			testkit.Equal(t, "again", res.ErrorCode, kerr.IllegalSaslState.Code)
			c.ends(t, "a second handshake")
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	testkit.Equal(t, "users", strings.Join(b.known, " "), strings.TrimSpace(strings.Repeat("reader ", 6)))
}

// After version 0 of the handshake, messages have no headers until the password is right.
func TestSCRAMWithoutHeaders(t *testing.T) {
	b := start(t, nil)
	for _, pass := range []string{password, "wrong"} {
		c := b.raw(t)
		testkit.Value(c.send(handshake(0, "SCRAM-SHA-256")))(t)
		session, message, err := mechanismOf("SCRAM-SHA-256", "reader", pass).Authenticate(t.Context(), "")
		testkit.Must(t, err)
		for done := false; !done; {
			testkit.Value(c.Write(append([]byte{0, 0, 0, byte(len(message))}, message...)))(t)
			answer, err := c.frame()
			if err != nil {
				testkit.Equal(t, "the password that is refused", pass, "wrong")
				break
			}
			done, message, err = session.Challenge(answer)
			testkit.Must(t, err)
		}
		if pass == password {
			testkit.Value(c.send(usual(int16(kmsg.Metadata), 9)))(t)
		}
	}
}

// librdkafka before 2.6.1 repeats its own part of the nonce in its last message, and signs that. A message with
// another nonce is of another exchange, whatever it signs.
func TestNonces(t *testing.T) {
	for what, c := range map[string]struct {
		nonce string // S is the one that the server sent
		code  int16
	}{
		"right":      {"S", 0},
		"repeated":   {"abcS", 0},
		"extended":   {"S,x=y", 0},
		"shortened":  {"abc", 58},
		"another":    {"abcdef", 58},
		"lengthened": {"Sabc", 58},
	} {
		conn := start(t, nil).raw(t)
		testkit.Value(conn.send(handshake(1, "SCRAM-SHA-256")))(t)
		first := string(conn.token(t, 1, []byte("n,,n=reader,r=abc")).SASLAuthBytes)
		parts := strings.Split(first, ",")
		salt := testkit.Value(base64.StdEncoding.DecodeString(strings.TrimPrefix(parts[1], "s=")))(t)
		salted := testkit.Value(pbkdf2.Key(sha256.New, password, salt, 4096, sha256.Size))(t)
		mac := func(key []byte, text string) []byte {
			h := hmac.New(sha256.New, key)
			_, _ = h.Write([]byte(text))
			return h.Sum(nil)
		}
		key := mac(salted, "Client Key")
		stored := sha256.Sum256(key)
		final := "c=biws,r=" + strings.Replace(c.nonce, "S", strings.TrimPrefix(parts[0], "r="), 1)
		subtle.XORBytes(key, key, mac(stored[:], "n=reader,r=abc,"+first+","+final))
		res := conn.token(t, 1, []byte(final+",p="+base64.StdEncoding.EncodeToString(key)))
		testkit.Equal(t, what, res.ErrorCode, c.code)
	}
}

// What is wrong has an error code, and then the end of the connection.
func TestWithoutThePassword(t *testing.T) {
	b := start(t, nil)
	for name, m := range map[string]sasl.Mechanism{
		"wrong password": mechanismOf("SCRAM-SHA-256", "reader", "x"),
		"unknown user":   mechanismOf("SCRAM-SHA-512", "admin", password),
		"no such user":   mechanismOf("SCRAM-SHA-256", "nobody", "x"),
		"other rights":   scram.Auth{User: "reader", Pass: password, Zid: "parley"}.AsSha256Mechanism(),
	} {
		c := b.raw(t)
		testkit.Equal(t, name, exchange(t, c, 1, m).ErrorCode, kerr.SaslAuthenticationFailed.Code)
		c.ends(t, name)
	}
	for _, message := range []string{"n,a=parley,n=reader,r=x", "", "n", "n,,", "n,,n=reader", "n,,n=reader,r=",
		"n,,r=x,n=reader", "p=tls,,n=reader,r=x",
		"n,,m=x,n=reader,r=x", "n,,n=re=ader,r=x", "n,,n=,r=x", "\x00reader\x00" + password} {
		c := b.raw(t)
		testkit.Value(c.send(handshake(1, "SCRAM-SHA-256")))(t)
		testkit.Equal(t, message, c.token(t, 2, []byte(message)).ErrorCode, kerr.SaslAuthenticationFailed.Code)
		c.ends(t, message)
	}
	for _, message := range []string{"", "c=biws", "c=biws,r=x,p=AAAA", "c=biws,r=NONCE,p=", "c=biws,r=NONCE,p=AAAA",
		"c=biws,r=NONCE,p=!", "c=eSws,r=NONCE,p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="} {
		c := b.raw(t)
		testkit.Value(c.send(handshake(1, "SCRAM-SHA-256")))(t)
		first := string(c.token(t, 2, []byte("n,,n=reader,r=abc")).SASLAuthBytes)
		nonce, _, _ := strings.Cut(strings.TrimPrefix(first, "r="), ",")
		res := c.token(t, 2, []byte(strings.ReplaceAll(message, "NONCE", nonce)))
		testkit.Equal(t, message, res.ErrorCode, kerr.SaslAuthenticationFailed.Code)
		c.ends(t, message)
	}
	c := b.raw(t)
	res := testkit.Value(c.send(handshake(1, "PLAIN")))(t).(*kmsg.SASLHandshakeResponse)
	testkit.Equal(t, "PLAIN", res.ErrorCode, kerr.UnsupportedSaslMechanism.Code)
	testkit.Equal(t, "mechanisms", strings.Join(res.SupportedMechanisms, " "), "SCRAM-SHA-256 SCRAM-SHA-512")
	c.ends(t, "PLAIN")
	c = b.raw(t)
	testkit.Value(c.send(handshake(1, "SCRAM-SHA-256")))(t)
	res = testkit.Value(c.send(handshake(1, "SCRAM-SHA-512")))(t).(*kmsg.SASLHandshakeResponse)
	testkit.Equal(t, "two handshakes", res.ErrorCode, kerr.IllegalSaslState.Code)
	c.ends(t, "two handshakes")
	c = b.raw(t)
	testkit.Equal(t, "without a handshake", c.token(t, 1, nil).ErrorCode, kerr.IllegalSaslState.Code)
	c.ends(t, "without a handshake")
	for _, k := range testkit.Value(b.raw(t).send(versions(3)))(t).(*kmsg.ApiVersionsResponse).ApiKeys {
		if key := kmsg.Key(k.ApiKey); key != kmsg.ApiVersions && key != kmsg.SASLHandshake && key != kmsg.SASLAuthenticate {
			c := b.raw(t)
			testkit.Must(t, c.ask(usual(k.ApiKey, k.MaxVersion)))
			c.ends(t, key.Name())
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	testkit.Equal(t, "users", len(b.known), 0)
}
