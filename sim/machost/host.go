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

// System is what a host runs.
type System string

const (
	// Mac is macOS.
	Mac System = "mac"
	// Linux has systemd and nftables.
	Linux System = "linux"
)

// Sudo is what becomes of a user who asks to be root.
type Sudo string

const (
	// SudoFree asks for no password.
	SudoFree Sudo = "free"
	// SudoPassword asks for the user's.
	SudoPassword Sudo = "password"
	// SudoRefused says no.
	SudoRefused Sudo = "refused"
)

// Options of a host; zero values are what is usual.
type Options struct {
	// Name is what the host is called in errors.
	Name string
	// System of the host; Mac if empty.
	System System
	// Light hosts run nothing.
	Light bool
	// Address to listen on; a free port of loopback if empty.
	Address string
	// User that may log in; m1 if empty. Root needs no sudo.
	User string
	// Password of the user; none if empty.
	Password string
	// AuthorizedKeys are lines as in the file of that name.
	AuthorizedKeys []string
	// Watch hears of each script, when it starts and when it has ended; may be nil. It is
	// called from many goroutines and holds the script up.
	Watch func(Run)
}

// Run is a script that was run.
type Run struct {
	Label string
	// Ended is whether it is over, and Code how it ended; -1 where a fault has cut it.
	Ended bool
	Code  int
}

// Host is a simulated host. Its methods may be called from any goroutine.
type Host struct {
	options Options
	keys    []ssh.PublicKey
	box     *box
	light   *light
	// asked is where a Mac asks to be restarted.
	asked   *os.File
	serving sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener
	signer   ssh.Signer
	cert     *ssh.Certificate
	conns    map[net.Conn]*frozen
	down     bool
	faults   faults
	running  map[string]int
	runs     []Run
	unknown  []string
	logins   int
}

// Start starts a host, switched on and new. Close it.
func Start(ctx context.Context, options Options) (*Host, error) {
	options.System = cmp.Or(options.System, Mac)
	options.User = cmp.Or(options.User, "m1")
	options.Address = cmp.Or(options.Address, "127.0.0.1:0")
	h := &Host{
		options: options, conns: map[net.Conn]*frozen{}, running: map[string]int{}, light: &light{got: map[string]sent{}},
		faults: faults{sudo: SudoFree},
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
		if h.asked, err = os.OpenFile(h.box.path("/sim/restart.fifo"), os.O_RDWR, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("start host %s: %w", options.Name, err), h.Close())
		}

		h.serving.Go(func() { h.restarts(h.asked) })
	}

	return h, nil
}

// Close switches the host off for good, and gives back all that it had.
func (h *Host) Close() error {
	err := h.listener.Close()
	if h.asked != nil {
		err = errors.Join(err, h.asked.Close())
	}

	h.hangUp()

	if h.box != nil {
		err = errors.Join(err, h.box.close())
	}

	h.serving.Wait()

	return err
}

// Address is host:port.
func (h *Host) Address() string { return h.listener.Addr().String() }

// HostKey is the fingerprint of the host's key now, as ssh-keygen -l prints it.
func (h *Host) HostKey() string {
	h.mu.Lock()
	defer h.mu.Unlock()

	return ssh.FingerprintSHA256(h.signer.PublicKey())
}

// ChangeKey gives the host another key, as when it is installed anew.
func (h *Host) ChangeKey() error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make a host key: %w", err)
	}

	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		return fmt.Errorf("make a host key: %w", err)
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	h.signer, h.cert = signer, nil

	return nil
}

// Certify has the host show a certificate of its key beside the key: what change makes of one that
// holds for the host's address and for an hour, signed by the authority.
func (h *Host) Certify(authority ssh.Signer, change func(*ssh.Certificate)) error {
	h.mu.Lock()
	defer h.mu.Unlock()

	cert, err := NewHostCert(h.signer.PublicKey(), h.listener.Addr().String(), authority, change)
	h.cert = cert

	return err
}

// Runs gives the scripts that have ended, in order.
func (h *Host) Runs() []Run {
	h.mu.Lock()
	defer h.mu.Unlock()

	return slices.Clone(h.runs)
}

// Running gives the labels of the scripts that run now.
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

// Logins says how often somebody got in.
func (h *Host) Logins() int {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.logins
}

// Unknown gives what was called that the simulator does not know. A test in which there is
// anything has failed.
func (h *Host) Unknown() []string {
	h.mu.Lock()
	out := slices.Clone(h.unknown)
	h.mu.Unlock()

	if h.box != nil {
		for line := range strings.Lines(h.Read("/sim/unknown")) {
			out = append(out, strings.TrimSpace(line))
		}
	}

	return out
}

func (h *Host) note(unknown string) {
	h.mu.Lock()
	defer h.mu.Unlock()

	h.unknown = append(h.unknown, unknown)
}

// Calls gives the calls of programs that belong to the system, with their arguments.
func (h *Host) Calls() []string {
	var out []string
	for line := range strings.Lines(h.Read("/sim/calls")) {
		out = append(out, strings.TrimSpace(line))
	}

	return out
}

// Read gives a file of the host; empty if it is not there, and at light hosts.
func (h *Host) Read(path string) string {
	if h.box == nil {
		return ""
	}

	text, err := os.ReadFile(h.box.path(path))
	if err != nil {
		return ""
	}

	return string(text)
}

// Exec runs a command at the host as root, past SSH, and gives what it said.
func (h *Host) Exec(ctx context.Context, command string) (string, error) {
	if h.box == nil {
		return "", fmt.Errorf("run at %s: a light host runs nothing", h.options.Name)
	}

	out, err := h.box.command(ctx, command).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("run at %s: %w: %s", h.options.Name, err, out)
	}

	return string(out), nil
}

// Processes gives the command lines of all processes, as ps shows them to every user.
func (h *Host) Processes(ctx context.Context) ([]string, error) {
	out, err := h.Exec(ctx, "ps axww -o args=")

	return strings.Split(strings.TrimSpace(out), "\n"), err
}

// Logout ends the console session of a Mac, and all that runs in it.
func (h *Host) Logout(ctx context.Context) error {
	_, err := h.Exec(ctx, ". /sim/lib/session.sh && logout_user")

	return err
}

// StartMachine has the host's kubelet or agent run a machine, and waits until it does. The
// kubelet has to be there: its program is [Programs.Kubelet].
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

// Machines gives the machines that run, with their process ids: one that was started anew
// has another.
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
