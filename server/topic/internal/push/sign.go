package push

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers of a request, by the Standard Webhooks specification.
const (
	IDHeader        = "Webhook-Id"
	TimestampHeader = "Webhook-Timestamp"
	SignatureHeader = "Webhook-Signature"
)

// secretPrefix begins secrets, so that programs which look for leaked secrets recognize them.
const secretPrefix = "whsec_"

// Lengths of secrets, in bytes.
const (
	minSecret = 24
	maxSecret = 64
	newSecret = 32
)

// NewSecret makes a secret.
func NewSecret() string {
	b := make([]byte, newSecret)
	_, _ = rand.Read(b) // it never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(b)
}

var errSecret = errors.New("push_secret must be whsec_ and 24 to 64 bytes in base64")

// CheckSecret returns in one line what is wrong with a secret. The line has nothing of the secret.
func CheckSecret(secret string) error {
	_, err := key(secret)
	return err
}

// key returns the key of a secret.
func key(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok || strings.ContainsAny(text, "\r\n") { // which the decoder passes over
		return nil, errSecret
	}
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < minSecret || len(b) > maxSecret {
		return nil, errSecret
	}
	return b, nil
}

// sign sets the headers of a request with an id at a time: a signature for each secret.
func sign(h http.Header, secrets []string, id string, at time.Time, body []byte) error {
	stamp := strconv.FormatInt(at.Unix(), 10)
	signatures := make([]string, 0, len(secrets))
	for _, s := range secrets {
		k, err := key(s)
		if err != nil {
			return err
		}
		m := hmac.New(sha256.New, k)
		_, _ = m.Write([]byte(id + "." + stamp + "."))
		_, _ = m.Write(body)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(m.Sum(nil)))
	}
	h.Set(IDHeader, id)
	h.Set(TimestampHeader, stamp)
	h.Set(SignatureHeader, strings.Join(signatures, " "))
	return nil
}
