// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/sim/machost"
	"github.com/hyperfleet/hyperfleet/sim/machost/machosttest"
	"github.com/hyperfleet/hyperfleet/test/must"
)

const (
	waitTimeout = 3 * time.Minute
	password    = "correct horse battery staple"
)

func dialHost(t *testing.T, target ssh.Target, options ssh.Options) (*ssh.Conn, error) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()

	conn, err := ssh.New(options).Dial(ctx, target)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}

	return conn, err
}

// trustHostKey trusts the host's current key.
func trustHostKey(host *machost.Host) ssh.Trust { return ssh.Trust{HostKey: host.HostKey()} }

func runScript(t *testing.T, conn *ssh.Conn, script string, limit time.Duration) (ssh.Output, error) {
	t.Helper()

	return conn.Run(t.Context(), ssh.Script{Label: "test", Input: strings.NewReader(script), Timeout: limit})
}

// startNonSSHServer starts a server that accepts connections and sends nothing or a text that is not SSH.
func startNonSSHServer(t *testing.T, wantText string) string {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Do(t, err)

	t.Cleanup(func() { _ = listener.Close() })

	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}

			if wantText == "" {
				go func() { _, _ = io.Copy(io.Discard, conn) }()

				continue
			}

			_, _ = io.WriteString(conn, wantText)
			_ = conn.Close()
		}
	}()

	return listener.Addr().String()
}

func TestDialErrors(t *testing.T) {
	t.Parallel()

	private, line := machosttest.NewKey(t)
	other, _ := machosttest.NewKey(t)
	light := func(change func(*machost.Host)) func(*testing.T, *ssh.Target) {
		return func(t *testing.T, target *ssh.Target) {
			t.Helper()

			host := machosttest.Start(t, machost.Options{Light: true, Password: password, AuthorizedKeys: []string{line}})
			target.Address, target.HostKey = host.Address(), host.HostKey()
			change(host)
		}
	}
	nothing := func(*machost.Host) {}

	cases := map[string]struct {
		at       func(*testing.T, *ssh.Target)
		change   func(*ssh.Target)
		kind     ssh.Kind
		wantText string
	}{
		"key":      {at: light(nothing)},
		"password": {at: light(nothing), change: func(g *ssh.Target) { g.PrivateKey, g.Password = log.Secret{}, log.NewSecret(password) }},
		"wrong key, right password": {at: light(nothing), change: func(g *ssh.Target) {
			g.PrivateKey, g.Password = other, log.NewSecret(password)
		}},
		"wrong key": {
			at: light(nothing), change: func(g *ssh.Target) { g.PrivateKey = other },
			kind: ssh.AuthRefused, wantText: "h refused the login of user m1",
		},
		"wrong password": {
			at: light(nothing), change: func(g *ssh.Target) { g.PrivateKey, g.Password = log.Secret{}, log.NewSecret("wrong-password") },
			kind: ssh.AuthRefused, wantText: "check the user, the password and the private key",
		},
		"no passwords at all": {
			at:     light(func(h *machost.Host) { h.RefusePasswords(true) }),
			change: func(g *ssh.Target) { g.PrivateKey, g.Password = log.Secret{}, log.NewSecret(password) },
			kind:   ssh.AuthRefused,
		},
		"another user": {
			at: light(nothing), change: func(g *ssh.Target) { g.User = "somebody" },
			kind: ssh.AuthRefused, wantText: "somebody",
		},
		"no sudo": {
			at: light(func(h *machost.Host) {
				if err := h.SetSudo(machost.SudoRefused); err != nil {
					panic(err)
				}
			}),
			kind: ssh.SudoRefused, wantText: "NOPASSWD",
		},
		"another host key": {
			at: light(nothing), change: func(g *ssh.Target) { g.HostKey = "SHA256:another" },
			kind: ssh.HostKeyChanged, wantText: "instead of SHA256:another",
		},
		"host is down": {
			at:   light(func(h *machost.Host) { h.SetDown(true) }),
			kind: ssh.Unreachable, wantText: "log in to h",
		},
		"no server": {
			at:   func(_ *testing.T, g *ssh.Target) { g.Address = "127.0.0.1:1" },
			kind: ssh.Unreachable, wantText: "connect to h",
		},
		"no SSH server": {
			at: func(t *testing.T, g *ssh.Target) {
				t.Helper()
				g.Address = startNonSSHServer(t, "HTTP/1.0 400 Bad Request\r\n\r\n")
			},
			kind: ssh.Unreachable, wantText: "log in to h",
		},
		"no response": {
			at:   func(t *testing.T, g *ssh.Target) { t.Helper(); g.Address = startNonSSHServer(t, "") },
			kind: ssh.Unreachable, wantText: "no response within",
		},
		"no credentials": {
			at: light(nothing), change: func(g *ssh.Target) { g.PrivateKey = log.Secret{} },
			kind: ssh.Misconfigured, wantText: "neither a password nor a private key",
		},
		"an invalid key": {
			at: light(nothing), change: func(g *ssh.Target) { g.PrivateKey = log.NewSecret("-----BEGIN-" + password) },
			kind: ssh.Misconfigured, wantText: "must be PEM",
		},
		"an invalid pin": {
			at: light(nothing), change: func(g *ssh.Target) { g.HostKey = "aa:bb" },
			kind: ssh.Misconfigured, wantText: "ssh-keygen -l",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			target := ssh.Target{Name: "h", User: "m1", PrivateKey: private, Trust: ssh.Trust{HostKey: "SHA256:some"}}
			tc.at(t, &target)

			if tc.change != nil {
				tc.change(&target)
			}

			options := ssh.Options{}
			if name == "no response" {
				options.HandshakeTimeout = 100 * time.Millisecond
			}

			_, err := dialHost(t, target, options)
			if got := ssh.KindOf(err); got != tc.kind {
				t.Fatalf("kind %q: %v", got, err)
			}

			if err == nil {
				return
			}

			if !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("%v does not contain %q", err, tc.wantText)
			}

			for _, secret := range []string{password, "wrong-password", target.PrivateKey.Reveal()} {
				if secret != "" && strings.Contains(err.Error(), secret) {
					t.Errorf("error contains a secret: %v", err)
				}
			}

			presentedKey := tc.kind == ssh.AuthRefused || tc.kind == ssh.SudoRefused
			if presentedKey && !strings.HasPrefix(ssh.HostKeyOf(err), "SHA256:") {
				t.Error("the error does not have the key that the host presented")
			}
		})
	}
}

