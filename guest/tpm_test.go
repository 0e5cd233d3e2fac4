// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package guest_test

import (
	"context"
	"encoding/json"
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
	"github.com/hyperfleet/hyperfleet/guest"
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/timing"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

// machineUID is the last part of machineID.
const machineUID = "4f2c8a3e"

// registerTPMMachine registers the machine with machineID at a server.
func registerTPMMachine(t *testing.T, server *spire.Server) {
	t.Helper()
	tpm.RegisterMachine(t, server, "team-a", "ci-1", machineUID)
}

// prepareTPM gives the machine a TPM, and configures attestation with it.
func (m *machine) prepareTPM(t *testing.T, server *spire.Server, device string, operator *httptest.Server) {
	t.Helper()

	m.prepareAttestation(t, server, "")
	m.cfg.SPIFFE.Method = api.AttestTPM
	m.cfg.SPIFFE.DevID = &api.Callback{URL: operator.URL + "/devid", Code: claimCode, CABundle: encodeBundle(operator)}

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

// A machine attests with its TPM. The TPM creates the key, the operator certifies it for this machine only,
// and the machine proves to the SPIRE server that the key is in its TPM.
func TestMachineAttestsByTPMSPIRE(t *testing.T) {
	t.Parallel()

	authority, devices := tpm.NewAuthority(t), tpm.NewDevID(t)
	device := authority.NewTPM(t)
	server := spire.Start(t, spire.WithPlugin(authority.AttestorConfig(devices)))
	registerTPMMachine(t, server)

	m := newMachine(t)
	m.prepareTPM(t, server, device.Path, tpm.StartCertifier(t, devices, machineUID, claimCode))
	m.write(t, runScript, printListening+printRunning+printCompleted)

	if got := m.waitForEnd(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
		t.Fatalf("%+v\n%s", got, m.log)
	}

	if want := "Started Attesting Attested Configuring Listening Running Finished"; m.listPhases() != want {
		t.Errorf("phases %q, want %q", m.listPhases(), want)
	}

	m.requireDeleted(t, "/run/hyperfleet/spire")
}

// TestMachineDoesNotAttestByTPMSPIRE has one case for each way in which the attestation can fail.
func TestMachineDoesNotAttestByTPMSPIRE(t *testing.T) {
	t.Parallel()

	authority, devices := tpm.NewAuthority(t), tpm.NewDevID(t)
	authority.NewTPM(t) // creates its authority
	server := spire.Start(t, spire.WithPlugin(authority.AttestorConfig(devices)))
	registerTPMMachine(t, server)

	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	newOperator := func(status int, body string) *httptest.Server {
		return startOperator(t, new(atomic.Int32), []reply{{status: status, body: body}})
	}

	for name, tc := range map[string]struct {
		device   string
		operator *httptest.Server
		drive    func(*testing.T, *machine)
		reason   string
		message  string
	}{
		"no TPM": {
			operator: newOperator(500, ""), reason: api.ReasonAttestationUnavailable, message: "the machine has no TPM 2.0",
		},
		"a file in its place": {
			device: plain, operator: newOperator(500, ""), reason: api.ReasonAttestationUnavailable, message: "not a device",
		},
		"a TPM without a certificate": {
			device: authority.NewTPMWithoutCertificate(t).Path, operator: newOperator(500, ""),
			reason: api.ReasonAttestationUnavailable, message: "certify its endorsement key",
		},
		"rejected by the operator": {
			device: authority.NewTPM(t).Path, operator: newOperator(409, `{"message":"another key was certified for `+claimCode+`"}`),
			reason: api.ReasonAttestationRefused, message: "another key was certified for ***",
		},
		"the operator remains unavailable": {
			device: authority.NewTPM(t).Path, operator: newOperator(503, ""),
			drive: func(t *testing.T, m *machine) {
				t.Helper()

				// All pauses together are as long as the machine retries: ten minutes.
				for _, seconds := range []int{1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30} {
					m.clock.waitAndFire(t, time.Duration(seconds)*time.Second)
				}
			},
			reason: api.ReasonAttestationTimeout, message: "within 10m0s",
		},
		"an authority that the SPIRE server does not know": {
			device: authority.NewTPM(t).Path, operator: tpm.StartCertifier(t, tpm.NewDevID(t), machineUID, claimCode),
			reason: api.ReasonAttestationRefused, message: "unable to verify DevID signature",
		},
		"a TPM of another host": {
			device: tpm.NewAuthority(t).NewTPM(t).Path, operator: tpm.StartCertifier(t, devices, machineUID, claimCode),
			reason: api.ReasonAttestationRefused, message: "cannot verify EK signature",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t)
			m.prepareTPM(t, server, tc.device, tc.operator)
			m.requireAttestationFailure(t, tc.drive, tc.reason, tc.message)
		})
	}
}

// The machine checks the operator's response before it starts an agent, and retries the request.
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
			m.prepareTPM(t, server, authority.NewTPM(t).Path, operator) // without a kernel, each machine needs its own TPM
			m.write(t, runScript, "touch ran")

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			result := m.start(t, ctx)
			timing.WaitUntil(t, "the machine retries", func() bool {
				return strings.Contains(m.log.String(), "cannot get the certificate of the device identity yet")
			})
			cancel()

			if got := m.waitForEnd(t, result); got.Reason != api.ReasonTerminated {
				t.Errorf("%+v", got)
			}

			m.requireDeleted(t, "/opt/actions-runner/ran")
		})
	}
}

// A machine uses the TPM of its configuration, and by default the one of the kernel's resource manager.
func TestTPMDeviceOfTheConfiguration(t *testing.T) {
	t.Parallel()

	for device, want := range map[string]string{"": "/dev/tpmrm0", "/dev/tpmrm1": "/dev/tpmrm1"} {
		m := newMachine(t)
		m.cfg.SPIFFE = newSPIFFE()
		m.cfg.SPIFFE.Method, m.cfg.SPIFFE.JoinToken, m.cfg.SPIFFE.TPMDevice = api.AttestTPM, "", device
		m.cfg.SPIFFE.DevID = &api.Callback{URL: "https://hf.example", Code: claimCode}

		data, err := json.Marshal(m.cfg)
		if err != nil {
			t.Fatal(err)
		}

		if got, err := guest.ParseConfig(data); err != nil || got.SPIFFE.TPMDevice != want {
			t.Errorf("device %q: %+v, %v, want %s", device, got, err, want)
		}
	}
}
