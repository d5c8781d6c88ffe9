package event_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// Counts of partitions that are compared: of chats (K-042), and of topics, where it may be any.
var (
	parityCounts      = []int{8, 16, 64, 128}
	parityTopicCounts = []int32{3, 7, 12, 100, 255}
)

// parityKeys makes keys of every kind: ids as they are, all remainders of lengths, bytes
// beyond ASCII and beyond what a sign bit hides.
func parityKeys(n int) [][]byte {
	rnd := rand.New(rand.NewPCG(42, 1))
	keys := make([][]byte, n)
	for i := range keys {
		switch i % 4 {
		case 0, 1:
			var id ulid.ULID
			for j := range id {
				id[j] = byte(rnd.Uint32())
			}
			keys[i] = []byte("chat_" + id.String())
		case 2:
			b := make([]byte, rnd.IntN(70))
			for j := range b {
				b[j] = byte(rnd.Uint32())
			}
			keys[i] = b
		default:
			var text []rune
			for range rnd.IntN(20) {
				text = append(text, rune(rnd.IntN(0xd800)))
			}
			keys[i] = []byte(string(text))
		}
	}
	return keys
}

func parityLine(key []byte) string {
	line := strconv.Itoa(event.Bucket(string(key)))
	for _, n := range parityCounts {
		line += " " + strconv.Itoa(event.Partition(string(key), n))
	}
	for _, n := range parityTopicCounts {
		line += " " + strconv.Itoa(int(commitlog.PartitionOf(string(key), n)))
	}
	return line
}

// K-042: the same as the Kafka client that chooses partitions by itself.
func TestPartitionAsFranzGo(t *testing.T) {
	for _, n := range parityCounts {
		p := kgo.StickyKeyPartitioner(nil).ForTopic("t")
		for _, key := range parityKeys(50_000) {
			if len(key) == 0 {
				continue // a client takes any partition for it
			}
			if got, want := event.Partition(string(key), n), p.Partition(&kgo.Record{Key: key}, n); got != want {
				t.Fatalf("%q of %d: %d, the client says %d", key, n, got, want)
			}
		}
	}
	for _, n := range parityTopicCounts {
		p := kgo.StickyKeyPartitioner(nil).ForTopic("t")
		for _, key := range parityKeys(50_000) {
			if len(key) == 0 {
				continue
			}
			if got, want := int(commitlog.PartitionOf(string(key), n)), p.Partition(&kgo.Record{Key: key}, int(n)); got != want {
				t.Fatalf("%q of %d: a topic says %d, the client %d", key, n, got, want)
			}
		}
	}
}

// K-042: the same in Go, in Python, and in Java by Kafka's own function, for 10^6 random
// keys in the long form, and for a tenth of them otherwise. The variable holds the jar of Kafka's clients;
// .tools/parity sets it.
func TestPartitionParity(t *testing.T) {
	jar := os.Getenv("PARLEY_TEST_PARITY")
	if jar == "" {
		t.Skip("not run: PARLEY_TEST_PARITY is not set")
	}
	number := 100_000
	if testkit.Long() {
		number = 1_000_000
	}
	keys := parityKeys(number)
	var in bytes.Buffer
	for _, key := range keys {
		in.WriteString(hex.EncodeToString(key))
		in.WriteByte('\n')
	}
	for name, cmd := range map[string]*exec.Cmd{
		"Python": exec.Command("python3", "testdata/parity/partition.py"),
		"Java":   exec.Command("java", "-cp", jar, "testdata/parity/Partition.java"),
	} {
		t.Run(name, func(t *testing.T) {
			cmd.Stdin = bytes.NewReader(in.Bytes())
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			n, wrong := 0, ""
			for ; lines.Scan(); n++ {
				if n < len(keys) && wrong == "" && lines.Text() != parityLine(keys[n]) {
					wrong = fmt.Sprintf("%x: Go says %s, %s %s", keys[n], parityLine(keys[n]), name, lines.Text())
				}
			}
			_, _ = io.Copy(io.Discard, out)
			if err := cmd.Wait(); err != nil {
				t.Fatalf("%v: %s", err, errs.String())
			}
			if wrong != "" || n != len(keys) {
				t.Fatalf("%d answers for %d keys; %s", n, len(keys), wrong)
			}
		})
	}
}
