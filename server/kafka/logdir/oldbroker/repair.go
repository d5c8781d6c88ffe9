package oldbroker

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

// cluster is the id of all clusters, and version the one of the broker's lists.
const (
	cluster = "parley"
	version = 1
)

// Repair does what a start of the last release did before it opened the files: afterwards a check finds nothing,
// and every offset that a Mark has is there.
func Repair(cfg Config) error {
	_, err := repair(cfg)
	return err
}

// repair returns the transactions that have no end afterwards, too.
func repair(cfg Config) (open []txn, err error) {
	report, err := logdir.Check(cfg.Dir, cfg.Topics, cfg.Marks)
	if err != nil {
		return nil, err
	}
	partitions := filepath.Join(cfg.Dir, "partitions")
	list, err := os.ReadDir(partitions)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	for _, t := range cfg.Topics {
		for id := range t.Partitions {
			p := logdir.Partition{Topic: t.Name, ID: id}
			dir := filepath.Join(partitions, fmt.Sprint(url.PathEscape(t.Name), "-", id))
			segments, whole := report.Segments(p)
			if !whole {
				if err := repairPartition(dir, segments); err != nil {
					return nil, err
				}
			}
			left, err := openTxns(p, dir, segments)
			if err != nil {
				return nil, err
			}
			open = append(open, left...)
		}
	}
	if err := repairEntries(cfg.Dir, report.Unreadable); err != nil {
		return nil, err
	}
	if len(list) == 0 && len(cfg.Marks) == 0 {
		return open, nil // it is new
	}
	return open, repairLists(cfg.Dir, cfg.Topics)
}

// repairPartition writes all files of a partition again, and removes the notes about the old ones.
func repairPartition(dir string, segments []*logdir.Segment) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := remove(filepath.Join(dir, "snapshot.json")); err != nil {
		return err
	}
	for _, s := range segments {
		path := segmentPath(dir, s)
		old, err := read(path)
		if err != nil {
			return err
		}
		var b, index []byte
		for _, p := range s.Pieces {
			if p.To > 0 {
				b = append(b, old[p.From:p.To]...)
			} else {
				b = append(b, filler(p.Fill)...)
			}
		}
		heads(b, func(h head) { index = appendIndex(index, h) })
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(s.Base, ".idx")), index, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func segmentPath(dir string, s *logdir.Segment) string {
	return filepath.Join(dir, fmt.Sprint(s.Base, ".dat"))
}

// repairEntries cuts what cannot be read out of the files of groups and producers. That of groups is there from the
// first start on, so that one which is missing was lost.
func repairEntries(dir string, list []logdir.Unreadable) error {
	for _, name := range []string{"groups.log", "pids.log"} {
		path := filepath.Join(dir, name)
		b, err := read(path)
		if err != nil {
			return err
		}
		var good []byte
		at := 0
		for _, u := range list {
			if u.File == name {
				good = append(good, b[at:u.At]...)
				at = u.At + u.Bytes
			}
		}
		good = append(good, b[at:]...)
		if _, err := os.Stat(path); name == "pids.log" && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.WriteFile(path, good, 0o600); err != nil {
			return err
		}
	}
	return nil
}

type topicList struct {
	Version int         `json:"version"`
	Topics  []topicItem `json:"topics"`
}

type topicItem struct {
	Name       string            `json:"name"`
	ID         []byte            `json:"id"`
	Partitions int               `json:"partitions"`
	Replicas   int               `json:"replicas"`
	Configs    map[string]string `json:"configs,omitempty"`
}

// repairLists writes the lists of a log that is not new again. Topics that are still listed keep their ids.
func repairLists(dir string, topics []logdir.Topic) error {
	windows := filepath.Join(dir, "seq_windows.json")
	b, err := read(windows)
	if err == nil && !json.Valid(b) {
		err = remove(windows)
	}
	if err != nil {
		return err
	}
	if b, err = read(filepath.Join(dir, "topics.json")); err != nil {
		return err
	}
	var list topicList
	if json.Unmarshal(b, &list) != nil {
		list = topicList{}
	}
	list.Version = version
	for _, t := range topics {
		if slices.ContainsFunc(list.Topics, func(item topicItem) bool { return item.Name == t.Name }) {
			continue
		}
		item := topicItem{Name: t.Name, ID: make([]byte, 16), Partitions: int(t.Partitions), Replicas: 1}
		_, _ = rand.Read(item.ID) // never fails
		list.Topics = append(list.Topics, item)
	}
	meta := map[string]any{"version": version, "cluster_id": cluster}
	return errors.Join(writeJSON(filepath.Join(dir, "meta.json"), meta),
		writeJSON(filepath.Join(dir, "topics.json"), list))
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// read returns what a file has: nothing if it is not there.
func read(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// remove removes a file that may be there.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
