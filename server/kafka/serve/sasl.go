package serve

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// iterations is the number of rounds of SCRAM's key derivation: the least that clients of Kafka accept. More of
// them would protect passwords that people choose; these are random.
const iterations = 4096

var errAuthentication = errors.New("kafka: authentication failed")

// mechanism is a kind of SCRAM (RFC 5802).
type mechanism struct {
	name string
	hash func() hash.Hash
}

func mechanisms() []mechanism {
	return []mechanism{{"SCRAM-SHA-256", sha256.New}, {"SCRAM-SHA-512", sha512.New}}
}

// mac is RFC 5802's HMAC.
func (m mechanism) mac(key []byte, text string) []byte {
	h := hmac.New(m.hash, key)
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum(nil)
}

// User is what the server knows of a user: keys that verify the password, for each mechanism.
type User struct{ keys []scramKeys } // in the order of mechanisms

type scramKeys struct{ salt, stored, server []byte }

// NewUser derives the keys of a password.
func NewUser(password string) (User, error) {
	var u User
	for _, m := range mechanisms() {
		k := scramKeys{salt: make([]byte, 16)}
		_, _ = rand.Read(k.salt) // never fails
		salted, err := pbkdf2.Key(m.hash, password, k.salt, iterations, m.hash().Size())
		if err != nil {
			return User{}, err
		}
		h := m.hash()
		_, _ = h.Write(m.mac(salted, "Client Key")) // never fails
		k.stored, k.server = h.Sum(nil), m.mac(salted, "Server Key")
		u.keys = append(u.keys, k)
	}
	return u, nil
}

// authState is how far the client of a connection is with its password.
type authState struct {
	done      bool // the client has shown a password
	user      string
	failed    error // ends the connection after the response
	bare      bool  // tokens come without headers, after version 0 of the handshake
	mechanism int   // index in mechanisms, plus 1; 0: no handshake
	scram     *scram
}

// handshake chooses a mechanism.
func (c *conn) handshake(_ context.Context, h header, req *kmsg.SASLHandshakeRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrSASLHandshakeResponse()
	for _, m := range mechanisms() {
		res.SupportedMechanisms = append(res.SupportedMechanisms, m.name)
	}
	i := slices.Index(res.SupportedMechanisms, req.Mechanism)
	switch {
	case c.auth.done || c.auth.mechanism != 0:
		res.ErrorCode, c.auth.failed = kerr.IllegalSaslState.Code, errAuthentication
	case i < 0:
		res.ErrorCode, c.auth.failed = kerr.UnsupportedSaslMechanism.Code, errAuthentication
	default:
		c.auth.mechanism, c.auth.bare = i+1, h.version == 0
	}
	return res, nil
}

// authenticate takes one message of the mechanism.
func (c *conn) authenticate(_ context.Context, _ header, req *kmsg.SASLAuthenticateRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrSASLAuthenticateResponse()
	if c.auth.done || c.auth.mechanism == 0 {
		res.ErrorCode, c.auth.failed = kerr.IllegalSaslState.Code, errAuthentication
		return res, nil
	}
	out, err := c.token(string(req.SASLAuthBytes))
	res.SASLAuthBytes = out
	if err != nil {
		c.auth.failed, res.ErrorCode = err, kerr.SaslAuthenticationFailed.Code
		res.ErrorMessage = kmsg.StringPtr("the user name or the password is wrong")
	}
	return res, nil
}

// bareToken takes a message that has no header, as clients send them after version 0 of the handshake. The
// only answer to a wrong one is the end of the connection.
func (c *conn) bareToken(b []byte) error {
	out, err := c.token(string(b))
	if err != nil {
		return err
	}
	return c.write(append(binary.BigEndian.AppendUint32(nil, uint32(len(out))), out...))
}

