// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// What a fault does to a script.
type What string

const (
	// Fail ends the script with 1 before it has done anything.
	Fail What = "fail"
	// Hang has it never end by itself. Signals end it.
	Hang What = "hang"
	// Cut cuts the connection when half of the script's input has come, and the script goes
	// on with that.
	Cut What = "cut"
	// CutLate cuts the connection when the script is done, before its end is told.
	CutLate What = "cut-late"
	// Reboot restarts the host in the middle of the script.
	Reboot What = "reboot"
)

// Fault is what is to happen to scripts.
type Fault struct {
	// Label of the scripts; empty for all.
	Label string
	What  What
	// Times after which it is over; 0 for never.
	Times int
}

type faults struct {
	scripts     []Fault
	slow        time.Duration
	sudo        Sudo
	noPasswords bool
	frozen      bool
}

// Inject adds a fault.
func (h *Host) Inject(fault Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.scripts = append(h.faults.scripts, fault)
}

// Fix takes all faults of scripts away.
func (h *Host) Fix() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.scripts = nil
}

// take gives the fault of a script, and counts it.
func (h *Host) take(label string) What {
	h.mu.Lock()
	defer h.mu.Unlock()

	i := slices.IndexFunc(h.faults.scripts, func(f Fault) bool { return f.Label == "" || f.Label == label })
	if i < 0 {
		return ""
	}

	fault := &h.faults.scripts[i]

	what := fault.What

	fault.Times--
	if fault.Times == 0 {
		h.faults.scripts = slices.Delete(h.faults.scripts, i, i+1)
	} else {
		fault.Times = max(fault.Times, 0)
	}

	return what
}

// SetSlow makes each script start late by as much.
func (h *Host) SetSlow(by time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.slow = by
}

// SetSudo says who may become root.
func (h *Host) SetSudo(sudo Sudo) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.sudo = sudo
	if h.box == nil {
		return nil
	}

	return os.WriteFile(h.box.path("/sim/sudo"), []byte(sudo+"\n"), 0o600)
}

// RefusePasswords lets nobody in by password, as PasswordAuthentication no.
func (h *Host) RefusePasswords(refuse bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.noPasswords = refuse
}

// Freeze has the host answer nothing at all while its connections stay open, as one whose
// power was cut.
func (h *Host) Freeze(frozen bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.frozen = frozen
	for _, conn := range h.conns {
		conn.freeze(frozen)
	}
}

// SetDown cuts all connections and takes no new ones, or takes them again. What runs goes
// on.
func (h *Host) SetDown(down bool) {
	h.mu.Lock()
	h.down = down
	h.mu.Unlock()

	if down {
		h.hangUp()
	}
}

func (h *Host) hangUp() {
	h.mu.Lock()
	defer h.mu.Unlock()

	for conn, frozen := range h.conns {
		frozen.freeze(false)

		_ = conn.Close()
	}
}

// FillDisk leaves no room on any disk, or gives it back.
func (h *Host) FillDisk(ctx context.Context, full bool) error {
	command := "rm -f /ballast /usr/local/ballast"
	if full {
		command = "for disk in / /usr/local/; do cat /dev/zero >$disk/ballast 2>/dev/null; done; true"
	}

	_, err := h.Exec(ctx, command)

	return err
}

// Restart switches the host off and on: all connections and processes end, the disk stays.
func (h *Host) Restart(ctx context.Context) error {
	h.SetDown(true)
	defer h.SetDown(false)

	if h.box == nil {
		return nil
	}

	h.box.off()

	return h.box.boot(ctx)
}

// frozen is a connection that can be made to carry nothing.
type frozen struct {
	net.Conn

	mu     sync.Mutex
	thawed chan struct{}
}

func newFrozen(conn net.Conn) *frozen {
	thawed := make(chan struct{})
	close(thawed)

	return &frozen{Conn: conn, thawed: thawed}
}

func (f *frozen) freeze(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	select {
	case <-f.thawed:
		if on {
			f.thawed = make(chan struct{})
		}
	default:
		if !on {
			close(f.thawed)
		}
	}
}

func (f *frozen) wait() {
	f.mu.Lock()
	thawed := f.thawed
	f.mu.Unlock()

	<-thawed
}

// Read reads what came, once it is not frozen.
func (f *frozen) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	f.wait()

	return n, err
}

// Write writes once it is not frozen.
func (f *frozen) Write(p []byte) (int, error) {
	f.wait()

	return f.Conn.Write(p)
}

// restartLater restarts the host from a session of its own.
func (h *Host) restartLater() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	if err := h.Restart(ctx); err != nil {
		h.note(fmt.Sprintf("restart: %v", err))
	}
}
