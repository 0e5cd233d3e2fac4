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

// Request is what a machine with the TPM asks the operator for, with a new key.
func Request(t testing.TB, device *Device) guest.DevIDRequest {
	t.Helper()

	key, err := guestdevid.Make(device.Path)
	if err != nil {
		t.Fatal(err)
	}

	return guest.DevIDRequest{Public: key.Request, EKCertificate: key.EKCertificate}
}

// Certifier certifies what machines with the code ask it to, for the machine of the uid
// alone. What the operator looks at besides (runners/devid) it does not.
func Certifier(t testing.TB, devices Devices, uid, code string) *httptest.Server {
	t.Helper()

	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked guest.DevIDRequest
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || r.Header.Get("Authorization") != "Bearer "+code {
			t.Errorf("asked with %q: %v", r.Header.Get("Authorization"), err)
		}

		authority, err := devid.Load(devices, clock.RealClock{})
		if err != nil {
			t.Error(err)

			return
		}

		issued, err := authority.Issue(devid.Request{Machine: identity.ID{UID: uid}, Public: asked.Public, At: time.Now()})
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

// Register makes a machine that attests by its TPM known to a SPIRE server. This process is
// the one that gets its identity.
func Register(t testing.TB, server *spire.Server, namespace, name, uid string) {
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
		t.Fatalf("register: token %t, %v", attestation.JoinToken != "", err)
	}
}
