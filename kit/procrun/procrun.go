// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package procrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	defaultGracePeriod = 10 * time.Second
	probeInterval      = 50 * time.Millisecond
	tailBytes          = 4096
)

// ErrExited is the error of WaitReady if the process has exited.
var ErrExited = errors.New("process exited")

// Spec describes a process.
type Spec struct {
	// Name is the name of the process in errors. Default: the base name of Path.
	Name string
	// Path is the path of the program.
	Path string
	// Args are the arguments after the program's name. Every user of the machine can see them, so they
	// must not contain a secret.
	Args []string
	// Env is the environment as key=value. Default: the environment of this process.
	Env []string
	// Dir is the working directory. Default: the working directory of this process.
	Dir string
	// LogPath is the file to which standard output and standard error are appended. The file is
	// created with mode 0600, and its directory is created, too. Default: the output is discarded.
	LogPath string
	// GracePeriod is the time between SIGTERM and SIGKILL. Default: 10 seconds.
	GracePeriod time.Duration
}

// Process is a child process. Its methods are safe for concurrent use.
type Process struct {
	spec Spec
	pid  int
	done chan struct{}

	// state and err are written before done is closed, and read after it is closed.
	state *os.ProcessState
	err   error
}

// Start starts a process. When ctx ends, the process is stopped as with Stop.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	if spec.Name == "" {
		spec.Name = filepath.Base(spec.Path)
	}

	if spec.GracePeriod <= 0 {
		spec.GracePeriod = defaultGracePeriod
	}

	logFile, err := openLog(spec.LogPath)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}

	// The caller decides what to run. exec.CommandContext would kill only the child, at once and
	// without its group.
	cmd := exec.Command(spec.Path, spec.Args...) //nolint:noctx,gosec // see above
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = newSysProcAttr()

	process := &Process{spec: spec, done: make(chan struct{})}
	started := make(chan error, 1)

	go process.run(cmd, logFile, started)

	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}

	go process.stopWithContext(ctx)

	return process, nil
}

// run starts the command and waits until it exits. Both happen on one locked thread, because the
// kernel kills a child when the thread that started it ends, and not when the process ends.
func (p *Process) run(cmd *exec.Cmd, logFile *os.File, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	defer logFile.Close() //nolint:errcheck // only the child writes to the file

	if err := cmd.Start(); err != nil {
		started <- err

		return
	}

	p.pid = cmd.Process.Pid
	started <- nil
	p.err = cmd.Wait()
	p.state = cmd.ProcessState

	// Kill the processes that the child started and did not stop.
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)

	close(p.done)
}

// stopWithContext stops the process when ctx ends.
func (p *Process) stopWithContext(ctx context.Context) {
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.Stop()
	}
}

// Name returns the process's name.
func (p *Process) Name() string { return p.spec.Name }

// PID returns the id of the process, which is also the id of its group.
func (p *Process) PID() int { return p.pid }

// Done returns a channel that is closed when the process has exited.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits until the process exits. It returns nil for exit code 0, and an error otherwise.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("%s: %w", p.spec.Name, p.err)
		}

		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.spec.Name, ctx.Err())
	}
}

// ExitCode returns the exit code of the process. It returns -1 if the process runs or was
// terminated by a signal.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		return p.state.ExitCode()
	default:
		return -1
	}
}

// MaxRSS returns the peak resident memory of the process in bytes. It returns 0 while the process runs.
func (p *Process) MaxRSS() int64 {
	select {
	case <-p.done:
	default:
		return 0
	}

	usage, ok := p.state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}

	return maxRSSBytes(usage)
}

// Stop sends SIGTERM to the process and its group, and SIGKILL after the grace period. It returns
// when the process has exited. If the process has already exited, Stop does nothing.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}

	timer := time.NewTimer(p.spec.GracePeriod)
	defer timer.Stop()

	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return p.Kill()
	}
}

// Kill sends SIGKILL to the process and its group, and returns when the process has exited.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}

	<-p.done

	return nil
}

// Signal sends a signal to the process and its group. If the process has exited, Signal does nothing.
func (p *Process) Signal(signal syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}

	if err := syscall.Kill(-p.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to %s: %w", signal, p.spec.Name, err)
	}

	return nil
}

// WaitReady calls probe until probe returns nil. It returns an error with the last lines of the log
// if ctx ends, or if the process exits (ErrExited).
func (p *Process) WaitReady(ctx context.Context, probe func(context.Context) error) error {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()

	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}

		select {
		case <-p.done:
			return fmt.Errorf("wait for %s: %w with code %d: %s", p.spec.Name, ErrExited, p.ExitCode(), p.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: last probe: %w: %s", p.spec.Name, ctx.Err(), err, p.LogTail())
		case <-ticker.C:
		}
	}
}

// LogTail returns the last 4 KiB of the process's output, starting at the start of a line.
func (p *Process) LogTail() string {
	if p.spec.LogPath == "" {
		return "(the output was discarded)"
	}

	data, err := os.ReadFile(p.spec.LogPath)
	if err != nil {
		return "(read log: " + err.Error() + ")"
	}

	if len(data) > tailBytes {
		data = data[len(data)-tailBytes:]
		if _, rest, ok := strings.Cut(string(data), "\n"); ok {
			data = []byte(rest)
		}
	}

	return strings.TrimSpace(string(data))
}

func openLog(path string) (*os.File, error) {
	if path == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}

	const (
		dirMode  = 0o700
		fileMode = 0o600
	)

	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, err
	}

	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, fileMode)
}
