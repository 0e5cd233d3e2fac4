// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// System is the operating system of a host.
type System string

const (
	// Mac is macOS.
	Mac System = "mac"
	// Linux is a Linux with systemd and nftables.
	Linux System = "linux"
)

// Sudo is the response of sudo.
type Sudo string

const (
	// SudoFree asks for no password.
	SudoFree Sudo = "free"
	// SudoPassword asks for the user's password.
	SudoPassword Sudo = "password"
	// SudoRefused refuses every user.
	SudoRefused Sudo = "refused"
)

// Options configures a host. The zero value is a Mac that executes scripts.
type Options struct {
	// Name is the host's name in errors.
	Name string
	// System is the operating system. Default: Mac.
	System System
	// Light makes a light host, which executes nothing.
	Light bool
	// Address is the address to listen on. Default: a free port on loopback.
	Address string
	// User is the user that can log in. Default: m1. The user root needs no sudo.
	User string
	// Shell is the user's login shell, which executes command lines. Default: /bin/bash.
	Shell string
	// Password is the user's password. If Password is empty, no login by password is possible.
	Password string
	// AuthorizedKeys holds lines as in the file authorized_keys.
	AuthorizedKeys []string
	// Watch is called when a script starts and when it has ended. Watch is called from several
	// goroutines, and the script waits for the call. Watch can be nil.
	Watch func(Run)
}

// Run is one run of a script.
type Run struct {
	Label string
	// Ended is true if the script has ended. Code is the exit code, and -1 if a fault has cut the
	// script.
	Ended bool
	Code  int
}

// Host is a simulated host. Its methods may be called from any goroutine.
type Host struct {
	options Options
	keys    []ssh.PublicKey
	box     *box // nil for a light host
	light   *lightState
	// restartRequests is the FIFO through which a Mac requests a restart.
	restartRequests *os.File
	serving         sync.WaitGroup

	mu           sync.Mutex
	listener     net.Listener
	signer       ssh.Signer
	others       []ssh.Signer
	cert         *ssh.Certificate
	conns        map[net.Conn]*freezableConn
	down         bool
	faults       faults
	running      map[string]int
	runs         []Run
	unknownCalls []string
	logins       int
}

// Start starts a new host and turns it on. The caller closes the host.
func Start(ctx context.Context, options Options) (*Host, error) {
	options.System = cmp.Or(options.System, Mac)
	options.User = cmp.Or(options.User, "m1")
	options.Shell = cmp.Or(options.Shell, "/bin/bash")
	options.Address = cmp.Or(options.Address, "127.0.0.1:0")
	h := &Host{
		options: options, conns: map[net.Conn]*freezableConn{}, running: map[string]int{},
		light: &lightState{received: map[string]pushedScript{}}, faults: faults{sudo: SudoFree},
	}

	for _, line := range options.AuthorizedKeys {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, fmt.Errorf("start host %s: authorized key: %w", options.Name, err)
		}

		h.keys = append(h.keys, key)
	}

	if err := h.ChangeKey(); err != nil {
		return nil, err
	}

	if !options.Light {
		var err error
		if h.box, err = newBox(ctx, options); err != nil {
			return nil, fmt.Errorf("start host %s: %w", options.Name, err)
		}
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", options.Address)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start host %s: %w", options.Name, err), h.box.close())
	}

	h.listener = listener
	h.serving.Go(h.accept)

	if h.box != nil && options.System == Mac {
		if h.restartRequests, err = os.OpenFile(h.box.path("/sim/restart.fifo"), os.O_RDWR, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("start host %s: %w", options.Name, err), h.Close())
		}

		h.serving.Go(func() { h.serveRestarts(h.restartRequests) })
	}

	return h, nil
}

// Close turns the host off and releases all of its resources.
func (h *Host) Close() error {
	err := h.listener.Close()
	if h.restartRequests != nil {
		err = errors.Join(err, h.restartRequests.Close())
	}

	h.closeConnections()

	if h.box != nil {
		err = errors.Join(err, h.box.close())
	}

	h.serving.Wait()

	return err
}

// Address returns host:port.
func (h *Host) Address() string { return h.listener.Addr().String() }

// HostKey returns the fingerprint of the host's current key, as ssh-keygen -l prints it.
func (h *Host) HostKey() string {
	h.mu.Lock()
	defer h.mu.Unlock()

	return ssh.FingerprintSHA256(h.signer.PublicKey())
}

