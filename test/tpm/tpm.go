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
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

const (
	setupTimeout  = time.Minute
	startTimeout  = 30 * time.Second
	answerTimeout = 5 * time.Second
	grace         = 3 * time.Second
	ownerOnly     = 0o600
)

// Authority is a certificate authority for the endorsement keys of TPMs, as swtpm_localca is on a host.
type Authority struct {
	// Bundle is the path of the authority's certificates in PEM. A SPIRE server needs it as
	// endorsement_ca_path. The file exists after the first TPM has been created.
	Bundle string

	dir   string
	mu    sync.Mutex
	count int
}

// NewAuthority creates an authority in a temporary directory, which is deleted when the test ends.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()

	dir := loopback.SocketFolder(t)
	a := &Authority{dir: dir, Bundle: filepath.Join(dir, "ek-ca.pem")}

	for name, lines := range map[string][]string{
		"setup.conf": {
			"create_certs_tool = " + findProgram(t, "swtpm_localca"), "create_certs_tool_config = " + a.path("localca.conf"),
			"create_certs_tool_options = " + a.path("localca.options"), "active_pcr_banks = sha256",
		},
		"localca.conf": {
			"statedir = " + a.path("ca"), "signingkey = " + a.path("ca/signkey.pem"),
			"issuercert = " + a.path("ca/issuercert.pem"), "certserial = " + a.path("ca/certserial"),
		},
		"localca.options": {"--platform-manufacturer Test", "--platform-version 1", "--platform-model Test"},
	} {
		if err := os.WriteFile(a.path(name), []byte(strings.Join(lines, "\n")+"\n"), ownerOnly); err != nil {
			t.Fatalf("create TPM authority: %v", err)
		}
	}

	return a
}

func (a *Authority) path(name string) string { return filepath.Join(a.dir, name) }

// Device is a TPM.
type Device struct {
	// Path is the path of the socket for TPM commands. It replaces /dev/tpmrm0.
	Path string
	// State is the directory of the TPM's state, which includes its seeds.
	State string

	process *procrun.Process
}

// NewTPM creates a TPM with new seeds and an endorsement certificate, and starts it until the test ends.
func (a *Authority) NewTPM(t testing.TB) *Device {
	t.Helper()

	return a.startTPM(t, a.createState(t, "--create-ek-cert"))
}

// NewTPMWithoutCertificate creates and starts a TPM without an endorsement certificate.
func (a *Authority) NewTPMWithoutCertificate(t testing.TB) *Device {
	t.Helper()

	return a.startTPM(t, a.createState(t))
}

// CopyTPM starts a second TPM with a copy of the state, like the TPM of a clone if the machine template has
// a TPM.
func (a *Authority) CopyTPM(t testing.TB, original *Device) *Device {
	t.Helper()

	state := a.createDir(t)
	if err := os.CopyFS(state, os.DirFS(original.State)); err != nil {
		t.Fatalf("copy TPM: %v", err)
	}

	return a.startTPM(t, state)
}

// createDir creates the state directory of one TPM.
func (a *Authority) createDir(t testing.TB) string {
	t.Helper()

	a.mu.Lock()
	a.count++
	dir := a.path(fmt.Sprintf("tpm-%d", a.count))
	a.mu.Unlock()

	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatalf("create TPM: %v", err)
	}

	return state
}

// createState creates the state of a TPM with swtpm_setup.
func (a *Authority) createState(t testing.TB, options ...string) string {
	t.Helper()

	state := a.createDir(t)

	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()

	// Run swtpm_setup only once at a time, because its first run creates the authority's files.
	a.mu.Lock()
	defer a.mu.Unlock()

	args := append([]string{"--tpm2", "--tpmstate", state, "--config", a.path("setup.conf"), "--overwrite"}, options...)

	out, err := exec.CommandContext(ctx, findProgram(t, "swtpm_setup"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("create TPM: %v\n%s", err, out)
	}

	a.writeBundle(t)

	return state
}

// writeBundle writes the bundle. It does nothing as long as the authority's files do not exist.
func (a *Authority) writeBundle(t testing.TB) {
	t.Helper()

	var bundle []byte

	for _, name := range []string{"ca/issuercert.pem", "ca/swtpm-localca-rootca-cert.pem"} {
		data, err := os.ReadFile(a.path(name))
		if os.IsNotExist(err) {
			return
		}

		if err != nil {
			t.Fatalf("read TPM authority: %v", err)
		}

		bundle = append(bundle, data...)
	}

	if err := os.WriteFile(a.Bundle, bundle, ownerOnly); err != nil {
		t.Fatalf("write bundle of TPM authority: %v", err)
	}
}

func (a *Authority) startTPM(t testing.TB, state string) *Device {
	t.Helper()

	dir := filepath.Dir(state)
	device := &Device{Path: filepath.Join(dir, "tpm.sock"), State: state}

	process, err := procrun.Start(context.Background(), procrun.Spec{
		Path: findProgram(t, "swtpm"),
		Args: []string{
			"socket", "--tpm2", "--tpmstate", "dir=" + state, "--server", "type=unixio,path=" + device.Path,
			"--ctrl", "type=unixio,path=" + filepath.Join(dir, "ctrl.sock"), "--flags", "not-need-init,startup-clear",
		},
		Dir: dir, LogPath: filepath.Join(dir, "swtpm.log"), GracePeriod: grace,
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
			return fmt.Errorf("find socket of TPM: %w", err)
		}

		return checkReady(ctx, filepath.Join(dir, "ctrl.sock"))
	})
	if err != nil {
		t.Fatalf("start TPM: %v: %s", err, process.LogTail())
	}

	return device
}

// checkReady returns an error if a TPM does not accept commands. It sends a command on the control channel,
// which responds only when both sockets are ready. It does not connect to the other socket, because the TPM
// would treat that as a user's connection.
func checkReady(ctx context.Context, control string) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", control)
	if err != nil {
		return fmt.Errorf("dial TPM: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the response was read

	if err := conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return fmt.Errorf("query TPM: %w", err)
	}

	// Send CMD_GET_CAPABILITY, whose response has 64 bits (swtpm_ioctls(3)).
	if _, err := conn.Write([]byte{0, 0, 0, 1}); err != nil {
		return fmt.Errorf("query TPM: %w", err)
	}

	if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil { //nolint:mnd // see above
		return fmt.Errorf("query TPM: %w", err)
	}

	return nil
}

// Stop stops the TPM. It does nothing if the TPM has already ended.
func (d *Device) Stop(t testing.TB) {
	t.Helper()

	if err := d.process.Stop(); err != nil {
		t.Errorf("stop TPM: %v", err)
	}
}

func findProgram(t testing.TB, name string) string {
	t.Helper()

	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("find %s: %v: run hack/setup.sh packages to install it", name, err)
	}

	return path
}
