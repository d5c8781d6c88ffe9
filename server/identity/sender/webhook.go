package sender

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
	"github.com/parley-chat/parley/server/infra/egress"
	"github.com/parley-chat/parley/server/infra/loopback"
	"github.com/parley-chat/parley/server/infra/wait"
)

// Webhook is the way to a program of the installation, which takes codes by HTTP and sends them
// on. Each delivery is a POST with a JSON object and two headers: Parley-Delivery, an id that
// repetitions share, and Parley-Signature, "t=UNIX,v1=HEX", the HMAC-SHA-256 of "UNIX.BODY"
// under the secret that both have.
type Webhook struct {
	URL    string
	Secret string
	Client *http.Client // from NewWebhookClient
	Clock  func() time.Time
}

var _ Way = (*Webhook)(nil)

// Bounds of deliveries.
const (
	webhookAttempts = 4
	attemptTime     = 10 * time.Second
	firstPause      = 250 * time.Millisecond
	longestPause    = 4 * time.Second
	maxAnswer       = 64 << 10 // bytes that are read of an answer, to use the connection again
	minSecret       = 16       // bytes
)

// Headers of a delivery.
const (
	DeliveryHeader  = "Parley-Delivery"
	SignatureHeader = "Parley-Signature"
)

// NewWebhookClient makes a client that follows no redirection: the body is for one address.
func NewWebhookClient() *http.Client {
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// Check returns in one line what is wrong with the settings.
func (w *Webhook) Check() error {
	u, err := url.Parse(w.URL)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return errors.New("the webhook's address must be https://host/path")
	}
	if u.Scheme == "http" && !loopback.IsIP(u.Hostname()) {
		return errors.New("the webhook's address must be https://: codes are secret on the way")
	}
	if len(w.Secret) < minSecret {
		return fmt.Errorf("the webhook's secret must have at least %d bytes", minSecret)
	}
	return nil
}

// Kinds implements Way.
func (*Webhook) Kinds() []identifier.Kind {
	return []identifier.Kind{identifier.Email, identifier.Phone}
}

// delivery is the body of a delivery.
type delivery struct {
	Kind       string `json:"kind"` // email or phone
	Identifier string `json:"identifier"`
	Code       string `json:"code"`
	ExpiresAt  string `json:"expires_at"` // RFC 3339
}

// Send implements Way. A temporary failure is tried again, with growing pauses.
func (w *Webhook) Send(ctx context.Context, m otp.Message) error {
	body, err := json.Marshal(delivery{Kind: string(m.To.Kind()), Identifier: m.To.Value(), Code: m.Code,
		ExpiresAt: m.Expires.UTC().Format(time.RFC3339)})
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	id := rand.Text()
	for n := range webhookAttempts {
		if n > 0 {
			if ended := wait.For(ctx, wait.Jittered(firstPause, longestPause, n-1)); ended != nil {
				break
			}
		}
		var again bool
		if again, err = w.post(ctx, id, body); err == nil || !again {
			break
		}
	}
	return err
}

// post delivers once; again says that an error may pass.
func (w *Webhook) post(ctx context.Context, id string, body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return false, errors.New("webhook: the address is not valid")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(DeliveryHeader, id)
	req.Header.Set(SignatureHeader, Sign(w.Secret, w.Clock(), body))
	res, err := egress.InTime(w.Client, req)
	if err != nil {
		return true, fmt.Errorf("webhook: %w", withoutURL(err))
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer))
	switch {
	case res.StatusCode/100 == 2:
		return false, nil
	case res.StatusCode/100 == 5, res.StatusCode == http.StatusTooManyRequests,
		res.StatusCode == http.StatusRequestTimeout:
		return true, fmt.Errorf("webhook: it answers %d", res.StatusCode)
	}
	return false, fmt.Errorf("webhook: it answers %d", res.StatusCode)
}

// Sign makes the signature of a body at a time.
func Sign(secret string, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	h := hmac.New(sha256.New, []byte(secret))
	_, _ = h.Write([]byte(t + "."))
	_, _ = h.Write(body)
	return "t=" + t + ",v1=" + hex.EncodeToString(h.Sum(nil))
}

// withoutURL takes the address out of an error, in which there may be a secret.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
