package logdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// topicList is the broker's list of topics, as far as it is read.
type topicList struct {
	Topics []struct {
		Name       string `json:"name"`
		ID         []byte `json:"id"`
		Partitions int    `json:"partitions"`
	} `json:"topics"`
}

// checkLists checks the broker's lists: without one of the first two it started an empty log over the
// existing files. The third it could do without, if it was not broken.
func (r *Report) checkLists(used bool, there map[Partition]bool) error {
	if !used {
		return nil
	}
	for _, name := range []string{metaFile, "seq_windows.json"} {
		var any map[string]any
		if why := r.readList(name, &any); why != "" && (name == metaFile || why != missing) {
			r.Notes = append(r.Notes, name+" "+why)
		}
	}
	var list topicList
	if why := r.readList(topicsFile, &list); why != "" {
		r.Notes = append(r.Notes, topicsFile+" "+why)
		return nil
	}
	have := map[string]int{}
	for _, t := range list.Topics {
		have[t.Name] = t.Partitions
		if len(t.ID) == len(r.ids[t.Name]) {
			r.ids[t.Name] = [16]byte(t.ID)
		}
	}
	for _, t := range r.topics {
		n, ok := have[t.Name]
		if !ok && r.holds(t, there) {
			r.Notes = append(r.Notes, topicsFile+" has no topic "+t.Name)
		}
		if ok && n != int(t.Partitions) {
			return fmt.Errorf("topic %s has %d partitions in the log, %d are declared", t.Name, n, t.Partitions)
		}
	}
	return nil
}

// holds reports whether there is anything of a topic in the log, or was by the marks.
func (r *Report) holds(t Topic, there map[Partition]bool) bool {
	for id := range t.Partitions {
		p := Partition{Topic: t.Name, ID: id}
		if _, marked := r.Marks[p]; there[p] || marked {
			return true
		}
	}
	return false
}

const missing = "is missing"

// readList reads one, and says what is wrong with it.
func (r *Report) readList(name string, v any) string {
	b, err := os.ReadFile(filepath.Join(r.dir, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing
	case err != nil || json.Unmarshal(b, v) != nil:
		return "cannot be read"
	}
	return ""
}
