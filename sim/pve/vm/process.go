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
	// startTimeout is the timeout from exec until QEMU responds. It is long because the machine can
	// be busy with other VMs.
	startTimeout = 2 * time.Minute
	// quitTimeout is how long QEMU can take to quit before it is killed.
	quitTimeout = 5 * time.Second
	maxStderr   = 16 << 10
)

// VM is a running QEMU process.
type VM struct {
	pid     int
	qmp     *qmp
	agent   *agent // nil if the machine has no agent
	serial  net.Conn
	stderr  *tailBuffer
	exited  chan struct{} // closed when the process has ended
	done    chan struct{} // closed when the process has ended and all of its output has been read
	readers sync.WaitGroup
	waitErr error // valid after exited is closed

	mu     sync.Mutex
	reason string
}

// StartError means that QEMU ended before the machine ran.
type StartError struct {
	// Code is QEMU's exit code, or -1 if a signal ended QEMU.
	Code int
	// Stderr is QEMU's error output.
	Stderr string
}

// Error returns a message with the exit code and QEMU's error output.
func (e *StartError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("start QEMU: exited with code %d: %s", e.Code, e.Stderr))
}

// Exit describes how a machine ended.
type Exit struct {
	// Code is the exit code of the process, or -1 if a signal ended the process.
	Code int
	// Reason is the reason of the QMP event SHUTDOWN, such as guest-shutdown or host-qmp-quit. It is
	// empty if there was no such event, for example after a kill.
	Reason string
	// Stderr is QEMU's error output.
	Stderr string
}

// Start starts a machine and returns when the machine runs. Start writes the output of the guest's
// first serial port to console. ctx limits only the start, and the machine outlives it. Stop the
// machine with [VM.Stop].
func Start(ctx context.Context, t Tools, spec *Spec, console io.Writer) (*VM, error) {
	args, err := spec.Args()
	if err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	local, remote, err := socketPairs(fdAgent - fdQMP + 1)
	if err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	v := &VM{serial: local[1], stderr: &tailBuffer{}, exited: make(chan struct{}), done: make(chan struct{})}
	v.qmp = newQMP(local[0], v.handleEvent)
	if spec.Agent {
		v.agent = newAgent(local[2])
	}
	err = v.exec(exec.Command(t.QEMU, args...), remote) //nolint:noctx // #nosec G204 -- outlives ctx; no shell
	closeFiles(remote)
	if err != nil {
		closeConns(local)
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	v.readers.Go(v.qmp.run)
	v.readers.Go(func() { _, _ = io.Copy(console, v.serial) })
	go func() {
		<-v.exited
		v.readers.Wait()
		closeConns(local)
		close(v.done)
	}()
	if err := v.handshake(ctx, spec); err != nil {
		return nil, v.newStartError(err)
	}
	return v, nil
}

// exec starts the process and waits for its end on a thread of its own. The kernel kills the process
// when the thread that started it ends.
func (v *VM) exec(cmd *exec.Cmd, files []*os.File) error {
	cmd.ExtraFiles, cmd.Env, cmd.Stderr = files, []string{}, v.stderr
	cmd.SysProcAttr = newSysProcAttr()
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

// handshake waits until QEMU has created the machine, and disconnects the network cards that are
// down.
func (v *VM) handshake(ctx context.Context, spec *Spec) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("QEMU does not respond"))
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

// newStartError stops a machine whose start failed and returns the error.
func (v *VM) newStartError(err error) error {
	if !errors.Is(err, errClosed) {
		v.Kill()
	}
	<-v.done
	if exit := v.Exit(); exit.Code >= 0 {
		return &StartError{Code: exit.Code, Stderr: exit.Stderr}
	}
	return fmt.Errorf("start QEMU: %w", err)
}

// handleEvent handles the QMP events.
func (v *VM) handleEvent(name string, data json.RawMessage) {
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
			v.agent.setOpen(e.Open)
		}
	}
}

// PID returns QEMU's process id, which is also the id of its process group.
func (v *VM) PID() int { return v.pid }

// Done returns a channel that is closed when the process has ended and all of its output has been
// read.
func (v *VM) Done() <-chan struct{} { return v.done }

// Exit returns how the machine ended. It is valid after the channel of Done is closed.
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

// PowerButton presses the power button. The guest can take time to react or ignore the button.
func (v *VM) PowerButton(ctx context.Context) error {
	return v.qmp.call(ctx, "system_powerdown", nil)
}

// Stop ends the machine at once, without a shutdown of the guest, and waits until the process has
// ended. QEMU closes the machine's disks properly.
func (v *VM) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), quitTimeout)
	defer cancel()
	// QEMU can close the socket before it has sent its response.
	_ = v.qmp.call(ctx, "quit", nil)
	select {
	case <-v.done:
	case <-ctx.Done():
		v.Kill()
		<-v.done
	}
}

// Kill kills the process.
func (v *VM) Kill() {
	select {
	case <-v.exited: // another process can have the process id
	default:
		_ = syscall.Kill(-v.pid, syscall.SIGKILL)
	}
}

// Resize grows the image of a disk and reports the new size to the guest.
func (v *VM) Resize(ctx context.Context, slot string, size int64) error {
	return v.qmp.call(ctx, "block_resize", map[string]any{"device": driveID(slot), "size": size})
}

// ChangeMedium inserts an image into a CD drive. An empty file name ejects the medium. Both work
// even if the guest has locked the drive.
func (v *VM) ChangeMedium(ctx context.Context, slot, file string) error {
	if file == "" {
		return v.qmp.call(ctx, "eject", map[string]any{"id": slot, "force": true})
	}
	return v.qmp.call(ctx, "blockdev-change-medium", map[string]any{
		"id": slot, "filename": file, "format": "raw", "read-only-mode": "read-only", "force": true,
	})
}

// RunAgentCommand runs a command of the guest agent without arguments, such as guest-ping, and
// returns the agent's result. The error is [ErrNoAgent] if no agent has responded before ctx ends.
func (v *VM) RunAgentCommand(ctx context.Context, command string) (json.RawMessage, error) {
	if v.agent == nil {
		return nil, ErrNoAgent
	}
	return v.agent.call(ctx, command)
}

// Type writes to the guest's first serial port, as a terminal does.
func (v *VM) Type(p []byte) (int, error) { return v.serial.Write(p) }

// socketPairs creates n pairs of connected sockets. It returns this process's ends and the child
// process's ends.
func socketPairs(n int) (local []net.Conn, remote []*os.File, err error) {
	for range n {
		conn, file, err := socketPair()
		if err != nil {
			closeConns(local)
			closeFiles(remote)
			return nil, nil, err
		}
		local, remote = append(local, conn), append(remote, file)
	}
	return local, remote, nil
}

func socketPair() (ours net.Conn, theirs *os.File, err error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("create socket pair: %w", err)
	}
	local, remote := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	conn, err := net.FileConn(local) // a copy
	_ = local.Close()
	if err != nil {
		_ = remote.Close()
		return nil, nil, fmt.Errorf("create socket pair: %w", err)
	}
	return conn, remote, nil
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

// tailBuffer keeps the last maxStderr bytes that are written to it.
type tailBuffer struct {
	mu   sync.Mutex
	data []byte
}

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	if excess := len(b.data) - maxStderr; excess > 0 {
		b.data = b.data[excess:]
	}
	return len(p), nil
}

func (b *tailBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.TrimSpace(string(b.data))
}
