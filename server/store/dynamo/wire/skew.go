package wire

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// maxAnswer is how long an answer may take that says something of the clocks.
const maxAnswer = time.Second

// clocks compares this machine's clock with the service's, by the date of answers.
type clocks struct {
	next aws.HTTPClient
	now  func() time.Time
	skew atomic.Int64 // nanoseconds
}

// Do implements aws.HTTPClient.
func (c *clocks) Do(r *http.Request) (*http.Response, error) {
	sent := c.now()
	res, err := c.next.Do(r)
	if err != nil {
		return res, err
	}
	if date, err := http.ParseTime(res.Header.Get("Date")); err == nil {
		if got := c.now(); got.Sub(sent) <= maxAnswer {
			c.skew.Store(int64(skew(sent, got, date)))
		}
	}
	return res, nil
}

// skew is by how much this machine's clock is certainly ahead, negative if it is
// behind: the service wrote the date, which has whole seconds only, at some time
// between the request and its answer.
func skew(sent, got, date time.Time) time.Duration {
	switch {
	case sent.After(date.Add(time.Second)):
		return sent.Sub(date.Add(time.Second))
	case got.Before(date):
		return got.Sub(date)
	default:
		return 0
	}
}
