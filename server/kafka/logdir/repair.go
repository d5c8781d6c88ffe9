package logdir

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// version is the one of the broker's lists.
const version = 1

type meta struct {
	Version   int    `json:"version"`
	ClusterID string `json:"cluster_id"`
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

// checkLists checks the broker's lists: without one of them it starts an empty log over the
// existing files. Others it can do without, if they are not broken.
func (r *Report) checkLists(used bool, there map[Partition]bool) error {
	if !used {
		return nil
	}
	var m meta
	if why := r.readList(metaFile, &m); why != "" {
		r.list = true
		r.Notes = append(r.Notes, metaFile+" "+why)
	}
	var list topicList
	if why := r.readList(topicsFile, &list); why != "" {
		r.list = true
		r.Notes = append(r.Notes, topicsFile+" "+why)
	} else {
		have, configs := map[string]int{}, map[string]map[string]string{}
		for _, t := range list.Topics {
			have[t.Name], configs[t.Name] = t.Partitions, t.Configs
			if len(t.ID) == len(r.ids[t.Name]) {
				r.ids[t.Name] = [16]byte(t.ID)
			}
		}
		for _, t := range r.topics {
			if n, ok := have[t.Name]; !ok {
				r.list = true
				if r.holds(t, there) {
					r.Notes = append(r.Notes, topicsFile+" has no topic "+t.Name)
				} else {
					r.Updates = append(r.Updates, "topic "+t.Name+" is new")
				}
			} else if n != int(t.Partitions) {
				return fmt.Errorf("topic %s has %d partitions in the log, %d are declared", t.Name, n, t.Partitions)
			} else if !maps.Equal(configs[t.Name], t.Configs) {
				r.list = true
				r.Updates = append(r.Updates, "topic "+t.Name+" has other settings")
			}
		}
	}
	var any map[string]any
	if why := r.readList("seq_windows.json", &any); why != "" && why != missing {
		r.unlist = append(r.unlist, "seq_windows.json")
		r.Notes = append(r.Notes, "seq_windows.json "+why)
	}
	return nil
}

// holds reports whether there is anything of a topic in the log, or was by the marks.
func (r *Report) holds(t Topic, there map[Partition]bool) bool {
	for id := range t.Partitions {
		p := Partition{t.Name, id}
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

// Repair makes the log whole: afterwards a check finds nothing, and every offset that a
// Mark has is there. It may be called again after it was cut off.
func (r *Report) Repair() error {
	if err := r.repairFiles(); err != nil {
		return fmt.Errorf("repair log: %w", err)
	}
	return nil
}

func (r *Report) repairFiles() error {
	for _, p := range r.repair {
		if err := os.MkdirAll(p.dir, 0o700); err != nil {
			return err
		}
		// First: it would stand for files that have changed.
		if err := os.Remove(filepath.Join(p.dir, snapshotFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, s := range p.segs {
			if err := s.write(p.dir); err != nil {
				return err
			}
		}
		if err := syncDir(p.dir); err != nil {
			return err
		}
	}
	if len(r.repair) > 0 {
		if err := syncDir(filepath.Join(r.dir, partitionsDir)); err != nil {
			return err
		}
	}
	for _, name := range r.unlist {
		if err := os.Remove(filepath.Join(r.dir, name)); err != nil {
			return err
		}
	}
	if err := r.writeEntries(); err != nil {
		return err
	}
	if r.list {
		return r.writeLists()
	}
	return nil
}

// write writes what has changed of a segment.
func (s *segment) write(dir string) error {
	path := s.path(dir, segmentSuffix)
	if s.repair {
		old, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		var b []byte
		for _, p := range s.pieces {
			if p.to > 0 {
				b = append(b, old[p.from:p.to]...)
			} else {
				b = append(b, filler(p.fill)...)
			}
		}
		if err := replace(path, b); err != nil {
			return err
		}
	}
	if s.rebuildIndex {
		return replace(s.path(dir, IndexSuffix), s.index)
	}
	return nil
}

// writeLists makes the lists again. Topics that are still listed keep their ids.
func (r *Report) writeLists() error {
	if err := replaceJSON(filepath.Join(r.dir, metaFile), meta{version, "parley"}); err != nil {
		return err
	}
	var list topicList
	_ = r.readList(topicsFile, &list) // what cannot be read is none
	list.Version = version
	for _, t := range r.topics {
		i := slices.IndexFunc(list.Topics, func(item topicItem) bool { return item.Name == t.Name })
		if i >= 0 {
			list.Topics[i].Configs = t.Configs
			continue
		}
		item := topicItem{Name: t.Name, ID: make([]byte, 16), Partitions: int(t.Partitions), Replicas: 1, Configs: t.Configs}
		_, _ = rand.Read(item.ID) // never fails
		list.Topics = append(list.Topics, item)
	}
	if err := replaceJSON(filepath.Join(r.dir, topicsFile), list); err != nil {
		return err
	}
	return syncDir(r.dir)
}

func replaceJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return replace(path, b)
}

// replace puts a file in the place of another, or leaves that one.
func replace(path string, b []byte) error {
	tmp := path + ".tmp" // the broker removes such files
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
