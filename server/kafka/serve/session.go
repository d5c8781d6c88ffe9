package serve

import (
	"math"
	"math/rand/v2"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Epochs of fetch sessions with a meaning of their own (KIP-227).
const (
	newSession = 0  // the request has all partitions, and starts a session
	noSession  = -1 // the request has all partitions, and ends the session that it names
)

// firstByID is the first version of Fetch that names topics by their ids.
const firstByID = 13

// session is a fetch session: the partitions that a client fetches, so that its requests and the responses
// name only those that changed. A connection has one at most, which ends with it: clients keep one for each
// connection, and start another one after the code FETCH_SESSION_ID_NOT_FOUND.
type session struct {
	id    int32 // 0: this request only
	epoch int32 // of the next request
	byID  bool
	// parts are in the order in which they are read. Those with records in a response go to the end, so that
	// the others come first when the bytes of the next response do not suffice for all.
	parts []*fetched
	index map[fetchedKey]*fetched
}

type fetchedKey struct {
	topic string   // until version 12
	id    [16]byte // from version 13 on
	part  int32
}

// fetched is a partition of a session.
type fetched struct {
	fetchedKey
	offset   int64
	maxBytes int32
	epoch    int32 // that the client knows; -1: none
	// The values of the last response, or -1: a response leaves out partitions without
	// news.
	sentStart, sentEnd int64
}

// sessionOf returns the session of a request as the request changes it, and whether the response has only
// changes.
func (c *conn) sessionOf(req *kmsg.FetchRequest) (s *session, incremental bool, code int16) {
	byID := req.Version >= firstByID
	switch s = c.session; {
	case req.Version < 7 || req.SessionEpoch == noSession:
		if s != nil && s.id == req.SessionID {
			c.session = nil
		}
		s = &session{byID: byID}
	case req.SessionEpoch == newSession:
		s = &session{id: 1 + rand.Int32N(math.MaxInt32), epoch: 1, byID: byID} //nolint:gosec // names, no secrets
		c.session = s
	case s == nil || s.id != req.SessionID:
		return nil, false, kerr.FetchSessionIDNotFound.Code
	case s.epoch != req.SessionEpoch:
		return nil, false, kerr.InvalidFetchSessionEpoch.Code
	case s.byID != byID:
		return nil, false, kerr.FetchSessionTopicIDError.Code
	default:
		incremental = true
		if s.epoch++; s.epoch <= 0 { // beyond the last one
			s.epoch = 1
		}
	}
	s.update(req)
	if len(s.parts) > maxElements {
		c.session = nil
		return nil, false, kerr.FetchSessionIDNotFound.Code
	}
	if incremental && len(s.parts) == 0 { // there is nothing to wait for: the client starts another one
		c.session, s.id = nil, 0
	}
	return s, incremental, 0
}

// update adds, changes and removes the partitions that a request names.
func (s *session) update(req *kmsg.FetchRequest) {
	if s.index == nil {
		s.index = map[fetchedKey]*fetched{}
	}
	for i := range req.Topics {
		t := &req.Topics[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			key := fetchedKey{topic: t.Topic, id: t.TopicID, part: p.Partition}
			f := s.index[key]
			if f == nil {
				f = &fetched{fetchedKey: key, sentStart: -1, sentEnd: -1}
				s.index[key] = f
				s.parts = append(s.parts, f)
			}
			f.offset, f.maxBytes, f.epoch = p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch
		}
	}
	for i := range req.ForgottenTopics {
		t := &req.ForgottenTopics[i]
		for _, p := range t.Partitions {
			delete(s.index, fetchedKey{topic: t.Topic, id: t.TopicID, part: p})
		}
	}
	if len(req.ForgottenTopics) == 0 {
		return
	}
	kept := s.parts[:0]
	for _, f := range s.parts {
		if s.index[f.fetchedKey] == f {
			kept = append(kept, f)
		}
	}
	clear(s.parts[len(kept):])
	s.parts = kept
}

// rotate puts the partitions with records behind the others.
func (s *session) rotate(served map[*fetched]bool) {
	if len(served) == 0 {
		return
	}
	order := make([]*fetched, 0, len(s.parts))
	for _, last := range []bool{false, true} {
		for _, f := range s.parts {
			if served[f] == last {
				order = append(order, f)
			}
		}
	}
	s.parts = order
}
