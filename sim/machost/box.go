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
var files embed.FS

const switchOff = 10 * time.Second

// box is the disk, processes and network of a host: two processes hold its namespaces, the
// hardware for the disk, and init, in which all others live, for as long as it is on. Both
// end when their standard input does, which is when ours do.
type box struct {
	options Options
	dir     string

	mu       sync.Mutex
	hardware *held
	init     *held
	pid      string
}

// held is a process that lives for as long as its standard input is open.
type held struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
}

// hold starts a process and waits until it says that it is ready.
func hold(ctx context.Context, argv ...string) (*held, error) {
	// It outlives the context, which is that of its start.
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // see above
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	var said strings.Builder

	cmd.Stderr = &said

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

	h := &held{cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	stop()

	go func() {
		_ = cmd.Wait()

		close(h.ended)
	}()

	if line != "ready\n" {
		h.end()

		return nil, fmt.Errorf("%s said %q and not that it is ready: %w: %s (namespaces of users have to be allowed)",
			argv[0], line, err, said.String())
	}

	return h, nil
}

// end ends the process and waits for that.
func (h *held) end() {
	_ = h.stdin.Close()

	select {
	case <-h.ended:
	case <-time.After(switchOff):
		_ = h.cmd.Process.Kill()
		<-h.ended
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
	from, root := filepath.Join(b.dir, "box"), filepath.Join(b.dir, "root")
	if err := os.CopyFS(b.dir, files); err != nil {
		return fmt.Errorf("write the programs of the host: %w", err)
	}

	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}

	var err error

	b.hardware, err = hold(ctx, "unshare", "--user", "--map-root-user", "--mount", "--net", "--uts", "--ipc",
		"/bin/bash", filepath.Join(from, "lib", "hardware.sh"), root, string(b.options.System), from)
	if err != nil {
		return fmt.Errorf("build the host: %w", err)
	}

	boot, err := fs.ReadFile(files, "box/lib/boot-"+string(b.options.System)+".sh")
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

// path of a file of the host, seen from outside.
func (b *box) path(name string) string {
	return filepath.Join("/proc/"+strconv.Itoa(b.hardware.cmd.Process.Pid), "root", name)
}

func enter(pid string, more ...string) []string {
	return append([]string{
		"nsenter", "--preserve-credentials", "--target", pid,
		"--user", "--mount", "--net", "--uts", "--ipc", "--root", "--wd",
	}, more...)
}

// environment of all that runs at the host. Commands that are not there are written down.
func (b *box) environment() []string {
	// macOS before 15 has no sha256sum, and scripts try it first.
	absent := "*"
	if b.options.System == Mac {
		absent = "sha256sum"
	}

	quiet := ""
	if absent != "*" {
		quiet = `[ "$1" = ` + absent + ` ] || `
	}

	return []string{
		"/usr/bin/env", "-i", "PATH=/sim/bin:/usr/local/bin", "HOME=/var/root", "TMPDIR=/tmp", "LC_ALL=C",
		"BASH_FUNC_command_not_found_handle%%=() { " + quiet +
			`echo "$*" >>/sim/unknown; echo "bash: $1: command not found" >&2; return 127; }`,
	}
}

func (b *box) boot(ctx context.Context) error {
	hardware := strconv.Itoa(b.hardware.cmd.Process.Pid)
	argv := append(enter(hardware, "--", "/usr/bin/unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
		append(b.environment(), "/bin/bash", "/sim/lib/init.sh")...)

	held, err := hold(ctx, argv...)
	if err != nil {
		return fmt.Errorf("boot the host: %w", err)
	}

	// The first process of the host is the one child of the one that made its namespace.
	pid := strconv.Itoa(held.cmd.Process.Pid)

	children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if err != nil || len(strings.Fields(string(children))) != 1 {
		held.end()

		return fmt.Errorf("boot the host: its first process is not to be found among %q: %w", children, err)
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	b.init, b.pid = held, strings.TrimSpace(string(children))

	return os.WriteFile(filepath.Join(b.dir, "pid"), []byte(b.pid), 0o600)
}

// argv of a command line at the host, given to bash as SSH does.
func (b *box) argv(line string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	return append(append(enter(b.pid, "--pid", "--"), b.environment()...), "/sim/bin/setsid", "--wait", "/bin/bash", "-c", line)
}

func (b *box) command(ctx context.Context, line string) *exec.Cmd {
	argv := b.argv(line)

	return exec.CommandContext(ctx, argv[0], argv[1:]...)
}

// off ends all processes of the host. The disk stays.
func (b *box) off() {
	b.mu.Lock()
	init := b.init
	b.init = nil
	b.mu.Unlock()

	if init != nil {
		init.end()
	}
}

func (b *box) close() error {
	if b == nil {
		return nil
	}

	b.off()

	if b.hardware != nil {
		b.hardware.end()
	}

	return os.RemoveAll(b.dir)
}
