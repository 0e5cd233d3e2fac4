// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

// selfUID is the last part of machineID.
const selfUID = "4f2c8a3e"

// registerSelf makes the machine of machineID known to a server.
func registerSelf(t *testing.T, server *spire.Server) {
	t.Helper()
	tpm.RegisterMachine(t, server, "team-a", "ci-1", selfUID)
}

// hasTPM gives the machine a TPM, and has it attest with it.
func (m *machine) hasTPM(t *testing.T, server *spire.Server, device string, operator *httptest.Server) {
	t.Helper()

	m.attests(t, server, "")
	m.cfg.SPIFFE.Method = api.AttestTPM
	m.cfg.SPIFFE.DevID = &api.Callback{URL: operator.URL + "/devid", Code: claimCode, CABundle: bundleOf(operator)}

	if device == "" {
		return
	}

	if err := os.MkdirAll(m.path("/dev"), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink(device, m.path("/dev/tpmrm0")); err != nil {
		t.Fatal(err)
	}
}

// A machine proves who it is by its TPM: the key is made there, certified for the machine
// alone, and shown to the SPIRE server, which proves where it is.
func TestMachineAttestsByTPMSPIRE(t *testing.T) {
	t.Parallel()

	authority, devices := tpm.NewAuthority(t), tpm.NewDevID(t)
	device := authority.NewTPM(t)
	server := spire.Start(t, spire.WithPlugin(authority.AttestorConfig(devices)))
	registerSelf(t, server)

	m := newMachine(t)
	m.hasTPM(t, server, device.Path, tpm.StartCertifier(t, devices, selfUID, claimCode))
	m.write(t, runScript, listens+runs+completes)

	if got := m.end(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
		t.Fatalf("%+v\n%s", got, m.log)
	}

	if want := "Started Attesting Attested Configuring Listening Running Finished"; m.phases() != want {
		t.Errorf("phases %q, want %q", m.phases(), want)
	}

	m.gone(t, "/run/hyperfleet/spire")
}

// TestMachineDoesNotAttestByTPMSPIRE has one case for each way in which that fails.
func TestMachineDoesNotAttestByTPMSPIRE(t *testing.T) {
	t.Parallel()

	authority, devices := tpm.NewAuthority(t), tpm.NewDevID(t)
	authority.NewTPM(t) // its authority is there
	server := spire.Start(t, spire.WithPlugin(authority.AttestorConfig(devices)))
	registerSelf(t, server)

	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	says := func(status int, body string) *httptest.Server {
		return operatorWith(t, new(atomic.Int32), []reply{{status: status, body: body}})
	}

	for name, tc := range map[string]struct {
		device   string
		operator *httptest.Server
		drive    func(*testing.T, *machine)
		reason   string
		message  string
	}{
		"no TPM": {
			operator: says(500, ""), reason: api.ReasonAttestationUnavailable, message: "the machine has no TPM 2.0",
		},
		"a file in its place": {
			device: plain, operator: says(500, ""), reason: api.ReasonAttestationUnavailable, message: "not a device",
		},
		"a TPM that nobody certified": {
			device: authority.NewTPMWithoutCertificate(t).Path, operator: says(500, ""),
			reason: api.ReasonAttestationUnavailable, message: "certify its endorsement key",
		},
		"refused by the operator": {
			device: authority.NewTPM(t).Path, operator: says(409, `{"message":"another key was certified for `+claimCode+`"}`),
			reason: api.ReasonAttestationRefused, message: "another key was certified for ***",
		},
		"the operator stays away": {
			device: authority.NewTPM(t).Path, operator: says(503, ""),
			drive: func(t *testing.T, m *machine) {
				t.Helper()

				// As long as the pauses are together within the ten minutes that it tries.
				for _, seconds := range []int{1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30} {
					m.clock.fire(t, time.Duration(seconds)*time.Second)
				}
			},
			reason: api.ReasonAttestationTimeout, message: "within 10m0s",
		},
		"an authority that the SPIRE server does not know": {
			device: authority.NewTPM(t).Path, operator: tpm.StartCertifier(t, tpm.NewDevID(t), selfUID, claimCode),
			reason: api.ReasonAttestationRefused, message: "unable to verify DevID signature",
		},
		"a TPM of another host": {
			device: tpm.NewAuthority(t).NewTPM(t).Path, operator: tpm.StartCertifier(t, devices, selfUID, claimCode),
			reason: api.ReasonAttestationRefused, message: "cannot verify EK signature",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t)
			m.hasTPM(t, server, tc.device, tc.operator)
			m.doesNotAttest(t, tc.drive, tc.reason, tc.message)
		})
	}
}

// What the operator answers is checked before an agent sees it, and asked for again.
func TestAnswersWithoutACertificateSPIRE(t *testing.T) {
	t.Parallel()

	authority := tpm.NewAuthority(t)
	server := spire.Start(t)

	for name, body := range map[string]string{
		"no JSON": "<html>", "empty": "{}", "no certificate": `{"chain":"-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----"}`,
		"too long": `{"chain":"` + strings.Repeat("x", 65<<10) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			operator := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, body)
			}))
			t.Cleanup(operator.Close)

			m := newMachine(t)
			m.hasTPM(t, server, authority.NewTPM(t).Path, operator) // only a kernel lets several use one
			m.write(t, runScript, "touch ran")

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			result := m.start(t, ctx)
			eventually(t, "a next try", func() bool {
				return strings.Contains(m.log.String(), "cannot get the certificate of the device identity yet")
			})
			cancel()

			if got := m.end(t, result); got.Reason != api.ReasonTerminated {
				t.Errorf("%+v", got)
			}

			m.gone(t, "/opt/actions-runner/ran")
		})
	}
}
