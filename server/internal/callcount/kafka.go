package callcount

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxKafka bounds a request or an answer, in bytes.
const maxKafka = 64 << 20

// Kafka taps brokers, host:port, which must be all of the cluster. Requests are named by
// their kind, Produce. Clients get the addresses of the taps; after a leader has moved
// they may get those of the brokers.
func Kafka(brokers ...string) (*Tap, error) {
	t := newTap()
	taps := map[string]*net.TCPAddr{}
	for _, b := range brokers {
		l, err := t.listen()
		if err != nil {
			t.Close()
			return nil, err
		}
		taps[b] = l.Addr().(*net.TCPAddr)
	}
	for i, b := range brokers {
		t.serve(t.listeners[i], b, func() session {
			k := &kafka{t: t, taps: taps, asked: map[int32]asked{}}
			return session{requests: k.requests, answers: k.answers, rewrites: true}
		})
	}
	return t, nil
}

// kafka is one connection.
type kafka struct {
	t    *Tap
	taps map[string]*net.TCPAddr

	mu    sync.Mutex
	asked map[int32]asked // by correlation id
}

type asked struct{ key, version int16 }

func frame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < 4 || n > maxKafka {
		return nil, fmt.Errorf("wiretap: %d bytes from Kafka", n)
	}
	b := make([]byte, 4+n)
	copy(b, size[:])
	_, err := io.ReadFull(r, b[4:])
	return b, err
}

func (k *kafka) requests(in io.Reader, _ io.Writer) error {
	// No reader with a buffer: the bytes that were read have been forwarded. Every request
	// has more than a head, so that none is answered before it is known here.
	for {
		var head [12]byte // size, key, version, correlation id
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		n := int64(binary.BigEndian.Uint32(head[:4]))
		if n < 8 || n > maxKafka {
			return fmt.Errorf("wiretap: %d bytes for Kafka", n)
		}
		a := asked{int16(binary.BigEndian.Uint16(head[4:])), int16(binary.BigEndian.Uint16(head[6:]))}
		k.mu.Lock()
		k.asked[int32(binary.BigEndian.Uint32(head[8:]))] = a
		k.mu.Unlock()
		if _, err := io.CopyN(io.Discard, in, n-8); err != nil {
			return err
		}
		k.t.add(kmsg.Key(a.key).Name(), Count{Calls: 1, Out: n + 4})
	}
}

var errUnasked = errors.New("wiretap: an answer that nobody asked for")

func (k *kafka) answers(in io.Reader, out io.Writer) error {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		b, err := frame(r)
		if err != nil {
			return err
		}
		id := int32(binary.BigEndian.Uint32(b[4:]))
		k.mu.Lock()
		a, ok := k.asked[id]
		delete(k.asked, id)
		k.mu.Unlock()
		if !ok {
			return errUnasked
		}
		k.t.add(kmsg.Key(a.key).Name(), Count{In: int64(len(b))})
		if b, err = k.rewrite(a, b); err != nil {
			return err
		}
		if _, err := out.Write(b); err != nil {
			return err
		}
	}
}

// rewrite puts the taps in the place of brokers.
func (k *kafka) rewrite(a asked, b []byte) ([]byte, error) {
	var res kmsg.Response
	switch kmsg.Key(a.key) {
	case kmsg.Metadata, kmsg.FindCoordinator, kmsg.DescribeCluster:
		res = kmsg.ResponseForKey(a.key)
		res.SetVersion(a.version)
	default:
		return b, nil
	}
	head := 8 // size and correlation id
	if res.IsFlexible() {
		head++ // no tags
	}
	if len(b) < head {
		return nil, io.ErrUnexpectedEOF
	}
	if err := res.ReadFrom(b[head:]); err != nil {
		return nil, err
	}
	switch res := res.(type) {
	case *kmsg.MetadataResponse:
		for i := range res.Brokers {
			k.move(&res.Brokers[i].Host, &res.Brokers[i].Port)
		}
	case *kmsg.FindCoordinatorResponse:
		k.move(&res.Host, &res.Port)
		for i := range res.Coordinators {
			k.move(&res.Coordinators[i].Host, &res.Coordinators[i].Port)
		}
	case *kmsg.DescribeClusterResponse:
		for i := range res.Brokers {
			k.move(&res.Brokers[i].Host, &res.Brokers[i].Port)
		}
	}
	b = res.AppendTo(b[:head:head])
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b, nil
}

func (k *kafka) move(host *string, port *int32) {
	if to, ok := k.taps[net.JoinHostPort(*host, strconv.Itoa(int(*port)))]; ok {
		*host, *port = to.IP.String(), int32(to.Port)
	}
}
