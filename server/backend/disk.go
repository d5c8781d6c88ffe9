package backend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/parley-chat/parley/server/infra/telemetry"
)

const (
	// hangsFrom is how long a call to the disk may take until the process is not ready. A disk
	// that is only slow still serves, and no other process has its data.
	hangsFrom = 5 * time.Second
	// durableTime bounds the wait for the disk in Ready: probes give up after a second.
	durableTime = time.Second / 2
)

// Disk is the state of the disk of a data directory, as it was a few seconds ago.
type Disk struct {
	Dir           string  // absolute; "" where the store is elsewhere
	Full          bool    // writes are refused
	Free, Reserve uint64  // bytes; writes are refused while less is free than the reserve
	HoursLeft     float64 // until writes are refused, at the measured growth; +Inf if the disk does not fill
}

// DiskError says that a call to the disk does not return.
type DiskError struct {
	Dir, Call, File string
	Took            time.Duration
}

// Error names the directory, the call and the file.
func (e *DiskError) Error() string {
	return fmt.Sprintf("the disk of %s does not answer: a %s of %s has taken %d s", e.Dir, e.Call, e.File,
		int(e.Took.Seconds()))
}

// Disk is how full the disk of an embedded engine is. It does not wait for the disk.
func (e *Backend) Disk() Disk {
	if e.embedded == nil {
		return Disk{HoursLeft: math.Inf(1)}
	}
	s := e.embedded.Space()
	d := Disk{Dir: e.identity.dir, Full: s.Full, Free: s.Free, Reserve: s.Reserve, HoursLeft: math.Inf(1)}
	if s.Full {
		d.HoursLeft = 0
	} else if s.Fills {
		d.HoursLeft = s.Left.Hours()
	}
	return d
}

// diskReady returns an error if a sync has failed, or if a call to the disk does not return.
func (e *Backend) diskReady(ctx context.Context) error {
	if c := e.embedded.OldestCall(); c.Took >= hangsFrom {
		return &DiskError{Dir: e.identity.dir, Call: c.Op, File: c.File, Took: c.Took}
	}
	ctx, cancel := context.WithTimeout(ctx, durableTime)
	defer cancel()
	if err := e.embedded.Durable(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil // slow, and not for long yet
}

// measureDisk registers the metrics of the disk, with its directory.
func (e *Backend) measureDisk(m *telemetry.Metrics) {
	gauge := func(name, help string, read func() float64) { m.GaugeOf(name, help, "dir", e.identity.dir, read) }
	gauge(telemetry.DiskFull, "1 while writes are refused because the disk of the data directory is nearly full.",
		func() float64 { return indicator(e.Disk().Full) })
	gauge(telemetry.DiskFree, "Bytes that are free on the disk of the data directory.",
		func() float64 { return float64(e.Disk().Free) })
	gauge(telemetry.DiskReserve, "Bytes that must be free there: while less is, writes are refused.",
		func() float64 { return float64(e.Disk().Reserve) })
	gauge(telemetry.DiskHoursLeft, "Hours until writes are refused if that disk fills as it did lately; +Inf if it does not.",
		func() float64 { return e.Disk().HoursLeft })
	gauge(telemetry.DiskSlowest, "Seconds of the slowest call to that disk within about the last minute, calls under way included.",
		func() float64 { return e.embedded.SlowestCall().Seconds() })
}
