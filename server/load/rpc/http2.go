package rpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	streamWindow     = 4 << 20 // bytes that a server may send on a stream before it must wait
	connectionWindow = 1 << 30
	defaultWindow    = 65_535 // of HTTP/2
	defaultStreams   = 100    // on a connection to a server that names no number
	readBuffer       = 4 << 10
	headerTable      = 4 << 10
)

// errClosed is why calls fail on a connection that its owner closed.
var errClosed = errors.New("the connection was closed")

// Conn is an HTTP/2 connection, in cleartext or on TLS.
type Conn struct {
	target Target
	nc     net.Conn
	framer *http2.Framer // the reader reads, writes are under mu
	dec    *hpack.Decoder

	writers atomic.Int32 // that have something to write; the last one flushes

	mu         sync.Mutex
	out        *bufio.Writer
	enc        *hpack.Encoder
	block      bytes.Buffer
	next       uint32
	window     int64 // bytes that may be sent
	streamSize int64 // bytes that may be sent at once on a stream
	maxStreams int   // one, until the server's settings are known
	settings   bool  // they are
	streams    map[uint32]*exchange
	changed    *sync.Cond
	err        error // why nothing more can be called

	// Of the reader.
	reading *exchange // whose headers are being read
	ends    bool      // with these headers
	unread  uint32    // bytes not yet returned to the window
}

// exchange is a request and its answer.
type exchange struct {
	id       uint32
	response response
	body     []byte // a unary answer, or the beginning of a stream's next message
	unread   uint32
	message  func([]byte) // of a stream; nil for a unary call
	end      func(error)
}

// Dial opens an HTTP/2 connection.
func (t Target) Dial(ctx context.Context) (*Conn, error) {
	nc, err := t.dial(ctx, "h2")
	if err != nil {
		return nil, err
	}
	c := &Conn{
		target: t, nc: nc, out: bufio.NewWriterSize(nc, readBuffer), next: 1, window: defaultWindow,
		streamSize: defaultWindow, maxStreams: 1, streams: map[uint32]*exchange{},
	}
	c.changed = sync.NewCond(&c.mu)
	c.framer = http2.NewFramer(c.out, bufio.NewReaderSize(nc, readBuffer))
	c.framer.SetReuseFrames()
	c.enc = hpack.NewEncoder(&c.block)
	c.dec = hpack.NewDecoder(headerTable, func(f hpack.HeaderField) {
		if c.reading != nil {
			c.reading.response.set(f.Name, f.Value)
		}
	})
	if err := c.begin(); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	go c.read()
	return c, nil
}

func (c *Conn) begin() error {
	_, err := c.out.WriteString(http2.ClientPreface)
	return errors.Join(err,
		c.framer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow}),
		c.framer.WriteWindowUpdate(0, connectionWindow-defaultWindow), c.out.Flush())
}

// Close ends the connection and with it all streams.
func (c *Conn) Close() { c.fail(errClosed) }

// Call implements Caller.
func (c *Conn) Call(ctx context.Context, token, procedure string, message []byte) ([]byte, error) {
	done := make(chan error, 1)
	ex := &exchange{end: func(err error) { done <- err }}
	if c.target.Protocol == GRPC {
		message = envelope(make([]byte, 0, envelopeSize+len(message)), message)
	}
	if err := c.start(ex, token, procedure, message); err != nil {
		return nil, err
	}
	select {
	case err := <-done:
		if err != nil {
			return nil, err
		}
		return c.target.answer(ex.response, ex.body)
	case <-ctx.Done():
		c.cancel(ex)
		return nil, ctx.Err()
	}
}

// Stream opens a stream with its one request. Each message is given to one function, and
// the end, once, to the other: nil if the server ended the stream in good order. A message
// is valid during the call only.
func (c *Conn) Stream(token, procedure string, request []byte, message func([]byte), end func(error)) error {
	return c.start(&exchange{message: message, end: end}, token, procedure, envelope(nil, request))
}

