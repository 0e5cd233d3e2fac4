// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tpm

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

const (
	setupTimeout  = time.Minute
	startTimeout  = 30 * time.Second
	answerTimeout = 5 * time.Second
	grace         = 3 * time.Second
	ownerOnly     = 0o600
)

// Authority certifies the endorsement keys of TPMs, as swtpm_localca of a host does.
type Authority struct {
	// Bundle is the path of the authority's certificates in PEM, which a SPIRE server takes
	// as endorsement_ca_path. It is there once the first TPM has been made.
	Bundle string

	dir string
	mu  sync.Mutex
	n   int
}

// NewAuthority makes an authority in a folder of the test.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()

	// Paths of sockets are short (sun_path of unix(7)), names of tests are not.
	dir, err := os.MkdirTemp("", "hf-tpm-") //nolint:usetesting // see above
	if err != nil {
		t.Fatalf("make authority of TPMs: %v", err)
	}

	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})

	a := &Authority{dir: dir, Bundle: filepath.Join(dir, "ek-ca.pem")}

	for name, lines := range map[string][]string{
		"setup.conf": {
			"create_certs_tool = " + find(t, "swtpm_localca"), "create_certs_tool_config = " + a.path("localca.conf"),
			"create_certs_tool_options = " + a.path("localca.options"), "active_pcr_banks = sha256",
		},
		"localca.conf": {
			"statedir = " + a.path("ca"), "signingkey = " + a.path("ca/signkey.pem"),
			"issuercert = " + a.path("ca/issuercert.pem"), "certserial = " + a.path("ca/certserial"),
		},
		"localca.options": {"--platform-manufacturer Test", "--platform-version 1", "--platform-model Test"},
	} {
		if err := os.WriteFile(a.path(name), []byte(strings.Join(lines, "\n")+"\n"), ownerOnly); err != nil {
			t.Fatalf("make authority of TPMs: %v", err)
		}
	}

	return a
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

// Device is a TPM.
type Device struct {
	// Path of the socket that takes TPM commands, in the place of /dev/tpmrm0.
	Path string
	// State is the folder of the TPM's state, its seeds among it.
	State string

	process *procrun.Process
}

// TPM makes a TPM with seeds of its own, and starts it.
func (a *Authority) TPM(t testing.TB) *Device {
	t.Helper()

	return a.start(t, a.manufacture(t, "--create-ek-cert"))
}

// TPMWithoutCertificate makes a TPM that nobody has certified.
func (a *Authority) TPMWithoutCertificate(t testing.TB) *Device {
	t.Helper()

	return a.start(t, a.manufacture(t))
}

// Copy starts a second TPM with a copy of the state, as the clone of a machine template
// has it where the template had a TPM.
func (a *Authority) Copy(t testing.TB, of *Device) *Device {
	t.Helper()

	state := a.folder(t)
	if err := os.CopyFS(state, os.DirFS(of.State)); err != nil {
		t.Fatalf("copy TPM: %v", err)
	}

	return a.start(t, state)
}

// folder makes a folder for one TPM.
func (a *Authority) folder(t testing.TB) string {
	t.Helper()

	a.mu.Lock()
	a.n++
	dir := a.path(fmt.Sprintf("tpm-%d", a.n))
	a.mu.Unlock()

	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatalf("make TPM: %v", err)
	}

	return state
}

// manufacture makes the state of a TPM (swtpm_setup of swtpm).
func (a *Authority) manufacture(t testing.TB, more ...string) string {
	t.Helper()

	state := a.folder(t)

	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()

	// One at a time: the authority's files are made by the first.
	a.mu.Lock()
	defer a.mu.Unlock()

	args := append([]string{"--tpm2", "--tpmstate", state, "--config", a.path("setup.conf"), "--overwrite"}, more...)

	out, err := exec.CommandContext(ctx, find(t, "swtpm_setup"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("make TPM: %v\n%s", err, out)
	}

	a.publish(t)

	return state
}

// publish writes the bundle, as soon as there is an authority.
func (a *Authority) publish(t testing.TB) {
	t.Helper()

	var bundle []byte

	for _, name := range []string{"ca/issuercert.pem", "ca/swtpm-localca-rootca-cert.pem"} {
		data, err := os.ReadFile(a.path(name))
		if os.IsNotExist(err) {
			return
		}

		if err != nil {
			t.Fatalf("read authority of TPMs: %v", err)
		}

		bundle = append(bundle, data...)
	}

	if err := os.WriteFile(a.Bundle, bundle, ownerOnly); err != nil {
		t.Fatalf("write authority of TPMs: %v", err)
	}
}

func (a *Authority) start(t testing.TB, state string) *Device {
	t.Helper()

	dir := filepath.Dir(state)
	device := &Device{Path: filepath.Join(dir, "tpm.sock"), State: state}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: find(t, "swtpm"),
		Args: []string{
			"socket", "--tpm2", "--tpmstate", "dir=" + state, "--server", "type=unixio,path=" + device.Path,
			"--ctrl", "type=unixio,path=" + filepath.Join(dir, "ctrl.sock"), "--flags", "not-need-init,startup-clear",
		},
		Dir: dir, LogPath: filepath.Join(dir, "swtpm.log"), Grace: grace,
	})
	if err != nil {
		t.Fatalf("start TPM: %v", err)
	}

	device.process = process

	t.Cleanup(func() { device.Stop(t) })

	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()

	err = process.WaitReady(ctx, func(ctx context.Context) error {
		if _, err := os.Stat(device.Path); err != nil {
			return fmt.Errorf("look for TPM: %w", err)
		}

		return answers(ctx, filepath.Join(dir, "ctrl.sock"))
	})
	if err != nil {
		t.Fatalf("start TPM: %v: %s", err, process.LogTail())
	}

	return device
}

// answers says whether a TPM takes commands: it answers on its control channel once both of
// its sockets are listened on, and not only there. Connecting to the other one would be a user
// of the TPM.
func answers(ctx context.Context, control string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", control)
	if err != nil {
		return fmt.Errorf("dial TPM: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing is lost by it

	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return fmt.Errorf("ask TPM: %w", err)
	}

	// CMD_GET_CAPABILITY, answered by 64 bits (swtpm_ioctls(3)).
	if _, err := conn.Write([]byte{0, 0, 0, 1}); err != nil {
		return fmt.Errorf("ask TPM: %w", err)
	}

	if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil { //nolint:mnd // see above
		return fmt.Errorf("ask TPM: %w", err)
	}

	return nil
}

// Stop ends the TPM. It does nothing to one that has ended.
func (d *Device) Stop(t testing.TB) {
	t.Helper()

	if err := d.process.Stop(); err != nil {
		t.Errorf("stop TPM: %v", err)
	}
}

func find(t testing.TB, name string) string {
	t.Helper()

	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("find %s: %v (hack/setup.sh packages names its package)", name, err)
	}

	return path
}
