// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost_test

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/hyperfleet/hyperfleet/sim/machost"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const password = "correct horse"

func startHost(t *testing.T, options machost.Options) *machost.Host {
	t.Helper()

	options.Password = password

	host, err := machost.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})

	return host
}

// newClient returns a separate SSH client, so that the test does not depend on HyperFleet's client.
func newClient(t *testing.T, host *machost.Host) *ssh.Client {
	t.Helper()

	c, err := ssh.Dial("tcp", host.Address(), &ssh.ClientConfig{
		User: "m1", Auth: []ssh.AuthMethod{ssh.Password(password)},
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			if ssh.FingerprintSHA256(key) != host.HostKey() {
				return errors.New("not the host's key")
			}

			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = c.Close() })

	return c
}

// runOverSSH runs a command over SSH and returns its output and exit code.
func runOverSSH(t *testing.T, c *ssh.Client, command, input string) (string, int) {
	t.Helper()

	session, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()

	session.Stdin = strings.NewReader(input)
	out, err := session.CombinedOutput(command)

	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		return string(out), exit.ExitStatus()
	}

	if err != nil {
		t.Fatal(err)
	}

	return string(out), 0
}

func TestHostIsIsolated(t *testing.T) {
	t.Parallel()

	for _, system := range []machost.System{machost.Mac, machost.Linux} {
		t.Run(string(system), func(t *testing.T) {
			t.Parallel()

			host := startHost(t, machost.Options{System: system})
			c := newClient(t, host)

			marker := filepath.Join(t.TempDir(), "marker")
			if err := os.WriteFile(marker, nil, 0o600); err != nil {
				t.Fatal(err)
			}

			for command, want := range map[string]int{
				"test -e " + marker:                       1, // the host does not have the files of this machine
				"touch /usr/bin/x":                        1, // the host cannot change shared files
				"kill -0 " + "4194303":                    1, // the host does not see other processes
				"sudo -n /usr/bin/true":                   0,
				"cd /etc && touch x && chown root x":      0,
				"test $(ps ax -o pid= | wc -l) -lt 10":    0,
				"exit 42":                                 42,
				"head -c 100000 /dev/zero | wc -c | head": 0,
			} {
				if out, code := runOverSSH(t, c, command, ""); code != want {
					t.Errorf("%s: ended with %d: %s", command, code, out)
				}
			}

			if unknown := host.UnknownCalls(); len(unknown) > 0 {
				t.Errorf("unknown: %q", unknown)
			}
		})
	}
}

func TestUnknownCallsAreRecorded(t *testing.T) {
	t.Parallel()

	host := startHost(t, machost.Options{})
	c := newClient(t, host)

	for _, command := range []string{"apt-get update", "launchctl load x", "pfctl -F all", "networksetup -listallhardwareports", "sysctl -a"} {
		if out, code := runOverSSH(t, c, command, ""); code != 127 {
			t.Errorf("%s: ended with %d: %s", command, code, out)
		}

		if !slices.Contains(host.UnknownCalls(), command) {
			t.Errorf("%s is not in %q", command, host.UnknownCalls())
		}
	}

	session, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}

	if err := session.Shell(); err == nil || !slices.Contains(host.UnknownCalls(), "request shell") {
		t.Errorf("a shell: %v: %q", err, host.UnknownCalls())
	}
}

// TestMacHasNoLinuxCommands checks that macOS has neither stat -c nor sha256sum.
func TestMacHasNoLinuxCommands(t *testing.T) {
	t.Parallel()

	host := startHost(t, machost.Options{})
	c := newClient(t, host)

	if out, code := runOverSSH(t, c, "stat -c %a /etc", ""); code == 0 {
		t.Error(out)
	}

	if out, code := runOverSSH(t, c, "sha256sum /etc/passwd", ""); code != 127 {
		t.Error(out)
	}

	if out, code := runOverSSH(t, c, "stat -f '%Lp %Su:%Sg' /etc/passwd", ""); code != 0 || out != "644 root:wheel\n" {
		t.Error(out)
	}

	if unknown := host.UnknownCalls(); len(unknown) > 0 {
		t.Errorf("commands that scripts only try are recorded as unknown: %q", unknown)
	}
}

