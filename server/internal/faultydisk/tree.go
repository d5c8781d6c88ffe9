package faultydisk

import (
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"syscall"
	"time"
)

const pageSize = 4096

type page [pageSize]byte

// content is what a file holds. A page that is missing reads as zeros.
type content struct {
	size  int64
	pages map[int64]*page
}

// inode is a file or a directory, in two states: as calls see it, and as it was last synced.
// Pages are shared by both states and never written to while they are: a write to a page that
// is not dirty replaces it by a copy.
type inode struct {
	id     uint64
	dir    bool
	mode   uint32 // permissions
	mtime  time.Time
	parent *inode // where it was last linked
	name   string
	links  int
	opens  int

	data, disk content
	dirty      map[int64]bool // pages of data that were written or removed since the last sync
	reserved   int64          // pages that were allocated ahead

	entries, synced map[string]*inode
	changes         []change // of entries, since the last sync, in their order
}

// change is a change of a directory. A rename within it is one change, so it survives a power
// loss as a whole or not at all.
type change struct {
	remove, add string // names; empty: none
	node        *inode // that add names
}

func (c change) apply(entries map[string]*inode) {
	delete(entries, c.remove)
	if c.add != "" {
		entries[c.add] = c.node
	}
}

// blocks is how many pages of the disk an inode takes, itself included.
func (n *inode) blocks() int64 { return 1 + max(int64(len(n.data.pages)), n.reserved) }

// path is relative to the root.
func (n *inode) path() string {
	if n.parent == nil {
		return ""
	}
	return path.Join(n.parent.path(), n.name)
}

// tree is a file system in memory. It does no locking.
type tree struct {
	nodes    map[uint64]*inode
	root     *inode
	next     uint64
	capacity int64 // pages
	others   int64 // pages that others have
	used     int64 // pages
}

func newTree(capacity int64) *tree {
	t := &tree{nodes: map[uint64]*inode{}, next: 1, capacity: capacity / pageSize}
	t.root = t.make(true, 0o700)
	t.root.links = 1
	return t
}

// make adds an inode that has no name yet.
func (t *tree) make(dir bool, mode uint32) *inode {
	n := &inode{id: t.next, dir: dir, mode: mode & 0o7777, mtime: time.Now()}
	if t.next++; dir {
		n.entries, n.synced = map[string]*inode{}, map[string]*inode{}
	} else {
		n.data.pages, n.disk.pages, n.dirty = map[int64]*page{}, map[int64]*page{}, map[int64]bool{}
	}
	t.nodes[n.id] = n
	t.used += n.blocks()
	return n
}

func (t *tree) free() int64 { return max(0, t.capacity-t.others-t.used) }

// create adds a file or directory. A disk without a free page has no room for it.
func (t *tree) create(parent *inode, name string, dir bool, mode uint32) (*inode, error) {
	if parent.entries[name] != nil {
		return nil, syscall.EEXIST
	}
	if t.free() == 0 {
		return nil, syscall.ENOSPC
	}
	n := t.make(dir, mode)
	t.change(parent, change{add: name, node: n})
	return n, nil
}

// change changes a directory, and removes an inode that has neither a name nor an open file.
func (t *tree) change(parent *inode, c change) {
	gone := []*inode{parent.entries[c.remove], parent.entries[c.add]}
	if c.add != "" {
		c.node.links++
		c.node.parent, c.node.name = parent, c.add
	}
	c.apply(parent.entries)
	parent.changes = append(parent.changes, c)
	parent.mtime = time.Now()
	for _, n := range gone {
		if n != nil {
			n.links--
			t.drop(n)
		}
	}
}

func (t *tree) drop(n *inode) {
	if n.links == 0 && n.opens == 0 {
		t.used -= n.blocks()
		delete(t.nodes, n.id)
	}
}

func (t *tree) remove(parent *inode, name string, dir bool) error {
	n := parent.entries[name]
	switch {
	case n == nil:
		return syscall.ENOENT
	case n.dir && !dir:
		return syscall.EISDIR
	case !n.dir && dir:
		return syscall.ENOTDIR
	case len(n.entries) > 0:
		return syscall.ENOTEMPTY
	}
	t.change(parent, change{remove: name})
	return nil
}

