package view

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// macSize is the length of a signature.
const macSize = 16

// signatureKey makes and checks signed texts: only its holder can make them, and they are of no use in another context,
// such as for another user or another purpose.
type signatureKey []byte

// encoding is strict, so that a token has one spelling.
var encoding = base64.RawURLEncoding.Strict()

// Sign returns a body as text, signed for a context.
func (k signatureKey) Sign(body []byte, context ...string) string {
	return encoding.EncodeToString(append(body, k.mac(body, context)...))
}

// Verify returns the body of a text; false if it was not signed for the context.
func (k signatureKey) Verify(token string, context ...string) ([]byte, bool) {
	if strings.ContainsAny(token, "\r\n") { // the decoder would skip them
		return nil, false
	}
	b, err := encoding.DecodeString(token)
	if err != nil || len(b) < macSize {
		return nil, false
	}
	body, mac := b[:len(b)-macSize], b[len(b)-macSize:]
	return body, hmac.Equal(mac, k.mac(body, context))
}

// mac signs the context's strings, each with its length, and the body.
func (k signatureKey) mac(body []byte, context []string) []byte {
	h := hmac.New(sha256.New, k)
	var n [4]byte
	for _, part := range context {
		binary.BigEndian.PutUint32(n[:], uint32(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	h.Write(body)
	return h.Sum(nil)[:macSize]
}
