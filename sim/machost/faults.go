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

// FaultKind is the effect of a fault on a script.
type FaultKind string

const (
	// Fail ends the script with exit code 1 before the script does anything.
	Fail FaultKind = "fail"
	// Hang replaces the script with one that runs until it receives a signal.
	Hang FaultKind = "hang"
	// Cut closes the connection after half of the script's input. The script continues with that
	// half.
	Cut FaultKind = "cut"
	// CutLate closes the connection when the script has ended, before the host sends the exit
	// status.
	CutLate FaultKind = "cut-late"
	// Reboot restarts the host in the middle of the script.
	Reboot FaultKind = "reboot"
)

// Fault is a fault of scripts.
type Fault struct {
	// Label selects the scripts with this label. If Label is empty, the fault affects all scripts.
	Label string
	Kind  FaultKind
	// Times is the number of scripts that the fault affects. 0 means that the fault stays until
	// ClearFaults is called.
	Times int
}

type faults struct {
	scripts          []Fault
	delay            time.Duration
	sudo             Sudo
	refusesPasswords bool
	greeting         string
	frozen           bool
}

// SetGreeting makes the user's shell print a text on standard output before it runs a command, as a .bashrc can do.
func (h *Host) SetGreeting(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.greeting = text
}

// Inject adds a fault.
func (h *Host) Inject(fault Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.scripts = append(h.faults.scripts, fault)
}

// ClearFaults removes all faults that Inject has added.
func (h *Host) ClearFaults() {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.scripts = nil
}

// takeFault returns the fault for a script and counts the use. It returns an empty string if the
// script has no fault.
func (h *Host) takeFault(label string) FaultKind {
	h.mu.Lock()
	defer h.mu.Unlock()

	i := slices.IndexFunc(h.faults.scripts, func(f Fault) bool { return f.Label == "" || f.Label == label })
	if i < 0 {
		return ""
	}

	fault := &h.faults.scripts[i]

	kind := fault.Kind

	fault.Times--
	if fault.Times == 0 {
		h.faults.scripts = slices.Delete(h.faults.scripts, i, i+1)
	} else {
		fault.Times = max(fault.Times, 0)
	}

	return kind
}

// SetDelay delays the start of each script.
func (h *Host) SetDelay(delay time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.delay = delay
}

// SetSudo sets how sudo responds.
func (h *Host) SetSudo(sudo Sudo) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.sudo = sudo
	if h.box == nil {
		return nil
	}

	return os.WriteFile(h.box.path("/sim/sudo"), []byte(sudo+"\n"), 0o600)
}

// RefusePasswords disables logins by password, as PasswordAuthentication no does in sshd_config(5).
func (h *Host) RefusePasswords(refuse bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.refusesPasswords = refuse
}

// SetFrozen freezes the host or ends the freeze. A frozen host sends and accepts no data while its
// connections stay open, like a host that has lost its power.
func (h *Host) SetFrozen(frozen bool) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.faults.frozen = frozen
	for _, conn := range h.conns {
		conn.setFrozen(frozen)
	}
}

// SetDown closes all connections and refuses new ones if isDown is true. Otherwise the host accepts
// connections again. Scripts continue to run.
func (h *Host) SetDown(isDown bool) {
	h.mu.Lock()
	h.down = isDown
	h.mu.Unlock()

	if isDown {
		h.closeConnections()
	}
}

func (h *Host) closeConnections() {
	h.mu.Lock()
	defer h.mu.Unlock()

	for conn, carrier := range h.conns {
		carrier.setFrozen(false)

		_ = conn.Close()
	}
}

// SetDiskFull fills all disks of the host if isFull is true. Otherwise SetDiskFull frees that space.
func (h *Host) SetDiskFull(ctx context.Context, isFull bool) error {
	command := "rm -f /ballast /usr/local/ballast"
	if isFull {
		command = "for disk in / /usr/local/; do cat /dev/zero >$disk/ballast 2>/dev/null; done; true"
	}

	_, err := h.Exec(ctx, command)

	return err
}

// Restart turns the host off and on. All connections and processes end, and the disk stays.
func (h *Host) Restart(ctx context.Context) error {
	h.SetDown(true)
	defer h.SetDown(false)

	if h.box == nil {
		return nil
	}

	h.box.powerOff()

	return h.box.boot(ctx)
}

// freezableConn is a connection that carries no data while it is frozen.
type freezableConn struct {
	net.Conn

	mu     sync.Mutex
	thawed chan struct{}
}

func newFreezableConn(conn net.Conn) *freezableConn {
	thawed := make(chan struct{})
	close(thawed)

	return &freezableConn{Conn: conn, thawed: thawed}
}

func (f *freezableConn) setFrozen(isFrozen bool) {
	f.mu.Lock()
	defer f.mu.Unlock()

	select {
	case <-f.thawed:
		if isFrozen {
			f.thawed = make(chan struct{})
		}
	default:
		if !isFrozen {
			close(f.thawed)
		}
	}
}

func (f *freezableConn) waitUntilThawed() {
	f.mu.Lock()
	thawed := f.thawed
	f.mu.Unlock()

	<-thawed
}

// Read reads from the connection and returns the data when the connection is not frozen.
func (f *freezableConn) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	f.waitUntilThawed()

	return n, err
}

// Write waits until the connection is not frozen and then writes.
func (f *freezableConn) Write(p []byte) (int, error) {
	f.waitUntilThawed()

	return f.Conn.Write(p)
}

// restartAndRecord restarts the host from a goroutine of its own and records a failure as an unknown
// call, so that the test fails.
func (h *Host) restartAndRecord() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	if err := h.Restart(ctx); err != nil {
		h.recordUnknown(fmt.Sprintf("restart: %v", err))
	}
}
