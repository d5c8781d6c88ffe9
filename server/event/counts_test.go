package event_test

import (
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/event"
)

// K-040: a partition exists for every input and every number of partitions, and is that of
// the bucket as the table of the contract has it.
func TestEveryCount(t *testing.T) {
	for key, bucket := range map[string]int{
		"": 2265, "chat_abc123": 2134, "chat_xyz789": 490, "chat_000001": 2285, "chat_\u6d4b\u8bd5": 1567, "a": 636,
		"chat_" + strings.Repeat("x", 1000): 1312, "chat_\U0001F389\U0001F38A": 301,
	} {
		for n := 1; n <= 4096; n++ {
			if p := event.Partition(key, n); p != bucket%n || p < 0 || p >= n {
				t.Fatalf("%.20q is in partition %d of %d, not in %d", key, p, n, bucket%n)
			}
		}
	}
	for _, key := range parityKeys(2000) {
		for n := 1; n <= 4096; n++ {
			if p := event.Partition(string(key), n); p < 0 || p >= n {
				t.Fatalf("%x is in partition %d of %d", key, p, n)
			}
		}
	}
}

// the buckets that the decision record printed were never those of its algorithm.
// Nobody is to change the hash so that they come out.
func TestTableOfTheRecordIsWrong(t *testing.T) {
	for key, wrong := range map[string]int{
		"": 0, "chat_abc123": 2847, "chat_xyz789": 1023, "chat_000001": 512, "chat_\u6d4b\u8bd5": 3891, "a": 1987,
		"chat_" + strings.Repeat("x", 1000): 2456, "chat_\U0001F389\U0001F38A": 891,
	} {
		if event.Bucket(key) == wrong {
			t.Errorf("%.20q is in bucket %d, which is that of the wrong table", key, wrong)
		}
	}
}
