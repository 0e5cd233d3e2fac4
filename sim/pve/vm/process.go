// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// startTimeout bounds the time from exec until QEMU answers; it is long
	// because the machine may be busy with other VMs.
	startTimeout = 2 * time.Minute
	// quitTimeout is how long QEMU may take to quit before it is killed.
	quitTimeout = 5 * time.Second
	maxStderr   = 16 << 10
)

// VM is a running QEMU process.
type VM struct {
	pid     int
	qmp     *qmp
	agent   *agent // nil without one
	serial  net.Conn
	stderr  *tailBuffer
	exited  chan struct{} // closed when the process has been waited for
	done    chan struct{} // closed when what it wrote last has been read, too
	pumps   sync.WaitGroup
	waitErr error // once exited is closed

	mu     sync.Mutex
	reason string
}

// StartError is a QEMU that ended before the machine ran.
type StartError struct {
	// Code is its exit code, -1 if a signal ended it.
	Code int
	// Stderr is what it said.
	Stderr string
}

// Error says what QEMU said.
func (e *StartError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("start QEMU: it exited with code %d: %s", e.Code, e.Stderr))
}

// Exit is how a machine ended.
type Exit struct {
	// Code is the exit code of the process, -1 if a signal ended it.
	Code int
	// Reason is that of the QMP event SHUTDOWN, such as guest-shutdown or
	// host-qmp-quit; empty if there was none, as after a kill.
	Reason string
	// Stderr is what QEMU said.
	Stderr string
}

// Start starts a machine and returns once it runs. What the guest writes to its
// first serial port goes to console. The machine outlives ctx, which bounds the
// start alone; stop it with [VM.Stop].
func Start(ctx context.Context, t Tools, spec *Spec, console io.Writer) (*VM, error) {
	args, err := spec.Args()
	if err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	ours, theirs, err := socketPairs(fdAgent - fdQMP + 1)
	if err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	v := &VM{serial: ours[1], stderr: &tailBuffer{}, exited: make(chan struct{}), done: make(chan struct{})}
	v.qmp = newQMP(ours[0], v.event)
	if spec.Agent {
		v.agent = newAgent(ours[2])
	}
	err = v.exec(exec.Command(t.QEMU, args...), theirs) //nolint:noctx // #nosec G204 -- outlives ctx; no shell
	closeFiles(theirs)
	if err != nil {
		closeConns(ours)
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	v.pumps.Go(v.qmp.run)
	v.pumps.Go(func() { _, _ = io.Copy(console, v.serial) })
	go func() {
		<-v.exited
		v.pumps.Wait()
		closeConns(ours)
		close(v.done)
	}()
	if err := v.handshake(ctx, spec); err != nil {
		return nil, v.failed(err)
	}
	return v, nil
}

// exec starts the process and waits for it on a thread of their own: the
// kernel ends the child with the thread that started it.
func (v *VM) exec(cmd *exec.Cmd, files []*os.File) error {
	cmd.ExtraFiles, cmd.Env, cmd.Stderr = files, []string{}, v.stderr
	cmd.SysProcAttr = dieWithParent()
	cmd.WaitDelay = quitTimeout
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		v.waitErr = cmd.Wait()
		close(v.exited)
	}()
	if err := <-started; err != nil {
		return err
	}
	v.pid = cmd.Process.Pid
	return nil
}

// handshake ends when QEMU has built the machine and lets it run.
func (v *VM) handshake(ctx context.Context, spec *Spec) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("QEMU does not answer"))
	defer cancel()
	if err := v.qmp.call(ctx, "qmp_capabilities", nil); err != nil {
		return err
	}
	for i, n := range spec.NICs {
		if !n.Down {
			continue
		}
		if err := v.qmp.call(ctx, "set_link", map[string]any{"name": netID(i), "up": false}); err != nil {
			return err
		}
	}
	return nil
}

// failed ends a machine that did not start, and says why it did not.
func (v *VM) failed(err error) error {
	if !errors.Is(err, errClosed) {
		v.Kill()
	}
	<-v.done
	if exit := v.Exit(); exit.Code >= 0 {
		return &StartError{Code: exit.Code, Stderr: exit.Stderr}
	}
	return fmt.Errorf("start QEMU: %w", err)
}

