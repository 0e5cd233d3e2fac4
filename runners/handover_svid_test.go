// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/identity/spire"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	spiretest "github.com/hyperfleet/hyperfleet/test/spire"
)

// attestor gets SVIDs of machines for the test from a real SPIRE server.
type attestor struct {
	*spire.Registry

	server *spiretest.Server
}

func newAttestor(t *testing.T) *attestor {
	t.Helper()

	server := spiretest.Start(t)

	return &attestor{Registry: newRegistry(t, server), server: server}
}

// attest attests as the machine of the claim.
func (a *attestor) attest(t *testing.T, claim *v1alpha1.MachineClaim) *spiretest.Agent {
	t.Helper()

	given, err := a.Register(t.Context(), identity.Machine{ID: vmspec.IdentityOf(claim), Method: identity.JoinToken})
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	agent := a.server.StartAgent(t, given.JoinToken)
	if _, err := agent.WaitForSVIDs(ctx); err != nil {
		t.Fatal(err)
	}

	return agent
}

// useSVID changes the claim so that its machine authenticates with its SVID.
func useSVID(status *v1alpha1.MachineClaimStatus) {
	status.BootstrapInfo.Handover.Proof = v1alpha1.ProofSVID
}

// A machine with an identity authenticates with its SVID, once, and with nothing else.
func TestOneCredentialPerSVIDSPIRE(t *testing.T) {
	t.Parallel()

	w, attestor := newHandoverFixture(t), newAttestor(t)
	w.identity = attestor
	claim, other, coded := w.createClaim("machine", useSVID), w.createClaim("other", useSVID), w.createClaim("coded", nil)
	agent, ours := attestor.attest(t, claim), vmspec.CallbackAudience(newSettings())
	operator := w.startOperator()

	// The claim code of such a machine can be derived, but is refused.
	cases := []struct {
		name   string
		claim  *v1alpha1.MachineClaim
		bearer string
		status int
		reason string
		event  string
	}{
		{"for the secrets manager", claim, agent.FetchJWT(t, "vault"), http.StatusUnauthorized, guest.ReasonCredentialRefused, "not valid"},
		{"for another operator", claim, agent.FetchJWT(t, "hyperfleet/other"), http.StatusUnauthorized, guest.ReasonCredentialRefused, "not valid"},
		{"of another machine", other, agent.FetchJWT(t, ours), http.StatusForbidden, guest.ReasonIdentityMismatch, "/" + string(claim.UID)},
		{"code for an SVID", claim, newClaimBearer(claim)[len("Bearer "):], http.StatusForbidden, guest.ReasonCredentialRefused, "authenticate with its SVID"},
		{"no SVID", claim, "a.b.c", http.StatusUnauthorized, guest.ReasonCredentialRefused, "not valid"},
	}
	for _, tc := range cases {
		got := requestCredential(t, operator, tc.claim, "Bearer "+tc.bearer)
		if got.status != tc.status || got.refusal.Reason != tc.reason {
			t.Errorf("%s: %+v", tc.name, got)
		}

		if events := formatEvents(w.recorder); !strings.Contains(events, tc.event) || strings.Contains(events+got.body, tc.bearer) {
			t.Errorf("%s: events %q", tc.name, events)
		}
	}

	if made := w.github.State().Registered; made != 0 {
		t.Errorf("%d credentials were issued", made)
	}

	if got := requestCredential(t, operator, claim, "Bearer "+agent.FetchJWT(t, ours)); got.status != http.StatusOK {
		t.Errorf("own SVID: %+v", got)
	}

	if got := requestCredential(t, w.startOperator(), claim, "Bearer "+agent.FetchJWT(t, ours)); got.status != http.StatusConflict {
		t.Errorf("own SVID again: %+v", got)
	}

	// An SVID is refused if a claim code is required.
	got := requestCredential(t, w.startOperator(), coded, "Bearer "+attestor.attest(t, coded).FetchJWT(t, ours))
	if got.status != http.StatusForbidden || !strings.Contains(got.refusal.Message, "authenticate with its claim code") {
		t.Errorf("SVID for a code: %+v", got)
	}

	if made := w.github.State().Registered; made != 1 {
		t.Errorf("%d credentials were issued", made)
	}
}

// While the keys of the SPIRE server are unavailable, refusals are transient and no credential is issued.
// Guesses are rate-limited.
func TestSVIDsWithoutAServerSPIRE(t *testing.T) {
	t.Parallel()

	const jwt = "eyJhbGciOiJFUzI1NiIsImtpZCI6ImtleSJ9.e30.c2ln" // {"alg":"ES256","kid":"key"}

	w, attestor := newHandoverFixture(t), newAttestor(t)
	claim := w.createClaim("machine", useSVID)

	if got := requestCredential(t, w.startOperator(), claim, "Bearer "+jwt); got.status != http.StatusUnauthorized {
		t.Errorf("an operator without SPIRE: %+v", got)
	}

	w.identity = attestor
	operator := w.startOperator()

	limited := false

	for range 100 {
		limited = limited || requestCredential(t, operator, claim, "Bearer "+jwt).status == http.StatusTooManyRequests
	}

	if !limited {
		t.Error("a hundred wrong SVIDs were verified")
	}

	attestor.server.Stop(t)

	w.identity = newRegistry(t, attestor.server)

	got := requestCredential(t, w.startOperator(), claim, "Bearer "+jwt)
	if got.status != http.StatusServiceUnavailable || got.retryAfter == "" || got.refusal.Reason != "" {
		t.Errorf("without a server: %+v", got)
	}
}

// newRegistry returns the registry of an operator that has just started.
func newRegistry(t *testing.T, server *spiretest.Server) *spire.Registry {
	t.Helper()

	registry, err := spire.New(spire.Options{
		Address: "unix://" + server.Socket, TrustDomain: server.TrustDomain, MachineAddress: server.Address, OperatorUID: "op",
		Selectors: []string{"unix:uid:" + strconv.Itoa(os.Getuid())},
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = registry.Close() })

	return registry
}
