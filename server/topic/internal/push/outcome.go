package push

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/parley-chat/parley/server/infra/egress"
)

// verdict is what an outcome says about the message and the webhook.
type verdict int

const (
	taken       verdict = iota // the message is acknowledged
	rejected                   // the message failed, the webhook works
	failed                     // the message or the webhook failed
	unavailable                // the webhook failed, and the message was not checked
	gone                       // the webhook wants nothing any more
	aborted                    // nothing is known: the worker stops, or the address has no room for a connection
)

// outcome is what became of a request.
type outcome struct {
	verdict verdict
	status  int           // of the answer; 0: there was none
	class   string        // of the error, see PushStatus.last_error; empty: there was none
	wait    time.Duration // that the webhook asks for
	etag    string        // of the subscription when the webhook was asked
}

// maxWait bounds what a webhook can ask for with Retry-After.
const maxWait = time.Hour

// answered is the outcome of an answer.
func answered(res *http.Response, now time.Time) outcome {
	o := outcome{status: res.StatusCode, class: "status", verdict: failed}
	switch code := res.StatusCode; {
	case code/100 == 2:
		o.verdict, o.class = taken, ""
	case code/100 == 3:
		o.class = "redirect"
	case code == http.StatusGone:
		o.verdict, o.class = gone, "gone"
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		o.verdict, o.wait = unavailable, retryAfter(res.Header.Get("Retry-After"), now)
	case code == http.StatusBadRequest, code == http.StatusConflict, code == http.StatusRequestEntityTooLarge,
		code == http.StatusUnsupportedMediaType, code == http.StatusUnprocessableEntity:
		o.verdict = rejected
	}
	return o
}

// retryAfter reads the header, which is a number of seconds or a date. Any other text is no wait.
func retryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, maxWait)
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, min(at.Sub(now), maxWait))
	}
	return 0
}

// broken is the outcome of a request without an answer. written says that the webhook may have got it. A
// request that was not written says nothing about the message, and one that waited for a connection to an
// address with others nothing about the webhook.
func broken(err error, written bool) outcome {
	if errors.Is(err, egress.ErrBusy) {
		return outcome{verdict: aborted}
	}
	o := outcome{verdict: unavailable, class: "connect"}
	if written {
		o.verdict, o.class = failed, "connection"
	}
	var no *egress.Refused
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.As(err, &no):
		o.class = "refused_address"
	case errors.As(err, &name):
		o.class = "dns"
	case errors.As(err, &certificate), errors.As(err, &record), errors.As(err, &alert):
		o.class = "tls"
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		o.class = "timeout"
	}
	return o
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}