// event follows what QEMU reports.
func (v *VM) event(name string, data json.RawMessage) {
	var e struct {
		Reason string `json:"reason"`
		ID     string `json:"id"`
		Open   bool   `json:"open"`
	}
	if json.Unmarshal(data, &e) != nil {
		return
	}
	switch name {
	case "SHUTDOWN":
		v.mu.Lock()
		v.reason = e.Reason
		v.mu.Unlock()
	case "VSERPORT_CHANGE":
		if v.agent != nil && e.ID == agentPort {
			v.agent.opened(e.Open)
		}
	}
}

// PID is QEMU's process id; its process group has the same.
func (v *VM) PID() int { return v.pid }

// Done is closed when the process has ended and all it wrote has been read.
func (v *VM) Done() <-chan struct{} { return v.done }

// Exit tells how the machine ended; call it when Done is closed.
func (v *VM) Exit() Exit {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := Exit{Reason: v.reason, Stderr: v.stderr.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(v.waitErr, &exit):
		out.Code = exit.ExitCode()
	case v.waitErr != nil:
		out.Code = -1
	}
	return out
}

// PowerButton presses the power button; the guest may take its time, or not
// care.
func (v *VM) PowerButton(ctx context.Context) error {
	return v.qmp.call(ctx, "system_powerdown", nil)
}

// Stop ends the machine at once, as pulling its plug does, but with its disks
// closed in good order, and waits until the process has gone.
func (v *VM) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), quitTimeout)
	defer cancel()
	// QEMU may close the socket before it has answered.
	_ = v.qmp.call(ctx, "quit", nil)
	select {
	case <-v.done:
	case <-ctx.Done():
		v.Kill()
		<-v.done
	}
}

// Kill ends the process without further ado.
func (v *VM) Kill() {
	select {
	case <-v.exited: // the id may be somebody else's by now
	default:
		_ = syscall.Kill(-v.pid, syscall.SIGKILL)
	}
}

// Resize tells the guest that a disk has grown, and grows its image.
func (v *VM) Resize(ctx context.Context, slot string, size int64) error {
	return v.qmp.call(ctx, "block_resize", map[string]any{"device": driveID(slot), "size": size})
}

// ChangeMedium puts an image into a CD drive; an empty name takes out what is
// in it, also when the guest has locked the drive.
func (v *VM) ChangeMedium(ctx context.Context, slot, file string) error {
	if file == "" {
		return v.qmp.call(ctx, "eject", map[string]any{"id": slot, "force": true})
	}
	return v.qmp.call(ctx, "blockdev-change-medium", map[string]any{
		"id": slot, "filename": file, "format": "raw", "read-only-mode": "read-only", "force": true,
	})
}

// Agent runs a guest agent's command without arguments, such as guest-ping, and
// gives what it returned. The error is [ErrNoAgent] when no agent has answered
// before ctx ended.
func (v *VM) Agent(ctx context.Context, command string) (json.RawMessage, error) {
	if v.agent == nil {
		return nil, ErrNoAgent
	}
	return v.agent.call(ctx, command)
}

// Type writes to the guest's first serial port, as a terminal would.
func (v *VM) Type(p []byte) (int, error) { return v.serial.Write(p) }

// socketPairs makes n connected pairs: our ends and the process's.
func socketPairs(n int) (ours []net.Conn, theirs []*os.File, err error) {
	for range n {
		conn, file, err := socketPair()
		if err != nil {
			closeConns(ours)
			closeFiles(theirs)
			return nil, nil, err
		}
		ours, theirs = append(ours, conn), append(theirs, file)
	}
	return ours, theirs, nil
}

func socketPair() (net.Conn, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	conn, err := net.FileConn(ours) // a copy
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	return conn, theirs, nil
}

func closeConns(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// tailBuffer keeps the end of what is written to it.
type tailBuffer struct {
	mu   sync.Mutex
	data []byte
}

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	if over := len(b.data) - maxStderr; over > 0 {
		b.data = b.data[over:]
	}
	return len(p), nil
}

func (b *tailBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.TrimSpace(string(b.data))
}
