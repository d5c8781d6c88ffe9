package iowatch

import "github.com/cockroachdb/pebble/v2/vfs"

// FS returns a file system whose calls w knows. Calls on paths alone, such as PathJoin, and
// those that create and remove trees at the start are passed on as they are.
func (w *Watch) FS(inner vfs.FS) vfs.FS { return fileSystem{inner, w} }

type fileSystem struct {
	vfs.FS
	w *Watch
}

// Unwrap implements vfs.FS.
func (f fileSystem) Unwrap() vfs.FS { return f.FS }

func (f fileSystem) during(op, name string, call func() error) error {
	defer f.w.end(f.w.begin(op, name))
	return call()
}

// open watches what opens a file, and the file.
func (f fileSystem) open(op, name string, call func() (vfs.File, error)) (vfs.File, error) {
	defer f.w.end(f.w.begin(op, name))
	opened, err := call()
	if err != nil {
		return nil, err
	}
	return file{opened, f.w, name}, nil
}

func (f fileSystem) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open("create", name, func() (vfs.File, error) { return f.FS.Create(name, category) })
}

func (f fileSystem) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return f.open("open", name, func() (vfs.File, error) { return f.FS.Open(name, opts...) })
}

func (f fileSystem) OpenReadWrite(
	name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption,
) (vfs.File, error) {
	return f.open("open", name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, category, opts...) })
}

func (f fileSystem) OpenDir(name string) (vfs.File, error) {
	return f.open("open", name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

func (f fileSystem) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open("rename", to, func() (vfs.File, error) { return f.FS.ReuseForWrite(from, to, category) })
}

func (f fileSystem) Link(from, to string) error {
	return f.during("link", to, func() error { return f.FS.Link(from, to) })
}

func (f fileSystem) Remove(name string) error {
	return f.during("remove", name, func() error { return f.FS.Remove(name) })
}

func (f fileSystem) Rename(from, to string) error {
	return f.during("rename", to, func() error { return f.FS.Rename(from, to) })
}

func (f fileSystem) List(dir string) ([]string, error) {
	defer f.w.end(f.w.begin("list", dir))
	return f.FS.List(dir)
}

func (f fileSystem) Stat(name string) (vfs.FileInfo, error) {
	defer f.w.end(f.w.begin("stat", name))
	return f.FS.Stat(name)
}

func (f fileSystem) GetDiskUsage(dir string) (vfs.DiskUsage, error) {
	defer f.w.end(f.w.begin("statfs", dir))
	return f.FS.GetDiskUsage(dir)
}

// file is an open file or directory.
type file struct {
	vfs.File
	w    *Watch
	name string
}

func (f file) Read(p []byte) (int, error) {
	defer f.w.end(f.w.begin("read", f.name))
	return f.File.Read(p)
}

func (f file) ReadAt(p []byte, at int64) (int, error) {
	defer f.w.end(f.w.begin("read", f.name))
	return f.File.ReadAt(p, at)
}

func (f file) Write(p []byte) (int, error) {
	defer f.w.end(f.w.begin("write", f.name))
	return f.File.Write(p)
}

func (f file) WriteAt(p []byte, at int64) (int, error) {
	defer f.w.end(f.w.begin("write", f.name))
	return f.File.WriteAt(p, at)
}

func (f file) Preallocate(offset, length int64) error {
	defer f.w.end(f.w.begin("allocate", f.name))
	return f.File.Preallocate(offset, length)
}

func (f file) Sync() error {
	defer f.w.end(f.w.begin("sync", f.name))
	return f.File.Sync()
}

func (f file) SyncTo(length int64) (bool, error) {
	defer f.w.end(f.w.begin("sync", f.name))
	return f.File.SyncTo(length)
}

func (f file) SyncData() error {
	defer f.w.end(f.w.begin("sync", f.name))
	return f.File.SyncData()
}

func (f file) Close() error {
	defer f.w.end(f.w.begin("close", f.name))
	return f.File.Close()
}
