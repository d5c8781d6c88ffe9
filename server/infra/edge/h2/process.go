package h2

import (
	"time"

	"golang.org/x/net/http2"
)

// process takes a frame in.
func (c *conn) process(f http2.Frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard = time.Now()
	if s, ok := f.(*http2.SettingsFrame); !c.settled {
		if !ok || s.IsAck() {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.settled = true
		c.timer.Reset(pingAfter)
	}
	id := f.Header().StreamID
	switch f := f.(type) {
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.MetaHeadersFrame:
		return c.headers(f)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(id, int64(f.Increment))
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.control.WritePing(true, f.Data)
		}
		if f.Data == c.ping {
			c.pinged = time.Time{}
		}
	case *http2.RSTStreamFrame:
		if id > c.seen {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		if st := c.streams[id]; st != nil {
			c.close(st, errReset)
		}
	case *http2.GoAwayFrame:
		c.leave()
	case *http2.PriorityFrame:
		if f.StreamDep == id {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // others mean nothing to a server
}

func (c *conn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if f.NumSettings() > 100 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSize(min(s.Val, tableSize))
		case http2.SettingMaxFrameSize:
			c.maxFrame = min(int(s.Val), maxOut)
		case http2.SettingInitialWindowSize:
			more := int64(s.Val) - c.initial
			c.initial = int64(s.Val)
			for _, st := range c.streams {
				if st.window += more; st.window > maxWindow {
					return http2.ConnectionError(http2.ErrCodeFlowControl)
				}
			}
			c.wake.Broadcast()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.control.WriteSettingsAck()
}

const maxWindow = 1<<31 - 1

func (c *conn) windowUpdate(id uint32, more int64) error {
	if id == 0 {
		if c.window += more; c.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
	} else if id > c.seen {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	} else if st := c.streams[id]; st != nil {
		if st.window += more; st.window > maxWindow {
			return http2.StreamError{StreamID: id, Code: http2.ErrCodeFlowControl}
		}
	}
	c.wake.Broadcast()
	return nil
}

func (c *conn) data(f *http2.DataFrame) error {
	id, size := f.StreamID, int64(f.Length)
	if id > c.seen {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if c.owed -= size; c.owed < 0 {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	st := c.streams[id]
	if st == nil || st.body.ended {
		c.giveBack(nil, size)
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeStreamClosed}
	}
	data := f.Data()
	st.body.came += int64(len(data))
	if st.body.owed -= size; st.body.owed < 0 {
		c.giveBack(nil, size)
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeFlowControl}
	}
	if st.body.length >= 0 && (st.body.came > st.body.length || f.StreamEnded() && st.body.came < st.body.length) {
		c.giveBack(nil, size)
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	if st.body.closed { // no handler reads it
		c.giveBack(nil, size)
	} else {
		if b := &st.body; b.at > 0 && b.at >= len(b.rest()) { // or what was read would never go
			b.data, b.at = b.data[:copy(b.data, b.rest())], 0
		}
		st.body.data = append(st.body.data, data...)
		c.giveBack(st, size-int64(len(data))) // padding
	}
	if f.StreamEnded() {
		c.bodyEnded(st)
	}
	c.wake.Broadcast()
	return nil
}

// bodyEnded says that the client has sent all of a request. The caller holds mu.
func (c *conn) bodyEnded(st *stream) {
	st.body.ended = true
	if st.answered {
		c.close(st, errDone)
	}
}

// giveBack lets the client send bytes again, those of a stream's body or only those of the
// connection. The caller holds mu.
func (c *conn) giveBack(st *stream, n int64) {
	if c.taken += n; c.taken >= connWindow/4 {
		_ = c.control.WriteWindowUpdate(0, uint32(c.taken))
		c.owed, c.taken = c.owed+c.taken, 0
	}
	if st == nil || st.body.ended {
		return
	}
	if st.body.taken += n; st.body.taken >= streamWindow/4 {
		_ = c.control.WriteWindowUpdate(st.id, uint32(st.body.taken))
		st.body.owed, st.body.taken = st.body.owed+st.body.taken, 0
	}
}