func TestHostKeyIsPinned(t *testing.T) {
	t.Parallel()

	private, line := machosttest.NewKey(t)
	host := machosttest.Start(t, machost.Options{Light: true, Password: password, AuthorizedKeys: []string{line}})
	target := ssh.Target{Address: host.Address(), User: "m1", PrivateKey: private, Password: log.NewSecret(password)}

	if _, err := dialHost(t, target, ssh.Options{}); ssh.KindOf(err) != ssh.Misconfigured || host.Logins() > 0 {
		t.Fatalf("unknown key: %v, and %d logins", err, host.Logins())
	}

	presentedKey, err := ssh.New(ssh.Options{}).HostKey(t.Context(), target)
	if err != nil || presentedKey != host.HostKey() || host.Logins() > 0 {
		t.Fatalf("request for the key: %v, and %d logins", err, host.Logins())
	}

	target.HostKey = presentedKey

	conn, err := dialHost(t, target, ssh.Options{})
	if err != nil || conn.HostKey() != presentedKey {
		t.Fatal(err)
	}

	must.Do(t, host.ChangeKey())

	logins := host.Logins()

	_, err = dialHost(t, target, ssh.Options{})
	if !errors.Is(err, ssh.ErrHostKeyChanged) || host.Logins() != logins {
		t.Errorf("another key: %v, and %d more logins", err, host.Logins()-logins)
	}
}

