package wire

import (
	"bytes"
	"errors"
	"io"
	"net/http"
)

// ownBody sends each request with a body of its own. The SDK closes the body that it
// made as soon as an answer begins; where that comes at once, the transport may not
// have seen the end of the body yet, takes this for a failed write and drops the
// connection in the middle of the answer. A body that can be had again also lets the
// transport repeat a request of which nothing was written, on a connection that the
// other side had closed.
type ownBody struct{ next *http.Client }

// Do implements aws.HTTPClient.
func (c ownBody) Do(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return c.next.Do(r)
	}
	read := bytes.NewBuffer(make([]byte, 0, max(r.ContentLength, 0)+bytes.MinRead)) // enough to grow no more
	_, err := read.ReadFrom(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	b := read.Bytes()
	again := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	own := r.WithContext(r.Context())
	own.GetBody = again
	if own.Body, err = again(); err != nil {
		return nil, err
	}
	return c.next.Do(own)
}
