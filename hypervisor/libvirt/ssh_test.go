// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"errors"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/sim/machost"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// startSSHD starts OpenSSH's server for one key. It returns its address and the fingerprint of its host key.
func startSSHD(t *testing.T, authorized string) (address, hostKey string) {
	t.Helper()

	must := func(err error) {
		t.Helper()

		if err != nil {
			t.Fatal(err)
		}
	}

	if os.Geteuid() == 0 {
		must(os.MkdirAll("/run/sshd", 0o755))
	}

	private, public, err := machost.NewKey()
	must(err)

	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(public)) //nolint:dogsled // the other results are parts of the line
	must(err)

	dir := t.TempDir()
	address = loopback.Address(t)
	_, port, _ := net.SplitHostPort(address)

	for name, text := range map[string]string{
		"key": private, "authorized": authorized,
		"config": strings.Join([]string{
			"ListenAddress 127.0.0.1", "Port " + port, "HostKey " + filepath.Join(dir, "key"), "PidFile none", "UsePAM no", "StrictModes no",
			"AuthorizedKeysFile " + filepath.Join(dir, "authorized"), "PermitRootLogin prohibit-password", "PasswordAuthentication no", "",
		}, "\n"),
	} {
		must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}

	process, err := procrun.Start(t.Context(), procrun.Spec{
		Path: "/usr/sbin/sshd", Args: []string{"-D", "-e", "-f", filepath.Join(dir, "config")}, LogPath: filepath.Join(dir, "log"),
	})
	must(err)
	t.Cleanup(func() { _ = process.Kill() })

	return address, ssh.FingerprintSHA256(key)
}

// A host is connected over SSH with a key, if it presents the host key that the cluster names.
func TestConnectionOverSSH(t *testing.T) {
	t.Parallel()

	private, public, err := machost.NewKey()
	if err != nil {
		t.Fatal(err)
	}

	current, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}

	address, hostKey := startSSHD(t, public)
	other, _, err := machost.NewKey()
	if err != nil {
		t.Fatal(err)
	}

	s := newSite(t)
	s.config.Hosts[0].URI = "qemu+ssh://" + current.Username + "@" + address + "/session?socket=" + shared.Socket()

	check := func(key, pinned string) error {
		config := s.config
		config.SSHPrivateKey = []byte(key)
		config.Hosts = []hypervisor.Host{config.Hosts[0]}
		config.Hosts[0].SSHHostKey = pinned

		p, err := libvirt.New(config, hypervisor.Options{OperatorUID: "operator"})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()

		// The server may not listen yet.
		for {
			_, err := p.Check(t.Context())
			if !hypervisor.Is(err, hypervisor.Unavailable) {
				return err
			}

			time.Sleep(50 * time.Millisecond)
		}
	}

	if err := check(private, hostKey); err != nil {
		t.Error(err)
	}

	for name, err := range map[string]error{
		"HostKeyChanged":  check(private, "SHA256:another"),
		"SSHLoginRefused": check(other, hostKey),
		"SSHKeyInvalid":   check("no key", hostKey),
	} {
		e, ok := errors.AsType[*hypervisor.Error](err)
		if !ok || e.Kind != hypervisor.Rejected || e.Reason != name || strings.Contains(err.Error(), "no key") {
			t.Errorf("want the reason %s, got %v", name, err)
		}
	}
}