func (t *tree) rename(from *inode, name string, to *inode, as string) error {
	n, over := from.entries[name], to.entries[as]
	switch {
	case n == nil:
		return syscall.ENOENT
	case n == over:
		return nil
	case over != nil && over.dir && !n.dir:
		return syscall.EISDIR
	case over != nil && !over.dir && n.dir:
		return syscall.ENOTDIR
	case over != nil && len(over.entries) > 0:
		return syscall.ENOTEMPTY
	case from == to:
		t.change(from, change{remove: name, add: as, node: n})
		return nil
	}
	t.change(to, change{add: as, node: n})
	t.change(from, change{remove: name})
	return nil
}

func (n *inode) read(p []byte, at int64) int {
	p = p[:max(0, min(int64(len(p)), n.data.size-at))]
	for done := 0; done < len(p); {
		i, off := (at+int64(done))/pageSize, (at+int64(done))%pageSize
		part := p[done:min(len(p), done+int(pageSize-off))]
		if q := n.data.pages[i]; q != nil {
			copy(part, q[off:])
		} else {
			clear(part)
		}
		done += len(part)
	}
	return len(p)
}

// write writes as much as there is room for, and fails if that is nothing.
func (t *tree) write(n *inode, p []byte, at int64) (done int, err error) {
	for done < len(p) {
		i, off := (at+int64(done))/pageSize, (at+int64(done))%pageSize
		q := t.writable(n, i)
		if q == nil {
			break
		}
		done += copy(q[off:], p[done:])
	}
	if done == 0 && len(p) > 0 {
		return 0, syscall.ENOSPC
	}
	n.data.size, n.mtime = max(n.data.size, at+int64(done)), time.Now()
	return done, nil
}

// writable returns a page of the file that may be written to, or nil if there is no room for it.
func (t *tree) writable(n *inode, i int64) *page {
	old := n.data.pages[i]
	if old != nil && n.dirty[i] {
		return old
	}
	if old == nil && int64(len(n.data.pages)) >= n.reserved && t.free() == 0 {
		return nil
	}
	q := new(page)
	if old != nil {
		*q = *old
	}
	t.resize(n, func() { n.data.pages[i], n.dirty[i] = q, true })
	return q
}

// resize calls f, which changes how much an inode takes.
func (t *tree) resize(n *inode, f func()) {
	before := n.blocks()
	f()
	t.used += n.blocks() - before
}

func (t *tree) truncate(n *inode, size int64) {
	if size < n.data.size {
		if off := size % pageSize; off > 0 && n.data.pages[size/pageSize] != nil {
			clear(t.writable(n, size/pageSize)[off:])
		}
		t.discard(n, pagesFor(size), pagesFor(n.data.size))
		t.resize(n, func() { n.reserved = min(n.reserved, pagesFor(size)) })
	}
	n.data.size, n.mtime = size, time.Now()
}

// discard removes pages from first on, up to end.
func (t *tree) discard(n *inode, first, end int64) {
	t.resize(n, func() {
		for i := range n.data.pages {
			if i >= first && i < end {
				delete(n.data.pages, i)
				n.dirty[i] = true
			}
		}
	})
}

func pagesFor(size int64) int64 { return (size + pageSize - 1) / pageSize }

// allocate reserves room for a file up to end, all of it or none.
func (t *tree) allocate(n *inode, end int64, keepSize bool) error {
	pages := max(n.reserved, pagesFor(end))
	if more := 1 + max(int64(len(n.data.pages)), pages) - n.blocks(); more > t.free() {
		return syscall.ENOSPC
	}
	t.resize(n, func() { n.reserved = pages })
	if !keepSize {
		n.data.size = max(n.data.size, end)
	}
	return nil
}

