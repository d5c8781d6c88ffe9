package faultydisk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// ErrUnusable says that this machine cannot mount a file system of a process.
var ErrUnusable = errors.New("a file system of this process cannot be mounted")

// Disk is a mounted file system. It is safe for concurrent use.
type Disk struct {
	dir    string
	server *fuse.Server

	mu     sync.Mutex
	tree   *tree
	lists  map[uint64][]fuse.DirEntry // of directories that are open, by handle
	handle uint64
	faults []*Fault
	lost   chan struct{} // closed when calls that hang must fail
}

// Fault is what goes wrong with calls, until Stop.
type Fault struct {
	Ops   []string      // read, write, sync, create, open, remove, rename, link, allocate, list, stat, statfs; none: all
	Files string        // pattern of path.Match for paths below the root; empty: all
	Delay time.Duration // of each call
	Hang  bool          // a call returns only after Stop, as usual, or after Abort, with EIO
	Err   syscall.Errno // that a call returns, 0 for none
	Flip  *rand.Rand    // changes a bit of what a call reads

	d       *Disk
	met     int
	stopped chan struct{}
}

// Mount mounts an empty file system of a size in bytes on a directory. It returns ErrUnusable
// where that is not possible.
func Mount(dir string, size int64) (*Disk, error) {
	d := &Disk{dir: dir, tree: newTree(size), lists: map[uint64][]fuse.DirEntry{}, lost: make(chan struct{})}
	return d, d.mount()
}

// maxWrite is the size of the largest read or write that arrives as one call.
const maxWrite = 1 << 20

func (d *Disk) mount() error {
	// The package's own mount leaves the device open in the server that the test starts.
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%d", fd, maxWrite)
	if err := syscall.Mount("faultydisk", d.dir, "fuse", syscall.MS_NOSUID|syscall.MS_NODEV, options); err != nil {
		_ = syscall.Close(fd)
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	d.server, err = fuse.NewServer(&calls{fuse.NewDefaultRawFileSystem(), d}, fmt.Sprint("/dev/fd/", fd),
		&fuse.MountOptions{MaxWrite: maxWrite, DisableXAttrs: true, DisableReadDirPlus: true, DisableSplice: true})
	if err != nil {
		return errors.Join(err, syscall.Unmount(d.dir, syscall.MNT_DETACH))
	}
	go d.server.Serve()
	return d.refusePoll()
}

// refusePoll makes the kernel ask once whether files can be polled. Go's runtime asks so with a
// call during which it cannot run the goroutine that has to answer.
func (d *Disk) refusePoll() error {
	fd, err := syscall.Open(filepath.Join(d.dir, ".go-fuse-epoll-hack"), syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = syscall.Close(fd) }()
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err
}

// Close unmounts the file system, also one that is in use.
func (d *Disk) Close() error {
	d.Abort()
	return syscall.Unmount(d.dir, syscall.MNT_DETACH)
}

// PowerLoss leaves what a power loss leaves of the disk: only what was synced or, with rng, a
// random part of the rest, too. The processes that use it must have ended.
func (d *Disk) PowerLoss(rng *rand.Rand) error {
	d.Abort()
	var err error
	for range 500 { // the kernel closes the files of a process a moment after its end
		if err = syscall.Unmount(d.dir, 0); !errors.Is(err, syscall.EBUSY) {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	d.server.Wait()
	d.mu.Lock()
	d.tree.lose(rng)
	clear(d.lists)
	d.lost = make(chan struct{})
	d.mu.Unlock()
	return d.mount()
}

// Abort ends calls that hang, and those that would, with EIO and without effect. A process that
// was killed ends only after its calls have.
func (d *Disk) Abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.lost:
	default:
		close(d.lost)
	}
}

// Inject makes calls fail from now on.
func (d *Disk) Inject(f Fault) *Fault {
	f.d, f.stopped = d, make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, &f)
	return &f
}

// Stop ends a fault, and continues the calls that it holds.
func (f *Fault) Stop() {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if i := slices.Index(f.d.faults, f); i >= 0 {
		f.d.faults = slices.Delete(f.d.faults, i, i+1)
		close(f.stopped)
	}
}

// Met is how many calls the fault has changed.
func (f *Fault) Met() int {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return f.met
}

func (f *Fault) matches(op, name string) bool {
	if len(f.Ops) > 0 && !slices.Contains(f.Ops, op) || f.Flip != nil && op != "read" {
		return false
	}
	ok, _ := path.Match(f.Files, name)
	return ok || f.Files == ""
}

// hit returns the faults that concern a call.
func (d *Disk) hit(op string, id uint64) (list []*Fault, lost chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.tree.nodes[id]
	for _, f := range d.faults {
		if n != nil && f.matches(op, n.path()) {
			f.met++
			list = append(list, f)
		}
	}
	return list, d.lost
}

// gate delays, holds or fails a call. flip is nil unless a bit of what it reads must change.
func (d *Disk) gate(op string, id uint64) (flip *Fault, err error) {
	list, lost := d.hit(op, id)
	for _, f := range list {
		if f.Delay > 0 {
			<-time.After(f.Delay)
		}
		if f.Hang {
			select {
			case <-f.stopped:
			case <-lost:
				return nil, syscall.EIO
			}
		}
		if f.Err != 0 {
			err = f.Err
		}
		if f.Flip != nil {
			flip = f
		}
	}
	return flip, err
}

// Fill has others take so much of the disk that the given percentage is used, in all.
func (d *Disk) Fill(percent float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tree.others = max(0, int64(float64(d.tree.capacity)*percent/100)-d.tree.used)
}

// Free is how many bytes are free.
func (d *Disk) Free() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tree.free() * pageSize
}

// Damage is a bit that was flipped.
type Damage struct {
	File string // path below the root
	At   int64  // byte
	Bit  int
}

// Flip flips a bit in a random file that matches a pattern of path.Match and has content, as
// calls see it and as it was synced. It reports false if there is no such file.
func (d *Disk) Flip(pattern string, rng *rand.Rand) (Damage, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := slices.DeleteFunc(d.tree.find(pattern), func(n *inode) bool { return n.end() == 0 })
	if len(list) == 0 {
		return Damage{}, false
	}
	n := list[rng.IntN(len(list))]
	for {
		at, bit := rng.Int64N(n.end()), rng.IntN(8)
		if n.data.pages[at/pageSize] == nil {
			continue
		}
		n.flip(at, bit)
		return Damage{n.path(), at, bit}, true
	}
}

// Undo flips a bit back.
func (d *Disk) Undo(damage Damage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.tree.find(damage.File) {
		n.flip(damage.At, damage.Bit)
	}
}