const plist = `<plist><dict>
	<key>Label</key>
	<string>job</string>
	<key>ProgramArguments</key>
	<array>
		<string>/bin/sleep</string>
		<string>1234</string>
	</array>
	<key>KeepAlive</key>
	<true/>
</dict></plist>
`

func TestRestartEndsProcessesAndKeepsTheDisk(t *testing.T) {
	t.Parallel()

	host := startHost(t, machost.Options{})
	runs := func() bool {
		processes, err := host.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		return slices.Contains(processes, "/bin/sleep 1234")
	}

	c := newClient(t, host)
	if out, code := runOverSSH(t, c, "cat >/Library/LaunchDaemons/job.plist; chmod 644 /Library/LaunchDaemons/job.plist; "+
		"launchctl bootstrap system /Library/LaunchDaemons/job.plist", plist); code != 0 {
		t.Fatalf("the job was not started: %s", out)
	}

	timing.WaitUntil(t, "the job runs", runs)

	if _, err := host.Exec(t.Context(), "setsid /bin/sleep 99999 </dev/null >/dev/null 2>&1 &"); err != nil {
		t.Fatal(err)
	}

	if err := host.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}

	timing.WaitUntil(t, "the job runs again", runs)

	processes, err := host.Processes(t.Context())
	if err != nil || slices.Contains(processes, "/bin/sleep 99999") {
		t.Errorf("after the restart, only the job should run: %v\n%s", err, strings.Join(processes, "\n"))
	}

	if host.ReadFile("/Library/LaunchDaemons/job.plist") != plist {
		t.Error("the host has another disk")
	}
}

// TestCloseLeavesNothing checks that no process, no directory and no mount remains.
func TestCloseLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)

	host, err := machost.Start(t.Context(), machost.Options{})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := host.Exec(t.Context(), "setsid /bin/sleep 31337 </dev/null >/dev/null 2>&1 &"); err != nil {
		t.Fatal(err)
	}

	if err := host.Close(); err != nil {
		t.Fatal(err)
	}

	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("files remain: %v %v", left, err)
	}

	out, err := exec.CommandContext(t.Context(), "ps", "axww", "-o", "args=").Output()
	if err != nil || bytes.Contains(out, []byte("/bin/sleep 31337")) {
		t.Errorf("a process of the host still runs: %v", err)
	}
}

func TestLightHostChecksItsInput(t *testing.T) {
	t.Parallel()

	host := startHost(t, machost.Options{Light: true})
	c := newClient(t, host)
	line := "sudo -n /bin/bash -c 'guard' hyperfleet-script 'first' 900"
	script := "SHA256='2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae'\nmain() { true; }\n\nmain; exit 0\n"

	for name, tc := range map[string]struct {
		line, input string
		code        int
	}{
		"complete":     {line, script + "foo", 0},
		"cut payload":  {line, script + "fo", 1},
		"cut script":   {line, script[:40], 1},
		"no sudo":      {strings.TrimPrefix(line, "sudo -n "), script + "foo", 1},
		"no script":    {"sudo -n rm -rf /", "", 127},
		"sudo's check": {"sudo -n /usr/bin/true", "", 0},
	} {
		if out, code := runOverSSH(t, c, tc.line, tc.input); code != tc.code {
			t.Errorf("%s: ended with %d: %s", name, code, out)
		}
	}

	if got := host.UnknownCalls(); len(got) != 1 || len(host.Digests()) != 1 {
		t.Errorf("unknown %q, digests %v", got, host.Digests())
	}
}

func TestProgramsOfTheHostAreScripts(t *testing.T) {
	t.Parallel()

	var paths []string

	err := filepath.WalkDir("box", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			paths = append(paths, path)
		}

		return err
	})
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d programs: %v", len(paths), err)
	}

	// SC1091: the sourced files have other paths at the host.
	argv := append([]string{"--shell=bash", "--exclude=SC1091"}, paths...)

	out, err := exec.CommandContext(t.Context(), "shellcheck", argv...).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
