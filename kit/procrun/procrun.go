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
	defaultGrace  = 10 * time.Second
	probeInterval = 50 * time.Millisecond
	tailBytes     = 4096
)

// ErrEnded is returned to whoever waits for a process to get ready that has ended.
var ErrEnded = errors.New("process ended")

// Spec says what to run.
type Spec struct {
	// Name of the process in errors. Default: the base name of Path.
	Name string
	// Path of the program.
	Path string
	// Args after the program's name. They can be seen by every user of the machine, so
	// they must hold no secret.
	Args []string
	// Env is the environment as key=value. Default: that of this process.
	Env []string
	// Dir is the working directory. Default: that of this process.
	Dir string
	// LogPath is the file that standard output and error are appended to, created with
	// mode 0600 and its directory. Default: they are discarded.
	LogPath string
	// Grace is how long the process may take to end after SIGTERM before SIGKILL.
	// Default: 10 seconds.
	Grace time.Duration
}

// Process is a child process. Its methods may be called from any goroutine.
type Process struct {
	spec Spec
	pid  int
	done chan struct{}

	// Written before done is closed, read after.
	state *os.ProcessState
	err   error
}

// Start starts a process. When ctx ends, the process is stopped as by Stop.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	if spec.Name == "" {
		spec.Name = filepath.Base(spec.Path)
	}

	if spec.Grace <= 0 {
		spec.Grace = defaultGrace
	}

	logFile, err := openLog(spec.LogPath)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}

	// What to run is the caller's to say; its end is by group and with grace.
	cmd := exec.Command(spec.Path, spec.Args...) //nolint:noctx,gosec // see above
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = ownGroup()

	process := &Process{spec: spec, done: make(chan struct{})}
	started := make(chan error, 1)

	go process.run(cmd, logFile, started)

	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}

	go process.follow(ctx)

	return process, nil
}

// run starts the command and waits for its end. Both happen on one thread that
// lives as long as the child: the kernel ends a child with the thread, not with the
// process, that started it.
func (p *Process) run(cmd *exec.Cmd, logFile *os.File, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	defer logFile.Close() //nolint:errcheck // the child has written it, not we

	if err := cmd.Start(); err != nil {
		started <- err

		return
	}

	p.pid = cmd.Process.Pid
	started <- nil
	p.err = cmd.Wait()
	p.state = cmd.ProcessState

	// What the child started and left behind ends with it.
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)

	close(p.done)
}

func (p *Process) follow(ctx context.Context) {
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.Stop()
	}
}

// Name returns the process's name.
func (p *Process) Name() string { return p.spec.Name }

// PID returns the id of the process, which is that of its group too.
func (p *Process) PID() int { return p.pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the process and returns how it ended: nil for exit
// code 0.
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

// ExitCode returns the exit code once the process has ended; -1 before, and when a
// signal ended it.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		return p.state.ExitCode()
	default:
		return -1
	}
}

// MaxRSS returns the peak resident memory in bytes once the process has ended, else
// 0.
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

// Stop ends the process and its group: SIGTERM, the grace time, SIGKILL. It returns
// when the process has ended. Stopping what has ended does nothing.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}

	timer := time.NewTimer(p.spec.Grace)
	defer timer.Stop()

	select {
	case <-p.done:
		return nil
	case <-timer.C:
		return p.Kill()
	}
}

// Kill ends the process and its group at once with SIGKILL and returns when the
// process has ended.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}

	<-p.done

	return nil
}

// Signal sends a signal to the process and its group; to an ended one it does
// nothing.
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

// WaitReady calls probe until it returns nil. It gives up when ctx ends or the
// process does; the error then ends with the last lines of the log.
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
			return fmt.Errorf("wait for %s: %w with code %d: %s", p.spec.Name, ErrEnded, p.ExitCode(), p.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: last answer: %w: %s", p.spec.Name, ctx.Err(), err, p.LogTail())
		case <-ticker.C:
		}
	}
}

// LogTail returns the last 4 KiB that the process wrote, from a line's start.
func (p *Process) LogTail() string {
	if p.spec.LogPath == "" {
		return "(no log is kept)"
	}

	data, err := os.ReadFile(p.spec.LogPath)
	if err != nil {
		return "(log: " + err.Error() + ")"
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
