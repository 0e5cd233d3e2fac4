// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed box
var boxFiles embed.FS

// shutdownTimeout is how long stop waits before it kills a process.
const shutdownTimeout = 10 * time.Second

// box is the disk, the processes and the network of a host. Two processes hold the namespaces. The
// process hardware holds the disk. The process init is the parent of all other processes and runs
// while the host is on. Both processes end when their standard input is closed, and so they also end
// with the simulator's own process.
type box struct {
	options Options
	dir     string

	mu       sync.Mutex
	hardware *heldProcess
	init     *heldProcess
	pid      string
}

// heldProcess is a process that runs for as long as its standard input is open.
type heldProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}
}

// startHeld starts a process and waits until the process prints "ready".
func startHeld(ctx context.Context, argv ...string) (*heldProcess, error) {
	// The process outlives ctx, which limits only the start.
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // see above
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	var stderr strings.Builder

	cmd.Stderr = &stderr

	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}

	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}

	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", argv[0], err)
	}

	h := &heldProcess{cmd: cmd, stdin: stdin, done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	stop()

	go func() {
		_ = cmd.Wait()

		close(h.done)
	}()

	if line != "ready\n" {
		h.stop()

		return nil, fmt.Errorf("%s printed %q instead of \"ready\": %w: %s (the kernel must allow user namespaces)",
			argv[0], line, err, stderr.String())
	}

	return h, nil
}

// stop closes the standard input of the process and waits for the end of the process. It kills the
// process after shutdownTimeout.
func (h *heldProcess) stop() {
	_ = h.stdin.Close()

	select {
	case <-h.done:
	case <-time.After(shutdownTimeout):
		_ = h.cmd.Process.Kill()
		<-h.done
	}
}

func newBox(ctx context.Context, options Options) (*box, error) {
	dir, err := os.MkdirTemp("", "machost-")
	if err != nil {
		return nil, err
	}

	b := &box{options: options, dir: dir}
	if err := b.build(ctx); err != nil {
		return nil, errors.Join(err, b.close())
	}

	return b, nil
}

func (b *box) build(ctx context.Context) error {
	boxDir, root := filepath.Join(b.dir, "box"), filepath.Join(b.dir, "root")
	if err := os.CopyFS(b.dir, boxFiles); err != nil {
		return fmt.Errorf("write programs of host: %w", err)
	}

	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}

	var err error

	b.hardware, err = startHeld(ctx, "unshare", "--user", "--map-root-user", "--mount", "--net", "--uts", "--ipc",
		"/bin/bash", filepath.Join(boxDir, "lib", "hardware.sh"), root, string(b.options.System), boxDir)
	if err != nil {
		return fmt.Errorf("build host: %w", err)
	}

	boot, err := fs.ReadFile(boxFiles, "box/lib/boot-"+string(b.options.System)+".sh")
	if err != nil {
		return err
	}

	texts := map[string]string{
		"/sim/lib/boot.sh": string(boot), "/sim/sudo": string(SudoFree) + "\n", "/sim/password": b.options.Password + "\n",
		"/sim/user": b.options.User + "\n",
	}
	if b.options.System == Mac {
		texts["/etc/passwd"] = "root:x:0:0::/var/root:/bin/bash\n" +
			b.options.User + ":x:501:20::/Users/" + b.options.User + ":/bin/zsh\n"
	}

	for path, text := range texts {
		if err := os.WriteFile(b.path(path), []byte(text), 0o600); err != nil {
			return err
		}
	}

	return b.boot(ctx)
}

// path returns the path of a file of the host as seen from outside the host.
func (b *box) path(name string) string {
	return filepath.Join("/proc/"+strconv.Itoa(b.hardware.cmd.Process.Pid), "root", name)
}

func buildNsenterArgs(pid string, args ...string) []string {
	return append([]string{
		"nsenter", "--preserve-credentials", "--target", pid,
		"--user", "--mount", "--net", "--uts", "--ipc", "--root", "--wd",
	}, args...)
}

// buildEnvironment returns env(1) and its arguments, which start a program with the environment of
// the host. bash records the calls of commands that the host does not have in /sim/unknown.
func (b *box) buildEnvironment() []string {
	// macOS before 15 has no sha256sum, and scripts try it first.
	unrecorded := "*"
	if b.options.System == Mac {
		unrecorded = "sha256sum"
	}

	condition := ""
	if unrecorded != "*" {
		condition = `[ "$1" = ` + unrecorded + ` ] || `
	}

	return []string{
		"/usr/bin/env", "-i", "PATH=/sim/bin:/usr/local/bin", "HOME=/var/root", "TMPDIR=/tmp", "LC_ALL=C",
		"BASH_FUNC_command_not_found_handle%%=() { " + condition +
			`echo "$*" >>/sim/unknown; echo "bash: $1: command not found" >&2; return 127; }`,
	}
}

func (b *box) boot(ctx context.Context) error {
	hardware := strconv.Itoa(b.hardware.cmd.Process.Pid)
	argv := append(buildNsenterArgs(hardware, "--", "/usr/bin/unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
		append(b.buildEnvironment(), "/bin/bash", "/sim/lib/init.sh")...)

	initProcess, err := startHeld(ctx, argv...)
	if err != nil {
		return fmt.Errorf("boot host: %w", err)
	}

	// The first process of the host is the only child of the process that created the PID namespace.
	pid := strconv.Itoa(initProcess.cmd.Process.Pid)

	children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if err != nil || len(strings.Fields(string(children))) != 1 {
		initProcess.stop()

		return fmt.Errorf("boot host: find first process: want one child, have %q: %w", children, err)
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	b.init, b.pid = initProcess, strings.TrimSpace(string(children))

	return os.WriteFile(filepath.Join(b.dir, "pid"), []byte(b.pid), 0o600)
}

// buildArgv returns the arguments that run a command line at the host. The user's login shell executes the command
// line, as with SSH.
func (b *box) buildArgv(line string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return append(append(buildNsenterArgs(b.pid, "--pid", "--"), b.buildEnvironment()...),
		"/sim/bin/setsid", "--wait", b.options.Shell, "-c", line)
}

func (b *box) newCommand(ctx context.Context, line string) *exec.Cmd {
	argv := b.buildArgv(line)

	return exec.CommandContext(ctx, argv[0], argv[1:]...)
}

// powerOff ends all processes of the host. The disk stays.
func (b *box) powerOff() {
	b.mu.Lock()
	init := b.init
	b.init = nil
	b.mu.Unlock()

	if init != nil {
		init.stop()
	}
}

func (b *box) close() error {
	if b == nil {
		return nil
	}

	b.powerOff()

	if b.hardware != nil {
		b.hardware.stop()
	}

	return os.RemoveAll(b.dir)
}