// A host that is unreachable at its address is reached at a fallback address, but only if it
// presents a trusted key. Nothing is sent to a host with another key.
func TestFallbackAddresses(t *testing.T) {
	t.Parallel()

	private, line := machosttest.NewKey(t)
	options := machost.Options{Light: true, AuthorizedKeys: []string{line}}
	host, otherHost := machosttest.Start(t, options), machosttest.Start(t, options)
	unreachable := machosttest.Start(t, options)
	unreachable.SetDown(true)

	gone := unreachable.Address()
	known := ssh.Target{Address: gone, Fallbacks: []string{otherHost.Address(), host.Address()}, User: "m1", PrivateKey: private, Trust: ssh.Trust{HostKey: host.HostKey()}}
	quick := ssh.Options{DialTimeout: time.Second, HandshakeTimeout: 5 * time.Second}

	conn, err := dialHost(t, known, quick)
	if err != nil || conn.Address() != host.Address() {
		t.Fatalf("connected to %v: %v", conn, err)
	}

	if otherHost.Logins() > 0 {
		t.Error("the operator logged in to a host with another key")
	}

	known.Fallbacks = known.Fallbacks[:1]
	if _, err := dialHost(t, known, quick); ssh.KindOf(err) != ssh.Unreachable || !strings.Contains(err.Error(), otherHost.HostKey()) {
		t.Errorf("only another host: %v", err)
	}

	known.Address, known.Fallbacks = otherHost.Address(), []string{host.Address()}
	if _, err := dialHost(t, known, quick); ssh.KindOf(err) != ssh.HostKeyChanged {
		t.Errorf("another host at its own address: %v", err)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()

	private, line := machosttest.NewKey(t)
	host := machosttest.Start(t, machost.Options{Password: password, AuthorizedKeys: []string{line}})
	target := ssh.Target{Name: "h", Address: host.Address(), User: "m1", PrivateKey: private, Trust: trustHostKey(host)}

	registry := prometheus.NewRegistry()

	calls, err := metrics.NewCallMetrics(registry, nil)
	must.Do(t, err)

	conn, err := dialHost(t, target, ssh.Options{Calls: calls})
	must.Do(t, err)

	cases := map[string]struct {
		script   string
		limit    time.Duration
		stdout   string
		kind     ssh.Kind
		wantText []string
	}{
		"reads what follows it": {script: "main() { cat; }\nmain; exit 0\nthe payload\n", stdout: "the payload\n"},
		"leaves its input":      {script: "exit 0\n" + strings.Repeat("x", 4<<20)},
		"ends with an error":    {script: "echo one >&2; echo two >&2; exit 7\n", kind: ssh.Rejected, wantText: []string{"run test on h: the script exited with code 7: one; two"}},
		"prints nothing":        {script: "exit 9\n", kind: ssh.Rejected, wantText: []string{"exited with code 9: no output"}},
		"is killed":             {script: "kill -KILL $$\n", kind: ssh.Rejected, wantText: []string{"exited with code 137"}},
		"prints many lines": {
			script: "for ((i = 0; i < 5000; i++)); do echo line $i; done >&2; exit 1\n",
			kind:   ssh.Rejected, wantText: []string{"line 4990", "line 4999"},
		},
		"quotes the password":       {script: "echo '" + password + "' >&2; exit 1\n", kind: ssh.Rejected},
		"ends with 124":             {script: "exit 124\n", kind: ssh.Rejected, wantText: []string{"exited with code 124"}},
		"hangs":                     {script: "/bin/sleep 1000\n", limit: time.Second, kind: ssh.TimedOut, wantText: []string{"stopped after its timeout of 1s"}},
		"hangs and ignores SIGTERM": {script: "trap '' TERM; while :; do /bin/sleep 1; done\n", limit: time.Second, kind: ssh.TimedOut},
		"leaves a child that hangs": {
			script: "/bin/sleep 1001 & sleep 1002\n", limit: time.Second, kind: ssh.TimedOut,
		},
	}
	// The cases run one after the other, because they share a connection.
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range cases {
			if !yield(name) {
				return
			}
		}
	}) {
		tc := cases[name]

		out, err := runScript(t, conn, tc.script, tc.limit)
		if ssh.KindOf(err) != tc.kind || out.Stdout != tc.stdout {
			t.Errorf("%s: output %q: %v", name, out.Stdout, err)
		}

		for _, wantText := range tc.wantText {
			if err == nil || !strings.Contains(err.Error(), wantText) {
				t.Errorf("%s: %v does not contain %q", name, err, wantText)
			}
		}

		if err != nil && (len(err.Error()) > 2<<10 || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: error of %d bytes, or with several lines: %v", name, len(err.Error()), err)
		}
	}

	processes, err := host.Processes(t.Context())
	if err != nil || strings.Contains(strings.Join(processes, "\n"), "/bin/sleep 1") {
		t.Errorf("a stopped process still runs: %v\n%s", err, strings.Join(processes, "\n"))
	}

	families, err := registry.Gather()
	if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 4 {
		t.Errorf("want metrics of dial, and of successful, failed and timed out runs: %v %v", families, err)
	}
}

