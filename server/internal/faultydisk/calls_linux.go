package faultydisk

import (
	"maps"
	"slices"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// calls answers the kernel. Nothing is cached there: names and attributes are valid for no
// time, and reads and writes are direct.
type calls struct {
	fuse.RawFileSystem
	d *Disk
}

func (*calls) String() string { return "faultydisk" }

// on runs a call on an inode, under the lock, after its faults.
func (c *calls) on(op string, id uint64, f func(t *tree, n *inode) error) fuse.Status {
	if _, err := c.d.gate(op, id); err != nil {
		return fuse.ToStatus(err)
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	n := c.d.tree.nodes[id]
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	return fuse.ToStatus(f(c.d.tree, n))
}

func attributes(n *inode, out *fuse.Attr) {
	*out = fuse.Attr{Ino: n.id, Mode: n.mode | syscall.S_IFREG, Nlink: uint32(n.links), Size: uint64(n.data.size),
		Blocks: uint64(n.blocks() * pageSize / 512), Blksize: pageSize}
	if n.dir {
		out.Mode, out.Nlink = n.mode|syscall.S_IFDIR, 2
	}
	out.SetTimes(&n.mtime, &n.mtime, &n.mtime)
}

func entry(n *inode, out *fuse.EntryOut) {
	out.NodeId, out.Generation = n.id, 1
	attributes(n, &out.Attr)
}

func (c *calls) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return c.on("stat", h.NodeId, func(_ *tree, dir *inode) error {
		n := dir.entries[name]
		if n == nil {
			return syscall.ENOENT
		}
		entry(n, out)
		return nil
	})
}

func (c *calls) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return c.on("stat", in.NodeId, func(_ *tree, n *inode) error {
		attributes(n, &out.Attr)
		return nil
	})
}

func (c *calls) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return c.on("write", in.NodeId, func(t *tree, n *inode) error {
		if mode, ok := in.GetMode(); ok {
			n.mode = mode & 0o7777
		}
		if size, ok := in.GetSize(); ok {
			t.truncate(n, int64(size))
		}
		if at, ok := in.GetMTime(); ok {
			n.mtime = at
		}
		attributes(n, &out.Attr)
		return nil
	})
}

func (c *calls) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.on("create", in.NodeId, func(t *tree, dir *inode) error {
		n, err := t.create(dir, name, true, in.Mode)
		if err == nil {
			entry(n, out)
		}
		return err
	})
}

func (c *calls) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return c.on("create", in.NodeId, func(t *tree, dir *inode) error {
		n, err := t.create(dir, name, false, in.Mode)
		if err == nil {
			n.opens++
			entry(n, &out.EntryOut)
			out.OpenFlags = fuse.FOPEN_DIRECT_IO
		}
		return err
	})
}

func (c *calls) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return c.on("open", in.NodeId, func(t *tree, n *inode) error {
		if in.Flags&syscall.O_TRUNC != 0 {
			t.truncate(n, 0)
		}
		n.opens++
		out.OpenFlags = fuse.FOPEN_DIRECT_IO
		return nil
	})
}

func (c *calls) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if n := c.d.tree.nodes[in.NodeId]; n != nil {
		n.opens--
		c.d.tree.drop(n)
	}
}

func (c *calls) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return c.on("remove", h.NodeId, func(t *tree, dir *inode) error { return t.remove(dir, name, false) })
}

func (c *calls) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return c.on("remove", h.NodeId, func(t *tree, dir *inode) error { return t.remove(dir, name, true) })
}

func (c *calls) Rename(_ <-chan struct{}, in *fuse.RenameIn, name, as string) fuse.Status {
	return c.on("rename", in.NodeId, func(t *tree, from *inode) error {
		to := t.nodes[in.Newdir]
		switch {
		case to == nil:
			return syscall.ESTALE
		case in.Flags != 0: // that of the call which does not replace
			return syscall.EINVAL
		}
		return t.rename(from, name, to, as)
	})
}

func (c *calls) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.on("link", in.NodeId, func(t *tree, dir *inode) error {
		n := t.nodes[in.Oldnodeid]
		switch {
		case n == nil:
			return syscall.ESTALE
		case dir.entries[name] != nil:
			return syscall.EEXIST
		}
		t.change(dir, change{add: name, node: n})
		entry(n, out)
		return nil
	})
}

func (c *calls) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	flip, err := c.d.gate("read", in.NodeId)
	if err != nil {
		return nil, fuse.ToStatus(err)
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	n := c.d.tree.nodes[in.NodeId]
	if n == nil {
		return nil, fuse.Status(syscall.ESTALE)
	}
	buf = buf[:n.read(buf, int64(in.Offset))]
	if flip != nil && len(buf) > 0 {
		buf[flip.Flip.IntN(len(buf))] ^= 1 << flip.Flip.IntN(8)
	}
	return fuse.ReadResultData(buf), fuse.OK
}

func (c *calls) Write(_ <-chan struct{}, in *fuse.WriteIn, p []byte) (written uint32, code fuse.Status) {
	code = c.on("write", in.NodeId, func(t *tree, n *inode) error {
		done, err := t.write(n, p, int64(in.Offset))
		written = uint32(done)
		return err
	})
	return written, code
}

// Of fallocate.
const (
	keepSize  = 1
	punchHole = 2
)

func (c *calls) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return c.on("allocate", in.NodeId, func(t *tree, n *inode) error {
		end := int64(in.Offset + in.Length)
		switch in.Mode {
		case 0, keepSize:
			return t.allocate(n, end, in.Mode == keepSize)
		case keepSize | punchHole:
			t.discard(n, pagesFor(int64(in.Offset)), end/pageSize)
			return nil
		}
		return syscall.EOPNOTSUPP
	})
}

func (*calls) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

// sync is fsync and fdatasync: both make the size durable that is needed to read the data.
func (c *calls) sync(id uint64) fuse.Status {
	_, err := c.d.gate("sync", id)
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	n := c.d.tree.nodes[id]
	switch {
	case n == nil:
		return fuse.Status(syscall.ESTALE)
	case err != nil:
		n.failSync()
		return fuse.ToStatus(err)
	}
	n.sync()
	return fuse.OK
}

func (c *calls) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return c.sync(in.NodeId) }

func (c *calls) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return c.sync(in.NodeId) }

func (c *calls) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return c.on("list", in.NodeId, func(_ *tree, dir *inode) error {
		var list []fuse.DirEntry
		for _, name := range slices.Sorted(maps.Keys(dir.entries)) {
			n := dir.entries[name]
			mode := uint32(syscall.S_IFREG)
			if n.dir {
				mode = syscall.S_IFDIR
			}
			list = append(list, fuse.DirEntry{Mode: mode, Name: name, Ino: n.id, Off: uint64(len(list) + 1)})
		}
		c.d.handle++
		out.Fh = c.d.handle
		c.d.lists[out.Fh] = list
		return nil
	})
}

func (c *calls) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	list := c.d.lists[in.Fh]
	for i := in.Offset; i < uint64(len(list)) && out.AddDirEntry(list[i]); i++ {
	}
	return fuse.OK
}

func (c *calls) ReleaseDir(in *fuse.ReleaseIn) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.lists, in.Fh)
}

func (c *calls) StatFs(_ <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return c.on("statfs", h.NodeId, func(t *tree, _ *inode) error {
		free := uint64(t.free())
		*out = fuse.StatfsOut{Blocks: uint64(t.capacity), Bfree: free, Bavail: free, Files: 1 << 20, Ffree: free,
			Bsize: pageSize, Frsize: pageSize, NameLen: 255}
		return nil
	})
}