// start sends a request, once there is room for it.
func (c *Conn) start(ex *exchange, token, procedure string, body []byte) error {
	c.writers.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && (len(c.streams) >= c.maxStreams || c.window < int64(len(body))) {
		c.writers.Add(-1)
		_ = c.out.Flush() // an error is the reader's, too
		c.changed.Wait()
		c.writers.Add(1)
	}
	err := c.err
	if err == nil && int64(len(body)) > c.streamSize {
		err = fmt.Errorf("a request of %d bytes is more than the server takes at once", len(body))
	}
	if err == nil {
		ex.id = c.next
		c.next += 2
		c.streams[ex.id] = ex
		c.window -= int64(len(body))
		err = errors.Join(c.writeHeaders(ex, token, procedure, len(body)), c.framer.WriteData(ex.id, true, body))
	}
	if c.writers.Add(-1) == 0 {
		err = errors.Join(err, c.out.Flush())
	}
	if err != nil {
		delete(c.streams, ex.id)
	}
	return err
}

func (c *Conn) writeHeaders(ex *exchange, token, procedure string, size int) error {
	c.block.Reset()
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: c.target.scheme()}, {Name: ":path", Value: procedure},
		{Name: ":authority", Value: c.target.Address}, {Name: "content-type", Value: c.target.contentType(ex.message != nil)},
		{Name: "authorization", Value: "Bearer " + token}, {}, {},
	}
	if c.target.Protocol == GRPC {
		fields[6] = hpack.HeaderField{Name: "te", Value: "trailers"}
		fields = fields[:7]
	} else {
		fields[6] = hpack.HeaderField{Name: "connect-protocol-version", Value: "1"}
		fields[7] = hpack.HeaderField{Name: "content-length", Value: strconv.Itoa(size)}
	}
	for _, f := range fields {
		if err := c.enc.WriteField(f); err != nil {
			return err
		}
	}
	p := http2.HeadersFrameParam{StreamID: ex.id, BlockFragment: c.block.Bytes(), EndHeaders: true}
	return c.framer.WriteHeaders(p)
}

// write writes frames outside of requests.
func (c *Conn) write(frames func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(frames(), c.out.Flush())
}

func (c *Conn) cancel(ex *exchange) {
	c.forget(ex.id)
	_ = c.write(func() error { return c.framer.WriteRSTStream(ex.id, http2.ErrCodeCancel) }) // the reader sees it, too
}

func (c *Conn) forget(id uint32) *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	ex := c.streams[id]
	delete(c.streams, id)
	c.changed.Broadcast()
	return ex
}

func (c *Conn) find(id uint32) *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// finish ends an exchange. A refusal of a stream is its error.
func (c *Conn) finish(id uint32, err error) {
	ex := c.forget(id)
	if ex == nil {
		return
	}
	if err == nil && ex.message != nil {
		err = c.target.refusal(ex.response, ex.body)
	}
	ex.end(err)
}

// fail ends the connection and everything on it.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	err = c.err
	left := c.streams
	c.streams = map[uint32]*exchange{}
	c.changed.Broadcast()
	c.mu.Unlock()
	_ = c.nc.Close() // it may be closed
	for _, ex := range left {
		ex.end(err)
	}
}

func (c *Conn) read() {
	for {
		f, err := c.framer.ReadFrame()
		if err == nil {
			err = c.handle(f)
		}
		if err != nil {
			c.fail(fmt.Errorf("connection to %s: %w", c.target.Address, err))
			return
		}
	}
}