// sync makes an inode durable: the pages and the size of a file, the entries of a directory.
func (n *inode) sync() {
	if n.dir {
		n.synced, n.changes = maps.Clone(n.entries), nil
		return
	}
	for i := range n.dirty {
		if p := n.data.pages[i]; p != nil {
			n.disk.pages[i] = p
		} else {
			delete(n.disk.pages, i)
		}
	}
	n.disk.size = n.data.size
	clear(n.dirty)
}

// failSync is a sync that fails. As on Linux, the pages count as clean afterwards: a later sync
// of them succeeds and writes nothing.
func (n *inode) failSync() { clear(n.dirty) }

// lose makes the tree what a power loss leaves of it. With rng, a random part of what was not
// synced survives: in each directory the first changes, of each file any of its pages.
func (t *tree) lose(rng *rand.Rand) {
	t.nodes, t.used = map[uint64]*inode{}, 0
	share := 0.0
	if rng != nil {
		share = rng.Float64()
	}
	t.restore(t.root, rng, share)
}

func (t *tree) restore(n *inode, rng *rand.Rand, share float64) {
	if t.nodes[n.id] != nil { // another name of it
		n.links++
		return
	}
	t.nodes[n.id] = n
	n.links, n.opens = 1, 0
	if n.dir {
		n.entries = n.synced
		for i := range n.survivors(rng) {
			n.changes[i].apply(n.entries)
		}
		for _, name := range slices.Sorted(maps.Keys(n.entries)) {
			child := n.entries[name]
			child.parent, child.name = n, name
			t.restore(child, rng, share)
		}
	} else {
		n.survive(rng, share)
	}
	n.sync()
	t.used += n.blocks()
}

// survivors is how many changes of a directory survive.
func (n *inode) survivors(rng *rand.Rand) int {
	if rng == nil {
		return 0
	}
	return rng.IntN(len(n.changes) + 1)
}

// survive gives a file the content that a power loss leaves.
func (n *inode) survive(rng *rand.Rand, share float64) {
	left := content{size: n.disk.size, pages: maps.Clone(n.disk.pages)}
	if rng != nil && rng.IntN(2) == 0 {
		left.size = n.data.size
	}
	for _, i := range slices.Sorted(maps.Keys(n.dirty)) {
		if rng == nil || rng.Float64() >= share {
			continue
		}
		if p := n.data.pages[i]; p != nil {
			left.pages[i] = p
		} else {
			delete(left.pages, i)
		}
	}
	maps.DeleteFunc(left.pages, func(i int64, _ *page) bool { return i >= pagesFor(left.size) })
	if p, off := left.pages[left.size/pageSize], left.size%pageSize; p != nil {
		cut := *p
		clear(cut[off:])
		left.pages[left.size/pageSize] = &cut
	}
	n.data, n.disk = left, content{size: left.size, pages: maps.Clone(left.pages)}
	n.reserved = 0
	clear(n.dirty)
}

// find returns the files whose path matches a pattern of path.Match, in order.
func (t *tree) find(pattern string) (list []*inode) {
	for _, n := range t.nodes {
		if ok, _ := path.Match(pattern, n.path()); ok && !n.dir && n.links > 0 {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b *inode) int {
		if a.path() < b.path() {
			return -1
		}
		return 1
	})
	return list
}

// flip changes a bit of a file, also as it was synced.
func (n *inode) flip(at int64, bit int) {
	for _, c := range []*content{&n.data, &n.disk} {
		if p := c.pages[at/pageSize]; p != nil {
			changed := *p
			changed[at%pageSize] ^= 1 << bit
			c.pages[at/pageSize] = &changed
		}
	}
}

// end is behind the last byte that is not zero: blocks allocated ahead hold nothing.
func (n *inode) end() int64 {
	for i := pagesFor(n.data.size) - 1; i >= 0; i-- {
		p := n.data.pages[i]
		if p == nil {
			continue
		}
		for off := int64(pageSize - 1); off >= 0; off-- {
			if p[off] != 0 {
				return min(n.data.size, i*pageSize+off+1)
			}
		}
	}
	return 0
}