// token takes a message of the mechanism, and returns the answer.
func (c *conn) token(message string) ([]byte, error) {
	a := &c.auth
	if a.scram == nil {
		a.scram = &scram{mechanism: mechanisms()[a.mechanism-1], nonce: rand.Text()}
		return a.scram.first(message, func(name string) scramKeys {
			u, known := c.server.Users[name]
			if a.scram.known = known && len(u.keys) > 0; !a.scram.known {
				u = c.server.decoy
			}
			return u.keys[a.mechanism-1]
		})
	}
	out, err := a.scram.final(message)
	if err != nil {
		return nil, err
	}
	a.done, a.bare, a.user, a.scram = true, false, a.scram.user, nil
	if err := c.setKnown(); err != nil {
		return nil, err
	}
	if c.server.Authenticated != nil {
		c.server.Authenticated(c.Conn, a.user)
	}
	return out, nil
}

// scram is the server's side of one exchange.
type scram struct {
	mechanism
	nonce string // both parts, after the first message
	user  string
	known bool
	keys  scramKeys
	gs2   string // header of the client's first message
	begun string // both first messages, as they are signed
}

// first reads "n,,n=user,r=nonce". The server answers as well if the user does not exist, so that a
// client does not learn whether it does.
func (s *scram) first(message string, keys func(user string) scramKeys) ([]byte, error) {
	parts := strings.SplitN(message, ",", 3)
	// A client that could bind channels says y, and one that requires it p: the port has no TLS.
	if len(parts) != 3 || (parts[0] != "n" && parts[0] != "y") {
		return nil, errAuthentication
	}
	name, rest, _ := strings.Cut(parts[2], ",")
	nonce, _, _ := strings.Cut(rest, ",") // extensions are ignored
	user, ok := scramName(strings.TrimPrefix(name, "n="))
	if !ok || !strings.HasPrefix(name, "n=") || !strings.HasPrefix(nonce, "r=") || len(nonce) == len("r=") {
		return nil, errAuthentication
	}
	if other, ok := scramName(strings.TrimPrefix(parts[1], "a=")); parts[1] != "" && (!ok || other != user) {
		return nil, errAuthentication // to act for another user
	}
	s.user, s.keys = user, keys(user)
	s.nonce = nonce[len("r="):] + s.nonce
	s.gs2 = parts[0] + "," + parts[1] + ","
	answer := "r=" + s.nonce + ",s=" + base64.StdEncoding.EncodeToString(s.keys.salt) + ",i=" + strconv.Itoa(iterations)
	s.begun = parts[2] + "," + answer
	return []byte(answer), nil
}

// scramName decodes a name.
func scramName(s string) (name string, ok bool) {
	name = strings.NewReplacer("=2C", ",", "=3D", "=").Replace(s)
	return name, s != "" && strings.Count(s, "=") == strings.Count(s, "=2C")+strings.Count(s, "=3D")
}

// final reads "c=gs2,r=nonce,p=proof", and proves that the server knows the user.
func (s *scram) final(message string) ([]byte, error) {
	i := strings.LastIndex(message, ",p=")
	if i < 0 {
		return nil, errAuthentication
	}
	proof, err := base64.StdEncoding.DecodeString(message[i+len(",p="):])
	binding, rest, _ := strings.Cut(message[:i], ",")
	nonce, _, _ := strings.Cut(rest, ",") // extensions are ignored
	// librdkafka before 2.6.1 repeats its part of the nonce. Kafka takes that too; the proof covers it.
	if err != nil || binding != "c="+base64.StdEncoding.EncodeToString([]byte(s.gs2)) ||
		!strings.HasPrefix(nonce, "r=") || !strings.HasSuffix(nonce, s.nonce) {
		return nil, errAuthentication
	}
	signed := s.begun + "," + message[:i]
	signature := s.mac(s.keys.stored, signed)
	if len(proof) != len(signature) {
		return nil, errAuthentication
	}
	subtle.XORBytes(proof, proof, signature) // the client's key, if the password is right
	h := s.hash()
	_, _ = h.Write(proof) // never fails
	if subtle.ConstantTimeCompare(h.Sum(nil), s.keys.stored) != 1 || !s.known {
		return nil, errAuthentication
	}
	return []byte("v=" + base64.StdEncoding.EncodeToString(s.mac(s.keys.server, signed))), nil
}