// The output of a script does not contain what the user's shell prints before it runs a command.
func TestShellThatPrints(t *testing.T) {
	t.Parallel()

	private, line := machosttest.NewKey(t)
	host := machosttest.Start(t, machost.Options{AuthorizedKeys: []string{line}})
	host.SetGreeting("Welcome to h!\nLast login: never\n")

	conn, err := dialHost(t, ssh.Target{Address: host.Address(), User: "m1", PrivateKey: private, Trust: trustHostKey(host)}, ssh.Options{})
	must.Do(t, err)

	out, err := runScript(t, conn, "printf 'firewall intact\\n'\n", time.Minute)
	if err != nil || out.Stdout != "firewall intact\n" {
		t.Errorf("the output is %q: %v", out.Stdout, err)
	}
}

// Scripts run whatever the user's login shell is, as root and with each way to use sudo.
func TestLoginShells(t *testing.T) {
	t.Parallel()

	private, line := machosttest.NewKey(t)

	for _, shell := range []string{"/bin/bash", "/bin/dash", "/usr/bin/tcsh"} {
		for name, options := range map[string]machost.Options{
			"root": {User: "root"}, "sudo": {User: "m1"}, "sudo with a password": {User: "m1", Password: password},
		} {
			t.Run(shell+" "+name, func(t *testing.T) {
				t.Parallel()

				options.System, options.Shell, options.AuthorizedKeys = machost.Linux, shell, []string{line}
				host := machosttest.Start(t, options)

				target := ssh.Target{Address: host.Address(), User: options.User, PrivateKey: private, Trust: trustHostKey(host)}
				if options.Password != "" {
					target.Password = log.NewSecret(options.Password)
					must.Do(t, host.SetSudo(machost.SudoPassword))
				}

				conn, err := dialHost(t, target, ssh.Options{})
				must.Do(t, err)

				out, err := runScript(t, conn, "printf '%s! $1 \\\n' \"it's\"\nexit 0\n", time.Minute)
				if err != nil || out.Stdout != "it's! $1 \\\n" {
					t.Errorf("the output is %q: %v", out.Stdout, err)
				}

				if _, err := runScript(t, conn, "echo no >&2\nexit 7\n", time.Minute); ssh.KindOf(err) != ssh.Rejected ||
					!strings.Contains(err.Error(), "code 7: no") {
					t.Errorf("a script that fails: %v", err)
				}
			})
		}
	}
}

func TestSudoWithAPassword(t *testing.T) {
	t.Parallel()

	host := machosttest.Start(t, machost.Options{Password: password})
	target := ssh.Target{Address: host.Address(), User: "m1", Password: log.NewSecret(password), Trust: trustHostKey(host)}

	must.Do(t, host.SetSudo(machost.SudoPassword))

	conn, err := dialHost(t, target, ssh.Options{})
	must.Do(t, err)

	out, err := runScript(t, conn, "cat\nline\n", 0)
	if diff := cmp.Diff("line\n", out.Stdout); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}

	if strings.Contains(strings.Join(host.Calls(), "\n"), password) {
		t.Error("the password was an argument of a process")
	}

	must.Do(t, host.SetSudo(machost.SudoRefused))

	if _, err := dialHost(t, target, ssh.Options{}); ssh.KindOf(err) != ssh.SudoRefused || !strings.Contains(err.Error(), "sudoers") {
		t.Error(err)
	}
}

// Keep-alives detect a host that no longer responds.
func TestKeepAliveCutsADeadConnection(t *testing.T) {
	t.Parallel()

	private, line := machosttest.NewKey(t)
	host := machosttest.Start(t, machost.Options{Light: true, AuthorizedKeys: []string{line}})

	conn, err := dialHost(t, ssh.Target{Name: "h", Address: host.Address(), User: "m1", PrivateKey: private, Trust: trustHostKey(host)},
		ssh.Options{KeepAlive: 50 * time.Millisecond})
	must.Do(t, err)

	host.SetFrozen(true)
	defer host.SetFrozen(false)

	if _, err := runScript(t, conn, "true\n", waitTimeout); ssh.KindOf(err) != ssh.Unreachable {
		t.Error(err)
	}
}

// Large output is truncated and does not block the script.
func TestOutputIsBounded(t *testing.T) {
	t.Parallel()

	private, line := machosttest.NewKey(t)
	host := machosttest.Start(t, machost.Options{AuthorizedKeys: []string{line}})

	conn, err := dialHost(t, ssh.Target{Address: host.Address(), User: "m1", PrivateKey: private, Trust: trustHostKey(host)}, ssh.Options{})
	must.Do(t, err)

	out, err := runScript(t, conn, "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2\n", 0)
	if err != nil || !out.Truncated || len(out.Stdout) != 256<<10 {
		t.Errorf("%d bytes, cut %v: %v", len(out.Stdout), out.Truncated, err)
	}
}