// ChangeKey replaces the host key, as a reinstallation does.
func (h *Host) ChangeKey() error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("create host key: %w", err)
	}

	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return fmt.Errorf("create host key: %w", err)
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	h.signer, h.cert = signer, nil

	return nil
}

// AddKey makes the host offer another key beside its own, such as one of another type.
func (h *Host) AddKey(signer ssh.Signer) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.others = append(h.others, signer)
}

// Certify makes the host offer a certificate of its key together with the key. The certificate is
// that of NewHostCert for the host's address.
func (h *Host) Certify(authority ssh.Signer, change func(*ssh.Certificate)) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	cert, err := NewHostCert(h.signer.PublicKey(), h.listener.Addr().String(), authority, change)
	h.cert = cert

	return err
}

// Runs returns the scripts that have ended, in the order of their ends.
func (h *Host) Runs() []Run {
	h.mu.Lock()
	defer h.mu.Unlock()

	return slices.Clone(h.runs)
}

// Running returns the labels of the scripts that run now, sorted.
func (h *Host) Running() []string {
	h.mu.Lock()
	defer h.mu.Unlock()

	var out []string

	for label, count := range h.running {
		out = append(out, slices.Repeat([]string{label}, count)...)
	}

	slices.Sort(out)

	return out
}

// Logins returns the number of successful logins.
func (h *Host) Logins() int {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.logins
}

// UnknownCalls returns the calls that the simulator does not support: those that it has received itself, and those to
// the programs in the box of the host. A test has to fail if there are any.
func (h *Host) UnknownCalls() []string {
	h.mu.Lock()
	out := slices.Clone(h.unknownCalls)
	h.mu.Unlock()

	if h.box != nil {
		for line := range strings.Lines(h.ReadFile("/sim/unknown")) {
			out = append(out, strings.TrimSpace(line))
		}
	}

	return out
}

func (h *Host) recordUnknown(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.unknownCalls = append(h.unknownCalls, call)
}

// Calls returns the calls of the shims, that is, of programs of the operating system, with their
// arguments.
func (h *Host) Calls() []string {
	var out []string
	for line := range strings.Lines(h.ReadFile("/sim/calls")) {
		out = append(out, strings.TrimSpace(line))
	}

	return out
}

// ReadFile returns the content of a file of the host. It returns an empty string if the file is
// missing or if the host is light.
func (h *Host) ReadFile(path string) string {
	if h.box == nil {
		return ""
	}

	text, err := os.ReadFile(h.box.path(path))
	if err != nil {
		return ""
	}

	return string(text)
}

// Exec runs a command at the host as root, without SSH, and returns the output.
func (h *Host) Exec(ctx context.Context, command string) (string, error) {
	if h.box == nil {
		return "", fmt.Errorf("run command at %s: a light host executes nothing", h.options.Name)
	}

	out, err := h.box.newCommand(ctx, command).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("run command at %s: %w: %s", h.options.Name, err, out)
	}

	return string(out), nil
}

// Processes returns the command lines of all processes, as ps shows them to every user.
func (h *Host) Processes(ctx context.Context) ([]string, error) {
	out, err := h.Exec(ctx, "ps axww -o args=")

	return strings.Split(strings.TrimSpace(out), "\n"), err
}

// Logout ends the console session of a Mac and all processes of the session.
func (h *Host) Logout(ctx context.Context) error {
	_, err := h.Exec(ctx, ". /sim/lib/session.sh && logout_user")

	return err
}

// StartMachine makes the host's kubelet or agent start a machine and waits until the machine runs.
// The program [Programs.Kubelet] must be running.
func (h *Host) StartMachine(ctx context.Context, name string) error {
	if _, err := h.Exec(ctx, "touch /sim/machines/"+name+" && echo >/sim/machines.fifo"); err != nil {
		return err
	}

	for {
		if _, ok := h.Machines(ctx)[name]; ok {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("start machine %s at %s: %w", name, h.options.Name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Machines returns the process ids of the running machines by name. A restarted machine has another
// process id.
func (h *Host) Machines(ctx context.Context) map[string]string {
	out, err := h.Exec(ctx, "ps axww -o pid=,args=")
	if err != nil {
		return nil
	}

	found := map[string]string{}

	for line := range strings.Lines(out) {
		words := strings.Fields(line)
		if name, ok := strings.CutPrefix(words[1], "machine-"); ok {
			found[name] = words[0]
		}
	}

	return found
}
