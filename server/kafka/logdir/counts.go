package logdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Counts reads how many partitions the topics of a log have: as its list says, or, of topics
// that no list has, as many as have files. There is nothing in a log that is not there yet.
func Counts(dir string) (map[string]int32, error) {
	there, err := partitionsOf(filepath.Join(dir, partitionsDir))
	if err != nil {
		return nil, err
	}
	n := map[string]int32{}
	for p := range there {
		n[p.Topic] = max(n[p.Topic], p.ID+1)
	}
	b, err := os.ReadFile(filepath.Join(dir, topicsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read log: %w", err)
	}
	var list topicList
	if json.Unmarshal(b, &list) == nil { // else the files count
		for _, t := range list.Topics {
			n[t.Name] = int32(t.Partitions)
		}
	}
	return n, nil
}
