package event

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"buf.build/go/protovalidate"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event/eventtest"
)

func TestKafkaGoldens(t *testing.T) { // K-038
	for in, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(Murmur2(in)); got != want {
			t.Errorf("Murmur2(%q) = %d, want %d", in, got, want)
		}
	}
}

func TestPartitionVectors(t *testing.T) { // K-039, K-041
	for _, v := range eventtest.Vectors() {
		if got := Murmur2(v.Key); got != v.Hash {
			t.Errorf("Murmur2(%.20q) = %#x, want %#x", v.Key, got, v.Hash)
		}
		if got := Bucket(v.Key); got != v.Bucket {
			t.Errorf("Bucket(%.20q) = %d, want %d", v.Key, got, v.Bucket)
		}
		if len(v.Partitions) != 4 || Shard(v.Key) != v.Partitions[Shards] {
			t.Errorf("%.20q: shard %d of %v", v.Key, Shard(v.Key), v.Partitions)
		}
		for n, want := range v.Partitions {
			if got := Partition(v.Key, n); got != want {
				t.Errorf("Partition(%.20q, %d) = %d, want %d", v.Key, n, got, want)
			}
		}
	}
}

// K-043: every package that chooses a partition has the test of the vectors, which runs
// with every change.
func TestProducersHaveTheVectors(t *testing.T) {
	chooses, tests := map[string]bool{}, map[string]bool{}
	for _, root := range []string{"../../server", "../../workers"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			dir := filepath.Dir(path)
			if strings.HasSuffix(path, "_test.go") {
				tests[dir] = tests[dir] || bytes.Contains(text, []byte("func TestPartitionVectors(")) &&
					bytes.Contains(text, []byte("eventtest.Vectors()"))
			} else if bytes.Contains(text, []byte("event.Partition(")) {
				chooses[dir] = true
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(chooses) < 2 {
		t.Fatalf("only %v choose partitions", chooses)
	}
	for dir := range chooses {
		if !tests[dir] {
			t.Errorf("%s chooses partitions and has no TestPartitionVectors", dir)
		}
	}
}

func TestPartitionNegativeControls(t *testing.T) {
	var utf16le []byte
	for _, u := range utf16.Encode([]rune("chat_abc123")) {
		utf16le = binary.LittleEndian.AppendUint16(utf16le, u)
	}
	var latin1 []rune
	for _, b := range []byte("chat_\u6d4b\u8bd5") {
		latin1 = append(latin1, rune(b))
	}
	for in, want := range map[string]int{string(utf16le): 1280, "chat_abc123\x00": 1808, string(latin1): 3553} {
		if got := Bucket(in); got != want {
			t.Errorf("Bucket(%q) = %d, want %d", in, got, want)
		}
	}
}

func FuzzBucket(f *testing.F) { // K-040, K-046, K-047
	f.Add("chat_abc123")
	f.Fuzz(func(t *testing.T, key string) {
		b := Bucket(key)
		if b < 0 || b >= Buckets || Shard(key) != b%Shards {
			t.Fatalf("bucket %d, shard %d", b, Shard(key))
		}
		for n := 1; n <= Buckets; n *= 2 {
			p, q := Partition(key, n), Partition(key, 2*n)
			if p < 0 || p >= n || (n < Buckets && q != p && q != p+n) {
				t.Fatalf("partition %d of %d, %d of %d", p, n, q, 2*n)
			}
		}
	})
}

func TestBucketCountIsFixed(t *testing.T) { // K-035
	if Buckets != 4096 || Shards != 64 {
		t.Fatal("these numbers decide where every event is; they never change")
	}
}

func samples() []Event {
	at := time.UnixMilli(1_700_000_000_123).UTC()
	meta := func(typ string) *eventv1.EventMetadata {
		return Metadata{
			Type: typ, ID: "evt_1", ChatID: "chat_1", At: at, Origin: Origin{Generation: "g", Producer: "p"},
			Cause:   Cause{Actor: "user_1"}.Complete("evt_1"),
			Version: 3, MembershipVersion: 2,
		}.Proto()
	}
	created := meta(TypeChatCreated)
	return []Event{
		&eventv1.ChatCreated{
			Metadata: created, ChatId: "chat_1", ChatType: eventv1.ChatType_CHAT_TYPE_GROUP, Name: "n",
			CreatedBy: "user_1", MemberCount: 2, InitialMembers: []string{"user_1", "user_2"}, CreatedAt: created.GetEventTime(),
		},
		&eventv1.ChatUpdated{
			Metadata: meta(TypeChatUpdated), ChatId: "chat_1", Name: "m", UpdatedBy: "user_1",
			UpdatedAt: created.GetEventTime(), CreatedAt: created.GetEventTime(), CreatedBy: "user_1",
		},
		&eventv1.MembershipChanged{
			Metadata: meta(TypeMembershipChanged), ChatId: "chat_1", UserId: "user_2",
			ChangedBy: "user_1", ChangedAt: created.GetEventTime(), MemberCountAfter: 2,
		},
		&eventv1.MessagePersisted{
			Metadata: meta(TypeMessagePersisted), ChatId: "chat_1", MessageId: "msg_1", Sequence: 1,
			SenderId: "user_1", Content: "hi", ClientMessageId: "c", CreatedAt: created.GetEventTime(),
		},
	}
}

func TestRoundTrip(t *testing.T) {
	for _, e := range samples() {
		b, err := Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Unmarshal(SpecOf(e).Type, b)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(e, got) {
			t.Errorf("%v came back as %v", e, got)
		}
		again, err := Marshal(got)
		if err != nil || !bytes.Equal(b, again) {
			t.Errorf("%s is not encoded deterministically (%v)", TypeOf(e), err)
		}
		if err := protovalidate.Validate(e); err != nil {
			t.Errorf("%s: %v", TypeOf(e), err)
		}
	}
	if _, err := Unmarshal("Nothing", nil); err == nil {
		t.Error("an unknown type was decoded")
	}
	if _, err := Unmarshal(TypeMessagePersisted, []byte{0xff}); err == nil {
		t.Error("garbage was decoded")
	}
	if _, err := Marshal(nil); err == nil {
		t.Error("nil was encoded")
	}
}

// The catalogue has every message that declares itself as an event, and each
// declaration is complete and names an existing key.
func TestCatalogueIsClosed(t *testing.T) {
	declared := map[string]bool{}
	protoregistry.GlobalFiles.RangeFilesByPackage("parley.event.v1", func(fd protoreflect.FileDescriptor) bool {
		for i := range fd.Messages().Len() {
			md := fd.Messages().Get(i)
			if !proto.HasExtension(md.Options(), eventv1.E_Event) {
				continue
			}
			opts := proto.GetExtension(md.Options(), eventv1.E_Event).(*eventv1.EventOptions)
			declared[opts.GetEventType()] = true
			spec := catalogue[opts.GetEventType()].spec
			if spec.Topic == "" || spec.Version < 1 || spec.Type != string(md.Name()) ||
				md.Fields().ByName(protoreflect.Name(spec.Key)) == nil {
				t.Errorf("%s: %+v", md.FullName(), spec)
			}
		}
		return true
	})
	if len(declared) != len(catalogue) || len(Specs()) != len(catalogue) {
		t.Errorf("declared %v, catalogue has %d", declared, len(catalogue))
	}
	for _, e := range samples() {
		if s := SpecOf(e); s.Type != TypeOf(e) || s.Type != string(e.ProtoReflect().Descriptor().Name()) ||
			!declared[s.Type] {
			t.Errorf("%T: %+v", e, s)
		}
	}
}

// The partition of a key is the one that Kafka's own partitioner gives it (K-042).
func TestPartitionIsKafkas(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 2))
	kafkas := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	for range 250_000 {
		key := make([]byte, rng.IntN(40)+1)
		for i := range key {
			key[i] = byte(rng.Uint32())
		}
		for _, n := range []int{8, 16, 64, 128} {
			want := kafkas.Partition(&kgo.Record{Key: key}, n)
			if got := Partition(string(key), n); got != want {
				t.Fatalf("Partition(%x, %d) = %d, not %d", key, n, got, want)
			}
		}
	}
}