func (c *Conn) handle(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.DataFrame:
		return c.handleData(f)
	case *http2.HeadersFrame:
		c.reading, c.ends = c.find(f.StreamID), f.StreamEnded()
		return c.handleHeaders(f.StreamID, f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.ContinuationFrame:
		return c.handleHeaders(f.StreamID, f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.SettingsFrame:
		return c.handleSettings(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.write(func() error { return c.framer.WritePing(true, f.Data) })
		}
	case *http2.WindowUpdateFrame: // those of streams are not needed: each sends one body that fits
		if f.StreamID == 0 {
			c.mu.Lock()
			c.window += int64(f.Increment)
			c.changed.Broadcast()
			c.mu.Unlock()
		}
	case *http2.RSTStreamFrame:
		c.finish(f.StreamID, fmt.Errorf("the server reset a stream: %s", f.ErrCode))
	case *http2.GoAwayFrame:
		c.mu.Lock()
		if c.err == nil {
			c.err = errors.New("the server takes no more calls on this connection")
		}
		c.changed.Broadcast()
		c.mu.Unlock()
	}
	return nil
}

func (c *Conn) handleSettings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.mu.Lock()
	if v, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
		c.maxStreams = int(v)
	} else if !c.settings {
		c.maxStreams = defaultStreams
	}
	c.settings = true
	if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
		c.streamSize = int64(v)
	}
	c.changed.Broadcast()
	c.mu.Unlock()
	return c.write(c.framer.WriteSettingsAck)
}

func (c *Conn) handleHeaders(id uint32, block []byte, complete bool) error {
	if _, err := c.dec.Write(block); err != nil {
		return err
	}
	if !complete {
		return nil
	}
	if err := c.dec.Close(); err != nil {
		return err
	}
	if c.reading = nil; c.ends {
		c.finish(id, nil)
	}
	return nil
}

func (c *Conn) handleData(f *http2.DataFrame) error {
	n := f.Length // with padding
	c.unread += n
	ex := c.find(f.StreamID)
	if ex != nil {
		if err := ex.take(f.Data(), c.target.Protocol); err != nil {
			return err
		}
		ex.unread += n
	}
	if err := c.giveBack(ex, f.StreamEnded()); err != nil {
		return err
	}
	if f.StreamEnded() {
		c.finish(f.StreamID, nil)
	}
	return nil
}

// giveBack lets the server send again what was read.
func (c *Conn) giveBack(ex *exchange, ended bool) error {
	stream := ex != nil && !ended && ex.unread >= streamWindow/2
	if c.unread < connectionWindow/2 && !stream {
		return nil
	}
	return c.write(func() (err error) {
		if c.unread >= connectionWindow/2 {
			err = c.framer.WriteWindowUpdate(0, c.unread)
			c.unread = 0
		}
		if stream {
			err = errors.Join(err, c.framer.WriteWindowUpdate(ex.id, ex.unread))
			ex.unread = 0
		}
		return err
	})
}

// take takes data of an answer. Complete messages of a stream are passed on at once.
func (ex *exchange) take(data []byte, p Protocol) error {
	if len(ex.body)+len(data) > maxAnswer {
		return fmt.Errorf("an answer of more than %d bytes", maxAnswer)
	}
	if ex.message == nil || ex.response.status != 200 {
		ex.body = append(ex.body, data...)
		return nil
	}
	if len(ex.body) > 0 {
		ex.body = append(ex.body, data...)
		data = ex.body
	}
	for len(data) >= envelopeSize {
		size := envelopeSize + int(binary.BigEndian.Uint32(data[1:]))
		if size > maxAnswer {
			return fmt.Errorf("a message of %d bytes", size)
		}
		if len(data) < size {
			break
		}
		if data[0] == 0 {
			ex.message(data[envelopeSize:size])
		} else if err := ex.last(data[:size], p); err != nil {
			return err
		}
		data = data[size:]
	}
	ex.body = append(ex.body[:0], data...)
	return nil
}

// last takes a message with flags: of Connect the end of the stream, whose error stands for
// the whole.
func (ex *exchange) last(data []byte, p Protocol) error {
	if p != Connect || data[0] != 2 {
		return fmt.Errorf("a message with the flags %#x", data[0])
	}
	if err := endOfStream(data[envelopeSize:]); err != nil {
		end := ex.end
		ex.end = func(error) { end(err) }
	}
	return nil
}
