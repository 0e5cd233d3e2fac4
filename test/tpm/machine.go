// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tpm

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/guest"
	guestdevid "github.com/hyperfleet/hyperfleet/guest/devid"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/identity/devid"
	identityspire "github.com/hyperfleet/hyperfleet/identity/spire"
	"github.com/hyperfleet/hyperfleet/test/spire"
)

// NewRequest returns the request for a device identity that a machine with the TPM sends to the operator.
// It creates a new key in the TPM.
func NewRequest(t testing.TB, device *Device) guest.DevIDRequest {
	t.Helper()

	key, err := guestdevid.CreateKey(device.Path)
	if err != nil {
		t.Fatal(err)
	}

	return guest.DevIDRequest{Public: key.PublicForRequest, EKCertificate: key.EKCertificate}
}

// StartCertifier starts a server that issues device identities to machines with the claim code, all for the
// machine with the UID. It skips all other checks of the operator (runners/devid).
func StartCertifier(t testing.TB, devices Devices, uid, code string) *httptest.Server {
	t.Helper()

	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request guest.DevIDRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || r.Header.Get("Authorization") != "Bearer "+code {
			t.Errorf("the request has authorization %q: %v", r.Header.Get("Authorization"), err)
		}

		authority, err := devid.Load(devices, clock.RealClock{})
		if err != nil {
			t.Error(err)

			return
		}

		issued, err := authority.Issue(devid.Request{
			Machine: identity.ID{UID: uid}, PublicArea: request.Public, RequestedAt: time.Now(),
		})
		if err != nil {
			t.Error(err)

			return
		}

		_ = json.NewEncoder(w).Encode(guest.DevIDCertificate{
			Chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issued.Chain[0]})),
		})
	}))
	t.Cleanup(server.Close)

	return server
}

// RegisterMachine registers a machine that attests by its TPM at a SPIRE server. This test process gets the
// machine's identity.
func RegisterMachine(t testing.TB, server *spire.Server, namespace, name, uid string) {
	t.Helper()

	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	registry, err := identityspire.New(identityspire.Options{
		Address: "unix://" + server.Socket, TrustDomain: server.TrustDomain, MachineAddress: server.Address, OperatorUID: "op",
		Selectors: []string{"unix:uid:" + strconv.Itoa(os.Getuid()), "unix:path:" + program},
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = registry.Close() })

	machine := identity.Machine{ID: identity.ID{Namespace: namespace, Name: name, UID: uid}, Method: identity.TPM}

	attestation, err := registry.Register(t.Context(), machine)
	if err != nil || attestation.JoinToken != "" {
		t.Fatalf("register machine: has join token: %t, error: %v", attestation.JoinToken != "", err)
	}
}
