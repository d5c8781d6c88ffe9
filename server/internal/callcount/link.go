package callcount

import (
	"bufio"
	"io"
	"path"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
)

// Names under which a tap of a link counts beside those of other procedures.
const (
	LinkSend      = "Send"      // envelopes with something in them
	LinkKeepalive = "Keepalive" // those without
	LinkAnswers   = "(answers)" // bytes only
)

// Link taps a server's address for links, without TLS. Requests are named by
// procedure; bytes are those of their frames.
func Link(addr string) (*Tap, error) {
	t := newTap()
	l, err := t.listen()
	if err != nil {
		return nil, err
	}
	t.serve(l, addr, func() session { return session{requests: t.calls, answers: t.answers(LinkAnswers)} })
	return t, nil
}

const frameHeader = 9

// calls reads the frames of an HTTP/2 client.
func (t *Tap) calls(in io.Reader, _ io.Writer) error {
	r := bufio.NewReaderSize(in, 64<<10)
	if _, err := r.Discard(len(http2.ClientPreface)); err != nil {
		return err
	}
	f := http2.NewFramer(nil, r)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.SetMaxReadFrameSize(1<<24 - 1)
	type call struct {
		name string
		size int64
		body []byte
	}
	open := map[uint32]*call{}
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			return err
		}
		h := fr.Header()
		c := open[h.StreamID]
		switch fr := fr.(type) {
		case *http2.MetaHeadersFrame:
			c = &call{name: path.Base(fr.PseudoValue("path"))}
			open[h.StreamID] = c
		case *http2.DataFrame:
			if c != nil {
				c.body = append(c.body, fr.Data()...)
			}
		case *http2.RSTStreamFrame:
			delete(open, h.StreamID)
			continue
		}
		if c == nil {
			continue
		}
		c.size += frameHeader + int64(h.Length)
		if h.Flags.Has(http2.FlagDataEndStream) && (h.Type == http2.FrameData || h.Type == http2.FrameHeaders) {
			delete(open, h.StreamID)
			if c.name == LinkSend {
				var req linkv1.SendRequest
				if proto.Unmarshal(c.body, &req) == nil && len(req.GetDeliveries())+len(req.GetReceipts()) == 0 {
					c.name = LinkKeepalive
				}
			}
			t.add(c.name, Count{Calls: 1, Out: c.size})
		}
	}
}
